"""Even layouts: a smaller grid with the shape of a larger one, its cells in the larger, and regions to pool.

H W grid of cells, h w smaller grid, K cells wanted.
"""

import math
from functools import lru_cache

import torch

COUNT_OVER_SHAPE = 4.0  # how much more a wrong number of cells costs than a wrong aspect ratio, both as logarithms

Region = tuple[int, int, int, int]  # rows from, to, columns from, to; ends exclusive


@lru_cache(maxsize=4096)
def near_grid(k: int, height: int, width: int, at_most: bool = False) -> tuple[int, int]:
    """The grid (h, w) inside H x W with about k cells and about the same aspect ratio; `at_most` never more than k."""
    best, least = (1, 1), math.inf
    for h in range(1, min(height, k) + 1):
        for w in (k // h, k // h + 1):
            if not 1 <= w <= width or (at_most and h * w > k):
                continue
            cost = COUNT_OVER_SHAPE * abs(math.log(h * w / k)) + abs(math.log(h * width / (w * height)))
            if cost < least:
                best, least = (h, w), cost
    return best


def centre(start: int, end: int) -> int:
    """The middle of cells start..end-1, halves rounded up."""
    return (start + end) // 2


def grid_cells(small: tuple[int, int], height: int, width: int) -> list[int]:
    """Where the cells of a smaller grid lie in the larger one: flat indices, increasing, all different.

    Cell i of h lies at round((i + 1/2) H / h - 1/2), halves rounded up.
    """
    h, w = small
    rows = [(2 * i + 1) * height // (2 * h) for i in range(h)]
    columns = [(2 * i + 1) * width // (2 * w) for i in range(w)]
    return [row * width + column for row in rows for column in columns]


@lru_cache(maxsize=1024)
def even_cells(k: int, height: int, width: int) -> tuple[int, ...]:
    """Exactly k cells spread evenly: the largest fitting grid, topped up by the cell that is farthest from all so far.

    Distances are between cells of the grid; ties go to the lower index.
    """
    chosen = grid_cells(near_grid(k, height, width, at_most=True), height, width)
    place_N2 = torch.cartesian_prod(torch.arange(height), torch.arange(width))
    nearest_N = (place_N2.unsqueeze(1) - place_N2[chosen]).square().sum(-1).amin(-1)
    while len(chosen) < k:
        chosen.append(int(nearest_N.argmax()))
        nearest_N = torch.minimum(nearest_N, (place_N2 - place_N2[chosen[-1]]).square().sum(-1))
    return tuple(sorted(chosen))


@lru_cache(maxsize=1024)
def pool_regions(k: int, height: int, width: int) -> tuple[Region, ...]:
    """Exactly k rectangles that tile the grid, in reading order.

    The grid is cut into as many bands of rows as the nearest smaller grid has, each band into about k / bands
    rectangles. Where that grid has k cells this is plain pooling; with k = H * W every cell is a rectangle of its own.
    """
    bands = max(near_grid(k, height, width)[0], -(-k // width))
    regions = []
    for band in range(bands):
        top, bottom = band * height // bands, (band + 1) * height // bands
        parts = (band + 1) * k // bands - band * k // bands
        regions += [(top, bottom, part * width // parts, (part + 1) * width // parts) for part in range(parts)]
    return tuple(regions)
