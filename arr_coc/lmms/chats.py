"""Chats as lmms-eval tasks write them -> the model's inputs -> replies, a batch at a time.

B chats of a batch, T new tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from arr_coc.images.reader import read_image
from arr_coc.qwen import eager as running
from arr_coc.qwen.model import ARRCOCQwen


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages for the chat template, and their images in the order of their places."""

    messages: list[dict[str, Any]]
    images: list[Image.Image]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and what it took."""

    text: str
    new_tokens: int
    visual_kept: int  # visual tokens that the language model saw
    visual_total: int  # visual tokens of the untouched model


def read_chat(messages: Sequence[dict[str, Any]]) -> Chat:
    """Check a task's messages: text and images, as many and wherever it likes, system messages included."""
    read: list[dict[str, Any]] = []
    images: list[Image.Image] = []
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
            else:
                raise ValueError(f"arr_coc answers about text and images, not {part['type']}: choose another task")
        read.append({"role": message["role"], "content": content})
    return Chat(read, images)


def encode_chats(processor: Any, chats: Sequence[Chat]) -> dict[str, Any]:
    """Inputs of a left-padded batch by the stock chat template and processor."""
    texts = [processor.apply_chat_template(chat.messages, tokenize=False, add_generation_prompt=True) for chat in chats]
    images = [image for chat in chats for image in chat.images]
    given = {"images": images} if images else {}
    return dict(processor(text=texts, **given, padding=True, padding_side="left", return_tensors="pt"))


@torch.no_grad()
def answer_chats(owner: ARRCOCQwen, chats: Sequence[Chat], keywords: dict[str, Any]) -> list[Reply]:
    """Answer chats together; those without images go along. `keywords` are generate's."""
    inputs = encode_chats(owner.processor, chats)
    prompt = inputs["input_ids"]
    tokens = [(0, 0)] * len(chats)
    if "pixel_values" in inputs:
        inputs.pop("mm_token_type_ids", None)  # found again from the ids
        prepared = owner.prepare(**inputs)
        output = running.generate(owner.model, prompt, prepared, None, **keywords)
        tokens = [
            (sum(image.tokens_kept for image in images), sum(image.tokens_total for image in images))
            for images in prepared.images
        ]
    else:
        moved: dict[str, Any] = {name: tensor.to(owner.device) for name, tensor in inputs.items()}
        output = owner.generate(**moved, **keywords)
    new_BT = output[:, prompt.shape[1] :]
    tokenizer = owner.processor.tokenizer
    texts = tokenizer.batch_decode(new_BT, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    counts = (new_BT != tokenizer.pad_token_id).sum(-1).tolist()
    return [Reply(text, count, *seen) for text, count, seen in zip(texts, counts, tokens, strict=True)]
