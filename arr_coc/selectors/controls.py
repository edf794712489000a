"""Controls: what any method must beat, and what none can. None of them looks at the question.

B images with one grid, H W grid of cells, N = H * W, K kept cells.

    random        cells drawn without replacement            even_grid     the centres of a smaller grid
    pooling       the mean of neighbouring cells             downsampling  the plain model on a smaller image
    oracle        is told which cells hold the answer: no honest method can know better where to look
"""

import torch
from torch import Tensor

from arr_coc.attending import coverage
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.base import Selector, View, register
from arr_coc.selectors.field.base import FieldSelector, Pick, count, marked, no_scores
from arr_coc.selectors.grids import centre, even_cells, grid_cells, near_grid, pool_regions

# A seed and an image's number make one seed of 32 bits: the generator reads no more of it.
STRIDE = 0x9E3779B1
UNTOLD = 1e-3  # what a cell without evidence claims of a shared budget, where one with evidence claims 1


def shuffled_rank(seed: int, number: int, cells: int) -> Tensor:
    """The place of each cell in a shuffle that depends on the seed, the image's number and the number of cells."""
    generator = torch.Generator().manual_seed((seed * STRIDE + number) % 2**32)
    rank_N = torch.empty(cells, dtype=torch.long)
    rank_N[torch.randperm(cells, generator=generator)] = torch.arange(cells)
    return rank_N


class RandomSelector(FieldSelector):
    """k cells drawn without replacement; a smaller budget keeps a part of what a larger one keeps.

    The draw depends on the seed and on the image's number alone, never on the batch or the device.
    """

    name = "random"
    pays = "ViT: the kept windows when sparse, all when dense; LM: the kept tokens; choosing: nothing"
    reason = "cells drawn at random"

    def __init__(self, config: ARRCOCConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.seed = seed

    def score(self, view: View) -> Tensor:
        images, cells = count(view)
        numbers = [0] * images if view.number_B is None else view.number_B.tolist()
        ranks_BN = torch.stack([shuffled_rank(self.seed, number, cells) for number in numbers])
        return (1 - ranks_BN.float() / cells).to(view.question.tokens_BLD.device)


@register("random")
def make_random(config: ARRCOCConfig, layer: ARRCOCLayer, seed: int = 0) -> Selector:
    return RandomSelector(config, seed)


class EvenGridSelector(FieldSelector):
    """The centres of the largest h x w grid that fits the budget, topped up by the cells farthest from those."""

    name = "even_grid"
    pays = "ViT: the kept windows when sparse, all when dense; LM: the kept tokens; choosing: nothing"
    reason = "cells on an even grid"

    def score(self, view: View) -> Tensor:
        return no_scores(view)

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        cells = [torch.tensor(even_cells(k, *view.grid), device=scores_BN.device) for k in k_B.tolist()]
        return Pick(marked(cells, scores_BN.shape[1]))


@register("even_grid")
def make_even_grid(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return EvenGridSelector(config)


def pool_weights(k: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The cell that stands for each of k regions, `[K]`, increasing; and the mean over each region, `[K, N]`."""
    regions = pool_regions(k, height, width)
    weights_KHW = torch.zeros(k, height, width)
    for row, (top, bottom, left, right) in enumerate(regions):
        weights_KHW[row, top:bottom, left:right] = 1 / ((bottom - top) * (right - left))
    middles = [centre(top, bottom) * width + centre(left, right) for top, bottom, left, right in regions]
    return torch.tensor(middles), weights_KHW.flatten(1)


class PoolingSelector(FieldSelector):
    """Tiles the grid with exactly k rectangles and takes the mean of each, on every DeepStack level."""

    name = "pooling"
    pays = "ViT: all; LM: the kept tokens; choosing: nothing; merging: one product with a [K, N] matrix per level"
    reason = "the mean of neighbouring cells"
    reads_tokens = True

    def score(self, view: View) -> Tensor:
        return no_scores(view)

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        pooled = [pool_weights(k, *view.grid) for k in k_B.tolist()]
        keep_BN = marked([middles.to(scores_BN.device) for middles, _ in pooled], scores_BN.shape[1])
        return Pick(keep_BN, weights=[weights.to(scores_BN.device) for _, weights in pooled])


@register("pooling")
def make_pooling(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return PoolingSelector(config)


class DownsamplingSelector(FieldSelector):
    """Resizes the whole image to the grid of about k cells that keeps its shape best; nothing is dropped.

    A rectangle of cells cannot have just any number of them, so the count is near k and not always k. Kept cells, as
    they are shown, are those under the middles of the small image's cells.
    """

    name = "downsampling"
    pays = "ViT: a small image; LM: the kept tokens; choosing: nothing; one resize of the image"
    reason = "the whole image was made smaller"
    resizes = True

    def score(self, view: View) -> Tensor:
        return no_scores(view)

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        grids = [near_grid(k, *view.grid) for k in k_B.tolist()]
        cells = [torch.tensor(grid_cells(grid, *view.grid), device=scores_BN.device) for grid in grids]
        return Pick(marked(cells, scores_BN.shape[1]), grids=grids)


@register("downsampling")
def make_downsampling(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return DownsamplingSelector(config)


class OracleSelector(FieldSelector):
    """Every cell that holds evidence, then cells in the even order. Evidence that does not fit is thinned out evenly.

    Several images share a budget by their evidence.
    """

    name = "oracle"
    pays = "ViT: the kept windows when sparse, all when dense; LM: the kept tokens; choosing: nothing"
    reason = "the cells that hold the answer, filled up evenly"
    reads_evidence = True

    def score(self, view: View) -> Tensor:
        assert view.evidence_BHW is not None
        even_HW = coverage(*view.grid, view.evidence_BHW.device)
        return (even_HW + 2 * view.evidence_BHW.float()).view(count(view))

    def claim(self, view: View, scores_BN: Tensor) -> Tensor:
        assert view.evidence_BHW is not None
        return view.evidence_BHW.float().flatten(1).clamp(min=UNTOLD).sum(-1)


@register("oracle")
def make_oracle(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return OracleSelector(config)
