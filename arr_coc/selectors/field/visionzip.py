"""VisionZip: the cells that the ViT's last block attends to most, and others merged by the likeness of their keys.

B images with one grid, P of them that are merged at once, N cells, K kept (the most of any image, as are the others), R
left over, M contextual tokens, d size of a head.

Qwen's ViT has no class token, so the score of a cell is the attention that it receives from all patches. Attention and
keys are those after the rotation by position (`arr_coc.qwen.vision`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from arr_coc.attending import choose_cells, kept_indices
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.base import View, registered
from arr_coc.selectors.field.base import FieldSelector, Pick, in_parts, unit

CONTEXTUAL = 10 / 64  # share of the budget that is merged tokens


def targets_of(dominant_BN: Tensor, contextual_B1: Tensor, most: int) -> Tensor:
    """The cells that contextual tokens stand at, `[B, M]`: evenly spaced among those left over, in reading order.

    After an image's own number of them come repetitions of its first.
    """
    left_BR, _ = kept_indices(~dominant_BN)
    number_M, left_B1 = torch.arange(most, device=dominant_BN.device), (~dominant_BN).sum(-1, keepdim=True)
    place_BM = number_M * left_B1 // contextual_B1.clamp(min=1)
    return left_BR.gather(1, place_BM.masked_fill(number_M >= contextual_B1, 0))


def merge_leftovers(keys_BNd: Tensor, dominant_BN: Tensor, contextual: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The kept cells `[B, N]` bool, and what each token is made of `[B, K, N]`, tokens in reading order.

    `contextual` is how many targets each image has. Every cell that is neither dominant nor a target goes to the target
    with the most similar key. A contextual token is its target plus the mean of what went to it: a sum.
    """
    cell_N = torch.arange(dominant_BN.shape[1], device=dominant_BN.device)
    keep_BN, host_BN, value_BN = dominant_BN, cell_N.expand_as(dominant_BN), dominant_BN.float()
    if any(contextual):
        contextual_B1 = torch.tensor(contextual, device=dominant_BN.device).unsqueeze(1)
        targets_BM = targets_of(dominant_BN, contextual_B1, max(contextual))
        keep_BN = dominant_BN.scatter(1, targets_BM, True) & (dominant_BN | (contextual_B1 > 0))
        goes_BN = ~keep_BN & (contextual_B1 > 0)
        nearest_BN = nearest_target(unit(keys_BNd), targets_BM, contextual)
        members_BM = torch.zeros_like(targets_BM).scatter_add(1, nearest_BN, goes_BN.long())
        host_BN = torch.where(goes_BN, targets_BM.gather(1, nearest_BN), cell_N)
        value_BN = keep_BN + goes_BN / members_BM.clamp(min=1).gather(1, nearest_BN)
    row_BN = (keep_BN.cumsum(-1) - 1).clamp(min=0).gather(1, host_BN)
    weights_BKN = value_BN.new_zeros(keep_BN.shape[0], int(keep_BN.sum(-1).max()), keep_BN.shape[1])
    return keep_BN, weights_BKN.scatter_(1, row_BN.unsqueeze(1), value_BN.unsqueeze(1))


def nearest_target(unit_BNd: Tensor, targets_BM: Tensor, contextual: Sequence[int]) -> Tensor:
    """The number of the target whose key is most like each cell's, `[B, N]`; ties go to the lower number."""
    like_BNM = unit_BNd.new_full((*unit_BNd.shape[:2], targets_BM.shape[1]), -torch.inf)
    for row, (keys_Nd, count) in enumerate(zip(unit_BNd, contextual, strict=True)):
        # One product per image, with its own targets alone: it may round by how many there are.
        torch.mm(keys_Nd, keys_Nd[targets_BM[row, :count]].T, out=like_BNM[row, :, :count])
    return like_BNM.argmax(-1)


@registered
class VisionZipSelector(FieldSelector):
    """Dominant tokens by attention, contextual ones at their targets' positions; every DeepStack level merges alike."""

    name = "visionzip"
    pays = "ViT: all, and q, k and attention of its last block once more; LM: the kept tokens; choosing: key products"
    reason = "the cells that the ViT attends to, and the rest merged by likeness"
    reads_tokens = True
    reads_received = True

    def __init__(self, config: ARRCOCConfig, layer: ARRCOCLayer | None = None, contextual: float = CONTEXTUAL) -> None:
        super().__init__(config)
        if not 0 <= contextual < 1:
            raise ValueError(f"contextual={contextual}: expected the share of merged tokens, in [0, 1)")
        self.contextual = contextual

    def score(self, view: View) -> Tensor:
        assert view.received_BN is not None
        return view.received_BN.float()

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        assert view.keys_BNd is not None
        budgets, device = k_B.tolist(), scores_BN.device
        contextual = [min(k - 1, int(k * self.contextual + 0.5)) for k in budgets]  # at least one is dominant
        keep_BN = choose_cells(scores_BN, k_B - torch.tensor(contextual, device=device))
        weights: list[Tensor] = []
        cells, size = view.keys_BNd.shape[1:]
        for part in in_parts(range(len(budgets)), cells * (2 * cells + 2 * size), device):
            counts = [contextual[row] for row in part]
            keep_BN[part], made_PKN = merge_leftovers(view.keys_BNd[part], keep_BN[part], counts)
            weights += [made_KN[: budgets[row]] for row, made_KN in zip(part, made_PKN, strict=True)]
        return Pick(keep_BN, weights=weights)
