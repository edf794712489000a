"""Gradient strategies: what is drawn, that every part learns, and that what is learned is where the answer is."""

import itertools
import math

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.attending import TokenAllocator, choose_cells, kept_indices
from arr_coc.config import SCORERS, ARRCOCConfig
from arr_coc.layer import ARRCOCLayer, straight_through_gate
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.processor import Conversation
from arr_coc.records import NOT_FINITE, WHOLE_BUDGET, Balance, Judgement
from arr_coc.selectors import ARRCOCSelector
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.losses import IGNORE, answer_cross_entropy, answers_right, relevance_bce
from arr_coc.training.strategies import (
    GRADIENT_STRATEGIES,
    Drawn,
    Gumbel,
    Reinforce,
    StrategySelector,
    add_gumbel,
    ordered_log_prob,
    relaxed_top_k,
    relevance_after_tensions,
)

NAMES = tuple(GRADIENT_STRATEGIES)
SAMPLED = ("gumbel", "reinforce")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def judged(relevance: torch.Tensor, explore: float = 0.0, diversify: float = 0.0) -> Judgement:
    tensions = torch.tensor([0.5, explore, diversify]).expand(relevance.shape[0], -1)
    weights = torch.ones(relevance.shape[0], 1)
    return Judgement({"given": relevance}, Balance(relevance, weights, tensions), relevance.detach().sum((1, 2)))


# ---------------------------------------------------------------- the pure functions


def test_probabilities_of_all_ordered_draws_are_right_and_sum_to_one():
    logits = torch.tensor([0.3, -1.2, 2.0, 0.0])
    for k in (1, 2, 3, 4):
        total = 0.0
        for draw in itertools.permutations(range(4), k):
            by_hand, odds = 1.0, {cell: math.exp(logits[cell]) for cell in range(4)}
            for cell in draw:
                by_hand *= odds[cell] / sum(odds.values())
                del odds[cell]
            order = torch.tensor([[*draw, *sorted(set(range(4)) - set(draw))]])
            found = ordered_log_prob(logits.view(1, -1), order, torch.tensor([k])).exp().item()
            assert found == pytest.approx(by_hand, rel=1e-5)
            total += found
        assert total == pytest.approx(1.0, rel=1e-5)


def test_draws_come_as_often_as_their_probability_says():
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5])
    noisy = add_gumbel(logits.expand(40_000, -1), seeded(0))
    first_two = noisy.sort(dim=-1, descending=True).indices[:, :2]
    for draw in itertools.permutations(range(4), 2):
        order = torch.tensor([[*draw, *sorted(set(range(4)) - set(draw))]])
        expected = ordered_log_prob(logits.view(1, -1), order, torch.tensor([2])).exp().item()
        share = (first_two == torch.tensor(draw)).all(-1).float().mean().item()
        assert share == pytest.approx(expected, abs=0.01)


@given(seed=st.integers(0, 999), cells=st.integers(2, 40), data=st.data(), temperature=st.sampled_from([0.1, 0.5, 2.0]))
@settings(max_examples=60, deadline=None)
def test_the_relaxed_choice_sums_to_k_in_the_order_of_the_logits(seed, cells, data, temperature):
    logits = 3 * torch.randn(3, cells, generator=seeded(seed))
    k = torch.tensor(data.draw(st.lists(st.integers(1, cells + 2), min_size=3, max_size=3)))
    soft = relaxed_top_k(logits, k, temperature)
    assert ((soft >= 0) & (soft <= 1)).all()
    assert soft.sum(-1).tolist() == pytest.approx(k.clamp(max=cells).tolist(), rel=1e-3)
    for row in range(3):
        assert (soft[row, logits[row].argsort()].diff() >= 0).all()


def test_the_relaxed_choice_tends_to_the_hard_one():
    logits = torch.tensor([[2.0, -1.0, 0.5, 1.0, 0.0]])
    hard = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]])
    distances = [(relaxed_top_k(logits, torch.tensor([2]), t) - hard).abs().max().item() for t in (4.0, 1.0, 0.2, 0.01)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-6


def test_the_gradient_of_the_relaxed_choice_is_its_derivative():
    logits = torch.randn(2, 6, dtype=torch.double, generator=seeded(1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: relaxed_top_k(x, torch.tensor([2, 4]), 0.7), logits, eps=1e-3, atol=1e-4)
    relaxed_top_k(logits, torch.tensor([2, 6]), 0.7)[:, 0].sum().backward()
    assert logits.grad[0, 0] > 0
    assert (logits.grad[0, 1:] < 0).all(), "cells compete for k places"
    assert (logits.grad[1] == 0).all(), "nothing to choose"


# ---------------------------------------------------------------- what is drawn


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 999), grid=st.tuples(st.integers(1, 7), st.integers(1, 7)), data=st.data())
@settings(max_examples=40, deadline=None)
def test_exactly_k_of_each_row_are_kept_for_any_map(name, seed, grid, data):
    """Random, flat, at both edges, and not finite; budgets from one cell to more than there are."""
    cells = grid[0] * grid[1]
    relevance = torch.rand(5, *grid, generator=seeded(seed))
    relevance[1], relevance[2], relevance[3] = 0.5, relevance[2].round(), math.nan
    k = torch.tensor(data.draw(st.lists(st.integers(1, cells + 1), min_size=5, max_size=5)))
    drawn = GRADIENT_STRATEGIES[name]().draw(judged(relevance, 0.2, 0.3), k, TokenAllocator(), seeded(seed), 0.5)
    keep, soft = drawn.allocation.keep_BHW.flatten(1), drawn.allocation.soft_BHW
    k[3] = cells
    assert torch.equal(keep.sum(-1), k.clamp(max=cells))
    indices, mask = kept_indices(keep)
    assert all((row[real].diff() > 0).all() for row, real in zip(indices, mask, strict=True))
    assert (soft.isfinite() & (soft >= 0) & (soft <= 1)).all()
    assert (soft[3] == 1).all()
    assert drawn.allocation.strategy_B[3] == NOT_FINITE
    assert all(drawn.allocation.strategy_B[row] == WHOLE_BUDGET for row in (0, 1, 2, 4) if k[row] >= cells)
    assert (drawn.log_prob_B is not None) == (name == "reinforce")
    if drawn.log_prob_B is not None:
        assert (drawn.log_prob_B <= 0).all()
        assert torch.equal(drawn.log_prob_B < 0, k < cells), "0 where there was nothing to choose"


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_what_is_drawn(name):
    judgement, k = judged(torch.rand(4, 6, 6, generator=seeded(0))), torch.full((4,), 9)

    def keep(seed: int) -> torch.Tensor:
        return GRADIENT_STRATEGIES[name]().draw(judgement, k, TokenAllocator(), seeded(seed), 0.5).allocation.keep_BHW

    assert torch.equal(keep(1), keep(1))
    assert torch.equal(keep(1), keep(2)) == (name not in SAMPLED)
    settled = TokenAllocator()(judgement.balance.relevance_BHW, judgement.balance.tensions_BT, k).keep_BHW
    assert torch.equal(keep(1), settled) == (name not in SAMPLED)


@pytest.mark.parametrize("name", SAMPLED)
def test_relevant_cells_are_drawn_far_more_often(name):
    relevance = torch.full((2000, 3, 4), 0.1)
    relevance[:, 1, 2] = 0.9
    keep = GRADIENT_STRATEGIES[name]().draw(judged(relevance), torch.full((2000,), 2), TokenAllocator(), seeded(0), 0.0)
    often = keep.allocation.keep_BHW.float().mean(0)
    # First draw: odds of 9 against eleven times 1/9; then a second chance.
    assert often[1, 2] == pytest.approx(0.98, abs=0.02)
    assert often.flatten().sort().values[:-1].min() > 0.05, "and the others are looked at too"


def test_a_map_that_points_nowhere_still_has_a_gradient():
    relevance = torch.full((1, 4, 4), 0.5, requires_grad=True)
    allocators = TokenAllocator()(relevance, torch.zeros(1, 3), torch.tensor([4])).soft_BHW
    assert (torch.autograd.grad(allocators.sum(), relevance)[0] == 0).all()
    relevance_after_tensions(judged(relevance)).sum().backward()
    assert (relevance.grad == 1).all()


def test_score_is_the_allocators_choice_as_it_is():
    relevance = torch.rand(3, 6, 6, generator=seeded(0))
    relevance[1] = 0.5
    judgement, k = judged(relevance, 0.2, 0.3), torch.tensor([4, 5, 6])
    ours = GRADIENT_STRATEGIES["score"]().draw(judgement, k, TokenAllocator(), seeded(0), 0.0).allocation
    theirs = TokenAllocator()(relevance, judgement.balance.tensions_BT, k)
    assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in theirs.__slots__)


def test_the_temperature_falls_from_first_to_last():
    gumbel = Gumbel()
    assert [gumbel.temperature(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([2.0, math.sqrt(0.4), 0.2])
    judgement, k = judged(torch.rand(1, 6, 6, generator=seeded(0))), torch.tensor([9])
    early, late = (gumbel.draw(judgement, k, TokenAllocator(), seeded(1), p).allocation for p in (0.0, 1.0))
    assert torch.equal(early.keep_BHW, late.keep_BHW)
    off = [(a.soft_BHW - a.keep_BHW.float()).abs().mean().item() for a in (early, late)]
    assert off[1] < 0.5 * off[0]


# ---------------------------------------------------------------- the reward


def drawn_with(log_prob: torch.Tensor, k: int = 2) -> Drawn:
    judgement, k_B = judged(torch.rand(len(log_prob), 2, 2)), torch.full((len(log_prob),), k)
    drawn = Reinforce().draw(judgement, k_B, TokenAllocator(), seeded(0), 0.0)
    return Drawn(drawn.allocation, log_prob)


def test_reinforce_credits_what_was_better_than_usual():
    strategy = Reinforce()
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    ce = torch.tensor([1.0, 3.0])
    # First batch: its own mean, 1/2, is what is usual.
    loss = strategy.answer_loss(ce, torch.tensor([True, False]), drawn_with(log_prob))
    assert loss.item() == pytest.approx(2 - (0.5 * -1 / 2 - 0.5 * -2 / 2) / 2)
    loss.backward()
    assert log_prob.grad.tolist() == pytest.approx([-0.125, 0.125]), "going down makes the right draw likelier"
    assert strategy.state() == {"baseline": 0.5, "updates": 1.0}
    strategy.answer_loss(ce, torch.tensor([True, True]), drawn_with(log_prob))
    assert strategy.baseline == pytest.approx(0.55)


def test_reinforce_goes_on_from_a_saved_state():
    first, second = Reinforce(), Reinforce()
    batches = [torch.rand(4, generator=seeded(s)) for s in range(3)]
    ce, drawn = torch.ones(4), drawn_with(-torch.rand(4, generator=seeded(9)))
    first.answer_loss(ce, batches[0], drawn)
    first.answer_loss(ce, batches[1], drawn)
    second.restore(first.state())
    assert second.answer_loss(ce, batches[2], drawn).item() == first.answer_loss(ce, batches[2], drawn).item()
    assert first.state() == second.state()
    with pytest.raises(ValueError, match="another strategy"):
        GRADIENT_STRATEGIES["gumbel"]().restore(first.state())


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="score, straight_through, gumbel, reinforce"):
        SelectorTrainConfig(stage=2, strategy="greedy")
    with pytest.raises(AssertionError, match="one image per question"):
        Reinforce().answer_loss(torch.ones(3), torch.ones(3), drawn_with(-torch.ones(2)))


@pytest.mark.parametrize("name", NAMES)
def test_without_a_choice_the_loss_is_the_answers(name):
    assert GRADIENT_STRATEGIES[name]().answer_loss(torch.tensor([1.0, 2.0]), torch.ones(2), None).item() == 1.5


# ---------------------------------------------------------------- in a model


def in_training(name: str, encoding: str = "sparse") -> ARRCOCQwen:
    strategy = GRADIENT_STRATEGIES[name]()
    config = ARRCOCConfig(hidden_dim=32, encoding=encoding, straight_through=strategy.gated)
    torch.manual_seed(0)
    layer = ARRCOCLayer.from_config(config)
    selector = StrategySelector(ARRCOCSelector(layer), strategy)
    return ARRCOCQwen(tiny.stock(), config, layer, tiny.processor(), selector=selector).train()


def batch_of_two(owner: ARRCOCQwen) -> dict[str, torch.Tensor]:
    """Two questions; the last three tokens are the answer, and the first row's labels are what the model says."""
    inputs = tiny.inputs(
        Conversation([tiny.picture()], "What is on the left?"), Conversation([tiny.picture(seed=1)], "How many?")
    )
    with torch.no_grad():
        logits = owner(**inputs, keep=0.5).logits
    labels = torch.full_like(inputs["input_ids"], IGNORE)
    said = logits[:, -4:-1].argmax(-1)
    labels[0, -3:], labels[1, -3:] = said[0], (said[1] + 1) % logits.shape[-1]
    return {**inputs, "labels": labels}


@pytest.mark.parametrize("encoding", ["dense", "sparse"])
@pytest.mark.parametrize("name", NAMES)
def test_every_scorer_and_the_policy_learn_in_a_real_model(name, encoding):
    owner = in_training(name, encoding)
    inputs = batch_of_two(owner)
    owner.selector.start(seed=0, progress=0.0)
    output = owner(**inputs, keep=0.5, output_arr_coc_info=True)
    [(judgement, drawn)] = owner.selector.take()
    labels = output.arr_coc.compact.labels
    right = answers_right(output.logits, labels)
    assert right.tolist() == [True, False]
    loss = owner.selector.strategy.answer_loss(answer_cross_entropy(output.logits, labels), right, drawn)
    if name == "score":
        alone = torch.autograd.grad(loss, list(owner.layer.parameters()), retain_graph=True, allow_unused=True)
        assert all(gradient is None for gradient in alone), "nothing passes through the choice"
        target = torch.zeros(2, 4, 5)
        target[:, 1:3, 1:3] = 1
        loss = loss + relevance_bce(relevance_after_tensions(judgement), target)
    loss.backward()
    parts = {**{scorer: getattr(owner.layer.knowing, scorer) for scorer in SCORERS}, "policy": owner.layer.balancing}
    for part, module in parts.items():
        gradients = [parameter.grad for parameter in module.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients), part
        assert all((gradient != 0).any() for gradient in gradients), part
    decided = owner.layer.balancing.decide[-1].bias.grad
    assert (decided != 0).tolist() == [True, True, True, False, True, True], "the budget has a loss of its own"
    assert any((p.grad != 0).any() for p in owner.model.parameters() if p.grad is not None), "and so does the model"


@pytest.mark.parametrize("name", NAMES)
def test_a_step_can_be_repeated_and_evaluation_draws_nothing(name):
    owner = in_training(name)
    inputs = tiny.inputs(Conversation([tiny.picture(320, 320)], "What is it?"))

    def kept(seed: int) -> list[int]:
        owner.selector.start(seed, progress=0.5)
        return owner(**inputs, keep=0.3, output_arr_coc_info=True).arr_coc.images[0][0].kept.tolist()

    assert kept(1) == kept(1)
    assert (kept(1) == kept(2)) == (name not in SAMPLED)
    assert len(owner.selector.take()) == 1
    assert owner.selector.take() == []
    owner.eval()
    plain = ARRCOCQwen(owner.model, owner.arr_coc_config, owner.layer, tiny.processor(), selector="arr_coc").eval()
    picture = tiny.picture(320, 320)
    assert torch.equal(
        owner.ask(picture, "What is it?", keep=0.3, max_new_tokens=1).selection[0].kept,
        plain.ask(picture, "What is it?", keep=0.3, max_new_tokens=1).selection[0].kept,
    )
    assert owner.selector.take() == []


def test_images_of_different_grids_are_drawn_and_remembered_in_groups():
    owner = in_training("reinforce")
    first, second = tiny.picture(160, 128), tiny.picture(128, 160)
    inputs = tiny.inputs(Conversation([first], "A?"), Conversation([second], "B?"), Conversation([first], "C?"))
    owner(**inputs, keep=0.5)
    shapes = [tuple(drawn.allocation.keep_BHW.shape) for _, drawn in owner.selector.take()]
    assert shapes == [(2, 4, 5), (1, 5, 4)]


# ---------------------------------------------------------------- a toy on which the right cells can be found

SIDE, CLASSES, KEPT = 4, 4, 4


def toy_batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features `[B, H, W, 1 + 4 + 3]` (marker, vote, noise), where the 2 x 2 marked cells vote for the answer.

    Every other cell votes at random, so the answer can be read from the marked cells alone.
    """
    answer = torch.randint(CLASSES, (size,), generator=generator)
    corner = torch.randint(SIDE - 1, (size, 2), generator=generator)
    place = torch.arange(SIDE)
    rows, columns = ((place - corner[:, axis, None]).clamp(-1, 2) for axis in (0, 1))
    marked = ((rows == 0) | (rows == 1)).unsqueeze(2) & ((columns == 0) | (columns == 1)).unsqueeze(1)
    votes = torch.randint(CLASSES, (size, SIDE, SIDE), generator=generator)
    votes = torch.where(marked, answer.view(-1, 1, 1), votes)
    noise = torch.randn(size, SIDE, SIDE, 3, generator=generator)
    features = torch.cat([marked.unsqueeze(-1), torch.nn.functional.one_hot(votes, CLASSES), noise], dim=-1)
    return features.float(), marked, answer


def train_toy(name: str, supervised: bool, seed: int = 2) -> tuple[float, float]:
    """Recall of the marked cells among the four most relevant, before and after 200 steps with a strategy.

    Not by the allocator: on 16 cells it takes some good maps for noise, and spends half of the budget on coverage.
    """
    torch.manual_seed(seed)
    scorer = torch.nn.Sequential(torch.nn.Linear(1 + CLASSES + 3, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    strategy, allocator, steps = GRADIENT_STRATEGIES[name](), TokenAllocator(), 200
    optimizer = torch.optim.Adam(scorer.parameters(), lr=0.02)

    def recall() -> float:
        features, marked, _ = toy_batch(256, seeded(10_000))
        with torch.no_grad():
            relevance = scorer(features).squeeze(-1).sigmoid()
        keep = choose_cells(relevance.flatten(1), torch.full((256,), KEPT))
        return ((keep & marked.flatten(1)).sum(-1) / KEPT).mean().item()

    before = recall()
    for step in range(steps):
        features, marked, answer = toy_batch(64, seeded(step))
        judgement = judged(scorer(features).squeeze(-1).sigmoid())
        drawn = strategy.draw(judgement, torch.full((64,), KEPT), allocator, seeded(step), step / steps)
        gate = straight_through_gate(drawn.allocation.soft_BHW) if strategy.gated else 1.0
        seen = features * (gate * drawn.allocation.keep_BHW).unsqueeze(-1)
        logits = seen[..., 1 : 1 + CLASSES].sum((1, 2))  # a fixed decoder: count the votes
        ce = torch.nn.functional.cross_entropy(logits, answer, reduction="none")
        loss = strategy.answer_loss(ce, logits.argmax(-1) == answer, drawn)
        if supervised:
            loss = loss + relevance_bce(judgement.balance.relevance_BHW, marked.float())
        if loss.requires_grad:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return before, recall()


@pytest.mark.parametrize("name", NAMES)
def test_training_finds_the_cells_that_hold_the_answer(name):
    before, after = train_toy(name, supervised=name == "score")
    assert before < 0.3, "chance is 1/4"
    assert after > 0.9


def test_the_answer_alone_teaches_nothing_without_a_strategy_for_it():
    before, after = train_toy("score", supervised=False)
    assert before == after
