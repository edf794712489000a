"""Recordings: a function over static buffers that can be run again without its launches, and a bounded store of them.

A recorder makes `record(function, inputs) -> Recording`. `CudaRecorder` captures a CUDA graph; `Rerunner` runs the
function again, over the same static buffers and with the same rules, so that all but the capture is tested on a CPU.

Functions take and give dictionaries of tensors. They may not read tensors back to the host, nor depend on values for
their shapes. All graphs share one pool of memory: it holds only what lives within a run, since inputs are buffers
outside of it and results are copied to buffers outside of it, so graphs may be run in any order.
"""

import gc
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Tensors = dict[str, Tensor]
Function = Callable[[Tensors], Tensors]
WARM_UPS = 2  # runs before a capture: libraries choose their kernels and take their workspaces in them


@dataclass(frozen=True, slots=True)
class Recording:
    """Static buffers and how to run over them. Results are overwritten by the next run: copy what must last."""

    inputs: Tensors
    outputs: Tensors
    replay: Callable[[], None]
    size: int  # bytes that it holds
    kept_alive: Any = None  # what it reads beside its inputs

    def __call__(self, **given: Tensor) -> Tensors:
        """Copy `given` into the buffers of those names, run, and return the buffers of the results."""
        for name, tensor in given.items():
            self.inputs[name].copy_(tensor, non_blocking=True)
        self.replay()
        return self.outputs


class Recorder(ABC):
    """Makes recordings on one device."""

    name: str

    @abstractmethod
    def record(self, function: Function, inputs: Tensors, kept_alive: Any = None, beside: bool = False) -> Recording:
        """`inputs` give shapes, dtypes and first values; they are copied. See `join` for what runs `beside`."""

    @abstractmethod
    def join(self) -> None:
        """What follows waits for what runs beside; have it before such results are read or given anew."""

    @abstractmethod
    def reset(self) -> None:
        """Every recording made so far is gone."""


class Rerunner(Recorder):
    """Runs the function again. The results land in the same buffers each time, as those of a CUDA graph do."""

    name = "eager"

    def record(self, function: Function, inputs: Tensors, kept_alive: Any = None, beside: bool = False) -> Recording:
        static = {name: tensor.clone() for name, tensor in inputs.items()}
        outputs = {name: torch.empty_like(tensor) for name, tensor in function(static).items()}

        def replay() -> None:
            for name, tensor in function(static).items():
                outputs[name].copy_(tensor)

        return Recording(static, outputs, replay, bytes_of(static) + bytes_of(outputs), kept_alive)

    def join(self) -> None:
        """Nothing runs beside anything."""

    def reset(self) -> None:
        """Nothing is shared between recordings."""


def unrecorded(function: Function, inputs: Tensors, kept_alive: Any = None) -> Recording:
    """The function as it is behind a recording's face: it runs when called, and its results are new each time."""
    static = {name: tensor.clone() for name, tensor in inputs.items()}
    outputs: Tensors = {}
    return Recording(static, outputs, lambda: outputs.update(function(static)), bytes_of(static), kept_alive)


class CudaRecorder(Recorder):
    """Captures CUDA graphs on a stream of its own, with one pool of memory; and one more of each for what runs beside.

    Graphs of one pool may not run at the same time: they would write over each other.
    """

    name = "graphs"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream, self.side = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.reset()

    def reset(self) -> None:
        self.pools = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()

    def join(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self.side)

    def record(self, function: Function, inputs: Tensors, kept_alive: Any = None, beside: bool = False) -> Recording:
        static = {name: tensor.clone() for name, tensor in inputs.items()}
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UPS):
                made = function(static)
            outputs = {name: torch.empty_like(tensor) for name, tensor in made.items()}
            del made
        here.wait_stream(self.stream)
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # the capture does so as well, and its own growth is what counts
        before = torch.cuda.memory_reserved(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate meanwhile: only what this thread does counts as an error.
            pool = self.pools[beside]
            with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
                for name, tensor in function(static).items():
                    outputs[name].copy_(tensor)
        except RuntimeError:
            self.reset()  # a broken capture must not leave its mark on the pool of the next
            raise
        grown = max(0, torch.cuda.memory_reserved(self.device) - before)
        size = bytes_of(static) + bytes_of(outputs) + grown
        return Recording(static, outputs, self._beside(graph) if beside else graph.replay, size, kept_alive)

    def _beside(self, graph: torch.cuda.CUDAGraph) -> Callable[[], None]:
        def replay() -> None:
            self.side.wait_stream(torch.cuda.current_stream(self.device))  # for the inputs
            with torch.cuda.stream(self.side):
                graph.replay()

        return replay


def bytes_of(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@dataclass(slots=True)
class Statistics:
    """What became of the requests for recordings."""

    hits: int = 0
    made: int = 0
    dropped: int = 0
    too_large: int = 0  # could not be kept under the cap
    failed: dict[str, str] = field(default_factory=dict)  # recording -> error; these run without one


class Recordings:
    """The recordings in use, at most `most_bytes` and `most` of them: the one unused for longest goes first."""

    def __init__(self, recorder: Recorder, most_bytes: int, most: int = 64) -> None:
        self.recorder, self.most_bytes, self.most = recorder, most_bytes, most
        self.statistics = Statistics()
        self._kept: OrderedDict[Hashable, Recording] = OrderedDict()
        self._too_large: set[Hashable] = set()

    @property
    def size(self) -> int:
        """Bytes that all recordings hold; what several of them keep alive counts once."""
        shared = {id(one.kept_alive): getattr(one.kept_alive, "nbytes", 0) for one in self._kept.values()}
        return sum(one.size for one in self._kept.values()) + sum(shared.values())

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def get(
        self,
        key: Hashable,
        make: Callable[[], tuple[Function, Tensors]],
        kept_alive: Any = None,
        beside: bool = False,
    ) -> Recording:
        """The recording of that key, made if need be. Where recording fails, the same function runs as it is."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            self.statistics.hits += 1
            return found
        function, inputs = make()
        if key in self._too_large:
            return unrecorded(function, inputs, kept_alive)
        recording = self._record(key, function, inputs, kept_alive, beside)
        self.statistics.made += 1
        if recording.size > self.most_bytes:
            self.statistics.too_large += 1
            self._too_large.add(key)  # not worth recording again: it could never be kept
            return recording
        self._kept[key] = recording
        while self.size > self.most_bytes or len(self._kept) > self.most:
            self._kept.popitem(last=False)
            self.statistics.dropped += 1
        return recording

    def _record(self, key: Hashable, function: Function, inputs: Tensors, kept_alive: Any, beside: bool) -> Recording:
        try:
            return self.recorder.record(function, inputs, kept_alive, beside)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if isinstance(self.recorder, Rerunner):
                raise
            self.statistics.failed[str(key)] = str(error).splitlines()[0]
            logger.warning("%s could not be captured and runs without a graph: %s", key, error)
            return unrecorded(function, inputs, kept_alive)

    def clear(self) -> None:
        """Let go of everything."""
        self._too_large.clear()
        if self._kept:
            self._kept.clear()
            gc.collect()  # recordings may hold each other, and their memory is wanted back now
            self.recorder.reset()
