"""Where the time of a training step goes, as a table of the dearest operations."""

import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from arr_coc.training.mini_step import Learner

USES = ("dense", "sparse")
ROWS = 40  # lines of each table


def profile_steps(learner: Learner, batch: dict[str, Any], path: Path) -> None:
    """Time one dense and one sparse step and write both tables to `path`; the weights stay as they are (rate 0)."""
    on_gpu = learner.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    parts = []
    for use in USES:
        learner.step(batch, use, 0.0)
        _wait(on_gpu)
        start = time.perf_counter()
        learner.step(batch, use, 0.0)
        issued = time.perf_counter() - start
        _wait(on_gpu)
        spent = time.perf_counter() - start
        with profile(activities=activities) as found:
            learner.step(batch, use, 0.0)
            _wait(on_gpu)
        table = found.key_averages().table(
            sort_by="self_cuda_time_total" if on_gpu else "self_cpu_time_total",
            row_limit=ROWS,
            max_name_column_width=90,
        )
        shapes = {name: tuple(value.shape) for name, value in batch.items()}
        parts.append(f"{use}: {1e3 * spent:.1f} ms, of these {1e3 * issued:.1f} ms to issue; {shapes}\n{table}\n")
    path.write_text("\n".join(parts))


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()
