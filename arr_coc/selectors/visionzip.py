"""VisionZip: the cells that the ViT's last block attends to most, and others merged by the likeness of their keys.

B images with one grid, N cells, K kept, R left over, M contextual tokens, d size of a head.

Qwen's ViT has no class token, so the score of a cell is the attention that it receives from all patches. Attention and
keys are those after the rotation by position (`arr_coc.qwen.insides_vision`).
"""

import torch
from torch import Tensor

from arr_coc.attending import choose_cells
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.field import FieldSelector, Pick, marked, unit
from arr_coc.selectors.interface import Selector, View, register

CONTEXTUAL = 10 / 64  # share of the budget that is merged tokens


def split_budget(k: int, share: float) -> tuple[int, int]:
    """Numbers of dominant and of contextual tokens, k in all, the dominant at least one."""
    contextual = min(k - 1, int(k * share + 0.5))
    return k - contextual, contextual


def merge_leftovers(keys_Nd: Tensor, dominant_N: Tensor, contextual: int) -> tuple[Tensor, Tensor]:
    """The kept cells `[K]`, increasing, and what each token is made of `[K, N]`.

    Targets are evenly spaced among the cells that are not dominant, in reading order; every other one goes to the
    target with the most similar key. A contextual token is its target plus the mean of what went to it: a sum.
    """
    cells = dominant_N.shape[0]
    left_R = (~dominant_N).nonzero().squeeze(-1)
    places_M = torch.arange(contextual, device=left_R.device) * left_R.shape[0] // max(1, contextual)
    targets_M = left_R[places_M]
    kept_K = torch.cat([dominant_N.nonzero().squeeze(-1), targets_M]).sort().values
    weights_KN = torch.zeros(kept_K.shape[0], cells, device=keys_Nd.device)
    weights_KN[torch.arange(kept_K.shape[0], device=kept_K.device), kept_K] = 1
    others = torch.ones_like(left_R, dtype=torch.bool)
    others[places_M] = False
    others_R = left_R[others]
    if contextual and others_R.shape[0]:
        keys = unit(keys_Nd)
        nearest_R = (keys[others_R] @ keys[targets_M].T).argmax(-1)
        members_M = torch.bincount(nearest_R, minlength=contextual)
        row_R = torch.searchsorted(kept_K, targets_M[nearest_R])
        weights_KN[row_R, others_R] = 1 / members_M[nearest_R].float()
    return kept_K, weights_KN


class VisionZipSelector(FieldSelector):
    """Dominant tokens by attention, contextual ones at their targets' positions; every DeepStack level merges alike."""

    name = "visionzip"
    pays = "ViT: all, and q, k and attention of its last block once more; LM: the kept tokens; choosing: key products"
    reason = "the cells that the ViT attends to, and the rest merged by likeness"
    reads_tokens = True
    reads_received = True

    def __init__(self, config: ARRCOCConfig, contextual: float = CONTEXTUAL) -> None:
        super().__init__(config)
        if not 0 <= contextual < 1:
            raise ValueError(f"contextual={contextual}: expected the share of merged tokens, in [0, 1)")
        self.contextual = contextual

    def score(self, view: View) -> Tensor:
        assert view.received_BN is not None
        return view.received_BN.float()

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        assert view.keys_BNd is not None
        budgets = [split_budget(k, self.contextual) for k in k_B.tolist()]
        dominant_BN = choose_cells(scores_BN, torch.tensor([first for first, _ in budgets], device=scores_BN.device))
        merged = [
            merge_leftovers(keys, dominant, contextual)
            for keys, dominant, (_, contextual) in zip(view.keys_BNd, dominant_BN, budgets, strict=True)
        ]
        keep_BN = marked([kept for kept, _ in merged], scores_BN.shape[1])
        return Pick(keep_BN, weights=[weights for _, weights in merged])


@register("visionzip")
def make(config: ARRCOCConfig, layer: ARRCOCLayer, contextual: float = CONTEXTUAL) -> Selector:
    return VisionZipSelector(config, contextual)
