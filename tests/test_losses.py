"""Losses of the selector: values by hand, safe gradients, better maps cost less, unknown rows cost nothing."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.attending import TokenAllocator
from arr_coc.training.losses import (
    EDGE,
    IGNORE,
    answer_cross_entropy,
    answers_right,
    budget_loss,
    budget_targets,
    distillation_loss,
    mean_over_known,
    order_loss,
    relevance_bce,
    relevance_mse,
    smallest_budget,
    soft_iou,
)
from studies import turns

MAP_LOSSES = {
    "bce": lambda relevance, target, **rows: relevance_bce(relevance, target, 10.0, **rows),
    "balanced": lambda relevance, target, **rows: relevance_bce(relevance, target, "balanced", **rows),
    "mse": relevance_mse,
    "iou": soft_iou,
    "distillation": lambda relevance, target, **rows: distillation_loss(relevance, target, **rows),
}


def boxes(*cells: tuple[int, int], side: int = 4) -> torch.Tensor:
    target = torch.zeros(1, side, side)
    for y, x in cells:
        target[0, y, x] = 1
    return target


# ---------------------------------------------------------------- values by hand


def test_cross_entropy_of_a_map_by_hand():
    relevance, target = torch.tensor([[[0.25, 0.5]]]), torch.tensor([[[1.0, 0.0]]])
    kept, empty = EDGE + (1 - 2 * EDGE) * 0.25, 1 - (EDGE + (1 - 2 * EDGE) * 0.5)
    expected = -(3 * math.log(kept) + math.log(empty)) / 4
    assert relevance_bce(relevance, target, 3.0).item() == pytest.approx(expected, rel=1e-5)
    assert relevance_bce(target, target, 3.0).item() == pytest.approx(-math.log(1 - EDGE), rel=1e-3)
    for weight in (0.5, 10.0, "balanced"):
        assert relevance_bce(torch.full((1, 4, 4), 0.5), boxes((1, 1)), weight).item() == pytest.approx(math.log(2))


def test_balanced_gives_both_sides_the_same_weight():
    """One positive of five cells, missed, costs as much as all four negatives, lit."""
    target = torch.tensor([[[1.0, 0, 0, 0, 0]]])
    missed = relevance_bce(torch.zeros(1, 1, 5), target, "balanced")
    lit = relevance_bce(torch.ones(1, 1, 5), target, "balanced")
    assert missed.item() == pytest.approx(lit.item())
    assert missed > relevance_bce(torch.zeros(1, 1, 5), target, 1.0)
    # One cell in 256 would weigh 255; 50 is the most, so it is less than half of the row.
    rare = relevance_bce(torch.zeros(1, 16, 16), boxes((3, 3), side=16), "balanced")
    assert rare.item() == pytest.approx((50 * -math.log(EDGE) + 255 * -math.log(1 - EDGE)) / 305, rel=1e-4)
    assert math.isfinite(relevance_bce(torch.ones(1, 2, 2), torch.ones(1, 2, 2), "balanced"))


@pytest.mark.parametrize("weight", [0.0, -1.0, "even"])
def test_a_weight_that_makes_no_sense_is_refused(weight):
    with pytest.raises(ValueError, match="positive_weight"):
        relevance_bce(torch.rand(1, 2, 2), torch.rand(1, 2, 2), weight)


def test_squares_and_overlap_by_hand():
    relevance, target = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    assert relevance_mse(relevance, target).item() == pytest.approx(0.5 / 4)
    assert soft_iou(relevance, target).item() == pytest.approx(1 - 1.5 / 2.5)
    assert soft_iou(target, target).item() == 0
    assert soft_iou(1 - target, target).item() == 1
    assert soft_iou(relevance, torch.zeros_like(target)).item() == 0, "nothing to overlap with: left out"


def test_answers_by_hand():
    assert IGNORE == turns.IGNORE
    logits = torch.zeros(3, 4, 5)
    logits[0, 1, 2] = logits[0, 2, 3] = logits[1, 1, 2] = 4.0
    labels = torch.tensor([[IGNORE, IGNORE, 2, 3], [IGNORE, IGNORE, 2, 3], [IGNORE] * 4])
    sure = -math.log(math.exp(4) / (math.exp(4) + 4))
    loss = answer_cross_entropy(logits, labels)
    assert loss.tolist() == pytest.approx([sure, (sure + math.log(5)) / 2, 0.0], rel=1e-5)
    assert answers_right(logits, labels).tolist() == [True, False, False]


def test_the_first_label_is_predicted_by_nothing():
    labels = torch.tensor([[1, IGNORE, 0]])
    only = torch.tensor([[IGNORE, IGNORE, 0]])
    logits = torch.randn(1, 3, 4)
    assert torch.equal(answer_cross_entropy(logits, labels), answer_cross_entropy(logits, only))


def test_answer_loss_agrees_with_the_plain_one_and_passes_gradients():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, 7, generator=generator, requires_grad=True)
    labels = torch.randint(0, 7, (2, 6), generator=generator)
    labels[0, :3] = labels[1, :5] = IGNORE
    for row, loss in enumerate(answer_cross_entropy(logits, labels)):
        plain = torch.nn.functional.cross_entropy(logits[row, :-1], labels[row, 1:], ignore_index=IGNORE)
        assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    answer_cross_entropy(logits, labels).sum().backward()
    assert (logits.grad.abs().sum(-1) > 0).tolist() == [
        [False, False, True, True, True, False],
        [False] * 4 + [True, False],
    ]


def test_weights_and_known_rows_make_a_mean():
    loss = torch.tensor([1.0, 3.0, math.nan])
    known = torch.tensor([True, True, False])
    assert mean_over_known(loss, known).item() == 2
    assert mean_over_known(loss, known, torch.tensor([1.0, 3.0, 9.0])).item() == 2.5
    assert mean_over_known(loss, torch.zeros(3, dtype=torch.bool)).item() == 0


# ---------------------------------------------------------------- behaviour of every map loss


@pytest.mark.parametrize("name", MAP_LOSSES)
def test_gradients_are_finite_at_the_edges_and_point_the_right_way(name):
    target = boxes((0, 0), (1, 1))
    for value in (0.0, 0.5, 1.0):
        relevance = torch.full((1, 4, 4), value, requires_grad=True)
        MAP_LOSSES[name](relevance, target).backward()
        assert relevance.grad.isfinite().all()
        inside, outside = relevance.grad[target.bool()], relevance.grad[~target.bool()]
        if value < 1:
            assert (inside < 0).all(), "more relevance on the evidence costs less"
        if value > 0:
            assert (outside > 0).all(), "more relevance elsewhere costs more"


@pytest.mark.parametrize("name", MAP_LOSSES)
@given(seed=st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_a_map_nearer_to_the_boxes_costs_less(name, seed):
    generator = torch.Generator().manual_seed(seed)
    target = (torch.rand(2, 5, 6, generator=generator) < 0.3).float()
    target[:, 2, 3] = 1
    relevance = torch.rand(2, 5, 6, generator=generator)
    losses = [MAP_LOSSES[name](relevance.lerp(target, step), target).item() for step in (0.0, 0.3, 0.6, 1.0)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1] + 1e-3


@pytest.mark.parametrize("name", MAP_LOSSES)
def test_rows_with_unknown_boxes_contribute_nothing(name):
    relevance = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = boxes((0, 0), (2, 1)).repeat(3, 1, 1)
    target[1] = math.nan
    loss = MAP_LOSSES[name](relevance, target, known_B=torch.tensor([True, False, True]))
    alone = MAP_LOSSES[name](relevance[[0, 2]], target[[0, 2]])
    assert loss.item() == pytest.approx(alone.item(), rel=1e-6)
    loss.backward()
    assert (relevance.grad[1] == 0).all()
    assert (relevance.grad[[0, 2]] != 0).any((1, 2)).all()
    nothing = MAP_LOSSES[name](relevance, target, known_B=torch.zeros(3, dtype=torch.bool))
    assert nothing.item() == 0


@pytest.mark.parametrize("name", MAP_LOSSES)
def test_double_weight_counts_as_two_rows(name):
    relevance = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(1))
    target = torch.cat([boxes((0, 0)), boxes((3, 2), (3, 3))])
    doubled = MAP_LOSSES[name](relevance, target, weight_B=torch.tensor([1.0, 2.0]))
    assert doubled.item() == pytest.approx(MAP_LOSSES[name](relevance[[0, 1, 1]], target[[0, 1, 1]]).item(), rel=1e-5)


# ---------------------------------------------------------------- the budget


def fewest(relevance: list[float], evidence: list[int], share: float) -> int:
    """By trying every budget; shares compared as whole numbers."""
    ranked = sorted(range(len(relevance)), key=lambda cell: (-relevance[cell], cell))
    budgets = range(1, len(ranked) + 1)
    enough = [k for k in budgets if 100 * sum(evidence[c] for c in ranked[:k]) >= round(100 * share) * sum(evidence)]
    return enough[0] if sum(evidence) else 0


@given(
    cells=st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.integers(0, 1)), min_size=1, max_size=48),
    share=st.sampled_from([0.5, 0.9, 0.95, 1.0]),
)
@settings(max_examples=150, deadline=None)
def test_the_smallest_budget_is_the_one_found_by_trying_all(cells, share):
    relevance, evidence = (list(values) for values in zip(*cells, strict=True))
    found = smallest_budget(torch.tensor([[relevance]]), torch.tensor([[evidence]]).bool(), share)
    assert found.tolist() == [fewest(relevance, evidence, share)]


def test_budgets_by_hand():
    flat = torch.full((1, 2, 5), 0.3)
    # Ten equal cells hold a tenth each: seven follow from any share in (0.6, 0.7], and the middle is 0.5 + 0.45 / 3.
    assert budget_targets(flat, torch.tensor([7]), TokenAllocator(1, 1024)).item() == pytest.approx(1 / 3, rel=1e-4)
    # 0.55 * 100 is a little more than 55 in floating point: that must not cost a cell.
    assert smallest_budget(torch.rand(1, 10, 10), torch.ones(1, 10, 10), 0.55).tolist() == [55]


@given(seed=st.integers(0, 999), side=st.integers(3, 12), steepness=st.sampled_from([0.5, 1.0, 4.0]))
@settings(max_examples=60, deadline=None)
def test_the_target_tension_gives_that_budget(seed, side, steepness):
    relevance = torch.rand(1, side, side, generator=torch.Generator().manual_seed(seed))
    allocator = TokenAllocator(1, 10_000, steepness)
    least, most = (allocator.sufficient(relevance, torch.full((1,), end)).item() for end in (0.0, 1.0))
    wanted = torch.arange(1, side * side + 1)
    tensions = budget_targets(relevance.expand(len(wanted), -1, -1), wanted, allocator)
    given = allocator.sufficient(relevance.expand(len(wanted), -1, -1), tensions)
    assert ((tensions >= 0) & (tensions <= 1)).all()
    assert torch.equal(given, wanted.clamp(least, most))


def test_the_budget_loss_trains_the_tension_and_nothing_else():
    generator = torch.Generator().manual_seed(3)
    relevance = torch.rand(3, 8, 8, generator=generator).requires_grad_()
    evidence = torch.zeros(3, 8, 8)
    evidence[0] = relevance[0] > relevance[0].flatten().sort().values[-12]
    evidence[2, 0, 0] = math.nan
    known = torch.tensor([True, True, False])
    allocator = TokenAllocator(1, 1024, steepness=8.0)
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    losses = []
    for _ in range(150):
        loss = budget_loss(relevance, logits.sigmoid(), evidence, allocator, known)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert relevance.grad is None
    assert losses[-1] < 1e-4 < losses[0]
    assert (
        allocator.sufficient(relevance.detach(), logits.sigmoid().detach())[0]
        == smallest_budget(relevance, evidence.nan_to_num())[0]
    )
    assert logits[1:].tolist() == [0.0, 0.0], "without evidence, or unknown: left as it was"


def test_too_few_tokens_can_cost_more_than_too_many():
    relevance = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    evidence = relevance > 0.8
    allocator = TokenAllocator(1, 1024, steepness=8.0)
    aim = budget_targets(relevance, smallest_budget(relevance, evidence), allocator)
    assert 0.1 < aim.item() < 0.9
    few, many = (budget_loss(relevance, aim + step, evidence, allocator, too_few=4.0) for step in (-0.1, 0.1))
    assert many.item() == pytest.approx(0.01, rel=1e-3)
    assert few.item() == pytest.approx(0.04, rel=1e-3)


# ---------------------------------------------------------------- distillation


def test_the_scale_of_attention_does_not_matter_and_flat_zero_is_left_out():
    attention, relevance = torch.rand(1, 4, 4), torch.rand(1, 4, 4)
    assert torch.allclose(distillation_loss(relevance, attention), distillation_loss(relevance, 1e-4 * attention))
    for useless in (torch.zeros(1, 4, 4), torch.full((1, 4, 4), math.nan)):
        leaf = relevance.clone().requires_grad_()
        loss = distillation_loss(leaf, useless)
        loss.backward()
        assert loss.item() == 0
        assert (leaf.grad == 0).all()


def test_a_sharper_target_asks_less_of_the_floor():
    attention = torch.full((1, 4, 4), 0.2)
    attention[0, 1, 1] = 1.0
    best = []
    for sharpness in (1.0, 2.0):
        relevance = torch.full((1, 4, 4), 0.5, requires_grad=True)
        optimizer = torch.optim.Adam([relevance], lr=0.02)
        for _ in range(150):
            optimizer.zero_grad()
            distillation_loss(relevance.clamp(0, 1), attention, sharpness).backward()
            optimizer.step()
        best.append(relevance.detach())
    assert best[1][0, 0, 0] < best[0][0, 0, 0] - 0.05
    assert all(one.flatten().argmax() == 5 for one in best)


# ---------------------------------------------------------------- which cells with evidence come first


def test_odds_in_proportion_to_the_attention_cost_nothing():
    target, attention = boxes((0, 0), (1, 1), (2, 2)), torch.rand(1, 4, 4)
    odds = attention / attention.sum()
    assert order_loss(odds / (1 + odds), target, attention).item() == pytest.approx(0, abs=1e-5)
    assert order_loss(odds / (1 + odds), target, 1000 * attention).item() == pytest.approx(0, abs=1e-5)


def test_the_order_by_hand():
    """Two cells with evidence, alike in relevance, one attended to three times as much."""
    relevance, target = torch.tensor([[[0.5, 0.5, 0.9]]]), torch.tensor([[[1.0, 1.0, 0.0]]])
    attention = torch.tensor([[[3.0, 1.0, 96.0]]])
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert order_loss(relevance, target, attention).item() == pytest.approx(expected, abs=1e-6)


def test_the_order_teaches_cells_with_evidence_alone_and_finite_at_the_edges():
    relevance = torch.tensor([[[1.0, 0.0, 0.7, 0.2]]], requires_grad=True)
    target, attention = torch.tensor([[[1.0, 1.0, 1.0, 0.0]]]), torch.tensor([[[0.1, 0.3, 0.6, 5.0]]])
    order_loss(relevance, target, attention).backward()
    assert relevance.grad.isfinite().all()
    assert relevance.grad[0, 0, 3] == 0
    assert relevance.grad[0, 0, 2] < 0, "more relevance where more was attended to"


def test_rows_without_known_or_attended_evidence_have_no_order():
    relevance, attention = torch.rand(4, 4, 4), torch.rand(4, 4, 4)
    target = boxes((0, 0), (3, 3)).repeat(4, 1, 1)
    target[1], attention[2], target[3] = 0, 0, torch.nan
    known = torch.tensor([True, True, True, False])
    alone = order_loss(relevance[:1], target[:1], attention[:1])
    assert alone > 0
    assert torch.allclose(order_loss(relevance, target, attention, known), alone)
    assert order_loss(relevance[1:3], target[1:3], attention[1:3]) == 0
