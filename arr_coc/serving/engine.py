"""What answers: a batch of tickets at a time. The plain engine is ARRCOCQwen in this process."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from PIL import Image

from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.graphs.rules import ids_of
from arr_coc.qwen.memory import Memory
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.processor import together
from arr_coc.qwen.streaming import RowStreamer, RowText
from arr_coc.serving.reading import Wanted

ALIKE = 2  # times the length of the shortest prompt of a batch
AUTO = 1 / 8  # of the tokens, as "auto" keeps of most images; what it will keep is not known before


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of a request; `text` is empty and `ended` is "" where only the choice was wanted."""

    text: str
    ended: str  # stop or length
    prompt_tokens: int  # that the language model saw
    new_tokens: int
    images: list[ImageSelection]
    timings_ms: dict[str, float] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @property
    def tokens_kept(self) -> int:
        return sum(image.tokens_kept for image in self.images)

    @property
    def tokens_total(self) -> int:
        return sum(image.tokens_total for image in self.images)


Delivered = str | Finished | Exception  # pieces of a streamed answer, then how it ended


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One request on its way: encoded by its engine, waiting, answered. Threads share it."""

    wanted: Wanted
    inputs: Any  # what the engine made of question and images
    deliver: Callable[[Delivered], None]
    chooses: bool = False  # the choice alone is wanted
    length: int = 0  # tokens of the prompt that the language model will read, about
    left: threading.Event = field(default_factory=threading.Event)  # nobody waits any more
    spoke: threading.Event = field(default_factory=threading.Event)  # a piece has been delivered

    def say(self, piece: str) -> None:
        self.spoke.set()
        self.deliver(piece)

    def goes_with(self, other: "Ticket") -> bool:
        """Whether both can be answered in one batch, and it pays: rows are padded to the longest.

        One with a seed is answered alone, as it will be again.
        """
        alone = self.chooses or other.chooses or self.wanted.seed is not None or other.wanted.seed is not None
        short, long = sorted((self.length, other.length))
        return not alone and long <= ALIKE * short and self.wanted.options == other.wanted.options


class Engine(Protocol):
    """One that answers. `encode` runs in many threads, the others in one."""

    name: str
    memory: Memory  # of images

    def encode(self, wanted: Wanted, images: Sequence[Image.Image]) -> Any:
        """What a ticket carries; ValueError, with what to do, where it cannot be asked."""

    def length(self, wanted: Wanted, inputs: Any) -> int:
        """Of what `encode` gave: tokens that the language model will read, about."""

    def answer(self, batch: Sequence[Ticket]) -> None:
        """Deliver to each ticket its pieces, if it streams, and its outcome; a ticket that was left needs none."""

    def choose(self, ticket: Ticket) -> Finished:
        """What would be kept."""


class InProcessEngine:
    """ARRCOCQwen, over recordings where it can, eager elsewhere."""

    name = "plain"

    def __init__(self, owner: ARRCOCQwen) -> None:
        self.owner, self.memory, self.tokenizer = owner, owner.memory, owner.processor.tokenizer
        self._ends = ids_of(owner.model.generation_config.eos_token_id)

    def encode(self, wanted: Wanted, images: Sequence[Image.Image]) -> dict[str, Any]:
        about = (list(images), wanted.question, wanted.history, wanted.keep)
        return self.owner.encode_question(*about, wanted.system, max_new_tokens=wanted.max_tokens, **wanted.options)

    def length(self, wanted: Wanted, inputs: dict[str, Any]) -> int:
        keep, ids = self._dial(wanted), inputs["input_ids"]
        visual = int((ids == self.owner.model.config.image_token_id).sum())
        kept = keep if isinstance(keep, int) else round(visual * (AUTO if isinstance(keep, str) else keep))
        return int(ids.shape[1]) - visual + min(kept, visual)

    def answer(self, batch: Sequence[Ticket]) -> None:
        wanted = [ticket.wanted for ticket in batch]
        if wanted[0].seed is not None:
            torch.manual_seed(wanted[0].seed)
        rows = [
            RowText(one.max_tokens, one.stop, ticket.say if one.stream else None, ticket.left.is_set)
            for one, ticket in zip(wanted, batch, strict=True)
        ]
        streamer = RowStreamer(self.tokenizer, self._ends, rows)
        most = max(one.max_tokens for one in wanted)
        options = {"max_new_tokens": most, "stopping_criteria": [streamer], **wanted[0].options}
        inputs = together([ticket.inputs for ticket in batch], self.tokenizer.pad_token_id or 0)
        answers = self.owner.answer_rows(inputs, options, [self._dial(one) for one in wanted], streamer)
        outcomes = []
        for ticket, row, answer in zip(batch, rows, answers, strict=True):
            seen = self._seen(ticket, answer.selection)
            told = (*answer.notices, *self.owner.unfamiliar(ticket.inputs, ticket.wanted.question))
            shared = {part: ms / len(batch) for part, ms in answer.timings_ms.items()}
            outcomes.append(Finished(row.text, row.ended, seen, len(row.ids), answer.selection, shared, told))
        for ticket, outcome in zip(batch, outcomes, strict=True):  # all or none: what goes wrong is tried again
            ticket.deliver(outcome)

    def choose(self, ticket: Ticket) -> Finished:
        images = self.owner.choose(ticket.inputs, keep=self._dial(ticket.wanted))
        return Finished("", "", self._seen(ticket, images), 0, images)

    def _dial(self, wanted: Wanted) -> Any:
        return self.owner.keep if wanted.keep is None else wanted.keep

    def _seen(self, ticket: Ticket, images: Sequence[ImageSelection]) -> int:
        """Tokens of the prompt without those that were dropped."""
        dropped = sum(image.tokens_total - image.tokens_kept for image in images)
        return int(ticket.inputs["input_ids"].shape[1]) - dropped
