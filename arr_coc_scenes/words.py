"""The words of the world (`words.json`): what may be drawn, what it is called, and how questions are worded.

Pictograms are characters of DejaVu Sans. Left out on purpose, because they look alike at 24 px: the club (clover), the
bishop and king (pawn, crown), the film reel (radiation), the peace sign (wheel), the pen (pencil). Sign words are drawn
in capitals, and answers spell them: they are no whole words of the world.

Phrasings are, per key, those of training and those of the unseen test. Every word of an unseen phrasing is also a word
of training: the wording is new, the words are not.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any

_WORLD: dict[str, Any] = json.loads((files("arr_coc_scenes") / "words.json").read_text(encoding="utf-8"))

COLOURS: dict[str, tuple[int, int, int]] = {word: (r, g, b) for word, (r, g, b) in _WORLD["colours"].items()}
PICTOGRAMS: dict[str, str] = _WORLD["pictograms"]
STROKES: dict[str, int] = _WORLD["strokes"]
SHAPES, GOODS, PEOPLE, MONTHS, DAYS, SIGN_WORDS = (
    tuple(map(str, _WORLD[name])) for name in ("shapes", "goods", "people", "months", "days", "signs")
)
THINGS: tuple[str, ...] = (*PICTOGRAMS, *SHAPES)
# Columns of a table of goods, or of people.
GOODS_COLUMNS = ("price", "weight", "stock")
PEOPLE_COLUMNS = ("age", "score", "height")

# Words that fill {r}, {w} and {s}.
RELATIONS = {
    "left": ("left of", "to the left of", "just left of"),
    "right": ("right of", "to the right of", "just right of"),
    "above": ("above", "just above"),
    "below": ("below", "under", "just below"),
    "nearest": ("nearest to", "closest to"),
}
PLACES = {"top": "at the top", "bottom": "at the bottom", "left": "on the left", "right": "on the right"}
SIZES = {True: ("larger", "bigger"), False: ("smaller",)}
MOST = {True: ("largest", "biggest"), False: ("smallest",)}
HEIGHTS = {True: "highest", False: "lowest"}
PAGES = ("page", "poster", "table", "receipt", "menu", "chart")

Wordings = Mapping[str, tuple[str, ...]]
WORDINGS: dict[str, Wordings] = {
    kind: {key: tuple(kinds[kind]) for key, kinds in _WORLD["phrasings"].items()} for kind in ("seen", "unseen")
}


def noun(thing: str) -> str:
    """How a sentence calls one `thing`: "umbrella", "pair of scissors"."""
    return str(_WORLD["nouns"].get(thing, thing))


def plural(thing: str) -> str:
    """How a sentence calls several of `thing`: "umbrellas", "pairs of scissors"."""
    return str(_WORLD["plurals"].get(thing, thing + "s"))


def with_article(phrase: str) -> str:
    """`phrase` with "a" or "an" before it."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def phrase(rng: Random, wordings: Wordings, key: str, **slots: str) -> str:
    """A question of that key with its slots filled, in one of the wordings; slots that it has not are passed over."""
    return rng.choice(wordings[key]).format(**slots)


# ---------------------------------------------------------------- every word

MARKS = (".", ",", "?")
_ANSWERS = ("thing", "things", "sign", "text", "item", "name", "month", "day", "total", "yes", "no", "a", "an")
_SLOT = re.compile(r"\{\w+\}")
_WORD = re.compile(r"[A-Za-z]+")


def phrasing_words(kind: str) -> set[str]:
    """The words of the "seen" or "unseen" phrasings themselves, slots left out."""
    return {w for worded in WORDINGS[kind].values() for p in worded for w in _WORD.findall(_SLOT.sub(" ", p))}


def slot_words() -> set[str]:
    """The words that can fill a slot or be an answer."""
    phrases = [say(t) for say in (noun, plural, str) for t in THINGS] + list(COLOURS)
    phrases += [w for group in (*RELATIONS.values(), *SIZES.values(), *MOST.values()) for w in group]
    phrases += [*PLACES.values(), *HEIGHTS.values(), *PAGES, *GOODS, *PEOPLE, *MONTHS, *DAYS]
    phrases += [*GOODS_COLUMNS, *PEOPLE_COLUMNS, *_ANSWERS]
    return {w for p in phrases for w in _WORD.findall(p)}


@cache
def world_words() -> tuple[str, ...]:
    """All whole words, sorted, as they are cased in sentences, for a tokenizer, and the punctuation marks."""
    return (*sorted(phrasing_words("seen") | phrasing_words("unseen") | slot_words()), *MARKS)
