"""Controls: what any method must beat, and what none can. None of them looks at the question.

B images with one grid, H W grid of cells, N = H * W, K kept cells.

    random        cells drawn without replacement            even_grid     the centres of a smaller grid
    variance      the cells whose pixels differ most         centre        the cells nearest to the centre
    pooling       the mean of neighbouring cells             downsampling  the plain model on a smaller image
    oracle        is told which cells hold the answer: no honest method can know better where to look
"""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import coverage
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.base import View, registered
from arr_coc.selectors.field.base import FieldSelector, Pick, count, marked

COUNT_OVER_SHAPE = 4.0  # how much more a wrong number of cells costs than a wrong aspect ratio, both as logarithms

Region = tuple[int, int, int, int]  # rows from, to, columns from, to; ends exclusive
# A seed and an image's number make one seed of 32 bits: the generator reads no more of it.
STRIDE = 0x9E3779B1
UNTOLD = 1e-3  # what a cell without evidence claims of a shared budget, where one with evidence claims 1


def shuffled_rank(seed: int, number: int, cells: int) -> Tensor:
    """The place of each cell in a shuffle that depends on the seed, the image's number and the number of cells."""
    generator = torch.Generator().manual_seed((seed * STRIDE + number) % 2**32)
    rank_N = torch.empty(cells, dtype=torch.long)
    rank_N[torch.randperm(cells, generator=generator)] = torch.arange(cells)
    return rank_N


@registered
class RandomSelector(FieldSelector):
    """k cells drawn without replacement; a smaller budget keeps a part of what a larger one keeps.

    The draw depends on the seed and on the image's number alone, never on the batch or the device.
    """

    name = "random"
    reason = "cells drawn at random"

    def __init__(self, config: ARRCOCConfig, layer: ARRCOCLayer | None = None, seed: int = 0) -> None:
        super().__init__(config)
        self.seed = seed

    def score(self, view: View) -> Tensor:
        images, cells = count(view)
        numbers = [0] * images if view.number_B is None else view.number_B.tolist()
        ranks_BN = torch.stack([shuffled_rank(self.seed, number, cells) for number in numbers])
        return (1 - ranks_BN.float() / cells).to(view.question.tokens_BLD.device)


@registered
class EvenGridSelector(FieldSelector):
    """The centres of the largest h x w grid that fits the budget, topped up by the cells farthest from those."""

    name = "even_grid"
    reason = "cells on an even grid"

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        cells = [torch.tensor(even_cells(k, *view.grid), device=scores_BN.device) for k in k_B.tolist()]
        return Pick(marked(cells, scores_BN.shape[1]))


@registered
class VarianceSelector(FieldSelector):
    """The cells whose pixels differ most from each other."""

    name = "variance"
    pays = "ViT: the kept windows when sparse, all when dense; LM: the kept tokens; choosing: two means of the image"
    reason = "cells with the most variance"
    reads_pixels = True

    def score(self, view: View) -> Tensor:
        assert view.image_B3hw is not None
        mean, square = (F.adaptive_avg_pool2d(one, view.grid) for one in (view.image_B3hw, view.image_B3hw.square()))
        return (square - mean.square()).mean(1).flatten(1)


@registered
class CentreSelector(FieldSelector):
    """The cells nearest to the centre, as people take photographs of what matters."""

    name = "centre"
    reason = "cells nearest to the centre"

    def score(self, view: View) -> Tensor:
        images, device = count(view)[0], view.question.tokens_BLD.device
        y_H, x_W = ((torch.arange(side, device=device) + 0.5) / side - 0.5 for side in view.grid)
        return -(y_H.unsqueeze(1).square() + x_W.square()).flatten().expand(images, -1)


def pool_weights(k: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The cell that stands for each of k regions, `[K]`, increasing; and the mean over each region, `[K, N]`."""
    regions = pool_regions(k, height, width)
    weights_KHW = torch.zeros(k, height, width)
    for row, (top, bottom, left, right) in enumerate(regions):
        weights_KHW[row, top:bottom, left:right] = 1 / ((bottom - top) * (right - left))
    middles = [centre(top, bottom) * width + centre(left, right) for top, bottom, left, right in regions]
    return torch.tensor(middles), weights_KHW.flatten(1)


@registered
class PoolingSelector(FieldSelector):
    """Tiles the grid with exactly k rectangles and takes the mean of each, on every DeepStack level."""

    name = "pooling"
    pays = "ViT: all; LM: the kept tokens; choosing: nothing; merging: one product with a [K, N] matrix per level"
    reason = "the mean of neighbouring cells"
    reads_tokens = True

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        pooled = [pool_weights(k, *view.grid) for k in k_B.tolist()]
        keep_BN = marked([middles.to(scores_BN.device) for middles, _ in pooled], scores_BN.shape[1])
        return Pick(keep_BN, weights=[weights.to(scores_BN.device) for _, weights in pooled])


@registered
class DownsamplingSelector(FieldSelector):
    """Resizes the whole image to the grid of about k cells that keeps its shape best; nothing is dropped.

    A rectangle of cells cannot have just any number of them, so the count is near k and not always k. Kept cells, as
    they are shown, are those under the middles of the small image's cells.
    """

    name = "downsampling"
    pays = "ViT: a small image; LM: the kept tokens; choosing: nothing; one resize of the image"
    reason = "the whole image was made smaller"
    resizes = True

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        grids = [near_grid(k, *view.grid) for k in k_B.tolist()]
        cells = [torch.tensor(grid_cells(grid, *view.grid), device=scores_BN.device) for grid in grids]
        return Pick(marked(cells, scores_BN.shape[1]), grids=grids)


@registered
class OracleSelector(FieldSelector):
    """Every cell that holds evidence, then cells in the even order. Evidence that does not fit is thinned out evenly.

    Several images share a budget by their evidence.
    """

    name = "oracle"
    reason = "the cells that hold the answer, filled up evenly"
    reads_evidence = True

    def score(self, view: View) -> Tensor:
        assert view.evidence_BHW is not None
        even_HW = coverage(*view.grid, view.evidence_BHW.device)
        return (even_HW + 2 * view.evidence_BHW.float()).view(count(view))

    def claim(self, view: View, scores_BN: Tensor) -> Tensor:
        assert view.evidence_BHW is not None
        return view.evidence_BHW.float().flatten(1).clamp(min=UNTOLD).sum(-1)


# ---------------------------------------------------------------- even layouts


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
