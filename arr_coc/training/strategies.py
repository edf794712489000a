"""Gradient strategies: four ways to learn from a choice that has no gradient of its own, by name.

B images with one grid, H W grid of cells, N = H * W, T tensions.

    score             supervise the maps; nothing passes through the choice
    straight_through  the allocator's choice; kept tokens pass the answer's gradient on to their scores
    gumbel            a sampled choice; kept tokens pass it on to a relaxed k-hot, so to the cells that competed as well
    reinforce         a sampled choice; the cells drawn are credited where the answer was right more often than usual

The sampled choices draw without replacement from the odds of the relevance after the tensions (Plackett-Luce, by
adding Gumbel noise). The noise takes the place of even coverage, so training looks everywhere.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from arr_coc.attending import TokenAllocator, choose_cells, soften, suppress_neighbours
from arr_coc.records import NOT_FINITE, RELEVANCE, WHOLE_BUDGET, Allocation, Judgement
from arr_coc.selectors import Selector, View
from arr_coc.timing import Stopwatch

EDGE = 1e-3  # relevance closer than this to 0 or 1 counts as this close: logits stay within 6.9 of zero
FIRST_TEMPERATURE, LAST_TEMPERATURE = 2.0, 0.2  # of the relaxed choice
MOMENTUM = 0.9  # of the share of right answers that reinforce takes for usual
HALVINGS = 32  # of an interval of about 100: beyond what fp32 can tell apart


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a strategy chose of one batch of images with one grid."""

    allocation: Allocation  # exactly min(k, N) cells per image; soft_BHW is what kept tokens are gated with
    log_prob_B: Tensor | None = None  # of the cells in the order drawn, 0 where nothing was left to choose


@dataclass(frozen=True, slots=True)
class Draw:
    """What a strategy draws from."""

    settled: Allocation  # the allocator's own choice
    soft_BHW: Tensor  # relevance after the tensions; 1 where it is not finite
    open_B: Tensor  # whether there is a choice: finite, and a budget short of every cell
    k_B: Tensor
    generator: torch.Generator
    progress: float

    @property
    def logits_BN(self) -> Tensor:
        """Log-odds of the relevance after the tensions, within 6.9 of zero."""
        return self.soft_BHW.flatten(1).logit(EDGE)

    def sampled(self, noisy_BN: Tensor, soft_BHW: Tensor) -> Allocation:
        """The k highest in place of the allocator's choice where there is one to make; else every cell, gated by 1."""
        open_B11 = self.open_B.view(-1, 1, 1)
        keep_BHW = choose_cells(noisy_BN, self.k_B).view_as(soft_BHW)
        return Allocation(
            keep_BHW=torch.where(open_B11, keep_BHW, self.settled.keep_BHW),
            soft_BHW=torch.where(open_B11, soft_BHW, torch.ones_like(soft_BHW)),
            strategy_B=torch.where(self.open_B, RELEVANCE, self.settled.strategy_B),
            covered_BHW=self.settled.covered_BHW & ~open_B11,
        )


class Strategy:
    """One way to choose while training, and the loss of the answers that goes with it. By default the allocator's."""

    name: ClassVar[str]
    gated: ClassVar[bool]
    """Whether kept tokens are to be multiplied by `straight_through_gate(soft)`: the config's `straight_through`."""

    def draw(
        self, judgement: Judgement, k_B: Tensor, allocator: TokenAllocator, generator: torch.Generator, progress: float
    ) -> Drawn:
        """Choose k cells of each image. `progress` goes from 0 at the start of training to 1 at its end.

        Rows that are not finite keep every cell, as in the allocator. The generator must be on the judgement's device.
        """
        settled: Allocation = allocator(judgement.balance.relevance_BHW, judgement.balance.tensions_BT, k_B)
        finite_B = settled.strategy_B != NOT_FINITE
        soft_BHW = relevance_after_tensions(judgement)
        soft_BHW = torch.where(finite_B.view(-1, 1, 1), soft_BHW, torch.ones_like(soft_BHW))
        open_B = finite_B & (settled.strategy_B != WHOLE_BUDGET)
        return self._draw(Draw(settled, soft_BHW, open_B, k_B, generator, progress))

    def _draw(self, draw: Draw) -> Drawn:
        return Drawn(draw.settled)

    def answer_loss(self, loss_B: Tensor, right_B: Tensor, drawn: Drawn | None) -> Tensor:
        """A scalar to go down, from each answer's cross-entropy and whether it was right (bool, or in [0, 1]).

        `drawn` is None where every token was asked for, so that no choice was made.
        """
        return loss_B.mean()

    def state(self) -> dict[str, float]:
        """What must be saved with the weights for training to go on as if it had not stopped."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Take up a saved `state()`."""
        if state.keys() != self.state().keys():
            names = ", ".join(state) or "nothing"
            raise ValueError(f"saved state of another strategy ({names}): go on with the strategy that was trained")


class ScoreOnly(Strategy):
    """The maps are supervised by losses of their own; the answer's loss trains the model alone."""

    name = "score"
    gated = False


class StraightThrough(Strategy):
    """A kept token is scaled by 1 in value and by its score in the backward pass. Cells left out learn nothing."""

    name = "straight_through"
    gated = True

    def _draw(self, draw: Draw) -> Drawn:
        return Drawn(replace(draw.settled, soft_BHW=draw.soft_BHW))


class Gumbel(Strategy):
    """A sampled choice, hard in the forward pass; the gate holds its relaxed k-hot, which gets harder over time."""

    name = "gumbel"
    gated = True

    def temperature(self, progress: float) -> float:
        """Falls exponentially from the first to the last. High: smooth and biased; low: exact, and few cells learn."""
        return float(FIRST_TEMPERATURE * (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** progress)

    def _draw(self, draw: Draw) -> Drawn:
        noisy_BN = add_gumbel(draw.logits_BN, draw.generator)
        soft_BN = relaxed_top_k(noisy_BN, draw.k_B, self.temperature(draw.progress))
        return Drawn(draw.sampled(noisy_BN.detach(), soft_BN.view_as(draw.soft_BHW)))


class Reinforce(Strategy):
    """A sampled choice. Its log-probability per cell goes up with how much better than the baseline the answer was.

    The baseline is a moving mean of the share of right answers. Nothing but right or wrong has to be known of an
    answer, so it also learns from rewards without a gradient; of the four it needs the most steps.
    """

    name = "reinforce"
    gated = False

    def __init__(self) -> None:
        self.baseline, self.updates = 0.0, 0.0

    def _draw(self, draw: Draw) -> Drawn:
        logits_BN = draw.logits_BN
        noisy_BN = add_gumbel(logits_BN.detach(), draw.generator)
        order_BN = noisy_BN.sort(dim=-1, descending=True, stable=True).indices
        log_prob_B = ordered_log_prob(logits_BN, order_BN, draw.k_B)
        log_prob_B = torch.where(draw.open_B, log_prob_B, torch.zeros_like(log_prob_B))
        return Drawn(draw.sampled(noisy_BN, draw.soft_BHW), log_prob_B)

    def answer_loss(self, loss_B: Tensor, right_B: Tensor, drawn: Drawn | None) -> Tensor:
        """Cross-entropy, which trains the model, and the credit of the choice, which trains the selector."""
        if drawn is None:
            return loss_B.mean()
        assert drawn.log_prob_B is not None
        assert drawn.log_prob_B.shape == loss_B.shape, "one choice per answer: one grid, one image per question"
        reward_B = right_B.detach().float()
        now = reward_B.mean().item()
        usual = self.baseline if self.updates else now
        self.baseline = MOMENTUM * usual + (1 - MOMENTUM) * now
        self.updates += 1
        kept_B = drawn.allocation.keep_BHW.flatten(1).sum(-1)
        credit_B = (reward_B - usual) * drawn.log_prob_B / kept_B
        return loss_B.mean() - credit_B.mean()

    def state(self) -> dict[str, float]:
        return {"baseline": self.baseline, "updates": self.updates}

    def restore(self, state: dict[str, float]) -> None:
        super().restore(state)
        self.baseline, self.updates = state["baseline"], state["updates"]


GRADIENT_STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (ScoreOnly, StraightThrough, Gumbel, Reinforce)
}


# ---------------------------------------------------------------- a strategy inside a model


class StrategySelector(Selector):
    """Judges as the given selector does; in train mode it chooses with a strategy and remembers what was drawn.

    In eval mode it is the given selector. `start` comes before each training step, `take` after its forward pass.
    """

    name = "in_training"

    def __init__(self, judging: Selector, strategy: Strategy) -> None:
        super().__init__(judging.allocator)
        self.judging, self.strategy = judging, strategy
        self.reads_pixels, self.reads_tokens = judging.reads_pixels, judging.reads_tokens
        self.reads_glance, self.first_look = judging.reads_glance, judging.first_look
        self.drawn: list[tuple[Judgement, Drawn]] = []
        self.start(seed=0, progress=0.0)

    def start(self, seed: int, progress: float) -> None:
        """Begin a step: the same seed draws the same cells. What an earlier step left behind is forgotten."""
        self.seed, self.progress = seed, progress
        self._generator: torch.Generator | None = None
        self.drawn.clear()

    def take(self) -> list[tuple[Judgement, Drawn]]:
        """What was drawn since `start`, one pair per group of images with one grid; the memory is cleared."""
        drawn, self.drawn = self.drawn, []
        return drawn

    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        return self.judging.judge(view, stopwatch)

    def automatic_budget(self, judgement: Judgement) -> Tensor:
        return self.judging.automatic_budget(judgement)

    def choose(self, judgement: Judgement, k_B: Tensor) -> Allocation:
        if not self.training:
            return self.judging.choose(judgement, k_B)
        if self._generator is None:
            self._generator = torch.Generator(k_B.device).manual_seed(self.seed)
        drawn = self.strategy.draw(judgement, k_B, self.allocator, self._generator, self.progress)
        self.drawn.append((judgement, drawn))
        return drawn.allocation


# ---------------------------------------------------------------- draws, and what of them has a gradient


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


def add_gumbel(logits_BN: Tensor, generator: torch.Generator) -> Tensor:
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
