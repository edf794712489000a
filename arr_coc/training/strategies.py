"""Gradient strategies: four ways to learn from a choice that has no gradient of its own, by name.

B images with one grid, H W grid of cells, N = H * W.

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

from arr_coc.attending import TokenAllocator, choose_cells
from arr_coc.records import NOT_FINITE, RELEVANCE, WHOLE_BUDGET, Allocation, Judgement
from arr_coc.training.sampling import add_gumbel, ordered_log_prob, relaxed_top_k, relevance_after_tensions

EDGE = 1e-3  # relevance closer than this to 0 or 1 counts as this close: logits stay within 6.9 of zero


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
    generator: torch.Generator | None
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
        )


class Strategy:
    """One way to choose while training, and the loss of the answers that goes with it. By default the allocator's."""

    name: ClassVar[str]
    gated: ClassVar[bool]
    """Whether kept tokens are to be multiplied by `straight_through_gate(soft)`: the config's `straight_through`."""

    def draw(
        self,
        judgement: Judgement,
        k_B: Tensor,
        allocator: TokenAllocator,
        generator: torch.Generator | None = None,
        progress: float = 0.0,
    ) -> Drawn:
        """Choose k cells of each image. `progress` goes from 0 at the start of training to 1 at its end.

        Rows that are not finite keep every cell, as in the allocator. The generator must be on the judgement's device;
        None uses torch's own.
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


class Score(Strategy):
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

    def __init__(self, first_temperature: float = 2.0, last_temperature: float = 0.2) -> None:
        if not 0 < last_temperature <= first_temperature:
            raise ValueError(f"temperatures {first_temperature} to {last_temperature}: expected 0 < last <= first")
        self.first_temperature, self.last_temperature = first_temperature, last_temperature

    def temperature(self, progress: float) -> float:
        """Falls exponentially from the first to the last. High: smooth and biased; low: exact, and few cells learn."""
        return float(self.first_temperature * (self.last_temperature / self.first_temperature) ** progress)

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

    def __init__(self, momentum: float = 0.9, weight: float = 1.0) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum}: expected at least 0 and below 1, such as 0.9")
        self.momentum, self.weight = momentum, weight
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
        if drawn.log_prob_B.shape != loss_B.shape:
            raise ValueError(
                "reinforce credits one choice per answer: make batches of one grid, one image per question"
            )
        reward_B = right_B.detach().float()
        usual, now = self.baseline, reward_B.mean().item()
        if not self.updates:
            usual = self.baseline = now
        self.baseline = self.momentum * self.baseline + (1 - self.momentum) * now
        self.updates += 1
        kept_B = drawn.allocation.keep_BHW.flatten(1).sum(-1)
        credit_B = (reward_B - usual) * drawn.log_prob_B / kept_B
        return loss_B.mean() - self.weight * credit_B.mean()

    def state(self) -> dict[str, float]:
        return {"baseline": self.baseline, "updates": self.updates}

    def restore(self, state: dict[str, float]) -> None:
        super().restore(state)
        self.baseline, self.updates = state["baseline"], state["updates"]


GRADIENT_STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (Score, StraightThrough, Gumbel, Reinforce)
}


def make_strategy(name: str) -> Strategy:
    """A strategy with its default settings, by name."""
    if name not in GRADIENT_STRATEGIES:
        raise ValueError(f"strategy={name!r}: expected one of {', '.join(GRADIENT_STRATEGIES)}")
    return GRADIENT_STRATEGIES[name]()
