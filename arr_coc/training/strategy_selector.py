"""A gradient strategy inside a model: a selector that chooses with it while training, and remembers what it drew."""

import torch
from torch import Tensor

from arr_coc.records import Allocation, Judgement
from arr_coc.selectors import Selector, View
from arr_coc.timing import Stopwatch
from arr_coc.training.strategies import Drawn, Strategy


class StrategySelector(Selector):
    """Judges as the given selector does; in train mode it chooses with a strategy and remembers what was drawn.

    In eval mode it is the given selector. `start` comes before each training step, `take` after its forward pass.
    """

    name = "in_training"

    def __init__(self, judging: Selector, strategy: Strategy) -> None:
        super().__init__(judging.allocator)
        self.judging, self.strategy = judging, strategy
        self.reads_pixels, self.reads_tokens = judging.reads_pixels, judging.reads_tokens
        self.reads_glance = judging.reads_glance
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
