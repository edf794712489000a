"""While an answer comes: its text as it is generated, from a thread that can be stopped; how sure it is; looking again.

B rows, T new tokens, V vocabulary.

An answer is as sure as its least likely token, the end included: of what was measured (docs/concepts.md) this tells
right from wrong as well as any, and does not depend on how long the answer is. Where it is not sure enough, the
question is asked once more with twice the tokens, up to all: a further look chooses more cells by the same map. Of a
first look at a small copy, what the images gave is remembered: only the question's words are read again. Encoding,
prompt and answer are paid anew for each look.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria, TextIteratorStreamer
from transformers.generation.streamers import BaseStreamer

from arr_coc.qwen.answers import PLAIN_TEXT, Answer
from arr_coc.timing import hand_over_cores

UNSURE = 0.95  # confidence under which the eye goes back: who asks for this wants few mistakes, not few tokens
TIMES = 2  # as many tokens with each look


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


def restorer_of(model: Any, prompt: Tensor, options: dict[str, Any], inner: Any) -> PromptRestorer | None:
    """What streams an answer; None for beams, which end together: when their first token came is not known."""
    config = options.get("generation_config") or model.generation_config
    beams = int(options.get("num_beams") or config.num_beams or 1)
    if beams == 1:
        return PromptRestorer(prompt, inner)
    if isinstance(inner, Held):
        raise ValueError(f"num_beams={beams} has no confidence to look again by: leave out num_beams or look_again")
    if inner is not None:
        raise ValueError(f"num_beams={beams} cannot be streamed: beams end together; leave one of the two out")
    return None


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


@dataclass(slots=True)
class RowText:
    """One row of a batch: what ends it, and what came of it so far."""

    most: int  # new tokens
    stops: tuple[str, ...]  # texts that end it, and are left out
    say: Callable[[str], None] | None  # told each new piece; None where the text is wanted whole
    is_over: Callable[[], bool]  # nobody waits for it any more
    ids: list[int] = field(default_factory=list)
    text: str = ""
    ended: str = ""  # "stop", "length", or "" while it goes on


class RowStreamer(BaseStreamer, StoppingCriteria):
    """The text of each row of a batch, up to the row's own end. Is given to generate as streamer and as criterion."""

    def __init__(self, tokenizer: Any, ends: Sequence[int], rows: Sequence[RowText]) -> None:
        self.tokenizer, self.ends, self.rows = tokenizer, frozenset(ends), rows
        self._saw_prompt = False

    def put(self, value: Tensor) -> None:
        if self._saw_prompt:
            for row, token in zip(self.rows, value.flatten().tolist(), strict=True):
                if not row.ended:
                    self._add(row, token)
        self._saw_prompt = True

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        over = [bool(row.ended) or row.is_over() for row in self.rows]
        return torch.tensor(over, device=input_ids.device)

    def end(self) -> None:
        """Whatever row has not ended was left."""

    def _add(self, row: RowText, token: int) -> None:
        row.ids.append(token)
        row.ended = "stop" if token in self.ends else "length" if len(row.ids) >= row.most else ""
        if not (row.ended or row.say or row.stops):
            return  # a text that is wanted whole is spelled out once
        text = self.tokenizer.decode(row.ids, **PLAIN_TEXT)
        cuts = [place for stop in row.stops if (place := text.find(stop)) >= 0]
        if cuts:
            row.ended, text = "stop", text[: min(cuts)]
        elif not row.ended:
            # Half a character, and what may become the start of a stop, are held back.
            text = text.rstrip("\ufffd")
            text = text[: max(len(row.text), len(text) - max(map(len, row.stops), default=1) + 1)]
        piece = text[len(row.text) :]
        if piece and row.say is not None and not row.is_over():
            row.say(piece)
        row.text = text if row.ended else row.text + piece


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

    hand_over_cores()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield from (piece for piece in streamer if piece)
    finally:
        stop.set()
        thread.join()
    if failure:
        raise failure[0]


# ---------------------------------------------------------------- how sure it is


def log_probability(logits_BV: Tensor, token_B: Tensor) -> Tensor:
    """Of the token that was picked in each row, before any temperature: `[B]` fp32."""
    logits_BV = logits_BV.float()
    return logits_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1) - logits_BV.logsumexp(-1)


def confidence(log_probability_T: Tensor) -> float:
    """Probability of the least likely token of an answer, in [0, 1]; 0 where it is not a number."""
    return float(log_probability_T.min().exp().nan_to_num(0.0).clamp(0, 1))


class TokenProbabilities(LogitsProcessor):
    """Notes, on the device, how likely each picked token was while transformers generates; changes nothing."""

    def __init__(self) -> None:
        self._noted: list[Tensor] = []
        self._last: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._note(input_ids[:, -1])
        self._last = scores
        return scores

    def _note(self, token_B: Tensor) -> None:
        if self._last is not None:
            self._noted.append(log_probability(self._last, token_B))

    def confidence(self, new_BT: Tensor) -> float | None:
        """Of the one answer that came out; None where there are several, or tokens were not picked one by one."""
        rows = 0 if self._last is None else self._last.shape[0]
        if rows != 1 or new_BT.shape != (1, len(self._noted) + 1):
            return None
        self._note(new_BT[:, -1])
        return confidence(torch.cat(self._noted))


def noting(options: dict[str, Any]) -> tuple[TokenProbabilities, dict[str, Any]]:
    """What notes, and generate's keywords with it after the caller's own processors, before what stands."""
    noted = TokenProbabilities()
    given = [*(options.get("logits_processor") or ()), noted]
    for one in given:
        if isinstance(one, Standing):
            one.begin()
    return noted, {**options, "logits_processor": sorted(given, key=lambda one: isinstance(one, Standing))}


class Standing(LogitsProcessor):
    """An answer that stands: as long as its tokens are followed, its next one is put `ahead` of all others, in nats."""

    def __init__(self, tokens: Sequence[int], ends: Sequence[int], ahead: float) -> None:
        self.tokens, self.ends, self.ahead = list(tokens), list(ends), ahead
        self._prompt: int | None = None  # tokens before the answer

    def begin(self) -> None:
        """An answer begins: the first tokens that it is shown are the prompt."""
        self._prompt = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._prompt is None:
            self._prompt = input_ids.shape[1]
        said_BT = input_ids[:, self._prompt :]
        done = said_BT.shape[1]
        if done > len(self.tokens):
            return scores
        follows_B = (said_BT == said_BT.new_tensor(self.tokens[:done])).all(-1)
        following = self.ends if done == len(self.tokens) else self.tokens[done : done + 1]
        more_V = torch.zeros_like(scores[0]).index_fill(
            0, torch.tensor(following, dtype=torch.long, device=scores.device), self.ahead
        )
        return scores + follows_B.unsqueeze(-1) * more_V


def look_until_sure(look: Callable[[Any, Any], list[Answer]], keep: Any, streamer: Any) -> Answer:
    """The last answer of as many `look(keep, streamer)` as it takes, streamed once it is final."""
    held = Held()
    (answer,) = look(keep, held)
    looks = answer.looks
    while answer.confidence is not None and answer.confidence < UNSURE and answer.tokens_kept < answer.tokens_total:
        wanted = TIMES * answer.tokens_kept
        held = Held()
        (answer,) = look(wanted if wanted < answer.tokens_total else 1.0, held)
        looks += answer.looks
    if streamer is not None:
        held.release(streamer)
    return replace(answer, looks=looks)
