"""Text as it is generated, from a thread that can be stopped and whose errors reach the reader."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, TextIteratorStreamer
from transformers.generation.streamers import BaseStreamer


class PromptRestorer(BaseStreamer):
    """Shows a streamer the caller's own prompt in place of the compact one, and notes when the first token came."""

    def __init__(self, prompt: Tensor, inner: BaseStreamer | None) -> None:
        self.prompt, self.inner = prompt.cpu(), inner
        self.start()
        self.prefill_seconds = 0.0  # from the start to the first new token
        self._saw_prompt = False

    def start(self) -> None:
        """Count from now."""
        self.started = time.perf_counter()

    def put(self, value: Tensor) -> None:
        if not self._saw_prompt:
            self._saw_prompt = True
            value = self.prompt
        elif not self.prefill_seconds:
            self.prefill_seconds = time.perf_counter() - self.started
        if self.inner is not None:
            self.inner.put(value)

    def end(self) -> None:
        if self.inner is not None:
            self.inner.end()


def beams_of(model: Any, options: dict[str, Any], streamer: Any) -> int:
    """How many beams the keywords of generate ask for; more than one cannot be streamed."""
    config = options.get("generation_config") or model.generation_config
    beams = int(options.get("num_beams") or config.num_beams or 1)
    if beams > 1 and streamer is not None:
        raise ValueError(f"num_beams={beams} cannot be streamed: beams end together; leave one of the two out")
    return beams


class Held(BaseStreamer):
    """Holds back what is streamed, until it is known to be final."""

    def __init__(self) -> None:
        self._values: list[Tensor] = []

    def put(self, value: Tensor) -> None:
        self._values.append(value)

    def end(self) -> None:
        """Nothing: it ends when it is released."""

    def release(self, streamer: BaseStreamer) -> None:
        for value in self._values:
            streamer.put(value)
        streamer.end()


class Stopped(StoppingCriteria):
    """Ends generation once the event is set."""

    def __init__(self, event: threading.Event) -> None:
        self.event = event

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return torch.full((input_ids.shape[0],), self.event.is_set(), dtype=torch.bool, device=input_ids.device)


def stream_text(tokenizer: Any, generate: Callable[[BaseStreamer, StoppingCriteria], None]) -> Iterator[str]:
    """Run `generate(streamer, stop)` in a thread and yield its text. Leaving the loop early ends the generation."""
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    stop = threading.Event()
    failure: list[BaseException] = []

    def work() -> None:
        try:
            generate(streamer, Stopped(stop))
        except BaseException as error:
            failure.append(error)
        finally:
            streamer.on_finalized_text("", stream_end=True)  # whatever happened, the reader must not wait for ever

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield from (piece for piece in streamer if piece)
    finally:
        stop.set()
        thread.join()
    if failure:
        raise failure[0]
