"""The same question in other words: found again among the world's wordings, and said with another of them.

A wording is a template with slots, "What is {r} the {x}?". Several templates can match a sentence ("Is there {a}?"
matches all of "Is there a star in the image?"); the one that leaves the least to its slots is meant.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from arr_coc.scenes import COLOURS
from arr_coc.scenes.phrasings import HEIGHTS, MOST, PAGES, PHRASINGS, PLACES, RELATIONS, SIZES

# Keys of PHRASINGS by family; a family that is not here has the key of its own name.
KEYS = {
    "exists": ("exists", "exists_row"),
    "larger": ("larger", "largest"),
    "read_sign": ("read_text", "read_plate", "read_place", "read_beside"),
    "lookup": ("price", "value_of", "total", "which_costs", "which_has"),
    "chart": ("extreme", "bar_value", "which_bar"),
}
_SLOT = re.compile(r"\{(\w)\}")


def _one_of(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_SIZES = [word for group in (*SIZES.values(), *MOST.values()) for word in group]
# What can fill a slot, where that is a closed list; any text elsewhere.
_FILLERS = {
    "r": _one_of(word for group in RELATIONS.values() for word in group),
    "w": _one_of(PLACES.values()),
    "s": _one_of([*_SIZES, *HEIGHTS.values()]),
    "c": _one_of(COLOURS),
    "d": _one_of(PAGES),
    "k": _one_of(["sign", "text", "item", "name"]),
}


def slots_of(template: str) -> frozenset[str]:
    """Names of the slots of a template."""
    return frozenset(_SLOT.findall(template))


@lru_cache(maxsize=1024)
def _pattern(template: str) -> re.Pattern[str]:
    """A template as a regular expression with a group per slot."""
    parts = _SLOT.split(template)
    texts = [re.escape(part) for part in parts[::2]]
    groups = [f"(?P<{name}>{_FILLERS.get(name, '.+?')})" for name in parts[1::2]]
    return re.compile("".join(text + group for text, group in zip(texts, [*groups, ""], strict=True)))


def _matches(text: str, family: str) -> Iterator[tuple[int, str, str, dict[str, str]]]:
    """(characters left to slots, key, template, slots) of every training wording that fits."""
    for key in KEYS.get(family, (family,)):
        for template in PHRASINGS[key][0]:
            found = _pattern(template).fullmatch(text)
            if found:
                yield sum(map(len, found.groupdict().values())), key, template, found.groupdict()


def parse(text: str, family: str) -> tuple[str, str, dict[str, str]] | None:
    """(key, template, slots) of a question in a training wording; None for any other text."""
    best = min(_matches(text, family), key=lambda match: match[0], default=None)
    return None if best is None else best[1:]


def rephrase(text: str, family: str) -> list[str]:
    """The question in every other training wording that needs no slot but those it has; [] where there is none."""
    parsed = parse(text, family)
    if parsed is None:
        return []
    key, used, slots = parsed
    others = (other for other in PHRASINGS[key][0] if other != used and slots_of(other) <= slots.keys())
    return [other.format(**slots) for other in others]
