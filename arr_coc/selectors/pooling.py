"""Pooling: neighbouring cells become one token, the mean of theirs, at the middle of the region."""

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.base import Selector, View, register
from arr_coc.selectors.field.base import FieldSelector, Pick, marked, no_scores
from arr_coc.selectors.grids import centre, pool_regions


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
def make(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return PoolingSelector(config)
