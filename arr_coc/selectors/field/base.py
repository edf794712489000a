"""What the methods of the field have in common: they score cells, pick k of them, and may merge the rest into those.

B images with one grid, P of them that are worked on at once, H W grid of cells, N = H * W, K kept cells, D width of a
token.

Scores are in fp32 whatever the model's dtype, and every image is picked from alone, so a batch chooses as its rows do.
With k = N every cell is kept as it is. Scores that are not finite keep everything, and say so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import TokenAllocator, choose_cells
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import NOT_FINITE, RELEVANCE, WHOLE_BUDGET, Allocation, Balance, Judgement
from arr_coc.selectors.base import Selector, View
from arr_coc.timing import Stopwatch

HELD = {"cpu": 8 * 2**20, "cuda": 256 * 2**20}  # bytes that a part of a batch may hold: a CPU's cache, a GPU's memory


@dataclass(frozen=True, slots=True)
class Scored(Judgement):
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

    pays = "ViT: the kept windows when sparse, all when dense; LM: the kept tokens; choosing: nothing"
    reason: str
    """Why its cells were kept, in words."""
    gives_relevance = False

    def __init__(self, config: ARRCOCConfig, layer: ARRCOCLayer | None = None) -> None:
        super().__init__(TokenAllocator(config.min_tokens, config.max_tokens))

    def score(self, view: View) -> Tensor:
        """What the method thinks of each cell, `[B, N]` fp32; nothing, for one that picks by other means."""
        return torch.zeros(count(view), device=view.question.tokens_BLD.device)

    def claim(self, view: View, scores_BN: Tensor) -> Tensor:
        """What each image claims of a budget shared by several, `[B]`: its size, unless the method knows better."""
        return torch.full_like(scores_BN[:, 0], scores_BN.shape[1])

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        """Exactly k cells of each image: the highest scores, unless the method picks otherwise."""
        return Pick(choose_cells(scores_BN, k_B))

    @torch.no_grad()
    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        view, device = view.per_row(), view.question.tokens_BLD.device
        with stopwatch.part("knowing"), torch.autocast(device.type, enabled=False):
            scores_BN = self.score(view)
            relevance_BHW = stretch(scores_BN).view(-1, *view.grid)
        balance = Balance(relevance_BHW, torch.ones_like(scores_BN[:, :1]), scores_BN.new_zeros(scores_BN.shape[0], 3))
        return Scored({self.name: relevance_BHW}, balance, self.claim(view, scores_BN), view, scores_BN)

    @torch.no_grad()
    def choose(self, judgement: Judgement, k_B: Tensor) -> Allocation:
        assert isinstance(judgement, Scored)
        scores_BN, cells = judgement.scores_BN, judgement.scores_BN.shape[1]
        finite_B = scores_BN.isfinite().all(-1)
        k_B = torch.where(finite_B, k_B, cells).clamp(max=cells)
        with torch.autocast(scores_BN.device.type, enabled=False):
            pick = self.pick(judgement.view, scores_BN.nan_to_num(0, 0, 0), k_B.clamp(min=1))
        if not bool((k_B > 0).all()):  # moments of a clip, and they alone, may keep nothing
            weights = pick.weights and [one[:k] for one, k in zip(pick.weights, k_B.tolist(), strict=True)]
            pick = replace(pick, keep_BN=pick.keep_BN & (k_B > 0).unsqueeze(1), weights=weights)
        strategy_B = torch.where(k_B >= cells, WHOLE_BUDGET, RELEVANCE)
        relevance_BHW = judgement.balance.relevance_BHW
        keep_BHW = (pick.keep_BN | ~finite_B.unsqueeze(1)).view_as(relevance_BHW)
        return Taken(
            keep_BHW=keep_BHW,
            soft_BHW=torch.ones_like(relevance_BHW),
            strategy_B=torch.where(finite_B, strategy_B, NOT_FINITE),
            covered_BHW=torch.zeros_like(keep_BHW),
            method=(self.name, self.reason),
            weights=pick.weights,
            grids=pick.grids,
        )


def count(view: View) -> tuple[int, int]:
    """Number of images, and of cells of each."""
    return view.question.tokens_BLD.shape[0], view.grid[0] * view.grid[1]


def stretch(scores_BN: Tensor) -> Tensor:
    """Each row to [0, 1]; zeros where all scores are equal."""
    low_B1, high_B1 = scores_BN.amin(-1, keepdim=True), scores_BN.amax(-1, keepdim=True)
    return (scores_BN - low_B1) / (high_B1 - low_B1).clamp(min=1e-12)


def unit(tokens: Tensor) -> Tensor:
    """Vectors of length 1 in fp32, over the last dimension; a zero vector stays zero."""
    return F.normalize(tokens.float(), dim=-1, eps=1e-12)


def likeness(unit_BND: Tensor) -> Tensor:
    """Cosines between the tokens of each image, `[B, N, N]` fp32; equal tokens have equal rows and columns.

    One product per image: a product of all at once may round by how many there are.
    """
    found_BNN = unit_BND.new_empty(*unit_BND.shape[:2], unit_BND.shape[1])
    for tokens_ND, found_NN in zip(unit_BND, found_BNN, strict=True):
        torch.mm(tokens_ND, tokens_ND.T, out=found_NN)
    return found_BNN


def in_parts(
    rows: Sequence[int], floats: int, device: torch.device, kinds: Sequence[int] | None = None
) -> list[list[int]]:
    """Rows of a batch in parts that hold at most HELD bytes, each row `floats` fp32 numbers; at least one row a part.

    Rows of different `kinds` (a number for each row of the batch) are never in one part.
    """
    most = max(1, HELD.get(device.type, HELD["cuda"]) // (4 * floats))
    alike: dict[int, list[int]] = {}
    for row in rows:
        alike.setdefault(0 if kinds is None else kinds[row], []).append(row)
    return [part[start : start + most] for part in alike.values() for start in range(0, len(part), most)]


def greedy(
    order: Callable[[list[int], int], Tensor], k_B: Tensor, cells: int, floats: int, kinds: Sequence[int] | None = None
) -> Tensor:
    """Bool `[B, N]`: the first k cells of each image, for methods that pick one cell after the other.

    `order(rows, K)` gives the first K picks of P images, `[P, K]`. What is picked first does not depend on how many
    are picked, so images of different budgets are picked from together, and each counts its own k of them. Images that
    keep everything are left out. `floats` and `kinds` are those of `in_parts`.
    """
    budgets, device = k_B.tolist(), k_B.device
    keep_BN = (k_B >= cells).unsqueeze(1).repeat(1, cells)
    for part in in_parts([row for row, k in enumerate(budgets) if k < cells], floats, device, kinds):
        order_PK = order(part, max(budgets[row] for row in part))
        counts_PK = torch.arange(order_PK.shape[1], device=device) < k_B[part].unsqueeze(1)
        keep_BN[part] = keep_BN[part].scatter(1, order_PK, counts_PK)
    return keep_BN


def at(values_BXN: Tensor, pick_B: Tensor) -> Tensor:
    """The row of each image's own pick, `[B, N]` out of `[B, X, N]`."""
    return values_BXN.gather(1, pick_B.view(-1, 1, 1).expand(-1, 1, values_BXN.shape[-1])).squeeze(1)


def marked(picks: Sequence[Tensor], cells: int) -> Tensor:
    """Bool `[B, N]` from the picked cells of each image."""
    keep_BN = torch.zeros(len(picks), cells, dtype=torch.bool, device=picks[0].device)
    rows = torch.arange(len(picks)).repeat_interleave(torch.tensor([len(picked) for picked in picks]))
    keep_BN[rows.to(keep_BN.device), torch.cat(list(picks))] = True
    return keep_BN
