"""Choices drawn from a map of relevance, and what is differentiable about them.

B images with one grid, H W grid of cells, N = H * W, T tensions.

Draws are without replacement, from the odds of the relevance after the tensions: Plackett-Luce, by adding Gumbel noise.
"""

import torch
from torch import Tensor

from arr_coc.attending import soften, suppress_neighbours
from arr_coc.records import Judgement

HALVINGS = 32  # of an interval of about 100: beyond what fp32 can tell apart


def relevance_after_tensions(judgement: Judgement) -> Tensor:
    """The map that losses and gates should see, `[B, H, W]` in [0, 1], differentiable in relevance and tensions.

    The allocator's own soft map is a constant where the relevance points nowhere. Such a row could never learn, so
    here only rows that are not finite are taken out, as zeros.
    """
    relevance_BHW, tensions_BT = judgement.balance.relevance_BHW.float(), judgement.balance.tensions_BT.float()
    finite_B = relevance_BHW.flatten(1).isfinite().all(-1) & tensions_BT.isfinite().all(-1)
    relevance_BHW = torch.where(finite_B.view(-1, 1, 1), relevance_BHW, torch.zeros_like(relevance_BHW))
    tensions_BT = torch.where(finite_B.view(-1, 1), tensions_BT, torch.zeros_like(tensions_BT))
    _, explore_B, diversify_B = tensions_BT.unbind(-1)
    return soften(relevance_BHW, suppress_neighbours(relevance_BHW, diversify_B), explore_B)


def add_gumbel(logits_BN: Tensor, generator: torch.Generator | None) -> Tensor:
    """Logits with Gumbel noise: their k highest are k draws without replacement, in the order drawn."""
    wait_BN = torch.empty_like(logits_BN).exponential_(generator=generator)
    return logits_BN - wait_BN.clamp(min=torch.finfo(wait_BN.dtype).tiny).log()


def relaxed_top_k(logits_BN: Tensor, k_B: Tensor, temperature: float) -> Tensor:
    """A soft k-hot in [0, 1] whose rows sum to k: `sigmoid((logit - threshold) / temperature)`, `[B, N]`.

    Each row has one threshold, found by halving. It moves with the logits (implicit derivative), so a cell that rises
    pushes the others down. Cost is 32 passes over the row whatever k is; rows with k >= N are 1, without gradient.
    """
    cells = logits_BN.shape[-1]
    wanted_B1 = k_B.to(logits_BN.dtype).clamp(max=cells - 0.5).unsqueeze(-1)
    fixed_BN = logits_BN.detach()
    low_B1 = fixed_BN.amin(-1, keepdim=True) - 20 * temperature
    high_B1 = fixed_BN.amax(-1, keepdim=True) + 20 * temperature
    for _ in range(HALVINGS):
        middle_B1 = (low_B1 + high_B1) / 2
        too_many_B1 = ((fixed_BN - middle_B1) / temperature).sigmoid().sum(-1, keepdim=True) > wanted_B1
        low_B1, high_B1 = torch.where(too_many_B1, middle_B1, low_B1), torch.where(too_many_B1, high_B1, middle_B1)
    threshold_B1 = (low_B1 + high_B1) / 2
    held_BN = ((logits_BN - threshold_B1) / temperature).sigmoid()
    slope_B1 = (held_BN * (1 - held_BN)).sum(-1, keepdim=True).detach().clamp(min=1e-12) / temperature
    held_B1 = held_BN.sum(-1, keepdim=True)
    threshold_B1 = threshold_B1 + (held_B1 - held_B1.detach()) / slope_B1
    soft_BN = ((logits_BN - threshold_B1) / temperature).sigmoid()
    return torch.where(k_B.unsqueeze(-1) >= cells, torch.ones_like(soft_BN), soft_BN)


def ordered_log_prob(logits_BN: Tensor, order_BN: Tensor, k_B: Tensor) -> Tensor:
    """Log-probability of drawing the first k cells of `order` one after the other without replacement, `[B]`, <= 0.

    `order` is a permutation of all cells; what comes after the first k does not matter.
    """
    ranked_BN = logits_BN.gather(-1, order_BN)
    left_BN = ranked_BN.flip(-1).logcumsumexp(-1).flip(-1)  # log of the odds of all cells not drawn before
    drawn_BN = torch.arange(order_BN.shape[-1], device=order_BN.device) < k_B.unsqueeze(-1)
    return torch.where(drawn_BN, ranked_BN - left_BN, torch.zeros_like(ranked_BN)).sum(-1)
