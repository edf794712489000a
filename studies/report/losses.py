"""The questions that ARR-COC lost: what it got wrong, though another method or the plain model got it right.

A loss is a score at least 0.5 below the best of the others at the same budget; for exact answers that is wrong against
right. Each loss is one of three kinds, by how much of the evidence was kept. The gallery shows a few of them: the scene
with the places of the answer, and what ARR-COC let the model see of it.
"""

import html
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.evaluation.field.data import Picture, Query, Record, ids_of, scene_pictures
from arr_coc.evaluation.field.main import FieldOptions, Say, evaluate_field, samples_path
from arr_coc.evaluation.field.methods import ORACLE, REFERENCE
from arr_coc.evaluation.report.main import at_budget
from arr_coc.evaluation.report.pages import Block, Illustration, escaped, heading, paragraph, table
from arr_coc.evaluation.report.results import (
    Answers,
    Entry,
    Measured,
    Names,
    Place,
    Way,
    budget_label,
    budgets_of,
    entries_of,
    ours_of,
    read_file,
)
from arr_coc.qwen.request import evidence_mask
from arr_coc.selectors import PLAIN
from arr_coc.viewing import evidence_overlay
from studies.cells import unpack_cells

BEHIND = 0.5  # of a score
KEPT = 0.95  # share of the evidence's cells from which on it counts as kept
DROPPED, HELD, NOTHING = "evidence dropped", "evidence kept, wrong anyway", "no evidence in the image"
KINDS = (DROPPED, HELD, NOTHING)
ASKED_AGAIN = 48  # questions, where there are no samples: a minute on two cores
SIDE, QUALITY = 448, 84  # px of a picture, and of its JPEG
MOST_NAMES = 5  # of methods that got it right


def card(title: str, pictures: tuple[Illustration, ...], lines: Sequence[tuple[str, str]]) -> Block:
    """One failure: pictures, and lines of (name, text)."""
    beside = "\n".join(picture.beside("45%") for picture in pictures)
    inside = "".join(picture.inside() for picture in pictures)
    said = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in lines)
    return Block(
        f"**{title}**\n\n{beside}\n\n" + "\n".join(f"- {name}: {escaped(text)}" for name, text in lines),
        f'<div class="card"><h4>{html.escape(title)}</h4><div class="two">{inside}</div><dl>{said}</dl></div>',
        pictures,
    )


@dataclass(frozen=True, slots=True)
class Loss:
    """One question at one budget."""

    entry: Entry  # ARR-COC's
    record: Record  # its line in the file of samples
    picture: Picture
    query: Query
    share: float | None  # of the evidence's cells that were kept; None where there are none
    winners: tuple[Way, ...]  # methods that got it right

    @property
    def kind(self) -> str:
        return NOTHING if self.share is None else (HELD if self.share >= KEPT else DROPPED)

    @property
    def family(self) -> str:
        return self.query.family.replace("_", " ")

    @property
    def budget(self) -> str:
        return budget_label(self.entry.keep, self.entry.total)


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
        lines = answers.lines[ours.keys[0]]
        for place, question in enumerate(answers.questions):
            winners = tuple(entry.way for entry, scores_Q in others if scores_Q[place] - mine_Q[place] >= BEHIND)
            if winners and question in asked:
                found.append(_loss(ours, lines[question], *asked[question], winners))
    return found


def _loss(ours: Entry, record: Record, picture: Picture, query: Query, winners: tuple[Way, ...]) -> Loss:
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


def ask_again(place: Place, run: Mapping[str, Any], say: Say) -> tuple[list[Entry], Answers]:
    """ARR-COC and the plain mini once more on a part of a run's questions, where its samples are not there."""
    questions = min(ASKED_AGAIN, int(run.get("questions", ASKED_AGAIN)))
    say(f"no samples of {place[0]} at {place[1]} px: asking {questions} of its questions again")
    seed, sides = int(run.get("seed", 0)), (place[1] or 512,)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "field.json"
        options = FieldOptions(
            selectors=(REFERENCE, PLAIN), encodings=("sparse",), sides=sides, questions=questions, seed=seed, out=out
        )
        rows = evaluate_field(options, lambda _: None)["rows"]
        return entries_of(rows), read_file(samples_path(out, *place))


def loss_tables(losses: Sequence[Loss]) -> list[Block]:
    """Losses by budget and by family, and of which kind they are."""
    if not losses:
        return [paragraph("No question was lost that another method answered.")]
    by_budget = _count(losses, lambda loss: f"{loss.entry.place.label}: {loss.budget}")  # in their order
    by_family = _count(losses, lambda loss: loss.family)
    by_family = dict(sorted(by_family.items(), key=lambda item: (-sum(item[1].values()), item[0])))
    blocks: list[Block] = [
        paragraph(
            f"Evidence counts as kept where at least {100 * KEPT:.0f} % of the cells under the answer's boxes were."
        )
    ]
    for title, counts in (("tokens kept", by_budget), ("family", by_family)):
        rows = [[name, *map(str, (sum(kinds.values()), *kinds.values()))] for name, kinds in counts.items()]
        blocks.append(table((title, "lost", *KINDS), rows))
    return blocks


def _count(losses: Sequence[Loss], by: Callable[[Loss], str]) -> dict[str, dict[str, int]]:
    """How many losses of each kind, by a name of each loss, in the order of the losses."""
    counts: dict[str, dict[str, int]] = {}
    for loss in losses:
        counts.setdefault(by(loss), dict.fromkeys(KINDS, 0))[loss.kind] += 1
    return counts


def loss_blocks(measured: Measured, wanted: int, say: Say) -> list[Block]:
    """What was lost, counted, and `wanted` of it shown; nothing at all where none is wanted."""
    if not wanted or not measured.entries:
        return []
    losses, notes = _all_losses(measured, say)
    say(f"{len(losses)} losses")
    blocks: list[Block] = [
        heading("What ARR-COC lost"),
        paragraph(
            "Questions that ARR-COC got wrong at some budget and another method, or the plain model, got right. With "
            "so many others, some were right by luck."
        ),
        *(paragraph(note) for note in notes),
        *loss_tables(losses),
    ]
    if shown := take_turns(losses, wanted):
        blocks += [
            paragraph(
                "Left the scene, right what ARR-COC kept of it: inside an orange line for relevance, blue for "
                "coverage, dark and grey what was dropped. The places of the answer are inside a white line."
            ),
            gallery(shown, measured.names),
        ]
    return blocks


def _all_losses(measured: Measured, say: Say) -> tuple[list[Loss], list[str]]:
    """The losses of all places, and what there is to say of those whose answers are not here."""
    losses: list[Loss] = []
    notes: list[str] = []
    for place, here in measured.places.items():
        found = measured.answers.get(place)
        if found is None and place == _cheapest(measured) and not measured.answers:
            here, found = ask_again(place, run_of(measured, place), say)
            notes.append(f"{place.label}: {len(found.questions)} questions, asked again of mini as it is now")
        pictures = None if found is None else pictures_again(found, place)
        if found is None or pictures is None:
            notes.append(f"{place.label}: the answers or the images are not here")
            continue
        losses += find_losses(here, found, pictures)
    return losses, notes


def run_of(measured: Measured, place: Place) -> Mapping[str, Any]:
    """What made the rows of a place."""
    runs = measured.document.get("runs") or {}
    return next((run for run in runs.values() if (run.get("dataset"), run.get("side")) == place), {})


def _cheapest(measured: Measured) -> Place | None:
    """The scenes with the fewest tokens that were asked of mini: those can be asked again by anyone, in a minute."""
    scenes = [entry for entry in measured.entries if entry.place[0] == "scenes" and entry.place[1] is not None]
    small = sorted(scenes, key=lambda entry: entry.total)
    return next((e.place for e in small if run_of(measured, e.place).get("model") == "mini"), None)


# ---------------------------------------------------------------- the gallery


def take_turns(losses: Sequence[Loss], wanted: int) -> list[Loss]:
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


def gallery(losses: Sequence[Loss], names: Names) -> Block:
    """A card per loss, side by side where there is room."""
    cards = [_card(number, loss, names) for number, loss in enumerate(losses, start=1)]
    pictures = tuple(picture for one in cards for picture in one.pictures)
    held = "".join(one.html for one in cards)
    return Block("\n\n".join(one.markdown for one in cards), f'<div class="cards">{held}</div>', pictures)


def _card(number: int, loss: Loss, names: Names) -> Block:
    scene, kept_HW = small(Image.fromarray(loss.picture.read())), cells_of(loss, "cells")
    kept = evidence_overlay(scene, kept_HW, loss.query.boxes or (), None, cells_of(loss, "covered"))
    shown = (
        ("scene", "the scene", evidence_overlay(scene, torch.ones_like(kept_HW), loss.query.boxes or ())),
        ("kept", "what was kept; dropped cells are dark and grey", kept),
    )
    pictures = tuple(
        Illustration(
            f"failure-{number:02d}-{name}.jpg",
            f"{what}, the places of the answer outlined: {loss.record['text']}",
            jpeg(picture),
        )
        for name, what, picture in shown
    )
    winners = sorted(loss.winners, key=lambda way: way[0].partition(":")[0] == ORACLE)  # the oracle last
    more = f" and {len(winners) - MOST_NAMES} more" if len(winners) > MOST_NAMES else ""
    nothing = "there is none: the thing asked for is not in the image"
    lines = (
        ("question", loss.record["text"]),
        ("right", loss.record["expected"]),
        ("given", loss.record["answer"] or "(nothing)"),
        ("tokens", f"{loss.budget}, {loss.entry.place.label}; {int((~kept_HW).sum())} cells dropped"),
        ("evidence kept", nothing if loss.share is None else f"{100 * loss.share:.0f} %"),
        ("answered by", "; ".join(names[way] for way in winners[:MOST_NAMES]) + more),
        ("question id", loss.record["question"]),
    )
    return card(f"{number}. {loss.family}: {loss.kind}", pictures, lines)


def cells_of(loss: Loss, name: str) -> Tensor:
    """The cells that the run noted under a name: those that went on, or were "covered"; `[H, W]`."""
    height, width = loss.record["grid"]
    marked_N = torch.zeros(height * width, dtype=torch.bool)
    marked_N[unpack_cells(loss.record.get(name, "0"))] = True
    return marked_N.view(height, width)


def small(picture: Image.Image) -> Image.Image:
    """No side longer than SIDE."""
    scale = SIDE / max(picture.size)
    size = (round(picture.width * scale), round(picture.height * scale))
    return picture.resize(size, Image.Resampling.LANCZOS) if scale < 1 else picture


def jpeg(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    return buffer.getvalue()
