"""The four splits: their random streams, and what is held out from training."""

from random import Random
from zlib import crc32

from arr_coc_scenes.words import COLOURS, SIGN_WORDS, THINGS

SPLITS = ("train", "val", "seen", "unseen")

# How often "seen" reaches for what training never had.
HELD_OUT_SHARE = 0.5

_VOWELS, _CONSONANTS = "AEIOU", "BCDFGHJKLMNPRSTVWZ"
# O, I, 0 and 1 stay out of the codes: in a mix of letters and digits nobody can tell them apart.
_CODE = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


def stream(split: str, seed: int, attempt: int) -> Random:
    """The random numbers of one scene. The split's name is part of the seed: splits share no scene."""
    return Random(f"{split}/{seed}/{attempt}")


# Things that training never draws in that colour: one pair in 13.
HELD_OUT_PAIRS = frozenset(
    (colour, thing) for i, colour in enumerate(COLOURS) for k, thing in enumerate(THINGS) if (4 * i + 7 * k) % 13 == 0
)


def is_held_out_word(word: str) -> bool:
    """Whether training never writes this word on a sign, a panel or in a title (one word in eight)."""
    return crc32(word.encode()) % 8 == 0


def _free_string(rng: Random) -> str:
    """Something that can only be read: a pronounceable string (3-6 letters) or a code (3-5 characters)."""
    if rng.random() < 0.35:
        return "".join(rng.choice(_CODE) for _ in range(rng.randint(3, 5)))
    turn = rng.randrange(2)
    return "".join(rng.choice((_VOWELS, _CONSONANTS)[(k + turn) % 2]) for k in range(rng.randint(3, 6)))


def sign_word(rng: Random, split: str) -> str:
    """A word of 3 to 7 capitals or digits; "seen" often takes held-out ones, the other splits never."""
    wanted = split == "seen" and rng.random() < HELD_OUT_SHARE
    while True:
        word = rng.choice(SIGN_WORDS) if rng.random() < 0.25 else _free_string(rng)
        if is_held_out_word(word) == wanted:
            return word


def pair_allowed(split: str, colour: str, thing: str) -> bool:
    """Whether the split may show or name this pair."""
    return split == "seen" or (colour, thing) not in HELD_OUT_PAIRS
