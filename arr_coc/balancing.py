"""Three maps and the question -> weights, tensions, and one relevance map.

B batch, H W grid of cells, D language-model width, S = 3 scorers, T = 3 tensions.

The policy reads the pooled question *and* the statistics of the three maps, so the same question may weigh differently
on a busy street and on a plain wall. The tensions, each in [0, 1]:

    compress - particularize   0: few tokens,  1: many          acts on the budget
    exploit - explore          0: relevance,   1: even coverage acts on the share of the budget spent on coverage
    focus - diversify          0: blobs,       1: spread        acts on how strongly a kept cell suppresses neighbours
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.config import DETAIL, GROUPS, SCORERS, TENSIONS
from arr_coc.records import CAUTION, Balance, TexturePyramid

# An untrained participatory map is arbitrary: it is heard, and does not lead.
UNTRAINED_WEIGHTS = (0.6, 0.6, 0.3)
UNTRAINED_TENSIONS = (0.5, 0.1, 0.2)
STATISTICS = 4
EVEN, NEARLY_EVEN = 0.65, 0.7  # spread of detail under which an image has no structure, and may have none
SURE = 0.98  # relevance that the best cell of a structured image nearly always has
LEAST_SCORE = 1e-3  # share of a map's peak that counts as nothing: a logarithm needs a floor
LOUDER, LEAST_LOUD = 1.5, 0.1  # times what was found, and more, from where a cell's colour or detail is loud beside it
WEAK_SALIENCY = 0.1  # a perspectival map whose peak stands this far above its mean counts for half


def map_statistics(scores_BSHW: Tensor) -> Tensor:
    """Mean, spread, peak and peakedness of each map: `[B, S * 4]`, finite for finite maps of any size."""
    flat_BSN = scores_BSHW.flatten(2)
    mean_BS = flat_BSN.mean(-1)
    spread_BS = (flat_BSN - mean_BS.unsqueeze(-1)).square().mean(-1).add(1e-12).sqrt()
    peak_BS = flat_BSN.amax(-1)
    return torch.stack([mean_BS, spread_BS, peak_BS, peak_BS - mean_BS], dim=-1).flatten(1)


def combine(scores_BSHW: Tensor, weights_BS: Tensor) -> Tensor:
    """Weighted mean of the maps. A common factor of the weights does not matter to the choice and is divided out."""
    total_B11 = weights_BS.sum(-1).clamp(min=1e-6).view(-1, 1, 1)
    return torch.einsum("bshw,bs->bhw", scores_BSHW, weights_BS) / total_B11


def multiply(scores_BSHW: Tensor, exponents_BS: Tensor) -> Tensor:
    """Product of powers of the maps, as a sum of logarithms, brought to [0, 1]: the weighted geometric mean.

    A cell must matter to every map that has an exponent. Each map is taken relative to its peak, so that its scale does
    not matter; the root keeps what is left of small products apart from nothing.
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
        self.read_maps = nn.Linear(len(SCORERS) * STATISTICS, width)
        self.decide = nn.Sequential(nn.GELU(), nn.Linear(width, len(SCORERS) + len(TENSIONS)))
        last = self.decide[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.copy_(torch.logit(torch.tensor(UNTRAINED_WEIGHTS + UNTRAINED_TENSIONS)))

    def forward(self, scores_BSHW: Tensor, question_BD: Tensor) -> Balance:
        """From the three maps and the pooled question."""
        hidden = self.read_question(question_BD) + self.read_maps(map_statistics(scores_BSHW))
        decided = self.decide(hidden).sigmoid()
        weights_BS, tensions_BT = decided.split([len(SCORERS), len(TENSIONS)], dim=-1)
        weights_BS = weights_BS * self._trust(scores_BSHW)
        return Balance(combine(scores_BSHW, weights_BS), weights_BS, tensions_BT)

    @staticmethod
    def _trust(scores_BSHW: Tensor) -> Tensor:
        """1 for all but the perspectival map, whose weight falls where saliency is weak everywhere."""
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


def too_loud(pyramid: TexturePyramid, relevance_BHW: Tensor) -> Tensor:
    """Cells that are louder than what was found, in colour or detail, and those beside them: `[B, H, W]` bool."""
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
    return F.max_pool2d(loud_BHW.unsqueeze(1), 3, stride=1, padding=1)[:, 0] > 0
