"""Budgets and choices: exact, sorted, unique, deterministic, for any input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.attending import (
    RULED_OUT,
    TokenAllocator,
    budget_bounds,
    budget_by_mass,
    choose_cells,
    even_rank,
    kept_indices,
    looks_like_noise,
    points_somewhere,
    share_budget,
    suppress_neighbours,
)
from arr_coc.records import BARE, LOUD

CPU = torch.device("cpu")


@given(
    batch=st.integers(1, 4), cells=st.integers(1, 60), seed=st.integers(0, 99), data=st.data(),
    kind=st.sampled_from(["random", "equal", "few values", "huge", "tiny"]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_exactly_k_unique_and_increasing(batch, cells, seed, data, kind):
    scores = torch.rand(batch, cells, generator=torch.Generator().manual_seed(seed))
    scores = {
        "random": scores,
        "equal": torch.zeros_like(scores),
        "few values": (scores * 3).round(),
        "huge": scores * 1e30,
        "tiny": scores * 1e-30,
    }[kind]
    k = torch.tensor(data.draw(st.lists(st.integers(1, 80), min_size=batch, max_size=batch)))
    keep = choose_cells(scores, k)
    assert torch.equal(keep.sum(-1), k.clamp(max=cells))
    indices, mask = kept_indices(keep)
    for row in range(batch):
        mine = indices[row][mask[row]]
        assert (mine.diff() > 0).all()
        assert torch.equal(mine, keep[row].nonzero().squeeze(-1))
        if keep[row].sum() < cells:
            assert scores[row][keep[row]].min() >= scores[row][~keep[row]].max()


def test_ties_go_to_the_lower_index():
    assert kept_indices(choose_cells(torch.zeros(1, 9), torch.tensor([4])))[0].tolist() == [[0, 1, 2, 3]]
    scores = torch.tensor([[1.0, 2.0, 2.0, 2.0, 1.0]])
    assert kept_indices(choose_cells(scores, torch.tensor([4])))[0].tolist() == [[0, 1, 2, 3]]


@given(height=st.integers(1, 40), width=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_the_even_order_ranks_every_cell_once(height, width):
    rank = even_rank(height, width, CPU)
    assert torch.equal(rank.flatten().sort().values, torch.arange(height * width))


@pytest.mark.parametrize("grid", [(32, 32), (28, 42), (17, 31), (16, 16), (12, 40)])
def test_a_quarter_of_the_even_order_leaves_no_block_empty(grid):
    kept = even_rank(*grid, CPU) < grid[0] * grid[1] // 4
    blocks = kept.float().unfold(0, 4, 1).unfold(1, 4, 1).sum((-1, -2))
    assert blocks.min() >= 1
    assert blocks.max() <= 8


def relevance_with(*cells: tuple[int, int], side: int = 16) -> torch.Tensor:
    relevance = torch.full((1, side, side), 0.1)
    for y, x in cells:
        relevance[0, y, x] = 0.9
    return relevance


def gaussian(seed: int = 0, side: int = 32) -> torch.Tensor:
    return 0.5 + 0.1 * torch.randn(1, side, side, generator=torch.Generator().manual_seed(seed))


def test_noise_looks_like_noise_and_objects_do_not():
    blob = torch.full((1, 32, 32), 0.1)
    blob[0, 10:14, 10:16] = 0.8
    assert looks_like_noise(gaussian())
    assert not looks_like_noise(blob)
    assert points_somewhere(blob)
    assert points_somewhere(relevance_with((3, 3)))
    assert not points_somewhere(torch.full((1, 32, 32), 0.7))


@pytest.mark.parametrize("side", [14, 32])
@pytest.mark.parametrize("sigmas", [3, 4, 5])
def test_a_small_region_in_noise_is_kept(side, sigmas):
    """Scattered evidence looks like noise: caution may cost half of the budget, never the evidence."""
    found = 0.0
    for seed in range(20):
        relevance = gaussian(seed, side)
        relevance[0, 5:7, 5:8] += 0.1 * sigmas
        budget = torch.tensor([side * side // 10])
        keep = TokenAllocator()(relevance, torch.tensor([[0.5, 0.0, 0.0]]), budget).keep_BHW
        found += keep[0, 5:7, 5:8].float().mean().item() / 20
    assert found > {3: 0.8, 4: 0.95, 5: 0.99}[sigmas]


@pytest.mark.parametrize(
    "cells", [[(1, 2)], [(0, 0), (3, 5), (6, 1)], [(y, x) for y in range(0, 8, 2) for x in range(0, 8, 2)]]
)
def test_scattered_single_cells_are_kept(cells):
    relevance = relevance_with(*cells, side=8)
    keep = TokenAllocator()(relevance, torch.tensor([[0.5, 0.0, 0.0]]), torch.tensor([2 * len(cells)])).keep_BHW[0]
    assert all(keep[y, x] for y, x in cells)


def test_noise_is_covered_evenly_and_says_so():
    allocation = TokenAllocator()(gaussian(), torch.tensor([[0.5, 0.0, 0.0]]), torch.tensor([256]))
    assert allocation.strategy(0)[0] == "half_even"
    blocks = allocation.keep_BHW[0].float().unfold(0, 4, 1).unfold(1, 4, 1).sum((-1, -2))
    assert blocks.min() >= 1


def test_without_structure_the_choice_is_an_even_grid_and_says_so():
    allocation = TokenAllocator()(torch.full((1, 16, 16), 0.4), torch.tensor([[0.5, 0, 0]]), torch.tensor([64]))
    assert allocation.strategy(0)[0] == "even_grid"
    assert (allocation.keep_BHW[0].view(4, 4, 4, 4).sum((1, 3)) == 4).all()
    assert torch.equal(allocation.covered_BHW, allocation.keep_BHW), "all of it is coverage"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_not_finite_keep_everything_in_that_row_only(bad):
    relevance = torch.cat([relevance_with((2, 2), (2, 3)), relevance_with((5, 5))])
    relevance[1, 0, 0] = bad
    allocation = TokenAllocator()(relevance, torch.full((2, 3), 0.1), torch.tensor([5, 5]))
    assert allocation.keep_BHW.flatten(1).sum(-1).tolist() == [5, 256]
    assert allocation.strategy(0)[0] == "relevance"
    name, reason = allocation.strategy(1)
    assert name == "keep_all"
    assert "not finite" in reason
    assert (allocation.soft_BHW[1] == 1).all(), "scores that are not to be trusted scale nothing"
    assert not allocation.covered_BHW[1].any(), "what is whole needs no coverage"


def test_a_budget_for_all_says_so():
    allocation = TokenAllocator()(relevance_with((2, 2)), torch.full((1, 3), 0.1), torch.tensor([256]))
    assert allocation.strategy(0) == ("keep_all", "the budget covers every token")


def test_the_even_order_starts_in_the_middle():
    for height, width in ((32, 32), (28, 42), (9, 5), (1, 200)):
        assert even_rank(height, width, CPU)[height // 2, width // 2] == 0


def test_bounds_scale_with_the_grid():
    assert budget_bounds(1024, 64, 400) == (64, 400)
    assert budget_bounds(4096, 64, 400) == (128, 800), "with the side, above 1,024 cells"
    assert budget_bounds(11_750, 64, 400) == (217, 1355)
    assert budget_bounds(256, 64, 400) == (16, 100)
    assert budget_bounds(1, 64, 400) == (1, 1)


def test_the_mass_budget_grows_with_what_is_relevant():
    steepness, share = torch.tensor(1.0), torch.tensor([0.8])
    sure, doubtful = torch.zeros(2, 1, 16, 16)
    sure[0, 3, 3:6] = 0.99
    doubtful[0, 3:9] = 0.2
    assert budget_by_mass(sure, share, steepness).tolist() == [3]
    assert budget_by_mass(doubtful, share, steepness).tolist() == [77]  # of 96 equal ones, 0.8 and the next
    mixed = sure + 0.1 * doubtful
    assert budget_by_mass(mixed, share, torch.tensor(4.0)) < budget_by_mass(mixed, share, steepness)


@given(data=st.data(), images=st.integers(1, 6), samples=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_a_shared_budget_is_exact_with_at_least_one_each(data, images, samples):
    images = max(images, samples)
    draw = lambda low, high, n: data.draw(st.lists(st.integers(low, high), min_size=n, max_size=n))  # noqa: E731
    sample = torch.tensor(sorted([*range(samples), *draw(0, samples - 1, images - samples)]))
    cells, budget = torch.tensor(draw(1, 30, images)), torch.tensor(draw(1, 90, samples))
    mass = torch.tensor(draw(0, 9, images)).float()
    shares = share_budget(budget, mass, sample, cells)
    assert (shares >= 1).all()
    assert (shares <= cells).all()
    for one in range(samples):
        mine = sample == one
        assert shares[mine].sum() == max(int(mine.sum()), min(int(budget[one]), int(cells[mine].sum())))


def test_a_shared_budget_follows_relevance():
    args = (torch.tensor([0, 0]), torch.tensor([500, 500]))
    assert share_budget(torch.tensor([100]), torch.tensor([3.0, 1.0]), *args).tolist() == [75, 25]
    assert share_budget(torch.tensor([100]), torch.tensor([0.0, 1.0]), *args).tolist() == [1, 99]
    full = share_budget(torch.tensor([100]), torch.tensor([3.0, 1.0]), args[0], torch.tensor([20, 500]))
    assert full.tolist() == [20, 80]


def test_an_allocator_with_crossed_bounds_is_refused():
    with pytest.raises(ValueError, match="min_tokens"):
        TokenAllocator(10, 5)


def test_what_is_left_of_a_budget_is_spread_over_cells_that_are_ruled_out():
    relevance = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0)) * 0.0018
    relevance[0, 5, 3:6] = 0.9  # what is sought
    relevance[0, 8:12, 8:12] += 0.0001  # a little less ruled out than the rest, which means nothing
    allocation = TokenAllocator()(relevance, torch.zeros(1, 3), torch.tensor([64]))
    kept = allocation.keep_BHW[0]
    assert kept[5, 3:6].all()
    assert torch.equal(kept & ~allocation.covered_BHW[0], relevance[0] > 0.5)
    in_blocks = kept.view(4, 4, 4, 4).sum((1, 3))
    assert in_blocks.min() >= 2
    assert in_blocks.max() <= 7


@pytest.mark.parametrize("late", [LOUD, BARE])
def test_what_comes_last_has_nothing_of_a_budget_until_all_else_is_kept(late):
    relevance, claims = torch.zeros(1, 16, 16), torch.zeros(1, 16, 16)
    relevance[0, 5, 3:6] = 0.9
    claims[0, 4:12, 4:12] = late
    for k in (16, 64, 192):
        kept = TokenAllocator()(relevance, torch.zeros(1, 3), torch.tensor([k]), claims).keep_BHW[0]
        assert kept.sum() == k
        assert kept[5, 3:6].all(), "what is relevant is kept, wherever it lies"
        assert (kept & (claims[0] < 0)).sum() == 2
    most = TokenAllocator()(relevance, torch.zeros(1, 3), torch.tensor([230]), claims).keep_BHW[0]
    assert most[claims[0] == 0].all()


def test_bare_paper_comes_after_what_is_loud():
    relevance, claims = torch.zeros(1, 16, 16), torch.zeros(1, 16, 16)
    relevance[0, 5, 3:6] = 0.9
    claims[0, :4], claims[0, 8:] = LOUD, BARE
    kept = TokenAllocator()(relevance, torch.zeros(1, 3), torch.tensor([100]), claims).keep_BHW[0]
    assert kept[4:8].all()
    assert kept[:4].sum() == 36
    assert not kept[8:].any()


@pytest.mark.parametrize("peak", [0.9, 0.01])
def test_an_even_grid_leaves_bare_paper_out_and_not_what_is_loud(peak):
    """Half of the budget is spread evenly, or all of it, where a map is not believed: then nothing was found either."""
    relevance, claims = torch.zeros(1, 16, 16), torch.zeros(1, 16, 16)
    relevance[0, 5, 3] = peak
    claims[0, :, :4], claims[0, :, 8:] = LOUD, BARE
    kept = TokenAllocator()(relevance, torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([64]), claims).keep_BHW[0]
    assert not kept[:, 8:].any()
    assert kept[:, :4].sum() >= 12


def test_the_rest_of_a_budget_goes_where_it_is_claimed():
    relevance, claims = torch.zeros(1, 16, 16), torch.zeros(1, 16, 16)
    relevance[0, 5, 3:6] = 0.9
    claims[0, :8], claims[0, 8:, :8] = 0.8, 0.2  # half of the image, a quarter that holds little, a quarter of nothing
    for k in (16, 64):
        allocation = TokenAllocator()(relevance, torch.zeros(1, 3), torch.tensor([k]), claims)
        kept = allocation.keep_BHW[0]
        assert kept.sum() == k
        assert kept[5, 3:6].all()
        assert not kept[8:, 8:].any(), "empty ground comes last"
        assert kept[:8].sum() > 4 * kept[8:, :8].sum()
        assert (kept[:8].view(2, 4, 4, 4).sum((1, 3)) > 0).all(), "evenly where claims are alike"
    claims[0, 8:12, 8:] = LOUD
    most = TokenAllocator()(relevance, torch.zeros(1, 3), torch.tensor([230]), claims).keep_BHW[0]
    assert most.sum() == 230
    assert most[12:].all(), "what claims less than nothing comes after what claims nothing"


@given(st.integers(0, 9), st.sampled_from([0.0, 1e-9, 0.3, 1.0, LOUD, BARE]))
@settings(max_examples=20, deadline=None)
def test_claims_that_are_alike_are_the_even_order(seed, claim):
    relevance = torch.zeros(1, 6, 7)
    relevance[0, seed % 6, seed % 7] = 0.9
    given_claims = (relevance, torch.zeros(1, 3), torch.tensor([3 + seed]))
    plain = TokenAllocator()(*given_claims).keep_BHW
    assert torch.equal(TokenAllocator()(*given_claims, torch.full_like(relevance, claim)).keep_BHW, plain)


@pytest.mark.parametrize("even", [0.0, 1.0])
def test_claims_that_are_no_numbers_claim_nothing(even):
    relevance, claims = torch.zeros(1, 4, 4), torch.full((1, 4, 4), torch.nan)
    relevance[0, 0, 0] = 0.9
    given_claims = (relevance, torch.tensor([[0.5, even, 0.0]]), torch.tensor([5]))
    plain = TokenAllocator()(*given_claims).keep_BHW
    assert torch.equal(TokenAllocator()(*given_claims, claims).keep_BHW, plain)


@given(st.integers(1, 64), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_what_is_kept_for_coverage_scores_below_what_is_kept_for_relevance(k, explore, diversify, seed):
    relevance = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(seed)) ** 4 * 0.05
    relevance[0, 2:5, 2:6] = 0.9
    tensions = torch.tensor([[0.5, explore, diversify]])
    allocation = TokenAllocator()(relevance, tensions, torch.tensor([k]))
    keep, covered = allocation.keep_BHW[0], allocation.covered_BHW[0]
    assert not (covered & ~keep).any()
    scores = suppress_neighbours(relevance, tensions[:, 2])[0]
    if k == 64:
        assert not covered.any()
    elif covered.any() and (keep & ~covered).any():
        assert scores[covered].max() <= scores[keep & ~covered].min()
    plain = TokenAllocator()(relevance, torch.zeros(1, 3), torch.tensor([k])).covered_BHW[0]
    assert torch.equal(plain, plain & (relevance[0] < RULED_OUT)), "without a share for it, only what is ruled out"
