"""Where a training run stands: its clock, its metrics file, its lines for people."""

import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Plan(Protocol):
    """What a clock needs to know of a run's settings."""

    @property
    def steps(self) -> int: ...

    @property
    def seconds(self) -> float: ...


class Clock:
    """Where a run stands: by its steps, or by the time it was given."""

    def __init__(self, config: Plan, launched: float, spent: float = 0.0) -> None:
        """`spent` are the seconds of training that an earlier part of the run, before a stop, has used."""
        self.config, self.spent = config, spent
        self.started = time.monotonic()
        self.ends = launched + config.seconds - spent
        self.shared: Any = multiprocessing.Value("d", 0.0) if config.seconds else None

    def start(self) -> None:
        """Progress counts from here: compiling is over."""
        self.started = time.monotonic()

    def progress(self, step: int) -> float:
        """0 at the first step, 1 at the end; also told to the data workers."""
        if not self.config.seconds:
            return step / self.config.steps
        self.shared.value = self.trained() / max(1.0, self.spent + self.ends - self.started)
        return float(self.shared.value)

    def trained(self) -> float:
        """Seconds of training so far, those before a stop included."""
        return self.spent + time.monotonic() - self.started

    def seconds_left(self, step: int, first: int) -> float:
        """Time to the end, estimated from the pace so far where the plan is in steps."""
        if self.config.seconds:
            return self.ends - time.monotonic()
        pace = (time.monotonic() - self.started) / max(1, step - first)
        return pace * (self.config.steps - step)


class Report:
    """Metrics as JSON lines in a file and as short lines for people."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._say = folder / "metrics.jsonl", say

    def __call__(self, line: str, **values: Any) -> None:
        self._say(line)
        with self._path.open("a") as file:
            file.write(json.dumps(values) + "\n")
