"""Downsampling: the plain model on a smaller image, the control that also saves the ViT's time."""

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.base import Selector, View, register
from arr_coc.selectors.field.base import FieldSelector, Pick, marked, no_scores
from arr_coc.selectors.grids import grid_cells, near_grid


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
def make(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return DownsamplingSelector(config)
