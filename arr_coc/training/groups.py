"""Groups, what a selector learns from: images of one grid, with one or several questions each, and their targets.

B images, R questions (rows) about them, L tokens of a question, H W grid of cells.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arr_coc.data.examples import Example
from arr_coc.data.rows import Box
from arr_coc.qwen.sizes import ImageSizes
from arr_coc.qwen.vision import Geometry

Encode = Callable[[str], Sequence[int]]
CELL = Geometry().cell  # px on a side of a cell where no model says it
NO_PIXELS = np.empty((0, 0, 3), np.uint8)
ROWS = ("image_R", "ids_RL", "mask_RL", "targets_RHW", "known_R", "weight_R")


@dataclass(frozen=True, slots=True)
class GridGroup:
    """Images of one grid with their questions."""

    images_Bhw3: Tensor  # uint8, whole cells
    image_R: Tensor  # the image of each row
    ids_RL: Tensor
    mask_RL: Tensor  # True where there is a token
    targets_RHW: Tensor  # 1 where the answer is
    known_R: Tensor  # False where nobody said where the answer is
    weight_R: Tensor
    standout_BHW: Tensor  # 1 where any question of the image finds its answer
    examples: tuple[Example, ...]  # one per row, without their pixels
    passed: tuple[str, ...] = ()  # what did not decode on the way to these examples

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W)"""
        return self.targets_RHW.shape[1], self.targets_RHW.shape[2]

    def rows(self, part: Tensor) -> "GridGroup":
        """The same images with some of the questions, by number."""
        there = part.to(self.image_R.device)
        cut = {name: getattr(self, name)[there] for name in ROWS}
        return replace(self, **cut, examples=tuple(self.examples[number] for number in part.tolist()))

    def to(self, device: torch.device) -> "GridGroup":
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "GridGroup":
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "GridGroup":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: change(v) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)


def make_group(
    images: Sequence[np.ndarray],
    asked: Sequence[tuple[int, Example]],
    encode: Encode,
    hard_weight: float,
    cell: int = CELL,
) -> GridGroup:
    """A group from images of one size and (number of the image, example) pairs; boxes are in the images' pixels."""
    high, wide = images[0].shape[:2]
    grid = (high // cell, wide // cell)
    tokens = [list(encode(example.question)) for _, example in asked]
    longest = max(1, *(len(row) for row in tokens))
    ids, mask = np.zeros((len(asked), longest), np.int64), np.zeros((len(asked), longest), bool)
    targets, standout = torch.zeros(len(asked), *grid), torch.zeros(len(images), *grid)
    for row, (number, example) in enumerate(asked):
        ids[row, : len(tokens[row])], mask[row, : len(tokens[row])] = tokens[row], True
        targets[row] = cell_targets(example.boxes or (), (wide, high), grid)
        standout[number] = torch.maximum(standout[number], targets[row])
    return GridGroup(
        torch.from_numpy(np.stack(images)),
        torch.tensor([number for number, _ in asked]),
        torch.from_numpy(ids),
        torch.from_numpy(mask),
        targets,
        torch.tensor([example.boxes is not None for _, example in asked]),
        torch.tensor([hard_weight if example.hard else 1.0 for _, example in asked]),
        standout,
        tuple(replace(example, image=NO_PIXELS) for _, example in asked),
    )


# ---------------------------------------------------------------- boxes on an image -> targets on a grid


def cell_targets(boxes: Sequence[Box], image_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """1.0 for every cell that a box touches, else 0.0: float32 `[H, W]`.

    `boxes` are in pixels of an image of `image_size` = (width, height); parts outside it are ignored. `grid` is (H, W):
    the image is thought of as resized to it, whatever its own shape, and the boxes scale with it. A box with any area
    inside the image marks at least one cell, however small it is.
    """
    (width, height), (rows, columns) = image_size, grid
    assert min(*image_size, *grid) > 0, f"image of {image_size}, grid of {grid}"
    targets_HW = torch.zeros(grid)
    for x0, y0, x1, y1 in boxes:
        left, top, right, bottom = max(x0, 0), max(y0, 0), min(x1, width), min(y1, height)
        if left < right and top < bottom:
            down = _touched(top * rows / height, bottom * rows / height)
            targets_HW[down, _touched(left * columns / width, right * columns / width)] = 1.0
    return targets_HW


def _touched(start: float, end: float) -> slice:
    """Cells between two places in units of cells; one at least, also where rounding made the two places equal."""
    return slice(int(start), max(int(start) + 1, math.ceil(end)))


# ---------------------------------------------------------------- sizes that are whole cells


def whole_cells(example: Example, sizes: ImageSizes) -> Example:
    """The example with its image resized to whole cells, as the processor would; boxes follow.

    The size is one that the processor leaves as it is, so that cells here are the model's cells.
    """
    high, wide = example.image.shape[:2]
    new_high, new_wide = sizes.settled(high, wide)
    if (wide, high) == (new_wide, new_high):
        return example
    image = np.asarray(Image.fromarray(example.image).resize((new_wide, new_high), Image.Resampling.BICUBIC))
    across, down = new_wide / wide, new_high / high
    boxes = example.boxes
    if boxes is not None:
        boxes = tuple((x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in boxes)
    return replace(example, image=image, boxes=boxes)
