"""Whether the text channels cover the words of documents, and leave what is blank.

python -m studies.text_channel --out results/text-channel.json             the filter, and rapidocr where it is there
python -m studies.text_channel --fit                                       fit the filter's numbers on other pages

A page is a drawn document of the wide world (512 to 1024 px). A cell belongs to the words where letters cover at least
a thirty-second of it, touches them where they cover any of it; it is blank where nothing that is drawn on purpose
(text, thing, bar) reaches into it: paper, ground, rules, frames and clutter.
"""

import argparse
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.evaluation.statistics import Clustered, mean_of
from arr_coc.texture import canvas_of, generate_texture_array, text, within_cell_variance
from arr_coc_scenes.types import Box
from studies.wide.making import make_wide

LAYOUTS = ("page", "table", "receipt", "form", "price_list", "bill", "columns", "turned_table")
SIDES = (512, 768, 1024)
CELL = 32
LEAST = 1 / 32  # of a cell that letters cover where it is one of the words'
SURE = 0.5  # a likelihood above it counts as text
PAGES = 50


@dataclass(frozen=True, slots=True)
class Page:
    """A drawn document, and which of its cells hold what."""

    pixels: Tensor  # uint8 [3, h, w]
    words_HW: Tensor
    touched_HW: Tensor
    blank_HW: Tensor
    things_HW: Tensor

    @property
    def grid(self) -> tuple[int, int]:
        return self.words_HW.shape[0], self.words_HW.shape[1]


def covered(boxes: list[Box], height: int, width: int) -> Tensor:
    """The share of each cell that boxes cover, `[H, W]`."""
    mask = torch.zeros(1, 1, height, width)
    for x0, y0, x1, y1 in boxes:
        mask[..., max(0, y0) : max(0, y1), max(0, x0) : max(0, x1)] = 1
    return F.avg_pool2d(mask, CELL)[0, 0]


def pages(split: str, count: int) -> Iterator[Page]:
    """The first documents of a split of the wide world, of three sizes in turn."""
    made = 0
    for seed in range(100_000):
        side = SIDES[made % len(SIDES)]
        wide = make_wide(seed, split, (side, side), families=("title", "lookup"))
        if wide.scene.layout not in LAYOUTS:
            continue
        elements = wide.scene.elements
        letters = covered([glyph.box for one in elements for glyph in one.glyphs], side, side)
        lines = covered([one.box for one in elements if one.kind == "text"], side, side)
        things = covered([one.box for one in elements if one.kind != "text"], side, side)
        pixels = torch.from_numpy(wide.pixels.copy()).permute(2, 0, 1)
        alone = (lines == 0) & (things > 0.1)
        yield Page(pixels, letters >= LEAST, letters > 0, (lines == 0) & (things == 0), alone)
        made += 1
        if made == count:
            return


def measured(name: str, several: list[Page]) -> dict[str, Any]:
    """Shares of cells of each kind that a channel calls text, over pages."""
    called = [generate_texture_array(page.pixels, page.grid, (name,))[0, 0] > SURE for page in several]
    found = {}
    for kind in ("words", "touched", "blank", "things"):
        pairs = [
            (number, float(value))
            for number, (page, yes) in enumerate(zip(several, called, strict=True))
            for value in yes[getattr(page, f"{kind}_HW")]
        ]
        found[kind] = mean_of(Clustered.of(pairs))
    print(name, {kind: one["mean"] for kind, one in found.items()}, flush=True)
    return found


def fitted(several: list[Page]) -> list[float]:
    """The filter's numbers by logistic regression; blank cells and things together weigh as much as words."""
    rows, kinds = [], []
    for page in several:
        canvas = canvas_of(page.pixels, page.grid)
        logs = text.stroke_logs(within_cell_variance(canvas, 1), canvas.rgb_B3hw, canvas.luma_B1hw)
        logs = F.avg_pool2d(logs, 4)[0]
        for number, mask in enumerate((page.blank_HW, page.things_HW, page.words_HW)):
            rows.append(logs[:, mask].T)
            kinds.append(torch.full((int(mask.sum()),), number))
    x, kind = torch.cat(rows), torch.cat(kinds)
    share = torch.tensor([0.5, 0.5, 1.0]) / torch.bincount(kind)
    numbers = torch.zeros(x.shape[1] + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([numbers], max_iter=200)

    def loss() -> Tensor:
        optimizer.zero_grad()
        errors = F.binary_cross_entropy_with_logits(
            x @ numbers[:-1] + numbers[-1], (kind == 2).float(), weight=share[kind], reduction="sum"
        )
        total = errors + 1e-3 * numbers[:-1].square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    return [round(value, 2) for value in numbers.tolist()]


def main() -> None:
    logging.basicConfig(format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fit", action="store_true")
    a = parser.parse_args()
    if a.fit:
        print("line, block, colour, constant:", fitted(list(pages("train", 60))))
    if a.out is not None:
        several = list(pages("seen", PAGES))
        command = "python -m studies.text_channel --out results/text-channel.json"
        found: dict[str, Any] = {"command": command, "pages": PAGES, "filter": measured("text_likelihood", several)}
        if text.detector() is not None:
            found["detector"] = measured("text_detected", several)
        a.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
