"""The Ask tab: an answer as it comes, then the pictures of what it was made from."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.demo.inputs import Asked, shown
from arr_coc.demo.models import Models
from arr_coc.demo.telling import notices_about, stats
from arr_coc.qwen import Answer, ARRCOCQwen
from arr_coc.qwen.language import answer_attention
from arr_coc.qwen.processor import Conversation, encode, text_ids
from arr_coc.qwen.streaming import stream_text
from arr_coc.viewing import heatmap, kept_overlay

MOST_NEW_TOKENS = 256
MOST_ATTENDED = 2048  # visual tokens up to which the attention of a plain answer is drawn: its cost is their square

RELEVANCE, ATTENTION = "How relevant each cell is", "Where the answer looked"  # what the second picture shows


@dataclass(frozen=True, slots=True)
class Told:
    """What the page shows of an answer; the pictures come with the last one."""

    answer: str
    overlay: Image.Image | None = None
    heat: Image.Image | None = None
    heat_label: str = RELEVANCE
    stats: str = ""


def ask(models: Models, name: str, asked: Asked) -> Iterator[Told]:
    """The answer piece by piece, and at last whole with its pictures. Leaving the loop early ends the generation."""
    with models.use(name) as owner:
        tokenizer = owner.processor.tokenizer
    done: list[tuple[Answer, Tensor | None, list[str]]] = []

    def run(streamer: Any, stop: Any) -> None:
        with models.use(name) as owner:
            if stop.event.is_set():
                return
            answer = owner.ask(
                asked.image,
                asked.question,
                keep=asked.keep,
                max_new_tokens=MOST_NEW_TOKENS,
                streamer=streamer,
                stopping_criteria=[stop],
            )
            heat_HW = answer.selection[0].relevance
            if heat_HW is None and answer.tokens_total <= MOST_ATTENDED:
                heat_HW = _attended(owner, asked, answer.text)
            done.append((answer, heat_HW, notices_about(owner, asked.question)))

    said = ""
    with closing(stream_text(tokenizer, run)) as pieces:  # type: ignore[type-var]
        for piece in pieces:
            said += piece
            yield Told(said)
    answer, heat_HW, notices = done[0]
    yield _told(asked, answer, heat_HW, notices)


def _attended(owner: ARRCOCQwen, asked: Asked, text: str) -> Tensor:
    """Where a plain answer looked: nothing was chosen, so there is no relevance to show."""
    inputs = encode(owner.processor, [Conversation([asked.image], asked.question)])
    said = torch.tensor(text_ids(owner.processor.tokenizer, text), dtype=torch.long)
    return answer_attention(owner.model, inputs, said)[0]


def _told(asked: Asked, answer: Answer, heat_HW: Tensor | None, notices: list[str]) -> Told:
    picture, choice = shown(asked.image), answer.selection[0]
    chosen = choice.tokens_kept < choice.tokens_total
    heat = None
    if heat_HW is not None:
        title = "relevance for the question" if chosen else "where the answer looked"
        heat = heatmap(picture, heat_HW, kept_HW=choice.mask if chosen else None, title=title)
    label = RELEVANCE if chosen else ATTENTION
    return Told(answer.text, kept_overlay(picture, choice.mask), heat, label, stats(answer, notices))
