"""How questions are worded, and every whole word of the world. Per key: phrasings of training, and of the unseen test.

Every word of an unseen phrasing is also a word of training: the wording is new, the words are not.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from random import Random

from arr_coc.scenes import names

PHRASINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    key: (tuple(kinds["seen"]), tuple(kinds["unseen"]))
    for key, kinds in json.loads((files("arr_coc.scenes") / "phrasings.json").read_text()).items()
}
"""Per key: phrasings of training, and of the unseen test (`phrasings.json`)."""

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
    "seen": {key: seen for key, (seen, _) in PHRASINGS.items()},
    "unseen": {key: unseen for key, (_, unseen) in PHRASINGS.items()},
}


def phrase(rng: Random, wordings: Wordings, key: str, **slots: str) -> str:
    """A question of that key with its slots filled, in one of the wordings."""
    return rng.choice(wordings[key]).format(**slots)


# ---------------------------------------------------------------- every word

MARKS = (".", ",", "?")
_ANSWERS = ("thing", "things", "sign", "text", "item", "name", "month", "day", "total", "yes", "no", "a", "an")
_SLOT = re.compile(r"\{\w+\}")
_WORD = re.compile(r"[A-Za-z]+")


def phrasing_words(unseen: bool) -> set[str]:
    """The words of the phrasings themselves, slots left out."""
    return {w for pair in PHRASINGS.values() for p in pair[unseen] for w in _WORD.findall(_SLOT.sub(" ", p))}


def slot_words() -> set[str]:
    """The words that can fill a slot or be an answer."""
    phrases = [say(t) for say in (names.noun, names.plural, str) for t in names.THINGS] + list(names.COLOURS)
    phrases += [w for group in (*RELATIONS.values(), *SIZES.values(), *MOST.values()) for w in group]
    phrases += [*PLACES.values(), *HEIGHTS.values(), *PAGES, *names.GOODS, *names.PEOPLE, *names.MONTHS, *names.DAYS]
    phrases += [*names.GOODS_COLUMNS, *names.PEOPLE_COLUMNS, *_ANSWERS]
    return {w for p in phrases for w in _WORD.findall(p)}


@cache
def world_words() -> tuple[str, ...]:
    """All whole words, sorted, as they are cased in sentences, for a tokenizer, and the punctuation marks."""
    return (*sorted(phrasing_words(False) | phrasing_words(True) | slot_words()), *MARKS)
