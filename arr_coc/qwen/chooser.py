"""Chooser: what chooses visual tokens for a question, and needs no more of a Qwen3-VL than that takes.

ARRCOCQwen is one that also answers. A front end of a server chooses alone: it holds the vision encoder, the embedding
table and the adapter, and of the decoder the layers that a first look goes through, if there is one.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arr_coc.config import ARRCOCConfig, Keep, check_generation, check_keep, check_keeps
from arr_coc.images.clips import Clip, is_clip
from arr_coc.images.reader import ImageLike, byte_tensor, read_images
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.clips import ClipForm, read_shown
from arr_coc.qwen.eager import Preparer
from arr_coc.qwen.familiar import meant, picture_notices, probe_of, words_notices
from arr_coc.qwen.family import check_family, deepstack_levels, read_layers
from arr_coc.qwen.loading import check_keywords, load_parts
from arr_coc.qwen.looking import Looker
from arr_coc.qwen.memory import Memory
from arr_coc.qwen.processor import Conversation, chat_tokens, check_question, encode_asked, pad_id_of
from arr_coc.qwen.request import Hints, Request, token_types
from arr_coc.qwen.tuned import tuned_selector
from arr_coc.qwen.vision import Geometry
from arr_coc.selectors import Selector, make_selector

logger = logging.getLogger(__name__)

Images = ImageLike | Clip | Sequence[ImageLike | Clip]
# In a clip detail tells less of what matters; when and where a thing comes is settled in the last layers; and a cell
# beside one that matters is worth less than the same one at another moment. 1, 3 and 1 points at 5 % of drawn clips.
FOR_CLIPS = {"information": 1 / 3, "depth": 1.0, "reach": 0}
History = Sequence[tuple[str, str]]


class Chooser(nn.Module):
    """Chooses visual tokens; `model` is a stock Qwen3-VL, or as much of one as the selector needs.

    `break_even` is the number of visual tokens below which keep="auto" keeps all; None: what is known of the device. 0
    is never, as evaluations want it. With `strict = True` set, a choice that goes wrong raises; else all is kept.
    """

    def __init__(
        self,
        model: Any,
        config: ARRCOCConfig | None = None,
        layer: ARRCOCLayer | None = None,
        processor: Any = None,
        *,
        keep: Keep = "auto",
        selector: str | Selector = "auto",
        break_even: int | None = None,
    ) -> None:
        nn.Module.__init__(self)  # whatever else it is: the stock model is set up already
        check_family(model.config.model_type)
        width = model.config.text_config.hidden_size
        self.arr_coc_config = config or ARRCOCConfig(hidden_dim=width, base_model=model.config._name_or_path or "")
        if self.arr_coc_config.hidden_dim != width:
            raise ValueError(f"the adapter is for a width of {self.arr_coc_config.hidden_dim}, this model has {width}")
        self.model = model
        self.layer = (layer or ARRCOCLayer.from_config(self.arr_coc_config)).to(model.device)
        made = selector if isinstance(selector, Selector) else make_selector(selector, self.arr_coc_config, self.layer)
        self.selector = made.to(model.device)
        # What chooses of clips where nobody named a selector; no module of this one, so that its weights are no part.
        self._for_clips: dict[Selector, Selector] = {}
        if selector == "auto":
            self._for_clips[made] = make_selector("look_twice", self.arr_coc_config, self.layer, **FOR_CLIPS)
        self.keep = check_keep(keep)
        self.processor = processor
        self.geometry = Geometry.of(model.config.vision_config, processor)
        self.break_even, self.strict = break_even, False
        self.memory = Memory()  # of images, for further questions about them
        self._probe = probe_of(model)
        # Of about a thousand images: whether they lie outside the model's world.
        self.impressions = None if self._probe is None else Memory(1 << 20)
        self._chat = None if processor is None else chat_tokens(processor.tokenizer)
        self._pad_id = pad_id_of(model, processor)
        self._told: dict[str, None] = {}

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        keep: Keep = "auto",
        encoding: str | None = None,
        selector: str | Selector = "auto",
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        break_even: int | None = None,
        **model_kwargs: Any,
    ) -> "Chooser":
        """Load what choosing needs of a model, and no more; `source` and the rest as for `ARRCOCQwen`."""
        check_keep(keep)
        model_kwargs, dtype = check_keywords(model_kwargs, device, dtype)

        def layers(config: ARRCOCConfig, layer: ARRCOCLayer | None, stock: Any) -> int:
            """Decoder layers that the selector runs."""
            if config.pooling == "lm":
                raise ValueError("pooling='lm' reads questions with the whole language model: load it as ARRCOCQwen")
            chosen = tuned_selector(selector, source, config, layer, **model_kwargs)
            if isinstance(chosen, str):
                chosen = make_selector(chosen, config, layer or ARRCOCLayer.from_config(config))
            if chosen.first_look is not None:
                wanted = chosen.first_look.layers(stock.text_config.num_hidden_layers)
                return read_layers(wanted, stock.text_config)
            seen = chosen.full_layers(deepstack_levels(stock))
            return seen + 1 if seen else 0

        parts = load_parts(source, device, dtype, encoding, None, layers, **model_kwargs)
        selector = tuned_selector(selector, source, *parts[1:3], **model_kwargs)
        return cls(*parts, keep=keep, selector=selector, break_even=break_even).eval()

    # ---------------------------------------------------------------- choosing

    @torch.no_grad()
    def choose(
        self,
        images: Images | Mapping[str, Any] | None = None,
        question: str = "",
        keep: Any = None,
        history: History = (),
        **video: Any,
    ) -> list[ImageSelection]:
        """What would be kept of each image for a question. Costs the choice alone: nothing kept is encoded or read.

        In place of images and a question, model inputs as the processor returns them; of all rows then. `video`, `fps`
        and `frames` as for `ARRCOCQwen.ask`.
        """
        given = (
            images if isinstance(images, Mapping) else self.encode_question(images, question, history, keep, **video)
        )
        inputs: dict[str, Any] = {name: one for name, one in given.items() if name != "mm_token_type_ids"}
        request, why_whole = self._request(**inputs, keep=keep)
        chosen = self.preparer().choose(request)
        say_small(chosen, why_whole)
        return [image for row in chosen for image in row]

    def encode_question(
        self,
        images: Images | None,
        question: str,
        history: History = (),
        keep: Any = None,
        system: str = "",
        *,
        video: Any = None,
        fps: float | None = None,
        frames: int | None = None,
        **generate_kwargs: Any,
    ) -> dict[str, Any]:
        """Read and encode one conversation, with its images as they were resized; users' mistakes end here."""
        if self.processor is None:
            raise ValueError("asking needs a processor: load the model with from_pretrained, or pass processor=")
        check_question(question, history, system)
        check_keeps(self.keep if keep is None else keep, 1)
        check_generation(generate_kwargs)
        question = meant(self.processor.tokenizer, question)
        shown = read_shown(images, video, ClipForm.of(self.processor).fit, fps, frames)
        return encode_asked(self.processor, Conversation(shown, question, history, system))

    def unfamiliar(self, images: Images | Mapping[str, Any], question: str = "") -> list[str]:
        """Lines on what lies outside the model's world, as far as it knows its limits: mini does, others say nothing.

        In place of images, model inputs as `encode_question` returns them. An answer has these among its notices.
        """
        if isinstance(images, Mapping):
            seen = images.get("original_image", [])
        else:
            given = images if isinstance(images, (list, tuple)) else [images]
            stills: list[Any] = [one for one in given if not is_clip(one)]
            seen = [byte_tensor(one) for one in read_images(stills)] if stills else []
        known: list[str] = []
        if self._probe is not None and self.impressions is not None:
            known = picture_notices(self.model, self._probe, seen, self.geometry, self.impressions)
        return [*known, *(words_notices(self.processor.tokenizer, question) if self.processor is not None else [])]

    def _request(
        self,
        input_ids: Tensor | None,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        keep: Any = None,
        original_image: Any = None,
        hints: Hints | None = None,
        seconds: Sequence[float] | None = None,
        **tensors: Any,
    ) -> tuple[Request, list[str]]:
        """Checked inputs on the model's device, and why a row is kept whole, as `_dials` says."""
        keep, why_whole = self._dials(keep, input_ids, recorded=False)
        given = (input_ids, pixel_values, image_grid_thw, attention_mask, keep, original_image, hints, seconds)
        return Request.of(self.model.config, self.device, *given, **tensors), why_whole

    def _dials(self, keep: Any, input_ids: Tensor | None, recorded: bool) -> tuple[Any, list[str]]:
        """One checked dial per row, and why a row is kept whole where choosing would not pay, else "".

        Before the first choice it is told what makes it, where that is not a trained layer.
        """
        keep = self.keep if keep is None else keep
        if input_ids is None:
            return keep, []
        keeps, why_whole = check_keeps(keep, input_ids.shape[0]), [""] * input_ids.shape[0]
        if "auto" in keeps:
            tokens = (token_types(input_ids, self.model.config) > 0).sum(-1).tolist()
            looks = 1 if self.selector.first_look is None else 2
            least = break_even_tokens(self.device, recorded, looks, self.break_even)
            keeps, why_whole = keep_small_whole(keeps, tokens, least)
        if self.selector.untrained_notice and not self.arr_coc_config.trained and any(dial != 1.0 for dial in keeps):
            self.tell(self.selector.untrained_notice)
        return keeps, why_whole

    # ---------------------------------------------------------------- settings, as they are now

    @property
    def config(self) -> Any:
        """The stock model's config. What ARR-COC is set to is `arr_coc_config`."""
        return self.model.config

    @config.setter
    def config(self, wanted: Any) -> None:
        if wanted is not self.model.config:
            raise ValueError("config is the stock model's own: set arr_coc_config, which holds ARR-COC's settings")

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def encoding(self) -> str:
        """The encoding in force: "auto" is sparse where the selector does without the ViT's output."""
        if self.arr_coc_config.encoding != "auto":
            return self.arr_coc_config.encoding
        return "dense" if self.selector.reads_tokens else "sparse"

    def looker(self) -> Looker:
        """What chooses."""
        own = (self.model, self.selector, self.arr_coc_config, self.geometry, self._chat, self.training)
        return Looker(*own, self.memory, self._pad_id, self.strict, self.clip_selector, self.impressions)

    def preparer(self) -> Preparer:
        """What chooses, encodes and compacts."""
        return Preparer(self.looker(), self.encoding, self._pad_id)

    @property
    def clip_selector(self) -> Selector:
        """What chooses where a sample shows a clip.

        Where nobody named a selector, the model looks twice: a layer that learned from images knows nothing of time,
        and finds less in clips.
        """
        return self._for_clips.get(self.selector, self.selector).to(self.device)

    @property
    def notices(self) -> list[str]:
        """What has been told so far, each line once."""
        return list(self._told)

    def tell(self, notice: str) -> None:
        """One line, once per model."""
        if notice not in self._told:
            self._told[notice] = None
            logger.warning("%s", notice)


# ---------------------------------------------------------------- from how many visual tokens on choosing pays
# Below, keep="auto" keeps every token, and the output says so; a dial other than "auto" asks for a number, and gets it.


@lru_cache(maxsize=32)
def break_even_tokens(device: torch.device, recorded: bool, looks: int, known: int | None = None) -> int:
    """The number that is `known`, else that of a device, a path and 1 or 2 `looks`: 0 where choosing always pays.

    `break_even.json` holds the numbers: `measured` by a part of the device's name, `default` by its type.
    """
    if known is not None:
        return known
    path, times = "recorded" if recorded else "eager", "one look" if looks == 1 else "two looks"
    table = json.loads((files("arr_coc.qwen") / "break_even.json").read_text())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    measured = (tokens for part, tokens in table["measured"].items() if part in name)
    tokens = next(measured, table["default"].get(device.type))
    return 0 if tokens is None else int(tokens[path][times])


def keep_small_whole(keeps: Sequence[Keep], tokens: Sequence[int], least: int) -> tuple[list[Keep], list[str]]:
    """The dials with "auto" as 1.0 for rows of fewer than `least` visual tokens, and why; "" for all other rows."""
    reason = f"under {least} visual tokens choosing does not pay on this device, so every token was kept"
    small = [keep == "auto" and 0 < count < least for keep, count in zip(keeps, tokens, strict=True)]
    dials = [1.0 if whole else keep for keep, whole in zip(keeps, small, strict=True)]
    return dials, [reason if whole else "" for whole in small]


def say_small(images: list[list[ImageSelection]], why: Sequence[str]) -> None:
    """Put the reason into the selections of those rows."""
    for row, reason in enumerate(why):
        if reason:
            images[row] = [replace(image, strategy="keep_all", reason=reason) for image in images[row]]
