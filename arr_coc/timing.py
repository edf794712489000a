"""Milliseconds per part: wall clock on the CPU, events on CUDA, so that measuring does not stall the device.

And what lets a thread beside the main one be as quick as that.
"""

import contextlib
import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


class Stopwatch:
    """Times named parts of a run on one device. A part that runs several times adds up."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.cuda = torch.device(device).type == "cuda"
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if self.cuda:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self._events.append((name, begin, end))
            return
        begin_s = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begin_s

    def milliseconds(self) -> dict[str, float]:
        """All parts so far. On CUDA this waits for the device, once."""
        if self._events:
            torch.cuda.synchronize()
            for name, begin, end in self._events:
                self._seconds[name] = self._seconds.get(name, 0.0) + begin.elapsed_time(end) / 1e3
            self._events.clear()
        return {name: 1e3 * seconds for name, seconds in self._seconds.items()}


def hand_over_cores() -> None:
    """For a thread that has computed on the CPU and leaves that to another one from now on, or for a while.

    OpenMP keeps helpers for every thread that ever asked for them. Once there are more of all together than cores, they
    sleep after every step in place of waiting awake, and many small steps, as an answer is made of, take twice as long
    (two cores). Those of the calling thread end here, and are back when it needs them. Costs 0.1 ms.
    """
    for library in Path(torch.__file__).parent.glob("lib/libgomp*"):
        with contextlib.suppress(OSError, AttributeError):  # from before 2019
            ctypes.CDLL(str(library)).omp_pause_resource_all(1)
