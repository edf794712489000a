"""Whether the choice follows the question: other things in the same image, the same thing in other words.

The same question in other words is found again among the world's wordings, and said with another of them. A wording is
a template with slots, "What is {r} the {x}?". Several templates can match a sentence ("Is there {a}?" matches all of
"Is there a star in the image?"); the one that leaves the least to its slots is meant.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from arr_coc.evaluation.statistics import Clustered, mean_of
from arr_coc_scenes import COLOURS
from arr_coc_scenes.types import Box
from arr_coc_scenes.words import HEIGHTS, MOST, PAGES, PLACES, RELATIONS, SIZES, WORDINGS
from studies.asked import Asked
from studies.selector.measures import Part
from studies.selector.selection import Chosen
from studies.selector.study import Study

KEEP = 0.06  # fraction KEPT
PAIRS = 500
# Keys of WORDINGS by family; a family that is not here has the key of its own name.
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


def jaccard(a: Sequence[int], b: Sequence[int]) -> float:
    """Cells in both over cells in either."""
    return len(set(a) & set(b)) / len(set(a) | set(b))


def boxes_meet(first: Sequence[Box], second: Sequence[Box]) -> bool:
    """Whether any box of one list overlaps a box of the other."""
    return any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a in first for b in second)


def different_pairs(asked: Sequence[Asked], chosen: Sequence[Chosen], most: int) -> list[tuple[Chosen, Chosen]]:
    """Pairs of localised questions about the same image whose evidence lies apart; images take turns.

    The first round takes one pair of every image, the next a second one, until there are `most`.
    """
    by_image: dict[int, list[Chosen]] = {}
    for one in chosen:
        if one.localised:
            by_image.setdefault(one.image, []).append(one)
    rounds: list[list[tuple[Chosen, Chosen]]] = []
    for image, listed in by_image.items():
        boxes = {one.question: asked[image].questions[one.question].evidence for one in listed}
        pairs = [
            (a, b)
            for n, a in enumerate(listed)
            for b in listed[n + 1 :]
            if not boxes_meet(boxes[a.question], boxes[b.question])
        ]
        for turn, pair in enumerate(pairs):
            rounds += [[]] if turn == len(rounds) else []
            rounds[turn].append(pair)
    return [pair for one_round in rounds for pair in one_round][:most]


def reworded(asked: Sequence[Asked], seed: int) -> list[Asked]:
    """The same scenes with every question in another wording of training; as it was where there is no other."""
    rng = np.random.default_rng(seed)
    changed = []
    for one in asked:
        questions = []
        for question in one.questions:
            ways = rephrase(question.text, question.family) or [question.text]
            questions.append(replace(question, text=ways[int(rng.integers(len(ways)))]))
        changed.append(replace(one, questions=tuple(questions)))
    return changed


def questions(study: Study, px: int) -> Part:
    """Overlap at 6 % kept: of two questions about different things, and of one question in two wordings."""
    asked, chosen = study.asked(px), study.chosen(px)[KEEP]
    pairs = different_pairs(asked, chosen, PAIRS)
    others = reworded(asked, study.seed)
    again = study.chooser.over(others, [KEEP])[KEEP]
    texts = [
        (asked[one.image].questions[one.question].text, others[one.image].questions[one.question].text)
        for one in chosen
    ]
    same = [
        (one, len(set(one.cells) & set(other.cells)) / len(one.cells))
        for one, other, (before, after) in zip(chosen, again, texts, strict=True)
        if before != after
    ]
    return {
        "questions": {
            "keep": KEEP,
            "jaccard_of_different": mean_of(Clustered.of((a.image, jaccard(a.cells, b.cells)) for a, b in pairs)),
            "evidence_jaccard_of_different": mean_of(
                Clustered.of((a.image, jaccard(tuple(a.evidence), tuple(b.evidence))) for a, b in pairs)
            ),
            "same_when_reworded": mean_of(Clustered.of((one.image, share) for one, share in same)),
            "same_when_reworded_localised": mean_of(
                Clustered.of((one.image, share) for one, share in same if one.localised)
            ),
        }
    }


# ---------------------------------------------------------------- other words


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
        for template in WORDINGS["seen"][key]:
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
    others = (other for other in WORDINGS["seen"][key] if other != used and slots_of(other) <= slots.keys())
    return [other.format(**slots) for other in others]
