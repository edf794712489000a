"""Three maps and the question -> exponents, tensions, and one relevance map: a product of powers of odds.

B batch, H W grid of cells, D language-model width, S = 3 scorers, T = 3 tensions.

The policy reads the pooled question *and* the three maps' statistics, how far they agree among them, so the same
question may weigh differently on a busy street and on a plain wall. The tensions, each in [0, 1]:

    compress - particularize   0: few tokens,  1: many          acts on the budget
    exploit - explore          0: relevance,   1: even coverage acts on the share of the budget spent on coverage
    focus - diversify          0: blobs,       1: spread        acts on how strongly a kept cell suppresses neighbours
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.config import DETAIL, GROUPS, SCORERS, TENSIONS
from arr_coc.records import BARE, CAUTION, LOUD, Balance, TexturePyramid

UNTRAINED_EXPONENTS = (0.5, 0.5, 1.0)
UNTRAINED_TENSIONS = (0.5, 0.1, 0.2)
STATISTICS = 4  # of each map; and one for each pair of maps
EVEN, NEARLY_EVEN = 0.65, 0.7  # spread of detail under which an image has no structure, and may have none
SURE = 0.97  # relevance that the best cell of a structured image nearly always has
GROUND = 0.2  # share of the cells that are taken for the image's ground: only what they hold more than it counts
LOUDER, LEAST_LOUD = 1.5, 0.1  # times what was found, and more, from where a cell's colour or detail is loud beside it
LEAST_SCORE = 1e-3  # share of a map's peak that counts as nothing: a logarithm needs a floor
WEAK_SALIENCY = 0.1  # a perspectival map whose peak stands this far above its mean counts for half


def map_statistics(scores_BSHW: Tensor) -> Tensor:
    """Mean, spread, peak and peakedness of each map, and how far each two agree: `[B, S * 4 + S * (S - 1) / 2]`.

    Finite for finite maps of any size. Agreement is a correlation: a map that follows nothing else may be mistaken.
    """
    flat_BSN = scores_BSHW.flatten(2)
    mean_BS = flat_BSN.mean(-1)
    apart_BSN = flat_BSN - mean_BS.unsqueeze(-1)
    spread_BS = apart_BSN.square().mean(-1).add(1e-12).sqrt()
    peak_BS = flat_BSN.amax(-1)
    each = torch.stack([mean_BS, spread_BS, peak_BS, peak_BS - mean_BS], dim=-1).flatten(1)
    alike_BSN = apart_BSN / spread_BS.unsqueeze(-1)
    pairs = ((one, two) for one in range(flat_BSN.shape[1]) for two in range(one))
    agree = [(alike_BSN[:, one] * alike_BSN[:, two]).mean(-1) for one, two in pairs]
    return torch.cat([each, torch.stack(agree, dim=-1)], dim=-1)


def product(scores_BSHW: Tensor, exponents_BS: Tensor) -> Tensor:
    """Product of powers of the maps' odds, as a chance in [0, 1]: what each way holds for or against a cell, weighed.

    A value of 1/2 changes nothing, and what one map is sure against, others must be surer for. As plain powers of maps
    under 1, ways could only take away from each other, and training let the blind ones go. A sum of logarithms; 0 and 1
    count as LEAST_SCORE and its opposite, smoothly, so that no single map is a veto without a way back.
    """
    inside_BSHW = LEAST_SCORE + (1 - 2 * LEAST_SCORE) * scores_BSHW
    odds_BSHW = inside_BSHW.log() - (1 - inside_BSHW).log()
    return torch.einsum("bshw,bs->bhw", odds_BSHW, exponents_BS).sigmoid()


def multiply(scores_BSHW: Tensor, exponents_BS: Tensor) -> Tensor:
    """Product of powers of maps that mean nothing but their order, brought to [0, 1]: the weighted geometric mean.

    Each map is taken relative to its peak, so that its scale does not matter; the root keeps what is left of small
    products apart from nothing.
    """
    peak_BS11 = scores_BSHW.amax((2, 3), keepdim=True).clamp(min=LEAST_SCORE)
    logs_BSHW = (scores_BSHW / peak_BS11).clamp(min=LEAST_SCORE).log()
    total_B11 = exponents_BS.sum(-1).clamp(min=1e-6).view(-1, 1, 1)
    return (torch.einsum("bshw,bs->bhw", logs_BSHW, exponents_BS) / total_B11).exp()


class AdaptiveTensionBalancer(nn.Module):
    """The policy network and the relevance that follows from it."""

    def __init__(self, hidden_dim: int, width: int = 64) -> None:
        super().__init__()
        self.read_question = nn.Sequential(nn.RMSNorm(hidden_dim), nn.Linear(hidden_dim, width))
        pairs = len(SCORERS) * (len(SCORERS) - 1) // 2
        self.read_maps = nn.Linear(len(SCORERS) * STATISTICS + pairs, width)
        self.decide = nn.Sequential(nn.GELU(), nn.Linear(width, len(SCORERS) + len(TENSIONS)))
        last = self.decide[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(0.1)
            exponents = torch.tensor(UNTRAINED_EXPONENTS).expm1().log()  # what softplus takes back
            last.bias.copy_(torch.cat([exponents, torch.logit(torch.tensor(UNTRAINED_TENSIONS))]))

    def forward(self, scores_BSHW: Tensor, question_BD: Tensor) -> Balance:
        """From the three maps and the pooled question."""
        hidden = self.read_question(question_BD) + self.read_maps(map_statistics(scores_BSHW))
        decided_BS, decided_BT = self.decide(hidden).split([len(SCORERS), len(TENSIONS)], dim=-1)
        exponents_BS = F.softplus(decided_BS) * self._trust(scores_BSHW)
        return Balance(product(scores_BSHW, exponents_BS), exponents_BS, decided_BT.sigmoid())

    @staticmethod
    def _trust(scores_BSHW: Tensor) -> Tensor:
        """1 for all but the perspectival map, whose exponent falls where saliency is weak everywhere."""
        standout_BS = scores_BSHW.flatten(2).amax(-1) - scores_BSHW.flatten(2).mean(-1)
        trust_BS = standout_BS / (standout_BS + WEAK_SALIENCY)
        columns = zip(SCORERS, trust_BS.unbind(-1), strict=True)
        return torch.stack([one if name == "perspectival" else torch.ones_like(one) for name, one in columns], dim=-1)


def cautious(balance: Balance, spread_B: Tensor, even: float = EVEN) -> Balance:
    """Where an image has no structure, half of the budget goes on even coverage.

    `spread_B` says how unevenly its detail lies. Under `even` no map is believed. Splatter may lie as unevenly as
    the plainest scenes do: from there to NEARLY_EVEN, only a map that is sure of something is believed. A map that has
    learned to find nothing in noise, as the adapter's `voids` says, is believed wherever it is sure (`even` 0): scenes
    may stand on bricks.
    """
    particularize_B, explore_B, diversify_B = balance.tensions_BT.unbind(-1)
    unsure_B = balance.relevance_BHW.detach().amax((1, 2)) < SURE
    lost_B = (spread_B < even) | (unsure_B & (spread_B < NEARLY_EVEN))
    # What is added has no gradient, so that the tension learns from these images as from any other.
    explore_B = explore_B + lost_B * (CAUTION - explore_B).clamp(min=0).detach()
    return replace(balance, tensions_BT=torch.stack([particularize_B, explore_B, diversify_B], dim=-1))


def overlooked(pyramid: TexturePyramid, relevance_BHW: Tensor, information_BHW: Tensor, bare_BHW: Tensor) -> Tensor:
    """What cells that were ruled out claim of the rest of a budget, `[B, H, W]` in [-1, 1], without a gradient.

    As much as they hold above the image's ground: what is empty claims nothing. What is louder than what was found, in
    colour or detail, and what lies beside it, is LOUD and claims less: it was seen, and ruled out all the same. Bare
    paper of a written page claims least of all.
    """
    if (shape := tuple(relevance_BHW.shape[1:])) != pyramid.grid:
        raise ValueError(f"relevance of {shape} cells, of an image of {pyramid.grid}")
    relevance_BHW = relevance_BHW.detach()
    share_BHW = relevance_BHW / relevance_BHW.sum((1, 2), keepdim=True).clamp(min=1e-12)
    named = dict(zip(pyramid.names, pyramid.cell_BCHW.unbind(1), strict=True))
    rgb_B3HW = torch.stack([named[name] for name in GROUPS["colour"]], dim=1)
    detail_BHW = next(named[name] for name in DETAIL if name in named)
    loud_BHW = torch.zeros_like(relevance_BHW)
    for level_BHW in (rgb_B3HW.amax(1) - rgb_B3HW.amin(1), detail_BHW):
        found_B11 = (level_BHW * share_BHW).sum((1, 2), keepdim=True)
        loud_BHW = torch.maximum(loud_BHW, (level_BHW > LOUDER * found_B11 + LEAST_LOUD).float())
    loud_BHW = F.max_pool2d(loud_BHW.unsqueeze(1), 3, stride=1, padding=1)[:, 0]
    claims_BHW = torch.where(loud_BHW > 0, LOUD, above_ground(information_BHW.detach()))
    return claims_BHW.masked_fill(bare_BHW, BARE)


def above_ground(information_BHW: Tensor) -> Tensor:
    """Information over what the emptiest cells of the same image hold: paper and walls have grain, and say nothing.

    Attention that falls on such cells is then worth nothing, however much it is.
    """
    sorted_BN = information_BHW.flatten(1).sort(-1).values
    ground_B = sorted_BN[:, int(GROUND * (sorted_BN.shape[1] - 1))]
    return (information_BHW - ground_B.view(-1, 1, 1)).clamp(min=0)
