"""Every whole word of the world, for a tokenizer: what is said besides free strings."""

import re
from functools import cache

from arr_coc.scenes.names import (
    COLOURS,
    DAYS,
    GOODS,
    GOODS_COLUMNS,
    MONTHS,
    PEOPLE,
    PEOPLE_COLUMNS,
    THINGS,
    noun,
    plural,
)
from arr_coc.scenes.phrasings import HEIGHTS, MOST, PAGES, PHRASINGS, PLACES, RELATIONS, SIZES

MARKS = (".", ",", "?")
_SLOT = re.compile(r"\{\w+\}")
_WORD = re.compile(r"[A-Za-z]+")


def phrasing_words(unseen: bool) -> set[str]:
    """The words of the phrasings themselves, slots left out."""
    return {w for pair in PHRASINGS.values() for p in pair[unseen] for w in _WORD.findall(_SLOT.sub(" ", p))}


def slot_words() -> set[str]:
    """The words that can fill a slot or be an answer."""
    phrases = [noun(t) for t in THINGS] + [plural(t) for t in THINGS] + list(THINGS) + list(COLOURS)
    phrases += [w for group in (*RELATIONS.values(), *SIZES.values(), *MOST.values()) for w in group]
    phrases += [*PLACES.values(), *HEIGHTS.values(), *PAGES, *GOODS, *PEOPLE, *MONTHS, *DAYS]
    phrases += [*GOODS_COLUMNS, *PEOPLE_COLUMNS]
    phrases += [
        "thing",
        "things",
        "sign",
        "text",
        "item",
        "name",
        "month",
        "day",
        "total",
        "yes",
        "no",
        "a",
        "an",
    ]
    return {w for p in phrases for w in _WORD.findall(p)}


@cache
def world_words() -> tuple[str, ...]:
    """All whole words, sorted, as they are cased in sentences, and the punctuation marks."""
    return (*sorted(phrasing_words(False) | phrasing_words(True) | slot_words()), *MARKS)
