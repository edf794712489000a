"""Conversations -> model inputs. What the user wrote stays text: it is tokenised apart from the template.

B conversations, L tokens of the longest.
"""

import importlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import AutoProcessor, AutoTokenizer, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from arr_coc.images.reader import byte_tensor
from arr_coc.qwen.request import ChatTokens


class ImageOnlyProcessor(Qwen3VLProcessor):
    """The stock processor without its video half, which needs torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **_: Any) -> None:
        template = chat_template or getattr(tokenizer, "chat_template", None)
        super().__init__(image_processor, tokenizer, None, chat_template=template)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Images, shown in the first user turn, then (question, answer) pairs already had, then the question."""

    images: Sequence[Image.Image]
    question: str
    history: Sequence[tuple[str, str]] = field(default=())

    def turns(self) -> list[tuple[str, str]]:
        past = [turn for asked, answered in self.history for turn in (("user", asked), ("assistant", answered))]
        return [*past, ("user", self.question)]


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """The sizes of images that a processor leaves as they are: whole cells, within its limits of pixels."""

    cell: int  # px on a side
    least: int  # pixels of an image
    most: int

    @classmethod
    def of(cls, processor: Any) -> "ImageSizes":
        images = processor.image_processor
        return cls(images.patch_size * images.merge_size, images.size["shortest_edge"], images.size["longest_edge"])

    def nearest(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) in px that an image of that size is resized to."""
        kept: tuple[int, int] = smart_resize(height, width, self.cell, min_pixels=self.least, max_pixels=self.most)
        return kept


def fit_images(processor: Any, images: Sequence[Image.Image]) -> list[Image.Image] | None:
    """The images as the processor will resize them, bit for bit; None where it resizes by other means than Pillow."""
    own = processor.image_processor
    if not isinstance(own, Qwen2VLImageProcessorPil) or not own.do_resize:
        return None
    sizes = ImageSizes.of(processor)
    fitted = [sizes.nearest(image.height, image.width) for image in images]
    return [image.resize((wide, high), own.resample) for image, (high, wide) in zip(images, fitted, strict=True)]


def load_processor(source: str, **hub: Any) -> Any:
    """The stock processor where torchvision works, else the image-only one. `hub` are keywords such as revision."""
    try:
        importlib.import_module("torchvision.transforms.v2")  # a CUDA build beside a CPU torch is worse than none
    except (ImportError, RuntimeError, OSError):
        images, tokenizer = (kind.from_pretrained(source, **hub) for kind in (Qwen2VLImageProcessorPil, AutoTokenizer))
        return ImageOnlyProcessor(image_processor=images, tokenizer=tokenizer)
    return AutoProcessor.from_pretrained(source, **hub)


def chat_tokens(tokenizer: Any) -> ChatTokens | None:
    """Ids that mark turns, or None where the tokenizer has no such tokens."""
    start, end = (tokenizer.convert_tokens_to_ids(name) for name in ("<|im_start|>", "<|im_end|>"))
    user, newline = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("user", "\n"))
    if start is None or end is None or start == end or len(user) != 1 or len(newline) != 1:
        return None
    return ChatTokens(start, end, user[0], newline[0])


def pad_id_of(model: Any, processor: Any) -> int:
    """The token that rows are padded with: the tokenizer's, else the model's own, else 0."""
    pads = (
        getattr(getattr(processor, "tokenizer", None), "pad_token_id", None),
        model.generation_config.pad_token_id,
        model.config.text_config.pad_token_id,
    )
    return next((int(pad) for pad in pads if pad is not None), 0)


# Private-use characters stand for texts while the template is rendered; the texts themselves never pass through it.
_SLOT = "\ue000{}\ue001"
_SLOT_PATTERN = re.compile("\ue000(\\d+)\ue001")

MOST_CHARACTERS = 400_000  # of one conversation; more is not even tokenised


def encode(
    processor: Any, conversations: Sequence[Conversation], add_generation_prompt: bool = True
) -> dict[str, Tensor]:
    """Model inputs of a left-padded batch, as the stock processor makes them, and `question_mask`."""
    images = [image for conversation in conversations for image in conversation.images]
    inputs: dict[str, Tensor] = {}
    counts = iter(())
    if images:
        inputs = _image_features(processor, images)
        counts = iter((inputs["image_grid_thw"].prod(-1) // processor.image_processor.merge_size**2).tolist())
    rows = [encode_one(processor, conversation, counts, add_generation_prompt) for conversation in conversations]
    inputs |= left_padded(rows, processor.tokenizer.pad_token_id or 0)
    is_image = inputs["input_ids"] == processor.image_token_id
    inputs["mm_token_type_ids"] = (is_image & inputs["attention_mask"].bool()).int()
    return inputs


def left_padded(rows: Sequence[tuple[list[int], list[int]]], pad_id: int) -> dict[str, Tensor]:
    """Token ids and marks of the question's tokens, row by row -> ids, mask of real tokens and mask of the question."""
    longest = max(len(ids) for ids, _ in rows)

    def padded(values: list[int], value: int) -> Tensor:
        return F.pad(torch.tensor(values), (longest - len(values), 0), value=value)

    return {
        "input_ids": torch.stack([padded(ids, pad_id) for ids, _ in rows]),
        "attention_mask": torch.stack([padded([1] * len(ids), 0) for ids, _ in rows]),
        "question_mask": torch.stack([padded(asked, 0) for _, asked in rows]).bool(),
    }


def encode_asked(
    processor: Any, images: Sequence[Image.Image], question: str, history: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Inputs of one conversation and, where they can be had, its images as they were resized (`original_image`)."""
    fitted = fit_images(processor, images)
    inputs: dict[str, Any] = encode(processor, [Conversation(fitted or images, question, history)])
    inputs.pop("mm_token_type_ids")
    return inputs if fitted is None else inputs | {"original_image": [byte_tensor(image) for image in fitted]}


def _image_features(processor: Any, images: Sequence[Any]) -> dict[str, Tensor]:
    """Patches and grids of all images; an image that several conversations are about is prepared once."""
    places: dict[int, int] = {}
    order = [places.setdefault(id(image), len(places)) for image in images]
    different = [images[order.index(place)] for place in range(len(places))]
    made = processor.image_processor(images=different, return_tensors="pt")
    pixels, grids = made["pixel_values"], made["image_grid_thw"]
    if len(different) < len(images):
        rows = pixels.split(grids.prod(-1).tolist())
        pixels, grids = torch.cat([rows[place] for place in order]), grids[order]
    return {"pixel_values": pixels, "image_grid_thw": grids}


def encode_one(
    processor: Any, conversation: Conversation, counts: Any, add_generation_prompt: bool
) -> tuple[list[int], list[int]]:
    """Token ids of one conversation, and 1 for each token of its last question."""
    turns = conversation.turns()
    if sum(len(text) for _, text in turns) > MOST_CHARACTERS:
        raise ValueError(f"the conversation is over {MOST_CHARACTERS:,} characters long: ask something shorter")
    messages = [
        {"role": role, "content": [{"type": "text", "text": _SLOT.format(slot)}]}
        for slot, (role, _) in enumerate(turns)
    ]
    messages[0]["content"] = [{"type": "image"} for _ in conversation.images] + list(messages[0]["content"])
    rendered = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    ids: list[int] = []
    asked: list[int] = []
    for place, piece in enumerate(_SLOT_PATTERN.split(rendered)):
        is_text = place % 2 == 1
        if is_text:
            piece_ids = text_ids(processor.tokenizer, turns[int(piece)][1])
        else:
            piece = re.sub(re.escape(processor.image_token), lambda _: processor.image_token * next(counts), piece)
            piece_ids = processor.tokenizer(piece, add_special_tokens=False)["input_ids"]
        ids += piece_ids
        asked += [int(is_text and int(piece) == len(turns) - 1)] * len(piece_ids)
    words = len(ids) - ids.count(processor.image_token_id)
    if words > processor.tokenizer.model_max_length:
        most = processor.tokenizer.model_max_length
        raise ValueError(f"the conversation is {words:,} tokens long, this model reads {most:,}: ask something shorter")
    return ids, asked


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of a user's text; what looks like a special or added token is spelled out as the text that it is."""
    parts = cut_tokens(text, [token.content for token in tokenizer.added_tokens_decoder.values()])
    return [index for part in parts for index in tokenizer(part, add_special_tokens=False)["input_ids"]]


def cut_tokens(text: str, names: Sequence[str]) -> list[str]:
    """`text` in parts, cut after the first character of every name in it, so that no part holds one whole.

    Tokenised apart, what looks like a special or added token is spelled out as the text that it is. Names that overlap
    are all cut: the search looks ahead and takes nothing away.
    """
    names = [name for name in names if len(name) > 1]
    pattern = f"(?={'|'.join(map(re.escape, names))})"
    cuts = [found.start() + 1 for found in re.finditer(pattern, text)] if names else []
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


def check_question(question: Any, history: Any) -> None:
    """Refuse what cannot be asked: a question without words, and turns that are not pairs of texts."""
    _check_text(question, "the question")
    if not question.strip():
        raise ValueError("the question is empty: ask something about the image")
    for turn in history:
        if not isinstance(turn, (list, tuple)) or len(turn) != 2:
            raise ValueError("history holds (question, answer) pairs")
        _check_text(turn[0], "a question of the history")
        _check_text(turn[1], "an answer of the history")


def _check_text(text: Any, what: str) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{what} is a {type(text).__name__}, not text; an empty one is not a question")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds half of a surrogate pair: decode the text before asking") from None


# ---------------------------------------------------------------- words that mini does not know

MINI_ENTRIES = 1536  # mini's vocabulary is smaller than this, any Qwen's a hundred times larger


def is_mini(tokenizer: Any) -> bool:
    """Whether this is the tokenizer of the embedded model, by its size."""
    return len(tokenizer) <= MINI_ENTRIES


def outside_words(tokenizer: Any, text: str) -> list[str]:
    """Words of `text` that mini does not know, in order. Upper-case words and single letters are free.

    `tokenizer` is what AutoTokenizer loads from mini's folder.
    """
    vocabulary = tokenizer.get_vocab()
    special = "|".join(re.escape(token.content) for token in tokenizer.added_tokens_decoder.values())
    words = re.findall(r"[^\W\d_]+", re.sub(special, " ", text))
    return [w for w in words if len(w) > 1 and not w.isupper() and w not in vocabulary]


def words_notice(tokenizer: Any, question: str) -> list[str]:
    """A line about the words that mini does not know; none for another model, or where it knows them all."""
    unknown = outside_words(tokenizer, question) if is_mini(tokenizer) else []
    return [f"mini only knows drawn scenes, and not the words: {', '.join(unknown)}"] if unknown else []
