"""An even grid of cells, whatever is in the image and in the question."""

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.base import Selector, View, register
from arr_coc.selectors.field.base import FieldSelector, Pick, marked, no_scores
from arr_coc.selectors.grids import even_cells


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
def make(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return EvenGridSelector(config)
