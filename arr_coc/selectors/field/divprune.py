"""DivPrune: cells as far from each other as can be. It does not read the question.

B images with one grid, N cells, K kept, D width of a token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.selectors.base import View, registered
from arr_coc.selectors.field.base import FieldSelector, Pick, at, greedy, in_parts, likeness, unit

ROUNDING = 1e-6  # a cosine distance under this is none: equal tokens differ by rounding alone


def nearest_distance(unit_BND: Tensor) -> Tensor:
    """Cosine distance of each token to the nearest other one, `[B, N]`; 0 where there is no other."""
    if unit_BND.shape[1] == 1:
        return torch.zeros_like(unit_BND[..., 0])
    likeness_BNN = likeness(unit_BND)
    likeness_BNN.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    return 1 - likeness_BNN.amax(-1)


def max_min_order(unit_BND: Tensor, first_B: Tensor, k: int) -> Tensor:
    """`[B, K]` cells in the order picked: `first`, then always the one whose nearest picked one is farthest.

    Ties go to the lower index; a picked cell is nearer to itself than anything else is, so it is never picked again.
    Three operations per pick, whatever B.
    """
    distance_BNN = F.threshold(likeness(unit_BND).neg_().add_(1), ROUNDING, 0.0, inplace=True)
    distance_BNN.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    nearest_BN = torch.full_like(unit_BND[..., 0], torch.inf)
    picks = [first_B]
    while len(picks) < k:
        nearest_BN = torch.minimum(nearest_BN, at(distance_BNN, picks[-1]))
        picks.append(nearest_BN.argmax(-1))
    return torch.stack(picks, 1)


@registered
class DivPruneSelector(FieldSelector):
    """Starts with the token whose nearest neighbour is farthest, then adds the farthest from all so far."""

    name = "divprune"
    pays = "ViT: all; LM: the kept tokens; choosing: N^2 similarities once, then N per kept token, one after the other"
    reason = "the cells that differ most from each other"
    reads_tokens = True

    def score(self, view: View) -> Tensor:
        assert view.visual_BND is not None
        images, cells, width = view.visual_BND.shape
        parts = in_parts(range(images), cells * (cells + 2 * width), view.visual_BND.device)
        return torch.cat([nearest_distance(unit(view.visual_BND[part])) for part in parts])

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        visual_BND = view.visual_BND
        assert visual_BND is not None

        def order(rows: list[int], k: int) -> Tensor:
            return max_min_order(unit(visual_BND[rows]), scores_BN[rows].argmax(-1), k)

        cells, width = visual_BND.shape[1:]
        return Pick(greedy(order, k_B, cells, cells * (cells + 2 * width)))
