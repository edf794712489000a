"""Losses of the selector: maps against boxes, answers, the budget, and the dense model's own attention.

B images with one grid, H W grid of cells, N = H * W, L tokens, V vocabulary, A labelled tokens of all samples.

Maps are `[B, H, W]`. A relevance map is in [0, 1]; a target says how relevant each cell should be, also in [0, 1]
(1 inside the boxes of the answer). Each loss of a map is a mean over the cells of an image, then over the images that
count: `known_B` (bool) is False where the boxes are not known, and such rows give neither value nor gradient, whatever
their target holds; `weight_B` (>= 0) lets some images count more. With no row left the loss is 0.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import LEAST_SHARE, SHARE_SPAN, TokenAllocator, relevance_mass

IGNORE = -100  # label of tokens that carry no loss
EDGE = 1e-3  # logarithms see relevance shrunk into [EDGE, 1 - EDGE]
MOST_WEIGHT = 50.0  # of a positive cell under "balanced"; one cell in a thousand would else drown all others


# ---------------------------------------------------------------- which rows count


def mean_over_known(loss_B: Tensor, known_B: Tensor | None = None, weight_B: Tensor | None = None) -> Tensor:
    """Weighted mean of the rows that are known; 0 where none is."""
    counts_B = torch.ones_like(loss_B) if weight_B is None else weight_B.to(loss_B)
    if known_B is not None:
        counts_B = counts_B * known_B.to(loss_B)
        loss_B = torch.where(known_B.bool(), loss_B, torch.zeros_like(loss_B))
    return (loss_B * counts_B).sum() / counts_B.sum().clamp(min=1e-12)


def _blank_unknown(target_BHW: Tensor, known_B: Tensor | None) -> Tensor:
    """Zeros in place of unknown targets: a NaN there would come back through the gradient of a masked row."""
    target_BHW = target_BHW.float()
    if known_B is None:
        return target_BHW
    return torch.where(known_B.bool().view(-1, 1, 1), target_BHW, torch.zeros_like(target_BHW))


# ---------------------------------------------------------------- maps against boxes


def relevance_bce(
    relevance_BHW: Tensor,
    target_BHW: Tensor,
    positive_weight: float | str = "balanced",
    known_B: Tensor | None = None,
    weight_B: Tensor | None = None,
) -> Tensor:
    """Binary cross-entropy, a weighted mean over cells: 0.001 for the right map, log 2 for 1/2 everywhere, at most 6.9.

    A cell counts by `positive_weight` * target + (1 - target). "balanced" gives positives and negatives of a row the
    same weight in all, up to a factor of 50 per cell. Relevance is shrunk into [0.001, 0.999], not clamped, so the
    gradient at 0 and 1 is finite and never dead.
    """
    target_BN = _blank_unknown(target_BHW, known_B).flatten(1)
    relevance_BN = relevance_BHW.float().flatten(1)
    log_yes_BN = (EDGE + (1 - 2 * EDGE) * relevance_BN).log()
    log_no_BN = (EDGE + (1 - 2 * EDGE) * (1 - relevance_BN)).log()
    positive_BN = _positive_weight(target_BN, positive_weight) * target_BN
    negative_BN = 1 - target_BN
    loss_BN = -(positive_BN * log_yes_BN + negative_BN * log_no_BN)
    return mean_over_known(loss_BN.sum(-1) / (positive_BN + negative_BN).sum(-1), known_B, weight_B)


def _positive_weight(target_BN: Tensor, positive_weight: float | str) -> Tensor:
    """Weight of a positive cell in each row, `[B, 1]`."""
    if positive_weight == "balanced":
        positive_B1 = target_BN.sum(-1, keepdim=True)
        return ((target_BN.shape[-1] - positive_B1) / positive_B1.clamp(min=1e-6)).clamp(1 / MOST_WEIGHT, MOST_WEIGHT)
    if isinstance(positive_weight, str) or positive_weight <= 0:
        raise ValueError(f'positive_weight={positive_weight!r}: give a number above 0 such as 10.0, or "balanced"')
    return target_BN.new_full((target_BN.shape[0], 1), positive_weight)


def relevance_mse(
    relevance_BHW: Tensor, target_BHW: Tensor, known_B: Tensor | None = None, weight_B: Tensor | None = None
) -> Tensor:
    """Mean squared difference, in [0, 1]."""
    difference_BHW = relevance_BHW.float() - _blank_unknown(target_BHW, known_B)
    return mean_over_known(difference_BHW.square().mean((1, 2)), known_B, weight_B)


def soft_iou(
    relevance_BHW: Tensor, target_BHW: Tensor, known_B: Tensor | None = None, weight_B: Tensor | None = None
) -> Tensor:
    """1 - soft intersection over soft union, in [0, 1]; 0 for the right map, where the target is 0 or 1.

    Rows without evidence have nothing to overlap with and are left out, as if unknown.
    """
    target_BHW, relevance_BHW = _blank_unknown(target_BHW, known_B), relevance_BHW.float()
    has_evidence_B = target_BHW.sum((1, 2)) > 0
    both_B = (relevance_BHW * target_BHW).sum((1, 2))
    either_B = (relevance_BHW + target_BHW - relevance_BHW * target_BHW).sum((1, 2))
    loss_B = 1 - both_B / torch.where(has_evidence_B, either_B, torch.ones_like(either_B))
    return mean_over_known(loss_B, has_evidence_B, weight_B)


def order_loss(
    relevance_BHW: Tensor,
    target_BHW: Tensor,
    attention_BHW: Tensor,
    known_B: Tensor | None = None,
    weight_B: Tensor | None = None,
) -> Tensor:
    """How far the order of the cells with evidence is from the model's own attention (>= 0, any scale) to them.

    A divergence over these cells alone, in nats, 0 for relevance whose odds are in proportion to the attention: which
    come first where a budget does not hold them all. Boxes leave that open, and call them all alike. Rows without
    evidence that was attended to are left out.
    """
    target_BN = _blank_unknown(target_BHW, known_B).flatten(1)
    share_BN = (target_BN * attention_BHW.detach().float().flatten(1)).nan_to_num(0.0, 0.0, 0.0)
    total_B1 = share_BN.sum(-1, keepdim=True)
    share_BN = share_BN / total_B1.clamp(min=1e-12)
    odds_BN = relevance_BHW.float().flatten(1).logit(eps=1e-6).masked_fill(target_BN == 0, -1e4)
    loss_BN = share_BN * (share_BN.clamp(min=1e-12).log() - odds_BN.log_softmax(-1))
    attended_B = total_B1.squeeze(-1) > 0
    return mean_over_known(loss_BN.sum(-1), attended_B if known_B is None else attended_B & known_B.bool(), weight_B)


# ---------------------------------------------------------------- answers


def answer_cross_entropy(logits_BLV: Tensor, labels_BL: Tensor) -> Tensor:
    """Cross-entropy of each sample's answer, `[B]`, mean over its labelled tokens; 0 where nothing is labelled.

    Labels are given as to the stock model: label i is predicted by the logits of token i - 1, and -100 carries no
    loss. Only labelled rows of the logits are turned to fp32: whole ones can be gigabytes.
    """
    row_A, column_A = (labels_BL[:, 1:] != IGNORE).nonzero(as_tuple=True)
    loss_A = F.cross_entropy(logits_BLV[row_A, column_A].float(), labels_BL[row_A, column_A + 1], reduction="none")
    count_B = torch.bincount(row_A, minlength=labels_BL.shape[0]).clamp(min=1)
    return loss_A.new_zeros(labels_BL.shape[0]).index_add(0, row_A, loss_A) / count_B


@torch.no_grad()
def answers_right(logits_BLV: Tensor, labels_BL: Tensor) -> Tensor:
    """Whether every labelled token is the likeliest one, given the right tokens before it: `[B]` bool.

    Then greedy decoding gives the same answer. False where nothing is labelled.
    """
    labelled_BL = labels_BL[:, 1:] != IGNORE
    hit_BL = logits_BLV[:, :-1].argmax(-1) == labels_BL[:, 1:]
    return (hit_BL | ~labelled_BL).all(-1) & labelled_BL.any(-1)


# ---------------------------------------------------------------- the budget


def smallest_budget(relevance_BHW: Tensor, evidence_BHW: Tensor, share: float = 0.95) -> Tensor:
    """The fewest cells, taken by relevance, that hold `share` of the evidence: `[B]` long in 1..N, 0 without evidence.

    Ranked as the allocator does: fp32, stable, ties to the lower index. `evidence` is bool, or >= 0 per cell.
    """
    order_BN = relevance_BHW.detach().flatten(1).float().sort(dim=-1, descending=True, stable=True).indices
    held_BN = evidence_BHW.flatten(1).double().gather(-1, order_BN).cumsum(-1)
    total_B1 = held_BN[:, -1:]
    # A billionth of slack: 19 of 20 cells are 0.95 of them, however the product is rounded.
    k_B = (held_BN < (share - 1e-9) * total_B1).sum(-1) + 1
    return torch.where(total_B1.squeeze(-1) > 0, k_B, torch.zeros_like(k_B))


def budget_targets(relevance_BHW: Tensor, k_B: Tensor, allocator: TokenAllocator) -> Tensor:
    """The tension `particularize`, `[B]` in [0, 1], for which k cells suffice, or as near as it can get.

    A budget of k follows from every share above what k - 1 cells hold, up to what k hold: the middle is aimed at.
    """
    mass_BN = relevance_mass(relevance_BHW.detach(), allocator.steepness).sort(-1, descending=True).values
    mass_BN = mass_BN / mass_BN.sum(-1, keepdim=True).clamp(min=1e-12)
    last_B1 = k_B.clamp(min=1).unsqueeze(-1) - 1
    share_B1 = mass_BN.cumsum(-1).gather(-1, last_B1) - mass_BN.gather(-1, last_B1) / 2
    return ((share_B1.squeeze(-1) - LEAST_SHARE) / SHARE_SPAN).clamp(0, 1)


def budget_loss(
    relevance_BHW: Tensor,
    particularize_B: Tensor,
    evidence_BHW: Tensor,
    allocator: TokenAllocator,
    known_B: Tensor | None = None,
    weight_B: Tensor | None = None,
    too_few: float = 1.0,
) -> Tensor:
    """Squared distance of `particularize` from the one that keeps just enough of the evidence, in [0, max(1, too_few)].

    The budget itself is a count and has no gradient. But it follows from a share of the relevance mass, and that share
    is linear in the tension; so the share that would have given the smallest sufficient budget is the target, and the
    tension alone learns. The map is taken as it is: else it would learn to flatter the budget. `too_few` multiplies
    the loss of budgets below the target: too few tokens cost answers, too many only time. Rows without evidence are
    left out.
    """
    evidence_BHW = _blank_unknown(evidence_BHW, known_B)
    k_B = smallest_budget(relevance_BHW, evidence_BHW)
    difference_B = particularize_B.float() - budget_targets(relevance_BHW, k_B, allocator)
    loss_B = torch.where(difference_B < 0, too_few, 1.0) * difference_B.square()
    return mean_over_known(loss_B, k_B > 0, weight_B)


# ---------------------------------------------------------------- distillation, where there are no boxes


def distillation_loss(
    relevance_BHW: Tensor,
    attention_BHW: Tensor,
    sharpness: float = 2.0,
    known_B: Tensor | None = None,
    weight_B: Tensor | None = None,
) -> Tensor:
    """Balanced cross-entropy against the dense model's own answer-token attention (>= 0, any scale).

    The target is (attention / its peak) ** sharpness. Cross-entropy and not a divergence of distributions: relevance is
    a value per cell, on whose height the budget depends, and a divergence fixes it only up to a factor. Attention has a
    low floor over hundreds of cells that together outweigh the few that matter; a sharpness above 1 takes it down.
    Rows without attention, or with values that are not finite, are left out.
    """
    attention_BHW = attention_BHW.detach().float()
    peak_B = attention_BHW.amax((1, 2))
    usable_B = attention_BHW.flatten(1).isfinite().all(-1) & (peak_B > 0)
    if known_B is not None:
        usable_B = usable_B & known_B.bool()
    target_BHW = _blank_unknown(attention_BHW / peak_B.view(-1, 1, 1), usable_B).clamp(0, 1) ** sharpness
    return relevance_bce(relevance_BHW, target_BHW, "balanced", usable_B, weight_B)
