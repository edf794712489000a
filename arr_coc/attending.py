"""Relevance -> kept cells. Budgets, coverage, suppression and ties; no loop over cells or samples.

B batch (of images), H W grid of cells, N = H * W, K kept, I images of all samples, S samples.

Contract: exactly K = min(K, N) cells per image, strictly increasing flat indices, unique; fp32 scores, stable sort,
ties by index.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.config import Keep, tokens_to_keep
from arr_coc.records import (
    BARE,
    CAUTION,
    EVEN_GRID,
    HALF_EVEN,
    NOT_FINITE,
    RELEVANCE,
    WHOLE_BUDGET,
    Allocation,
    constant_table,
)

REFERENCE_CELLS = 1024  # min_tokens and max_tokens are meant for a grid of this many cells
NO_STRUCTURE = 0.02  # relevance whose peak is this close to its median points nowhere
AGREEMENT = 0.5  # share of the spread that must outlive smoothing; independent noise keeps 1/3
NOISE_PEAK = 5.0  # standard deviations that a thousand cells of noise do not reach
RULED_OUT = 0.002  # relevance below this is a no: such cells are alike, and the rest of a budget is spread over them
LEAST_CLAIM = 0.02  # of the greatest claim on the rest of a budget: less is none
LEAST_SHARE, SHARE_SPAN = 0.5, 0.45  # of the mass that just suffices: the least, and what particularizing adds
SLACK = 1.8  # an automatic budget over what just suffices: things reach over the edges of their cells


# ---------------------------------------------------------------- coverage and suppression


@constant_table
def even_rank(height: int, width: int, device: torch.device) -> Tensor:
    """Rank of each cell in an order whose first K cells cover the grid evenly, for every K: `[H, W]`, 0 first.

    Ordered dithering (Bayer): each bit of the place, coarsest last, decides between four quarters.
    """
    bits = max(height, width, 2).bit_length()
    period = 1 << bits
    y = (torch.arange(height).view(-1, 1) - height // 2) % period  # the first cell is the middle one
    x = (torch.arange(width).view(1, -1) - width // 2) % period
    order = torch.zeros(height, width, dtype=torch.long)
    for bit in range(bits):
        y_bit, x_bit = (y >> bit) & 1, (x >> bit) & 1
        order = order * 4 + (y_bit ^ x_bit) * 2 + y_bit
    rank = torch.empty(height * width, dtype=torch.long)
    rank[order.flatten().argsort(stable=True)] = torch.arange(height * width)
    return rank.view(height, width).to(device)


@constant_table
def coverage(height: int, width: int, device: torch.device) -> Tensor:
    """The even order as scores in (0, 1], highest first: `[H, W]`."""
    return 1 - even_rank(height, width, device).float() / (height * width)


def suppress_neighbours(relevance_BHW: Tensor, diversify_B: Tensor) -> Tensor:
    """Scale each cell down by `diversify` times its most relevant neighbour, if that one beats it.

    Among equals the even order decides who beats whom, so that a plateau is thinned out evenly.
    """
    height, width = relevance_BHW.shape[-2:]
    ranked_BHW = relevance_BHW.detach() + 1e-6 * coverage(height, width, relevance_BHW.device)
    beaten_BHW = F.max_pool2d(ranked_BHW.unsqueeze(1), 3, stride=1, padding=1)[:, 0] > ranked_BHW
    best_BHW = F.max_pool2d(relevance_BHW.unsqueeze(1), 3, stride=1, padding=1)[:, 0]
    beaten_by = torch.where(beaten_BHW, best_BHW, 0.0)
    return relevance_BHW * (1 - diversify_B.view(-1, 1, 1) * beaten_by.clamp(0, 1))


def soften(relevance_BHW: Tensor, spread_BHW: Tensor, explore_B: Tensor) -> Tensor:
    """Relevance after the tensions, differentiable in all: what losses and gates see.

    `spread_BHW` is the relevance after `suppress_neighbours`.
    """
    explore = explore_B.view(-1, 1, 1)
    even_HW = coverage(relevance_BHW.shape[-2], relevance_BHW.shape[-1], relevance_BHW.device)
    return (1 - explore) * spread_BHW + explore * even_HW * relevance_BHW.detach()


# ---------------------------------------------------------------- budgets


def budget_bounds(cells: int, min_tokens: int, max_tokens: int) -> tuple[int, int]:
    """Least and most tokens of an automatic budget: the settings, scaled for grids of other than 1,024 cells.

    Smaller grids get the same share of their cells. Above, bounds grow with the side: a large image shows more, and the
    same things larger.
    """
    scale = cells / REFERENCE_CELLS
    scale = scale if scale < 1 else scale**0.5
    low = min(cells, max(1, round(min_tokens * scale)))
    return low, min(cells, max(low, round(max_tokens * scale)))


def known_budgets(keeps: Sequence[Keep], sample_of: Sequence[int], cells: Sequence[int]) -> list[int] | None:
    """Cells to keep of each image where the dials alone say so; None where a map must be read for it."""
    if len(set(sample_of)) < len(sample_of):
        return None
    wanted = [tokens_to_keep(keeps[sample], count) for sample, count in zip(sample_of, cells, strict=True)]
    known = [count for count in wanted if count is not None]
    return known if len(known) == len(wanted) else None


def budget_by_mass(relevance_BHW: Tensor, share_B: Tensor, steepness: Tensor) -> Tensor:
    """The smallest K whose cells hold `share` of the relevance mass, `[B]` long.

    The mass of a cell is its relevance to the power of `steepness`: 1 where relevance is how likely a cell is to hold
    evidence, so that a sure map asks for few cells and a doubtful one for many; more where maps are only a ranking.
    """
    mass_BN = relevance_mass(relevance_BHW, steepness).sort(-1, descending=True).values
    held_BN = mass_BN.cumsum(-1)
    return ((held_BN < share_B.unsqueeze(-1) * held_BN[:, -1:]).sum(-1) + 1).clamp(max=mass_BN.shape[-1])


def relevance_mass(relevance_BHW: Tensor, steepness: Tensor) -> Tensor:
    """What each cell counts in an automatic budget: `[B, N]`, at least 0."""
    return relevance_BHW.flatten(1).float().clamp(min=0) ** steepness


def share_budget(k_S: Tensor, mass_I: Tensor, sample_I: Tensor, cells_I: Tensor) -> Tensor:
    """Split each sample's budget over its images in proportion to their mass, at least one each: `[I]` long.

    Divisor apportionment (Sainte-Lague): the n-th token of an image claims with mass / (n - 1/2); highest claims win.
    A first token claims above all others, cells are the cap, and the sum is exactly min(K, cells of the sample), or the
    number of images if that is more.
    """
    images, samples = mass_I.shape[0], k_S.shape[0]
    most = int(cells_I.max())
    nth_N = torch.arange(1, most + 1, device=mass_I.device)
    claim_IN = mass_I.double().clamp(min=1e-12).unsqueeze(1) / (nth_N - 0.5)
    claim_IN[:, 0] = torch.inf
    claim_IN = claim_IN.masked_fill(nth_N > cells_I.unsqueeze(1), -torch.inf)
    # Highest claim first, then grouped by sample; both sorts are stable, so ties go to the earlier image.
    flat_sample = sample_I.unsqueeze(1).expand(images, most).flatten()
    by_claim = claim_IN.flatten().sort(descending=True, stable=True).indices
    order = by_claim[flat_sample[by_claim].sort(stable=True).indices]
    start_S = F.pad(torch.bincount(flat_sample, minlength=samples).cumsum(0), (1, 0))[:-1]
    place = torch.arange(order.shape[0], device=order.device) - start_S[flat_sample[order]]
    k_S = torch.maximum(k_S, torch.bincount(sample_I, minlength=samples))
    won = (place < k_S[flat_sample[order]]) & claim_IN.flatten()[order].gt(-torch.inf)
    return torch.zeros(images, dtype=torch.long, device=k_S.device).index_add(0, order // most, won.long())


# ---------------------------------------------------------------- the choice


def choose_cells(scores_BN: Tensor, k_B: Tensor) -> Tensor:
    """Keep the k highest of each row: bool `[B, N]` with exactly min(k, N) True per row; ties go to the lower index."""
    order = scores_BN.float().sort(dim=-1, descending=True, stable=True).indices
    place_N = torch.arange(scores_BN.shape[-1], device=scores_BN.device).expand_as(order)
    return torch.zeros_like(order, dtype=torch.bool).scatter(1, order, place_N < k_B.unsqueeze(-1))


def choose_with_coverage(scores_BHW: Tensor, even_BHW: Tensor, k_B: Tensor, explore_B: Tensor) -> tuple[Tensor, Tensor]:
    """Spend round(explore * k) of the budget on the even order, the rest on the scores, highest first: `[B, H, W]`.

    And which of these cells are there for the even order alone: they score below all that are there for their score.
    """
    covered_BN = choose_cells(even_BHW.flatten(1), (explore_B * k_B).round())
    scores_BN = scores_BHW.flatten(1).float()
    top = scores_BN.amax(-1, keepdim=True) + 1
    keep_BN = choose_cells(torch.where(covered_BN, top, scores_BN), k_B)
    least_B1 = torch.where(keep_BN & ~covered_BN, scores_BN, torch.inf).amin(-1, keepdim=True)
    alone_BN = keep_BN & covered_BN & (scores_BN < least_B1)
    return keep_BN.view_as(scores_BHW), alone_BN.view_as(scores_BHW)


def share_out(even_BHW: Tensor, claims_BHW: Tensor) -> Tensor:
    """Scores in (0, 1] whose first K cells, for every K, lie as densely as cells claim, and evenly among like claims.

    As in drawing without replacement, with the even order in place of chance: its logarithm over the claim. Cells that
    claim nothing come after all others; after them those that claim less, and BARE ones last, all in the even order.
    """
    claims_BHW = torch.where(claims_BHW.isfinite(), claims_BHW, 0.0)
    relative_BHW = claims_BHW / claims_BHW.amax((-2, -1), keepdim=True).clamp(min=1e-12)
    drawn_BHW = 1 / (1 - even_BHW.log() / relative_BHW.clamp(min=LEAST_CLAIM))
    scores_BHW = torch.where(relative_BHW > LEAST_CLAIM, 3 + drawn_BHW, 2 + even_BHW)
    return torch.where(claims_BHW < 0, even_BHW + (claims_BHW != BARE), scores_BHW) / 4


def kept_indices(keep_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Flat indices of the kept cells, increasing, `[B, K]`, padded with 0; and the mask of real ones."""
    counts_B = keep_BN.sum(-1)
    most = int(counts_B.max())
    order = keep_BN.to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices[:, :most]
    mask_BK = torch.arange(most, device=keep_BN.device) < counts_B.unsqueeze(-1)
    return order.masked_fill(~mask_BK, 0), mask_BK


def points_somewhere(relevance_BHW: Tensor) -> Tensor:
    """Whether any cell stands above the rest at all: `[B]` bool, False for a flat map."""
    flat_BN = relevance_BHW.flatten(1).float()
    return flat_BN.amax(-1) - flat_BN.median(-1).values > NO_STRUCTURE


def looks_like_noise(relevance_BHW: Tensor) -> Tensor:
    """Whether the map could be independent noise: `[B]` bool.

    Its spread does not outlive smoothing over 3 x 3 cells (of independent noise a third is left), and no peak is too
    high for noise. Scattered single cells look alike, so this is a reason for caution and not for dropping the map.
    """
    flat_BN = relevance_BHW.flatten(1).float()
    height_B = flat_BN.amax(-1) - flat_BN.median(-1).values
    spread_B = (flat_BN - flat_BN.mean(-1, keepdim=True)).square().mean(-1).sqrt()
    smooth_BN = F.avg_pool2d(relevance_BHW.float(), 3, stride=1, padding=1, count_include_pad=False).flatten(1)
    smooth_B = (smooth_BN - smooth_BN.mean(-1, keepdim=True)).square().mean(-1).sqrt()
    return (smooth_B <= AGREEMENT * spread_B) & (height_B <= NOISE_PEAK * spread_B)


class TokenAllocator(nn.Module):
    """Budget and choice. Its one number, kept with the weights, is the steepness of the mass that "auto" covers."""

    def __init__(self, min_tokens: int = 64, max_tokens: int = 400, steepness: float = 1.0) -> None:
        super().__init__()
        if not 1 <= min_tokens <= max_tokens:
            raise ValueError(
                f"min_tokens={min_tokens}, max_tokens={max_tokens}: expected 1 <= min_tokens <= max_tokens"
            )
        self.min_tokens, self.max_tokens = min_tokens, max_tokens
        self.steepness: Tensor
        self.register_buffer("steepness", torch.tensor(steepness))

    def sufficient(self, relevance_BHW: Tensor, particularize_B: Tensor) -> Tensor:
        """The fewest cells that hold 1/2 of the relevance mass when compressing, 19/20 when particularizing: `[B]`."""
        return budget_by_mass(relevance_BHW, LEAST_SHARE + SHARE_SPAN * particularize_B, self.steepness)

    def automatic(self, relevance_BHW: Tensor, particularize_B: Tensor) -> Tensor:
        """Budget of keep="auto", `[B]`: what suffices and more than half as much again around it, within the bounds."""
        low, high = self._bounds(relevance_BHW[0].numel())
        return (self.sufficient(relevance_BHW, particularize_B) * SLACK).ceil().long().clamp(low, high)

    def budgets(self, relevance_BHW: Tensor, particularize_B: Tensor, keeps: Sequence[Keep]) -> Tensor:
        """Number of cells to keep of each image, `[B]` long, from one checked dial per image."""
        automatic_B = self.automatic(relevance_BHW, particularize_B) if "auto" in keeps else None
        rows, cells = range(len(keeps)), [relevance_BHW[0].numel()] * len(keeps)
        return self.shared_budgets(keeps, rows, cells, relevance_BHW.new_ones(len(keeps)), automatic_B)

    def shared_budgets(
        self,
        keeps: Sequence[Keep],
        sample_of: Sequence[int],
        cells: Sequence[int],
        mass_I: Tensor,
        automatic_I: Tensor | None,
    ) -> Tensor:
        """Number of cells to keep of each image, `[I]` long: its sample's budget, shared over images by `mass_I`.

        `keeps` are one checked dial per sample; `automatic_I` is what "auto" gives each image alone, None without one.
        """
        device = mass_I.device
        known = known_budgets(keeps, sample_of, cells)
        if known is not None:
            return torch.tensor(known, device=device)
        sample_I, cells_I = torch.tensor(sample_of, device=device), torch.tensor(cells, device=device)
        cells_S = [0] * len(keeps)
        for sample, count in zip(sample_of, cells, strict=True):
            cells_S[sample] += count
        limits = [
            (-1 if (wanted := tokens_to_keep(keep, count)) is None else wanted, *self._bounds(count))
            for keep, count in zip(keeps, cells_S, strict=True)
        ]
        fixed_S, low_S, high_S = torch.tensor(limits, device=device).unbind(-1)
        wanted_S = torch.zeros_like(fixed_S)
        if automatic_I is not None:
            # Several images share one automatic budget: what they ask for together, within the bounds of one image.
            wanted_S = wanted_S.index_add(0, sample_I, automatic_I).clamp(low_S, high_S)
        mass_I = mass_I.float().nan_to_num(0, 0, 0)
        return share_budget(torch.where(fixed_S < 0, wanted_S, fixed_S), mass_I, sample_I, cells_I)

    def _bounds(self, cells: int) -> tuple[int, int]:
        return budget_bounds(max(1, cells), self.min_tokens, self.max_tokens)

    def forward(
        self, relevance_BHW: Tensor, tensions_BT: Tensor, k_B: Tensor, rest_BHW: Tensor | None = None
    ) -> Allocation:
        """Choose k cells of each image. Rows with scores that are not finite keep everything.

        `rest_BHW` in [-1, 1] is what cells claim where a budget is spread evenly: of what is left of it, where they are
        ruled out; what claims BARE comes last wherever; None: all alike.
        """
        finite_B = relevance_BHW.flatten(1).isfinite().all(-1) & tensions_BT.isfinite().all(-1)
        relevance_BHW = torch.where(finite_B.view(-1, 1, 1), relevance_BHW, 0.0)
        tensions_BT = torch.where(finite_B.view(-1, 1), tensions_BT, 0.0)
        _, explore_B, diversify_B = tensions_BT.unbind(-1)
        height, width = relevance_BHW.shape[-2:]
        points_B, noisy_B = points_somewhere(relevance_BHW), looks_like_noise(relevance_BHW)
        spread_BHW = suppress_neighbours(relevance_BHW, diversify_B)
        left_BHW = even_BHW = coverage(height, width, relevance_BHW.device).expand_as(relevance_BHW)
        if rest_BHW is not None:
            left_BHW, even_BHW = share_out(even_BHW, rest_BHW), (even_BHW + (rest_BHW != BARE)) / 2
        scores_BHW = torch.where(spread_BHW < RULED_OUT, RULED_OUT * left_BHW, spread_BHW)
        scores_BHW = torch.where(points_B.view(-1, 1, 1), scores_BHW, even_BHW)
        explore_B = torch.where(noisy_B, explore_B.clamp(min=CAUTION), explore_B)
        k_B = torch.where(finite_B, k_B, height * width)
        keep_BHW, covers_BHW = choose_with_coverage(scores_BHW, even_BHW, k_B, explore_B)
        trusted_B11 = (finite_B & points_B).view(-1, 1, 1)
        soft_BHW = soften(relevance_BHW, spread_BHW, explore_B)
        soft_BHW = torch.where(trusted_B11, soft_BHW, 1.0)
        strategy_B = torch.where(noisy_B, HALF_EVEN, RELEVANCE)
        strategy_B = torch.where(points_B, strategy_B, EVEN_GRID)
        strategy_B = torch.where(k_B >= height * width, WHOLE_BUDGET, strategy_B)
        strategy_B = torch.where(finite_B, strategy_B, NOT_FINITE)
        covered_BHW = keep_BHW & (covers_BHW | ~points_B.view(-1, 1, 1) | (spread_BHW < RULED_OUT))
        covered_BHW &= (strategy_B < WHOLE_BUDGET).view(-1, 1, 1)
        return Allocation(keep_BHW, soft_BHW, strategy_B, covered_BHW)
