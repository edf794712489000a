"""What the methods of the field have in common: they score cells, pick k of them, and may merge the rest into those.

B images with one grid, H W grid of cells, N = H * W, K kept cells, D width of a token.

Scores are in fp32 whatever the model's dtype, and every image is picked from alone, so a batch chooses as its rows do.
With k = N every cell is kept as it is. Scores that are not finite keep everything, and say so.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import TokenAllocator, choose_cells
from arr_coc.config import ARRCOCConfig
from arr_coc.records import NOT_FINITE, RELEVANCE, WHOLE_BUDGET, Allocation, Balance, Judgement
from arr_coc.selectors.interface import Selector, View
from arr_coc.timing import Stopwatch


@dataclass(frozen=True, slots=True)
class Looked(Judgement):
    """A judgement that remembers what was looked at, for methods that pick one cell after the other."""

    view: View
    scores_BN: Tensor  # fp32


@dataclass(frozen=True, slots=True)
class Pick:
    """The cells of each image, and what becomes of the others."""

    keep_BN: Tensor  # bool
    weights: Sequence[Tensor] | None = None  # per image [K, N]: what each kept token is made of; None: of itself
    grids: Sequence[tuple[int, int]] | None = None  # per image: the grid that it is to be resized to


@dataclass(frozen=True, slots=True)
class Taken(Allocation):
    """The allocation of a method of the field."""

    method: tuple[str, str]  # its name, and the reason in words
    weights: Sequence[Tensor] | None
    grids: Sequence[tuple[int, int]] | None

    def strategy(self, index: int) -> tuple[str, str]:
        plain = int(self.strategy_B[index]) == RELEVANCE
        return self.method if plain else Allocation.strategy(self, index)


class FieldSelector(Selector):
    """A method of the field, written from its specification. Subclasses score, and may pick in their own way."""

    reason: str
    """Why its cells were kept, in words."""
    reads_pixels = False
    reads_tokens = False
    gives_relevance = False

    def __init__(self, config: ARRCOCConfig) -> None:
        super().__init__(TokenAllocator(config.min_tokens, config.max_tokens))

    @abstractmethod
    def score(self, view: View) -> Tensor:
        """What the method thinks of each cell, `[B, N]` fp32."""

    def claim(self, view: View, scores_BN: Tensor) -> Tensor:
        """What each image claims of a budget shared by several, `[B]`: its size, unless the method knows better."""
        return torch.full_like(scores_BN[:, 0], scores_BN.shape[1])

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        """Exactly k cells of each image: the highest scores, unless the method picks otherwise."""
        return Pick(choose_cells(scores_BN, k_B))

    @torch.no_grad()
    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        device = view.question.tokens_BLD.device
        with stopwatch.part("knowing"), torch.autocast(device.type, enabled=False):
            scores_BN = self.score(view)
            relevance_BHW = stretch(scores_BN).view(-1, *view.grid)
        balance = Balance(relevance_BHW, torch.ones_like(scores_BN[:, :1]), scores_BN.new_zeros(scores_BN.shape[0], 3))
        return Looked({self.name: relevance_BHW}, balance, self.claim(view, scores_BN), view, scores_BN)

    @torch.no_grad()
    def choose(self, judgement: Judgement, k_B: Tensor) -> Allocation:
        assert isinstance(judgement, Looked)
        scores_BN, cells = judgement.scores_BN, judgement.scores_BN.shape[1]
        finite_B = scores_BN.isfinite().all(-1)
        k_B = torch.where(finite_B, k_B, cells).clamp(max=cells)
        with torch.autocast(scores_BN.device.type, enabled=False):
            pick = self.pick(judgement.view, scores_BN.nan_to_num(0, 0, 0), k_B)
        strategy_B = torch.where(k_B >= cells, WHOLE_BUDGET, RELEVANCE)
        relevance_BHW = judgement.balance.relevance_BHW
        return Taken(
            keep_BHW=(pick.keep_BN | ~finite_B.unsqueeze(1)).view_as(relevance_BHW),
            soft_BHW=torch.ones_like(relevance_BHW),
            strategy_B=torch.where(finite_B, strategy_B, NOT_FINITE),
            method=(self.name, self.reason),
            weights=pick.weights,
            grids=pick.grids,
        )


def count(view: View) -> tuple[int, int]:
    """Number of images, and of cells of each."""
    return view.question.tokens_BLD.shape[0], view.grid[0] * view.grid[1]


def no_scores(view: View) -> Tensor:
    """Zeros `[B, N]`, for a method that thinks nothing of the cells."""
    return torch.zeros(count(view), device=view.question.tokens_BLD.device)


def stretch(scores_BN: Tensor) -> Tensor:
    """Each row to [0, 1]; zeros where all scores are equal."""
    low_B1, high_B1 = scores_BN.amin(-1, keepdim=True), scores_BN.amax(-1, keepdim=True)
    return (scores_BN - low_B1) / (high_B1 - low_B1).clamp(min=1e-12)


def unit(tokens: Tensor) -> Tensor:
    """Vectors of length 1 in fp32, over the last dimension; a zero vector stays zero."""
    return F.normalize(tokens.float(), dim=-1, eps=1e-12)


def marked(picks: Sequence[Tensor], cells: int) -> Tensor:
    """Bool `[B, N]` from the picked cells of each image."""
    keep_BN = torch.zeros(len(picks), cells, dtype=torch.bool, device=picks[0].device)
    for row, picked in enumerate(picks):
        keep_BN[row, picked] = True
    return keep_BN
