"""Where the time of a training step goes, as a table of the dearest operations."""

import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from studies.mini.step import Learner

USES = ("dense", "sparse")
ROWS = 40  # lines of each table


def profile_steps(learner: Learner, batch: dict[str, Any], path: Path) -> None:
    """Write times and tables of a dense and a sparse step to `path`; the weights stay as they are (rate 0)."""
    shapes = {name: tuple(value.shape) for name, value in batch.items()}
    parts = [f"{shapes}\n"]
    for use in USES:
        issued, spent = _times(learner, batch, use)
        parts.append(f"{use}: {spent:.1f} ms, of these {issued:.1f} ms to issue\n")
        try:
            parts.append(_table(learner, batch, use))
        except Exception as error:  # a profiler can fail in any way; the run must not
            parts.append(f"no table: {type(error).__name__}: {str(error)[:500]}\n")
    path.write_text("\n".join(parts))


def _times(learner: Learner, batch: dict[str, Any], use: str) -> tuple[float, float]:
    """(ms until a step was handed to the device, ms until it was done)."""
    learner.step(batch, use, 0.0)
    _wait(learner)
    start = time.perf_counter()
    learner.step(batch, use, 0.0)
    issued = time.perf_counter() - start
    _wait(learner)
    return 1e3 * issued, 1e3 * (time.perf_counter() - start)


def _table(learner: Learner, batch: dict[str, Any], use: str) -> str:
    """The dearest operations of a step."""
    on_gpu = learner.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as found:
        learner.step(batch, use, 0.0)
        _wait(learner)
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    return str(found.key_averages().table(sort_by=order, row_limit=ROWS, max_name_column_width=90))


def _wait(learner: Learner) -> None:
    if learner.device.type == "cuda":
        torch.cuda.synchronize()
