"""The arithmetic of the batched forward, compiled once for any number of tokens."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from studies.batched.kernels import merge, text_qkv, text_rest, vision_qkv, vision_rest


class Kernels:
    """The five functions above, as they are or compiled once for any number of tokens."""

    def __init__(self, compiled: bool = False) -> None:
        wrap = compile_flat if compiled else _as_is
        self.vision_qkv = wrap(vision_qkv)
        self.vision_rest = wrap(vision_rest)
        self.merge = wrap(merge)
        self.text_qkv = wrap(text_qkv)
        self.text_rest = wrap(text_rest)


def _as_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def compile_flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with the first dimension of every activation dynamic and everything else static."""
    compiled = torch.compile(function)

    def call(*arguments: Any) -> Any:
        for argument in arguments:
            if isinstance(argument, Tensor):
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        return compiled(*arguments)

    return call
