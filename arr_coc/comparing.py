"""One question answered in several ways: what `arr-coc compare` and the demo's Compare tab show, each in its own view.

Importing this loads no torch.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from arr_coc.config import Keep

if TYPE_CHECKING:
    from arr_coc.qwen import Answer, ARRCOCQwen

PLAIN = "plain"
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "unable to allocate")
DEVICE_LOST = ("CUDA error", "CUDA driver error", "device-side assert", "CUBLAS_STATUS_EXECUTION_FAILED")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of answering, and what came of it."""

    selector: str
    keep: Keep
    model: str = ""  # where several are compared
    answer: "Answer | None" = None
    error: str | None = None


def plan(keeps: Sequence[Keep], selectors: Sequence[str]) -> list[Variant]:
    """Every selector with every budget, each once; all tokens are the plain model, whatever the selector."""
    ways = [Variant(PLAIN if keep == 1.0 else spec, keep) for keep in keeps for spec in selectors]
    return list(dict.fromkeys(ways))


def answer_ways(
    ways: Iterable[Variant],
    using: Callable[[Variant], AbstractContextManager["ARRCOCQwen"]],
    image: Any,
    question: str,
    *,
    max_new_tokens: int,
    warm_up: int,
) -> Iterator[Variant]:
    """Each way with its answer; `using` lends the model that answers so, `warm_up` is in tokens."""
    for way in ways:
        with using(way) as owner:
            done = answer_way(way, partial(owner.ask, image, question), max_new_tokens, warm_up)
        yield done


def answer_way(way: Variant, ask: Callable[..., "Answer"], max_new_tokens: int, warm_up: int) -> Variant:
    """Asked twice, since a first answer pays for what later ones find ready; the second counts.

    A way that runs out of memory says so, and others can go on.
    """
    try:
        ask(keep=way.keep, max_new_tokens=warm_up)
        return replace(way, answer=ask(keep=way.keep, max_new_tokens=max_new_tokens))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler: what ran out of memory is still held by the error's traceback inside it.
    release_memory()
    return replace(way, error="out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Of the host or of the GPU. torch is not imported for this: its errors are known by name and by words."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in OUT_OF_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """Whether the GPU cannot be used any more in this process: after such a fault every later call fails too."""
    if is_out_of_memory(error):
        return False
    named = type(error).__name__ in ("AcceleratorError", "EngineDeadError")  # of torch, of vLLM
    return named or (isinstance(error, RuntimeError) and any(words in str(error) for words in DEVICE_LOST))


def release_memory() -> None:
    """Give back what nobody holds any more, on the GPU too."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
