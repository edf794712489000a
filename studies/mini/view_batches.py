"""Batches of rows of several views: several images, clips, or an image with its small copy before it.

All rows of a batch have one form (`views.Form`), so their shapes are alike. Like any batch it is used twice, dense and
sparse; kept cells fall on the views as the evidence and the dice say, and every mark and timestamp stays.

B rows, N cells of all views, K kept cells, S tokens of the prefix.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from studies.cells import CELL, fill_evenly
from studies.mini.packing import PackedText, pack_row
from studies.mini.targets import CLASSES, dense_targets
from studies.mini.views import Form, Grid, ShownViews, ViewQuestion, first_cells, prefix_of
from studies.turns import Turns

Tensors = dict[str, torch.Tensor]


def view_images(batch: Tensors) -> list[torch.Tensor]:
    """The images of a batch in the order of its prompts, each [B, H, W, 3]."""
    if "small" in batch:
        return [batch["small"], batch["images"]]
    return [batch[f"view_{number}"] for number in range(sum(name.startswith("view_") for name in batch))]


def shown_form(batch: Tensors) -> Form:
    """What the rows of a batch of views show, told by the shapes of its tensors."""
    if "frames" in batch:
        _, frames, height, width, _ = batch["frames"].shape
        return Form(((width, height),), frames)
    return Form(tuple((images.shape[2], images.shape[1]) for images in view_images(batch)))


class ViewBuilder:
    """The arrays of a batch of views while it fills up."""

    def __init__(self, form: Form, turns: Turns, rows: int, budget: int, text_tokens: int, questions: int) -> None:
        self.form, self.turns, self.budget, self.questions = form, turns, budget, questions
        if form.frames:
            width, height = form.sizes[0]
            self.pictures = {"frames": np.empty((rows, form.frames, height, width, 3), np.uint8)}
        else:
            sizes = enumerate(form.sizes)
            self.pictures = {f"view_{n}": np.empty((rows, high, wide, 3), np.uint8) for n, (wide, high) in sizes}
        self.targets = np.empty((rows, form.cells, CLASSES), np.uint8)
        self.cells = np.empty((rows, budget), np.int64)
        self.text = {use: PackedText.empty(rows, text_tokens, turns.pad_id) for use in ("dense", "sparse")}

    def add(self, row: int, shown: ShownViews, rng: np.random.Generator) -> None:
        """Write one row: pictures, targets, and as many questions as fit, other ones for each use where there are."""
        assert shown.form == self.form
        for number, picture in enumerate(shown.pictures):
            if self.form.frames:
                self.pictures["frames"][row, number] = picture
            else:
                self.pictures[f"view_{number}"][row] = picture
        per_view = 2 if self.form.frames else 1
        for view, (grid, first) in enumerate(zip(self.form.grids, first_cells(self.form.grids), strict=True)):
            inside = [e for part in shown.elements[view * per_view : (view + 1) * per_view] for e in part]
            self.targets[row, first : first + grid[0] * grid[1]] = dense_targets(inside, *grid)
        order = [shown.questions[number] for number in rng.permutation(len(shown.questions))]
        dense = pack_row(self.text["dense"], row, order[: self.questions], self.turns)
        asked, needed = self._within_budget(shown, [q for q in order if q not in dense] + dense)
        pack_row(self.text["sparse"], row, asked, self.turns)
        self.cells[row] = spread(needed, self.budget, self.form.grids, rng)

    def _within_budget(
        self, shown: ShownViews, questions: Sequence[ViewQuestion]
    ) -> tuple[list[ViewQuestion], set[int]]:
        """The first questions whose evidence fits into the budget together, and its cells."""
        asked: list[ViewQuestion] = []
        union: set[int] = set()
        for question in questions:
            wider = union | shown.evidence(question)
            if len(wider) <= self.budget and len(asked) < self.questions:
                asked.append(question)
                union = wider
        return asked, union

    def tensors(self) -> Tensors:
        """The batch."""
        batch = {name: torch.from_numpy(pixels) for name, pixels in self.pictures.items()}
        batch |= {"targets": torch.from_numpy(self.targets), "cells": torch.from_numpy(self.cells)}
        prefix = prefix_of(self.turns, self.form)
        batch |= prompts("dense", self.turns, self.form, None) | prompts("sparse", self.turns, self.form, self.cells)
        for use, packed in self.text.items():
            batch |= packed.trimmed().tensors(use, prefix.start)
        return batch


def prompts(use: str, turns: Turns, form: Form, cells_BK: np.ndarray | None) -> Tensors:
    """Ids and places [4, B, S] of the prefixes of rows that keep `cells_BK`, and the columns of the cells [B, K]."""
    prefix = prefix_of(turns, form)
    rows = [prefix.kept(None)] if cells_BK is None else [prefix.kept(cells_K) for cells_K in cells_BK]
    return {
        f"{use}_prompt": torch.from_numpy(np.stack([whole for whole, _ in rows], 1)),
        f"{use}_slots": torch.from_numpy(np.stack([columns for _, columns in rows])),
    }


def spread(needed: set[int], budget: int, grids: tuple[Grid, ...], rng: np.random.Generator) -> list[int]:
    """Needed cells plus others, `budget` in all: evenly, at random, or from half of the views before the others."""
    way = int(rng.integers(3))
    same_width = len({width for _, width in grids}) == 1
    if way == 0 and same_width:
        return fill_evenly(needed, budget, sum(height for height, _ in grids), grids[0][1])
    order = rng.permutation(sum(height * width for height, width in grids))
    if way == 1:
        later = rng.random(len(grids)) < 0.5
        view_N = np.repeat(later, [height * width for height, width in grids])
        order = order[np.argsort(view_N[order], kind="stable")]
    others = [cell for cell in order.tolist() if cell not in needed]
    return sorted([*needed, *others[: budget - len(needed)]])


def shrink(pixels_HWC: np.ndarray, grid: Grid) -> np.ndarray:
    """The small copy of an image, of `grid` cells; every pixel of it is a mean."""
    size = (grid[1] * CELL, grid[0] * CELL)
    return np.asarray(Image.fromarray(pixels_HWC).resize(size, Image.Resampling.BOX))
