"""Answers at many budgets with how likely each token was: what a rule for looking again can be tried on.

R questions (rows), N cells, T tokens of an answer.

Every question is answered at the fixed budgets and at that of keep="auto". Where it was not sure, it is asked again
with twice the tokens, and so on up to all. So the looks of any rule are there, and rules are compared without asking.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from arr_coc.evaluation.field.batch import make_batch
from arr_coc.evaluation.field.data import Picture, Query, batches, scene_pictures, score
from arr_coc.qwen import ARRCOCQwen
from studies.answering import Answerer, Row

SIDE = 512  # px
CELLS = 256
FIXED = (15, 26, 38, 51, 64, 90, 128, CELLS)  # 6, 10, 15, 20, 25, 35, 50 and 100 % of the cells
START = 26  # 10 %: where looking again starts from with a fixed dial
SURE = 0.98  # least token probability from which no rule looks again: such questions are not asked further


@dataclass(frozen=True, slots=True)
class Tried:
    """One question at every budget."""

    image: int  # the cluster of the statistics
    family: str
    automatic: int  # tokens of keep="auto"
    scores: dict[int, float]  # by tokens
    best_T2: dict[int, list[list[float]]]  # by tokens: probabilities of the best two tokens, the end included


def ladder(start: int, times: int) -> list[int]:
    """Budgets of one look after the other: `times` as many each, up to all."""
    looks = [start]
    while looks[-1] < CELLS:
        looks.append(min(CELLS, looks[-1] * times))
    return looks


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, and the cells that are kept of its image at every budget."""

    picture: Picture
    pixels: np.ndarray
    query: Query
    automatic: int
    cells: dict[int, tuple[int, ...]]


def try_split(owner: ARRCOCQwen, split: str, seed: int, questions: int) -> list[Tried]:
    """Every question of a split at the budgets that it needs."""
    pictures = scene_pictures(questions, SIDE, seed, split=split)
    asked = [one for part in batches(pictures, 8192, owner.geometry.cell) for one in _choose(owner, part)]
    tried = [Tried(one.picture.number, one.query.family, one.automatic, {}, {}) for one in asked]
    answerer = Answerer(owner.model, owner.processor.tokenizer, owner.model.dtype)

    def look(wanted: Iterable[tuple[int, int]]) -> None:
        """Answer (question, budget) pairs, those alike together."""
        new = [(number, k) for number, k in sorted(set(wanted)) if k not in tried[number].scores]
        rows = [Row(asked[n].pixels, (asked[n].query.text,), None if k == CELLS else asked[n].cells[k]) for n, k in new]
        for (number, k), (spoken,) in zip(new, answerer.speak(rows), strict=True):
            query = asked[number].query
            tried[number].scores[k] = score(query.metric, spoken.text, query.answers) or 0.0
            tried[number].best_T2[k] = [[round(p, 6) for p in two] for two in spoken.best_T2]

    look((number, k) for number in range(len(tried)) for k in FIXED)
    for start in (lambda one: START, lambda one: one.automatic):
        looks = [ladder(start(one), 2) for one in tried]
        look((number, several[0]) for number, several in enumerate(looks))
        for place in range(1, max(map(len, looks))):
            look(
                (number, several[place])
                for number, (one, several) in enumerate(zip(tried, looks, strict=True))
                if place < len(several) and is_unsure(one, several[place - 1])
            )
    return tried


def is_unsure(one: Tried, k: int) -> bool:
    """Whether some rule may look again after an answer from `k` tokens."""
    return k in one.best_T2 and min(best for best, _ in one.best_T2[k]) < SURE


@torch.no_grad()
def _choose(owner: ARRCOCQwen, pictures: Sequence[Picture]) -> list[_Asked]:
    """What every question would keep, at every budget that may be wanted."""
    batch = make_batch(owner, pictures)
    judgement, _ = batch.judge(owner.selector)
    automatic = owner.selector.automatic_budget(judgement).tolist()
    wanted = [sorted({*FIXED, *ladder(START, 2), *ladder(k, 2)}) for k in automatic]
    cells: list[dict[int, tuple[int, ...]]] = [{} for _ in automatic]
    for place in range(max(map(len, wanted))):
        k_R = torch.tensor([budgets[min(place, len(budgets) - 1)] for budgets in wanted], device=owner.device)
        masks_RN = owner.selector.choose(judgement, k_R).keep_BHW.flatten(1).cpu()
        for row, (k, mask_N) in enumerate(zip(k_R.tolist(), masks_RN, strict=True)):
            cells[row][k] = tuple(mask_N.nonzero().squeeze(-1).tolist())
    pixels = {picture.number: picture.read() for picture in pictures}
    return [
        _Asked(picture, pixels[picture.number], query, automatic[row], cells[row])
        for row, (picture, query) in enumerate(zip(batch.pictures, batch.queries, strict=True))
    ]


def as_json(tried: Sequence[Tried]) -> list[dict[str, Any]]:
    return [asdict(one) for one in tried]


def from_json(rows: Sequence[dict[str, Any]]) -> list[Tried]:
    return [
        Tried(
            row["image"],
            row["family"],
            row["automatic"],
            {int(k): value for k, value in row["scores"].items()},
            {int(k): value for k, value in row["best_T2"].items()},
        )
        for row in rows
    ]
