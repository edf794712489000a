"""Whether the choice follows the question: other things in the same image, the same thing in other words."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arr_coc.evaluation.statistics import Clustered, mean_of
from arr_coc.scenes.types import Box
from studies.asked import Asked
from studies.selector.measures import Part
from studies.selector.rephrasing import rephrase
from studies.selector.selection import Chosen
from studies.selector.study import Study

KEEP = 0.06  # fraction KEPT
PAIRS = 500


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
