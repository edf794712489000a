"""What a run of lmms-eval asks for, read and answered: its options, and chats, a batch at a time.

B chats of a batch, T new tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from PIL import Image

from arr_coc.config import Keep, check_generation, check_keep
from arr_coc.images.clips import read_clip
from arr_coc.images.reader import read_image
from arr_coc.qwen import eager
from arr_coc.qwen.answers import PLAIN_TEXT
from arr_coc.qwen.clips import ClipForm
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.processor import left_padded, render, shown_features

MAX_NEW_TOKENS = 128  # of a request that does not say
SAMPLING = ("temperature", "top_p", "top_k")


@dataclass(frozen=True, slots=True)
class Options:
    """--model_args, --batch_size and --device of a run."""

    pretrained: str = "mini"
    keep: Keep = "auto"  # the fraction KEPT, or a number of tokens, or "auto"
    selector: str = "auto"  # NAME or NAME:KEY=VALUE
    encoding: str | None = None
    dtype: str = "auto"
    device: str | None = None
    fps: float | None = None  # of videos, frames of a second that are looked at; None: 2
    max_num_frames: int | None = None  # in place of it, so many frames
    batch_size: int = 1


def read_options(given: Mapping[str, Any]) -> Options:
    """Checked options from keywords as lmms-eval hands them over."""
    known = [one.name for one in fields(Options)]
    wanted = {name: value for name, value in given.items() if value is not None and name != "max_batch_size"}
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"arr_coc has no option {unknown[0]!r}: it has {', '.join(known)}")
    check_keep(wanted.get("keep", "auto"))
    size = str(wanted.get("batch_size", 1))
    if not size.isdecimal() or int(size) < 1:
        raise ValueError(f"batch_size {size!r}: give a number of requests such as 8; it is not found by itself")
    return Options(**{**wanted, "batch_size": int(size)})


def read_generation(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(keywords for generate, texts at which an answer ends) of a request. Greedy unless a temperature is given."""
    until = given.get("until") or []
    sampled = float(given.get("temperature") or 0) > 0
    most = int(given.get("max_new_tokens") or MAX_NEW_TOKENS)
    keywords: dict[str, Any] = {"max_new_tokens": most, "do_sample": sampled}
    for name in ("num_beams", *(SAMPLING if sampled else ())):
        if given.get(name) is not None:
            keywords[name] = given[name]
    check_generation(keywords)
    return keywords, [until] if isinstance(until, str) else list(until)


def cut_at(text: str, until: Sequence[str]) -> str:
    """The text before the first of the texts at which it ends."""
    places = [text.find(end) for end in until if end]
    return text[: min([place for place in places if place >= 0], default=len(text))]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages for the chat template, and their images and videos in the order of their places."""

    messages: list[dict[str, Any]]
    images: list[Image.Image]
    videos: list[Any] = field(default_factory=list)  # files, or frames


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and what it took."""

    text: str
    new_tokens: int
    visual_kept: int  # visual tokens that the language model saw
    visual_total: int  # visual tokens of the untouched model


def read_chat(messages: Sequence[dict[str, Any]]) -> Dialogue:
    """Check a task's messages: text, images and videos, as many and wherever it likes, system messages included."""
    read: list[dict[str, Any]] = []
    images: list[Image.Image] = []
    videos: list[Any] = []
    for message in messages:
        parts = message["content"]
        if isinstance(parts, str):
            parts = [{"type": "text", "text": parts}]
        content: list[dict[str, str]] = []
        for part in parts:
            if part["type"] == "text":
                content.append({"type": "text", "text": part["text"]})
            elif part["type"] == "image":
                content.append({"type": "image"})
                images.append(read_image(part["url"]))
            elif part["type"] == "video":
                content.append({"type": "video"})
                videos.append(part["url"])
            else:
                says = f"arr_coc answers about text, images and videos, not {part['type']}"
                raise ValueError(f"{says}: choose another task")
        read.append({"role": message["role"], "content": content})
    return Dialogue(read, images, videos)


def encode_chats(
    processor: Any, chats: Sequence[Dialogue], fps: float | None = None, frames: int | None = None
) -> dict[str, Any]:
    """Inputs of a left-padded batch by the stock chat template; what a task's texts say stays text."""
    images, fit = [image for chat in chats for image in chat.images], ClipForm.of(processor).fit
    clips = [read_clip(one, fit, fps, frames) for chat in chats for one in chat.videos]
    inputs, marks = shown_features(processor, images, clips)
    rows = [[one for ids, _ in render(processor, chat.messages, marks) for one in ids] for chat in chats]
    padded = left_padded([(row, [0] * len(row)) for row in rows], processor.tokenizer.pad_token_id or 0)
    return inputs | {name: padded[name] for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def answer_chats(
    owner: ARRCOCQwen, chats: Sequence[Dialogue], keywords: dict[str, Any], **sampling: float | int | None
) -> list[Reply]:
    """Answer chats together; those without images go along. `keywords` are generate's, `sampling` that of videos."""
    inputs = encode_chats(owner.processor, chats, **sampling)  # type: ignore[arg-type]
    prompt = inputs["input_ids"]
    tokens = [(0, 0)] * len(chats)
    if "pixel_values" in inputs or "pixel_values_videos" in inputs:
        prepared = owner.prepare(**inputs)
        output = eager.generate(owner.model, prompt, prepared, None, **keywords)
        tokens = [
            (sum(image.tokens_kept for image in images), sum(image.tokens_total for image in images))
            for images in prepared.images
        ]
    else:
        moved: dict[str, Any] = {name: tensor.to(owner.device) for name, tensor in inputs.items()}
        output = owner.generate(**moved, **keywords)
    new_BT = output[:, prompt.shape[1] :]
    tokenizer = owner.processor.tokenizer
    texts = tokenizer.batch_decode(new_BT, **PLAIN_TEXT)
    counts = (new_BT != tokenizer.pad_token_id).sum(-1).tolist()
    return [Reply(text, count, *seen) for text, count, seen in zip(texts, counts, tokens, strict=True)]
