"""Cells of an image: which ones a box covers, and how to spread the rest of a budget evenly.

A cell is one visual token: a 2x2 window of 16 px patches, 32 px on a side. Cells are numbered row by row.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import lru_cache

import torch

from arr_coc.attending import even_rank
from arr_coc.qwen.vision import Geometry

CELL = Geometry().cell  # px on a side of a cell of mini


def box_cells(box: tuple[int, int, int, int], height: int, width: int) -> list[int]:
    """Flat numbers of all cells that a pixel box (x0, y0, x1, y1; ends exclusive) touches.

    `height` and `width` count cells; parts of the box outside the image are ignored.
    """
    x0, y0, x1, y1 = box
    columns = range(max(0, x0 // CELL), min(width, -(-x1 // CELL)))
    return [
        row * width + column for row in range(max(0, y0 // CELL), min(height, -(-y1 // CELL))) for column in columns
    ]


def boxes_cells(boxes: Iterable[tuple[int, int, int, int]], height: int, width: int) -> set[int]:
    """The union of `box_cells` over several boxes."""
    return {cell for box in boxes for cell in box_cells(box, height, width)}


@lru_cache(maxsize=256)
def even_order(height: int, width: int) -> tuple[int, ...]:
    """All cells in an order of which every beginning is spread evenly over the grid."""
    return tuple(even_rank(height, width, torch.device("cpu")).flatten().argsort().tolist())


def fill_evenly(
    chosen: set[int], budget: int, height: int, width: int, without: AbstractSet[int] = frozenset()
) -> list[int]:
    """`chosen` cells plus evenly spread others but those `without`, `budget` in all, in increasing order.

    Where `chosen` holds more than the budget, every chosen cell is kept: evidence is never cut.
    """
    kept = set(chosen)
    for cell in even_order(height, width):
        if len(kept) >= budget:
            break
        if cell not in without:
            kept.add(cell)
    return sorted(kept)


def unpack_cells(text: str) -> list[int]:
    """The cells that `pack_cells` of the field wrote as hexadecimal digits: bit n is cell n."""
    bits = int(text, 16)
    return [cell for cell in range(bits.bit_length()) if bits >> cell & 1]
