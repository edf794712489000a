"""Boxes on an image -> targets on a grid of cells.

The image is thought of as resized to the grid, whatever its own shape, and the boxes scale with it: cell (h, w)
covers the pixels from w * width / W to (w + 1) * width / W, and alike downwards.

H W grid of cells.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from arr_coc.data.examples import Box


def cell_targets(boxes: Sequence[Box], image_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """1.0 for every cell that a box touches, else 0.0: float32 `[H, W]`.

    `boxes` are in pixels of an image of `image_size` = (width, height); parts outside it are ignored.
    `grid` is (H, W). A box with any area inside the image marks at least one cell, however small it is.
    """
    targets_HW = torch.zeros(grid)
    for left, top, right, bottom in _in_cells(boxes, image_size, grid):
        targets_HW[_touched(top, bottom), _touched(left, right)] = 1.0
    return targets_HW


def soft_targets(boxes: Sequence[Box], image_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """The share of each cell that boxes cover, 0 to 1, overlaps counted once: float32 `[H, W]`.

    Arguments as for `cell_targets`.
    """
    height, width = grid
    scaled = _in_cells(boxes, image_size, grid)
    # All edges, of boxes and of cells, cut the plane into rectangles that are covered wholly or not at all.
    ys = np.unique([*range(height + 1), *(edge for box in scaled for edge in (box[1], box[3]))])
    xs = np.unique([*range(width + 1), *(edge for box in scaled for edge in (box[0], box[2]))])
    covered = np.zeros((len(ys) - 1, len(xs) - 1))
    for left, top, right, bottom in scaled:
        rows, columns = np.searchsorted(ys, (top, bottom)), np.searchsorted(xs, (left, right))
        covered[rows[0] : rows[1], columns[0] : columns[1]] = 1.0
    shares_HW = _lengths(ys, height) @ covered @ _lengths(xs, width).T
    return torch.from_numpy(shares_HW.clip(0.0, 1.0)).float()


def _in_cells(boxes: Sequence[Box], image_size: tuple[int, int], grid: tuple[int, int]) -> list[Box]:
    """Boxes clipped to the image, in units of cells (0 to W, 0 to H); those with no area inside are dropped."""
    (width, height), (rows, columns) = image_size, grid
    assert min(*image_size, *grid) > 0, f"image of {image_size}, grid of {grid}"
    scaled: list[Box] = []
    for x0, y0, x1, y1 in boxes:
        left, top, right, bottom = max(x0, 0), max(y0, 0), min(x1, width), min(y1, height)
        if left < right and top < bottom:
            scaled.append(
                (left * columns / width, top * rows / height, right * columns / width, bottom * rows / height)
            )
    return scaled


def _touched(start: float, end: float) -> slice:
    """Cells between two places in units of cells; one at least, also where rounding made the two places equal."""
    return slice(int(start), max(int(start) + 1, math.ceil(end)))


def _lengths(edges: np.ndarray, cells: int) -> np.ndarray:
    """`[cells, len(edges) - 1]`: the length of each interval between edges, in the row of the cell it lies in."""
    owner = np.searchsorted(np.arange(cells), edges[:-1], side="right") - 1
    return np.diff(edges) * (np.arange(cells)[:, None] == owner)
