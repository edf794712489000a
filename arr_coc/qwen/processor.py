"""Conversations -> model inputs. What the user wrote stays text: it is tokenised apart from the template.

B conversations, L tokens of the longest.
"""

import contextlib
import importlib
import itertools
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoProcessor, AutoTokenizer, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from arr_coc.images.clips import Clip, read_clip
from arr_coc.images.reader import byte_tensor
from arr_coc.qwen.clips import ClipForm, clip_features, clip_size, each_clip
from arr_coc.qwen.request import ChatTokens
from arr_coc.qwen.sizes import MOST_RESIZED, ImageSizes, fit_images

FETCHED = ("http://", "https://", "data:")  # how a source begins that is no path


class PlainProcessor(Qwen3VLProcessor):
    """The stock processor with a video half of our own: that of transformers needs torchvision."""

    video_processor: Any = None  # there, so that videos are handed to `_process_videos`

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **_: Any) -> None:
        template = chat_template or getattr(tokenizer, "chat_template", None)
        super().__init__(image_processor, tokenizer, None, chat_template=template)
        self.clip_size: dict[str, int] | None = None  # limits of a clip's pixels; None: Qwen3-VL's own

    def __call__(self, images: Any = None, text: Any = None, videos: Any = None, **how: Any) -> Any:
        """As the stock processor, which would pass over images that the text does not show."""
        texts = [] if text is None else [text] if isinstance(text, str) else text
        clips = list(each_clip(videos))
        played = sum(one.count(self.video_token) for one in texts)
        if texts and played != len(clips):
            raise ValueError(
                f'videos that the text shows: {played}, that were given: {len(clips)}; give each as "video"'
            )
        given = list(_each(images))
        for one in given:
            if isinstance(one, str) and "." in one and not one.startswith(FETCHED) and not Path(one).is_file():
                raise ValueError(f"{one}: no such image file; check the path")
        shown = sum(one.count(self.image_token) for one in texts)
        if texts and shown != len(given):
            ways = 'give each image in the messages as "image", "path", "url" or "base64", in a turn of the user'
            raise ValueError(f"images that the text shows: {shown}, that were given: {len(given)}; {ways}")
        return super().__call__(images=images, text=text, videos=clips or None, **how)

    def _process_videos(self, videos: Any, **how: Any) -> tuple[dict[str, Tensor], list[str]]:
        fit, fps, frames = ClipForm.of(self).fit, how.get("fps"), how.get("num_frames")
        return clip_features(self, [read_clip(one, fit, fps, frames) for one in videos])


def _each(images: Any) -> Iterator[Any]:
    """One image after the other, of a list of lists; None where a place for one is empty is left out."""
    if isinstance(images, (list, tuple)):
        for one in images:
            yield from _each(one)
    elif images is not None:
        yield from images if getattr(images, "ndim", 0) == 4 else [images]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Images and clips, shown in the first user turn, then (question, answer) pairs already had, then the question."""

    images: Sequence[Image.Image | Clip]
    question: str
    history: Sequence[tuple[str, str]] = field(default=())
    system: str = ""  # what is said before the first turn, if anything

    def turns(self) -> list[tuple[str, str]]:
        before = [("system", self.system)] if self.system else []
        past = [turn for asked, answered in self.history for turn in (("user", asked), ("assistant", answered))]
        return [*before, *past, ("user", self.question)]


def load_processor(source: str, **hub: Any) -> Any:
    """The stock processor where torchvision works, else the plain one. `hub` are keywords such as revision."""
    hub = {**hub, "trust_remote_code": False}
    try:
        importlib.import_module("torchvision.transforms.v2")  # a CUDA build beside a CPU torch is worse than none
    except (ImportError, RuntimeError, OSError):
        images, tokenizer = (kind.from_pretrained(source, **hub) for kind in (Qwen2VLImageProcessorPil, AutoTokenizer))
        made = PlainProcessor(image_processor=images, tokenizer=tokenizer)
        made.clip_size = clip_size(source, **hub)
    else:
        made = AutoProcessor.from_pretrained(source, **hub)
    sizes, own = ImageSizes.of(made), made.image_processor
    is_sized = 1 <= sizes.cell <= MOST_CELL and 1 <= sizes.least <= sizes.most <= MOST_RESIZED
    if not (is_sized and all(0 <= mean <= 1 for mean in own.image_mean) and all(0 < std <= 1 for std in own.image_std)):
        says = f"{sizes}, image_mean={own.image_mean}, image_std={own.image_std}"
        raise ValueError(f"the processor's settings cannot be meant ({says}); copy the model again")
    return made


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


Marks = tuple[Iterator[int], Iterator[str]]
"""What stands for what is shown, in order: the number of tokens of each image, the text of each clip."""

# Private-use characters stand for texts while the template is rendered; the texts themselves never pass through it.
_SLOT = "\ue000{}\ue001"
_SLOT_PATTERN = re.compile("\ue000(\\d+)\ue001")

MOST_CHARACTERS = 400_000  # of one conversation; more is not even tokenised
MOST_WORDS = 32_768  # tokens of one conversation that are no image
MOST_CELL = 256  # px
MOST_SECONDS = 1.0  # for a chat template, which takes a millisecond


@contextlib.contextmanager
def _cut_off() -> Iterator[None]:
    """A template comes with the model, and can loop for ever: it is ended in time. Traces calls, and its lines.

    The time is that of this thread alone: others may keep it waiting.
    """
    end, before = time.thread_time() + MOST_SECONDS, sys.gettrace()

    def watch(frame: Any, *_: Any) -> Any:
        if time.thread_time() > end:
            raise ValueError(f"the model's chat template takes over {MOST_SECONDS:.0f} s; copy the model again")
        return watch if frame.f_code.co_filename == "<template>" else None

    sys.settrace(watch)
    try:
        yield
    except ValueError:
        raise
    except Exception as error:  # whatever is wrong with it, or forbidden to it
        why = f"{type(error).__name__}: {error}"[:200]
        raise ValueError(f"the model's chat template cannot be used ({why}); copy the model again") from None
    finally:
        sys.settrace(before)


def encode(processor: Any, conversations: Sequence[Conversation]) -> dict[str, Tensor]:
    """Model inputs of a left-padded batch, as the stock processor makes them, and `question_mask`."""
    shown = [image for conversation in conversations for image in conversation.images]
    images, clips = [one for one in shown if not isinstance(one, Clip)], [one for one in shown if isinstance(one, Clip)]
    inputs, marks = shown_features(processor, images, clips)
    rows = [encode_one(processor, conversation, marks) for conversation in conversations]
    inputs |= left_padded(rows, processor.tokenizer.pad_token_id or 0)
    ids, real = inputs["input_ids"], inputs["attention_mask"]
    kinds = (ids == processor.image_token_id).int() + 2 * (ids == processor.video_token_id).int()
    inputs["mm_token_type_ids"] = kinds * real.int()
    return inputs


def left_padded(rows: Sequence[tuple[list[int], list[int]]], pad_id: int) -> dict[str, Tensor]:
    """Token ids and marks of the question's tokens, row by row -> ids, mask of real tokens and mask of the question."""
    ids, asked = ([torch.tensor(one) for one in column] for column in zip(*rows, strict=True))
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    return {
        "input_ids": padded(ids, padding_value=pad_id),
        "attention_mask": padded([torch.ones_like(one) for one in ids]),
        "question_mask": padded(asked).bool(),
    }


def encode_asked(processor: Any, asked: Conversation) -> dict[str, Any]:
    """Inputs of one conversation and, where they can be had, its images as they were resized (`original_image`).

    Where it shows clips, also when each of their pairs of frames is (`seconds`).
    """
    fitted = fit_images(processor, asked.images)
    inputs: dict[str, Any] = encode(processor, [replace(asked, images=fitted or asked.images)])
    inputs.pop("mm_token_type_ids")
    if clips := [one for one in asked.images if isinstance(one, Clip)]:
        inputs["seconds"] = [second for clip in clips for second in clip.pairs()]
    if fitted is None:
        return inputs
    return inputs | {"original_image": [byte_tensor(image) for image in fitted if not isinstance(image, Clip)]}


def together(several: Sequence[dict[str, Any]], pad_id: int) -> dict[str, Any]:
    """One left-padded batch of conversations that `encode_asked` encoded one by one."""
    rows = [(one["input_ids"][0].tolist(), one["question_mask"][0].tolist()) for one in several]
    inputs: dict[str, Any] = dict(left_padded(rows, pad_id))
    for name in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"):
        if given := [one[name] for one in several if name in one]:
            inputs[name] = torch.cat(given)
    if seconds := [second for one in several for second in one.get("seconds", ())]:
        inputs["seconds"] = seconds
    originals = [one.get("original_image") for one in several]
    if None in originals:
        return inputs
    return inputs | {"original_image": [image for images in originals for image in images or ()]}


def shown_features(processor: Any, images: Sequence[Any], clips: Sequence[Clip]) -> tuple[dict[str, Tensor], "Marks"]:
    """Patches and grids of all that is shown, and what stands for each in the prompts."""
    inputs = image_features(processor, images) if images else {}
    cells = inputs["image_grid_thw"].prod(-1) // processor.image_processor.merge_size**2 if images else torch.empty(0)
    seen, texts = clip_features(processor, clips) if clips else ({}, [])
    return inputs | seen, (iter(cells.tolist()), iter(texts))


def image_features(processor: Any, images: Sequence[Any]) -> dict[str, Tensor]:
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


def encode_one(processor: Any, conversation: Conversation, marks: "Marks") -> tuple[list[int], list[int]]:
    """Token ids of one conversation, and 1 for each token of its last question."""
    turns = conversation.turns()
    if sum(len(text) for _, text in turns) > MOST_CHARACTERS:
        raise ValueError(f"the conversation is over {MOST_CHARACTERS:,} characters long: ask something shorter")
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    first = messages[1 if conversation.system else 0]
    shown = [{"type": "video" if isinstance(one, Clip) else "image"} for one in conversation.images]
    first["content"] = shown + list(first["content"])
    parts = render(processor, messages, marks)
    last = len(turns) - 1
    return [one for ids, _ in parts for one in ids], [int(slot == last) for ids, slot in parts for _ in ids]


def render(processor: Any, messages: Sequence[dict[str, Any]], marks: "Marks") -> list[tuple[list[int], int]]:
    """Token ids of messages, in parts: of the template (numbered -1), and of the texts, numbered in their order.

    They end where the answer begins. `messages` hold parts of type text, image or video; `marks` are what stands for
    each image and each clip.
    """
    counts, clips = marks
    texts = [part["text"] for message in messages for part in message["content"] if part["type"] == "text"]
    parts: list[tuple[list[int], int]] = []
    for place, piece in enumerate(_pieces(processor, messages, len(texts))):
        if place % 2:
            parts.append((text_ids(processor.tokenizer, texts[int(piece)]), int(piece)))
        else:
            piece = re.sub(re.escape(processor.image_token), lambda _: processor.image_token * next(counts), piece)
            piece = re.sub(re.escape(processor.video_token), lambda _: next(clips), piece)
            parts.append((processor.tokenizer(piece, add_special_tokens=False)["input_ids"], -1))
    visual = (processor.image_token_id, processor.video_token_id)
    words = sum(one not in visual for ids, _ in parts for one in ids)
    most = min(MOST_WORDS, processor.tokenizer.model_max_length)
    if words > most:
        raise ValueError(f"the conversation is {words:,} tokens long, this model reads {most:,}: ask something shorter")
    return parts


def _pieces(processor: Any, messages: Sequence[dict[str, Any]], texts: int) -> list[str]:
    """What the template makes of messages, cut at their texts: its own words, the number of a text, its words, ..."""
    slots = itertools.count()

    def shown(part: dict[str, Any]) -> dict[str, Any]:
        return {**part, "text": _SLOT.format(next(slots))} if part["type"] == "text" else part

    slotted = [{**message, "content": [shown(part) for part in message["content"]]} for message in messages]
    with _cut_off():
        rendered = processor.apply_chat_template(slotted, tokenize=False, add_generation_prompt=True)
    pieces = _SLOT_PATTERN.split(rendered)
    kinds = [part["type"] for message in messages for part in message["content"]]
    is_whole = pieces[1::2] == [str(slot) for slot in range(texts)]
    is_whole &= rendered.count(processor.image_token) == kinds.count("image")
    is_whole &= rendered.count(processor.video_token) == kinds.count("video")
    if not is_whole or len(rendered) > MOST_CHARACTERS:
        raise ValueError("the model's chat template does not show each text and each image once; copy the model again")
    return pieces


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


def check_question(question: Any, history: Any, system: Any = "") -> None:
    """Refuse what cannot be asked: a question without words, and turns that are not pairs of texts."""
    _check_text(question, "the question")
    _check_text(system, "the system message")
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
