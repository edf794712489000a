"""DivPrune: cells as far from each other as can be. It does not read the question.

B images with one grid, N cells, K kept, D width of a token.
"""

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.field import FieldSelector, Pick, marked, unit
from arr_coc.selectors.interface import Selector, View, register

ROUNDING = 1e-6  # a cosine distance under this is none: equal tokens differ by rounding alone
ROWS = 1024  # rows of the similarity matrix that are held at a time


def nearest_distance(unit_ND: Tensor) -> Tensor:
    """Cosine distance of each token to the nearest other one, `[N]`; 0 where there is no other."""
    cells = unit_ND.shape[0]
    if cells == 1:
        return unit_ND.new_zeros(1)
    closest = []
    for start in range(0, cells, ROWS):
        rows = unit_ND[start : start + ROWS] @ unit_ND.T
        own = torch.arange(rows.shape[0], device=rows.device)
        rows[own, start + own] = -torch.inf
        closest.append(rows.amax(-1))
    return 1 - torch.cat(closest)


def max_min_order(unit_ND: Tensor, first: Tensor, k: int) -> Tensor:
    """`[K]` cells in the order picked: `first`, then always the one whose nearest picked one is farthest.

    One row of similarities per step; ties go to the lower index; a picked cell is never picked again.
    """
    nearest_N = torch.full_like(unit_ND[:, 0], torch.inf)
    picks = [first]
    while True:
        distance_N = 1 - unit_ND @ unit_ND[picks[-1]]
        nearest_N = torch.minimum(nearest_N, torch.where(distance_N < ROUNDING, 0.0, distance_N))
        nearest_N[picks[-1]] = -torch.inf
        if len(picks) == k:
            return torch.stack(picks)
        picks.append(nearest_N.argmax())


class DivPruneSelector(FieldSelector):
    """Starts with the token whose nearest neighbour is farthest, then adds the farthest from all so far."""

    name = "divprune"
    pays = "ViT: all; LM: the kept tokens; choosing: N^2 similarities once, then N per kept token, one after the other"
    reason = "the cells that differ most from each other"
    reads_tokens = True

    def score(self, view: View) -> Tensor:
        assert view.visual_BND is not None
        return torch.stack([nearest_distance(unit(tokens)) for tokens in view.visual_BND])

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        assert view.visual_BND is not None
        picks = [
            max_min_order(unit(tokens), scores.argmax(), k)
            for tokens, scores, k in zip(view.visual_BND, scores_BN, k_B.tolist(), strict=True)
        ]
        return Pick(marked(picks, scores_BN.shape[1]))


@register("divprune")
def make(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return DivPruneSelector(config)
