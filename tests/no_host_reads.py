"""Finds, on a CPU, what a CUDA graph could not capture: reads back to the host, shapes that depend on values, constants
that are copied from the host."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from arr_coc.qwen.graphs.recording import Function, Recording, Rerunner, Tensors

FORBIDDEN = (
    *("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "bincount", "is_nonzero", "equal"),
    *("repeat_interleave.Tensor", "lift_fresh", "index.Tensor_bool", "dropout", "native_dropout"),
)


class NoHostReads(TorchDispatchMode):
    """Raises at the first such operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if any(name == one or name.startswith(f"{one}.") for one in FORBIDDEN):
            raise RuntimeError(f"{name} inside of a recording")
        if name.startswith("index.") or name.startswith("index_put"):
            indices = [one for one in args[1] if one is not None]
            if any(one.dtype == torch.bool for one in indices):
                raise RuntimeError("indexing by a mask inside of a recording")
        return func(*args, **(kwargs or {}))


class StrictRecorder(Rerunner):
    """Runs again, as a CPU can, but only what a CUDA graph could hold."""

    def record(self, function: Function, inputs: Tensors, kept_alive: Any = None, beside: bool = False) -> Recording:
        def watched(tensors: Tensors) -> Tensors:
            with NoHostReads():
                return function(tensors)

        return super().record(watched, inputs, kept_alive)
