"""Where the training of mini stands: a clock that the data workers see, and one line."""

import math
import multiprocessing
from typing import Any

from arr_coc.training.watching import Clock, Report
from studies.mini.config import MiniTrainConfig
from studies.mini.step import Losses


class SharedClock(Clock):
    """A clock that also tells the data workers, which draw by progress."""

    def __init__(self, steps: int, seconds: float, launched: float, spent: float = 0.0) -> None:
        super().__init__(steps, seconds, launched, spent)
        self.shared: Any = multiprocessing.Value("d", 0.0) if seconds else None

    def progress(self, step: int) -> float:
        found = super().progress(step)
        if self.shared is not None:
            self.shared.value = found
        return found


def log_step(
    report: Report,
    step: int,
    found: dict[str, Losses],
    pace: dict[str, float],
    clock: Clock,
    first: int,
    config: MiniTrainConfig,
) -> None:
    """One line about where the run stands; `starved` is the share of time spent waiting for images.

    `found` holds the losses of the last dense and the last sparse step.
    """
    progress, left = clock.progress(step), clock.seconds_left(step, first)
    answers, sparse = float(found["dense"].answers), float(found["sparse"].answers)
    labels, right = float(found["dense"].dense), float(found["dense"].right)
    if not math.isfinite(answers + sparse + labels):
        losses = f"answers {answers}, sparse {sparse}, labels {labels}"
        raise ValueError(
            f"a loss is not finite at step {step} ({losses}): go on from the last checkpoint, lower the rate"
        )
    report(
        f"step {step}  {progress:4.0%}  answers {answers:.3f} ({right:.1%} of tokens), sparse {sparse:.3f}, "
        f"labels {labels:.3f}  {pace['images_per_second']:.0f} images/s ({pace['starved']:.0%} waiting)  "
        f"left {left // 60:.0f}:{left % 60:02.0f}",
        step=step,
        progress=round(progress, 4),
        answers=answers,
        answers_sparse=sparse,
        labels=labels,
        token_accuracy=right,
        rate=config.rate(step, progress),
        crowd=config.crowd(progress),
        **pace,
    )
