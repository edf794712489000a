"""The questions that ARR-COC lost: what it got wrong, though another method or the plain model got it right.

A loss is a score at least 0.5 below the best of the others at the same budget; for exact answers that is wrong against
right. Each loss is one of three kinds, by how much of the evidence was kept.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_coc.evaluation.field.data import Picture, Query, Record, ids_of, scene_pictures
from arr_coc.evaluation.field.main import FieldOptions, evaluate_field, samples_path
from arr_coc.evaluation.field.methods import PLAIN, REFERENCE
from arr_coc.evaluation.field.run import unpack_cells
from arr_coc.evaluation.report.pairs import at_budget
from arr_coc.evaluation.report.rows import Entry, Place, budgets_of, entries_of, ours_of
from arr_coc.evaluation.report.samples import Answers, read_file
from arr_coc.qwen.request import evidence_mask

BEHIND = 0.5  # of a score
KEPT = 0.95  # share of the evidence's cells from which on it counts as kept
DROPPED, HELD, NOTHING = "evidence dropped", "evidence kept, wrong anyway", "no evidence in the image"
KINDS = (DROPPED, HELD, NOTHING)
ASKED_AGAIN = 48  # questions, where there are no samples: a minute on two cores

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Loss:
    """One question at one budget."""

    entry: Entry  # ARR-COC's
    record: Record  # its line in the file of samples
    picture: Picture
    query: Query
    share: float | None  # of the evidence's cells that were kept; None where there are none
    winners: tuple[tuple[str, str], ...]  # methods (selector, encoding) that got it right

    @property
    def kind(self) -> str:
        return NOTHING if self.share is None else (HELD if self.share >= KEPT else DROPPED)


def find_losses(entries: Sequence[Entry], answers: Answers, pictures: Sequence[Picture]) -> list[Loss]:
    """All losses of one place, the larger budgets first, then by the order of the questions."""
    asked = {name: (picture, query) for name, picture, query in ids_of(pictures)}
    found: list[Loss] = []
    for keep in budgets_of(entries):
        ours = ours_of(entries, keep)
        mine_Q = None if ours is None else answers.of(ours)
        if ours is None or mine_Q is None:
            continue
        others = [
            (entry, scores_Q)
            for entry in at_budget(entries, keep)
            if entry.name != REFERENCE and (scores_Q := answers.of(entry)) is not None
        ]
        lines = answers.ours[ours.keys[0]]
        for place, question in enumerate(answers.questions):
            winners = tuple(entry.way for entry, scores_Q in others if scores_Q[place] - mine_Q[place] >= BEHIND)
            if winners and question in asked:
                found.append(_loss(ours, lines[question], *asked[question], winners))
    return found


def _loss(ours: Entry, record: Record, picture: Picture, query: Query, winners: tuple[tuple[str, str], ...]) -> Loss:
    evidence = set(evidence_cells(query, record["grid"]))
    both = len(evidence & set(unpack_cells(record["cells"])))
    return Loss(ours, record, picture, query, both / len(evidence) if evidence else None, winners)


def evidence_cells(query: Query, grid: Sequence[int]) -> list[int]:
    """Cells that the boxes of the answer touch."""
    mask_HW = evidence_mask(query.boxes or (), (grid[0], grid[1]))
    return [int(cell) for cell in mask_HW.flatten().nonzero().flatten()]


def pictures_again(answers: Answers, place: Place) -> list[Picture] | None:
    """The scenes and questions of a run, made again from its seed; None for files, whose place nobody noted."""
    dataset, side = place
    if dataset != "scenes" or side is None:
        return None
    return scene_pictures(answers.about["questions"], side, answers.about["seed"])


def pick(losses: Sequence[Loss], wanted: int) -> list[Loss]:
    """A few losses that show many kinds of question: families take turns, those with most losses first.

    Inside a family the largest budget first, since what is lost there is the most telling; a question comes once.
    """
    families: dict[str, list[Loss]] = {}
    seen: set[tuple[Place, str]] = set()
    for loss in sorted(losses, key=lambda one: -one.entry.tokens / one.entry.total):
        name = (loss.entry.place, loss.record["question"])
        if name not in seen:
            seen.add(name)
            families.setdefault(loss.query.family, []).append(loss)
    order = sorted(families, key=lambda family: (-len(families[family]), family))
    turns = max((len(members) for members in families.values()), default=0)
    mixed = [families[family][turn] for turn in range(turns) for family in order if turn < len(families[family])]
    return mixed[:wanted]


def ask_again(place: Place, run: Mapping[str, Any], say: Say) -> tuple[list[Entry], Answers]:
    """ARR-COC and the plain mini once more on a part of a run's questions, where its samples are not there."""
    questions = min(ASKED_AGAIN, int(run.get("questions", ASKED_AGAIN)))
    say(f"no samples of {place[0]} at {place[1]} px: asking {questions} of its questions again")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "field.json"
        options = FieldOptions(
            selectors=(REFERENCE, PLAIN),
            encodings=("sparse",),
            sides=(place[1] or 512,),
            questions=questions,
            seed=int(run.get("seed", 0)),
            out=out,
        )
        rows = evaluate_field(options, lambda _: None)["rows"]
        return entries_of(rows), read_file(samples_path(out, *place))


def count_losses(losses: Sequence[Loss], by: Callable[[Loss], str]) -> Mapping[str, Mapping[str, int]]:
    """How many losses of each kind, by a name of each loss, in the order of the losses."""
    counts: dict[str, dict[str, int]] = {}
    for loss in losses:
        counts.setdefault(by(loss), dict.fromkeys(KINDS, 0))[loss.kind] += 1
    return counts
