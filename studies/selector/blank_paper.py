"""How much of what is kept of written pages is blank paper, and what it costs drawn scenes that blank paper comes last.

python -m studies.selector.blank_paper --questions 1000 --out results/blank-paper.json

Pages are chosen from by `ARRCOCQwen.choose`; blank is a cell that no ink reaches (of drawn documents and whole pages:
nothing that is drawn on purpose), `least` what of it a budget must hold that is larger than all that is written. Scenes
are answered sparse, with and without the rule, paired; those whose cells it does not change have one answer.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arr_coc.config import Keep
from arr_coc.evaluation.statistics import Clustered, difference_of, mean_of
from arr_coc.files import write_json
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.records import TexturePyramid
from studies.asked import Asked, ask_about
from studies.mini.evaluation import load_answerer
from studies.saliency.pages import SIZES, whole_page
from studies.selector.adapters import load_fitting
from studies.selector.selection import Chooser, Chosen
from studies.selector.study import answer_ways, scores
from studies.selector.written_pages import written_page
from studies.text_channel import covered
from studies.text_channel import pages as drawn_documents
from studies.wide.evaluate import ask_wide

MINI = Path("arr_coc/models/mini")
PAGES = 64  # of each kind
MOST_PIXELS = 4_000_000  # of a page, so that each is chosen from at its own size
KEEP = 0.25  # fraction KEPT of pages
KEEPS: tuple[Keep, ...] = (0.1, 0.25)  # fractions KEPT of scenes
ASKED = ("What is the title?", "What is the total?", "Describe the page.")
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True)
class Blank:
    """A page, and which of its cells are blank."""

    pixels: np.ndarray  # uint8 [h, w, 3]
    blank_HW: np.ndarray


def several(kind: str) -> Iterator[Blank]:
    """The pages of a kind, one by one."""
    if kind == "drawn documents":
        for page in drawn_documents("seen", PAGES):
            yield Blank(page.pixels.permute(1, 2, 0).numpy(), page.blank_HW.numpy())
        return
    for number in range(PAGES):
        if kind == "written pages":
            written = written_page(number)
            yield Blank(written.pixels, written.blank_HW)
        else:
            whole = whole_page(20_000 + number, list(SIZES)[number % len(SIZES)])
            high, wide = whole.pixels.shape[:2]
            yield Blank(whole.pixels, (covered([*whole.titles, *whole.lines, *whole.figures], high, wide) == 0).numpy())


def nowhere_bare(pyramid: TexturePyramid) -> Tensor:
    """What was said of blank paper before: nothing."""
    return torch.zeros(len(pyramid.cell_BCHW), *pyramid.grid, dtype=torch.bool)


def blank_kept(owner: ARRCOCQwen, kind: str) -> dict[str, Any]:
    """Shares of blank cells, of the pages, of what is kept, and the least possible; a mean over pages and questions."""
    rows: dict[str, list[tuple[int, float]]] = {name: [] for name in ("page", "least", BEFORE, AFTER)}
    for number, page in enumerate(several(kind)):
        blank_N = torch.from_numpy(page.blank_HW).flatten()
        for question in ASKED:
            inputs = owner.encode_question(Image.fromarray(page.pixels), question)
            with patch("arr_coc.layer.bare_paper", nowhere_bare):
                (before,) = owner.choose(inputs, keep=KEEP)
            (after,) = owner.choose(inputs, keep=KEEP)
            assert before.grid == page.blank_HW.shape, "chosen from at its own size"
            kept = after.tokens_kept
            found = {
                "page": float(blank_N.float().mean()),
                "least": max(0, kept - int((~blank_N).sum())) / kept,
                BEFORE: float(blank_N[before.kept].float().mean()),
                AFTER: float(blank_N[after.kept].float().mean()),
            }
            for name, share in found.items():
                rows[name].append((number, share))
    return {name: mean_of(Clustered.of(pairs)) for name, pairs in rows.items()}


def changed(before: Sequence[Chosen], after: Sequence[Chosen]) -> Clustered:
    """Which questions keep other cells."""
    return Clustered.of((one.image, one.cells != two.cells) for one, two in zip(before, after, strict=True))


def answers(chooser: Chooser, answerer: Any, asked: Sequence[Asked]) -> dict[str, Any]:
    """Answers to scenes, sparse, without the rule and with it."""
    with patch("arr_coc.layer.bare_paper", nowhere_bare):
        before = chooser.over(asked, KEEPS)
    after = chooser.over(asked, KEEPS)
    ways = {
        f"{name} {keep}": (kept[keep], "sparse") for name, kept in ((BEFORE, before), (AFTER, after)) for keep in KEEPS
    }
    found = answer_ways(answerer, asked, ways)
    report: dict[str, Any] = {}
    for keep in KEEPS:
        was, now = (scores(found[f"{name} {keep}"]) for name in (BEFORE, AFTER))
        moved = mean_of(changed(before[keep], after[keep]))
        gain = difference_of(now, was)
        report[str(keep)] = {BEFORE: mean_of(was), AFTER: mean_of(now), "gain": gain, "other_cells": moved}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=1000, help="about scenes of each world, 0: pages alone")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    command = f"python -m studies.selector.blank_paper --questions {given.questions} --out results/blank-paper.json"
    report: dict[str, Any] = {"command": command, "keep": KEEP, "pages_of_a_kind": PAGES, "pages": {}, "scenes": {}}
    owner = ARRCOCQwen.from_pretrained("mini", max_pixels=MOST_PIXELS)
    for kind in ("written pages", "whole pages", "drawn documents"):
        report["pages"][kind] = blank_kept(owner, kind)
        print(kind, {name: one["mean"] for name, one in report["pages"][kind].items()}, flush=True)
    worlds = {"first": ask_about, "wide": ask_wide} if given.questions else {}
    if worlds:
        answerer = load_answerer(MINI, "cpu", torch.float32)
        layer = load_fitting(MINI, answerer.model)[1]
    for world, ask in worlds.items():
        chooser = Chooser(answerer.model, answerer.turns, layer)
        report["scenes"][world] = answers(chooser, answerer, ask("seen", given.questions, (512, 512)))
        print(world, report["scenes"][world], flush=True)
    write_json(given.out, report, indent=1)


if __name__ == "__main__":
    main()
