"""What a run needs and what there is: cells of a batch and workers follow, and what cannot fit is refused at once.

A run has two memories. The device's holds what `memory` counts; on a CPU that is the host's own. The host's holds
Python and its libraries, the batches that wait, and what each worker needs to make one.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch

from arr_coc.training.config import MOST_CELLS
from arr_coc.training.memory import RESERVE_GB, MemoryEstimate, Plan, estimate_plan

LIBRARIES = 700e6  # bytes of a process that has imported everything, and of what its kernels hold
BESIDE_CUDA = 2e9  # of the host, where a GPU computes: its driver, libraries and staging; 1.6e9 to 2.2e9 were measured
WORKER = 90e6  # of each worker, what it does not share with the process that it was forked from
AHEAD = 2  # batches that a worker makes before they are asked for
MOST_WORKERS = 14
SPARE = 0.9  # share of what is free that a run may plan with: others live here too
CGROUPS = (  # limit and use of the container that this runs in, of both generations
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


class NoRoom(ValueError):
    """A run that cannot fit, or that ran out of memory; the message says what would fit."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that are free for one process of a run."""

    host: float
    card: float | None = None  # of the GPU; None where the host computes

    @classmethod
    def here(cls, device: torch.device, processes: int = 1) -> "Room":
        card = None
        if device.type == "cuda":
            card = torch.cuda.mem_get_info(device)[0] - 0.5 * RESERVE_GB * 1e9
        return cls(SPARE * free_on_host() / processes, card)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a run needs with so many cells of a batch and so many workers."""

    step: MemoryEstimate
    host: float
    workers: int

    def told(self) -> str:
        return f"{'machine':<12}{self.host / 1e9:7.2f} GB of its memory, with {self.workers} workers"

    def lacks(self, room: Room) -> str:
        """What there is too little of, in words; "" where it fits."""
        if room.card is not None and self.step.total > room.card:
            return f"{self.step.total / 1e9:.1f} GB of the GPU's memory, {room.card / 1e9:.1f} GB are free"
        if self.host > room.host:
            return f"{self.host / 1e9:.1f} GB of the machine's memory, {room.host / 1e9:.1f} GB are free"
        return ""


def free_on_host() -> float:
    """Bytes that this process may still have: of the machine, or of its container where that is less."""
    free = float(psutil.virtual_memory().available)
    for limit, used in CGROUPS:
        try:
            free = min(free, float(Path(limit).read_text()) - float(Path(used).read_text()) + _given_back(used))
        except (OSError, ValueError):  # no such container, or "max"
            continue
    return free


def _given_back(used: str) -> float:
    """Bytes of files that a container counts as used, and that the system drops when memory is asked for."""
    told = Path(used).with_name("memory.stat").read_text().splitlines()
    return sum(float(line.split()[1]) for line in told if line.startswith(("inactive_file ", "active_file ")))


def batch_bytes(plan: Plan) -> float:
    """Of a batch as a worker hands it on: images as bytes, targets, and what stands out."""
    return plan.images * plan.cells * (3.0 * plan.geometry.cell**2 + 4) + plan.batch * plan.cells * 4.0


def needed(plans: Sequence[Plan], workers: int, on_host: bool) -> Need:
    """What the plans of a run need, each of another size of images; `on_host` where there is no GPU."""
    steps = [estimate_plan(plan) for plan in plans]
    batch = max(batch_bytes(plan) for plan in plans)
    worst = max(steps, key=lambda step: step.total)
    waiting = batch * (1 + AHEAD * workers)
    making = (WORKER + batch) * workers if workers else batch  # images one by one, and then together
    return Need(worst, LIBRARIES + (worst.total if on_host else BESIDE_CUDA) + waiting + making, workers)


def most_workers() -> int:
    """Processes that make batches, where memory is no matter: a core is left for the training."""
    return max(0, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1 if hasattr(os, "sched_getaffinity") else 1))


def fit(planned: Callable[[int], list[Plan]], room: Room, cells: int, workers: int) -> tuple[int, Need]:
    """(cells of a batch, what the run needs then): the most that there is room for, and workers that fit beside.

    `planned` gives the plans of a run with so many cells of a batch. `cells` 0 and `workers` below 0: as many as fit. A
    number that was asked for and does not fit is refused with one that does.
    """
    on_host, few = room.card is None, max(0, workers)
    found, lack = cells or MOST_CELLS, ""
    while wrong := needed(planned(found), few, on_host).lacks(room):
        lack = lack or wrong
        if found == 1:
            raise NoRoom(f"the smallest step needs {wrong}; {smaller(planned(1), room, few)}")
        found //= 2
    if lack and cells:
        raise NoRoom(f"a batch of {cells:,} cells needs {lack}; --cells-per-batch {found} fits")
    more = most_workers() if workers < 0 else workers
    while more and workers < 0 and needed(planned(found), more, on_host).lacks(room):
        more -= 1
    return found, needed(planned(found), more, on_host)


def smaller(plans: Sequence[Plan], room: Room, workers: int) -> str:
    """What would fit, in words."""
    largest = max(plan.image_side for plan in plans)
    shares = [0.8**step for step in range(1, 16)]

    def shrunk(share: float) -> list[Plan]:
        return [replace(plan, image_side=max(plan.geometry.cell, int(plan.image_side * share))) for plan in plans]

    ways = [([replace(plan, checkpointing=True) for plan in plans], '"checkpointing": true in --config')]
    ways = ways if any(plan.stage == 2 and not plan.checkpointing for plan in plans) else []
    ways += [(shrunk(share), f"--max-pixels {int(largest * share) ** 2}") for share in shares]
    for changed, how in ways:
        if not needed(changed, workers, room.card is None).lacks(room):
            return f"{how} fits"
    return "no setting makes it fit: take a smaller model, or a larger machine"
