"""What the recorded path takes on: which requests, and how the next token comes of the logits.

B rows. Every rule gives the reason why not, in words, or None. Of ways to pick a token there are the highest logit and
one drawn at random; anything else is left to the plain path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LogitsProcessorList,
    Qwen3VLForConditionalGeneration,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from arr_coc.qwen.looking import Looker
from arr_coc.qwen.streaming import Standing

ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")  # all of them the same mathematics
SELECTORS = ("arr_coc", "look_twice", "training_free")  # these judge without reading back to the host
TENSORS = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw", "question_mask")  # what it reads
PLAYED = ("input_ids", "attention_mask", "pixel_values_videos", "video_grid_thw", "question_mask", "seconds")


def why_not(looker: Looker, encoding: str, inputs: dict[str, Any]) -> str | None:
    """Of a request: the first reason there is."""
    if inputs.get("pixel_values_videos") is not None:
        looker = looker.over_clips()
        if encoding == "dense":
            return "it knows clips before the vision encoder alone"
    return (
        why_not_model(looker.model)
        or why_not_settings(looker, encoding)
        or why_not_inputs(inputs, looker.geometry.patch)
    )


def why_not_model(model: Any) -> str | None:
    """Of the stock model: the class, the attention backends, and that its layers are the plain ones."""
    if type(model) is not Qwen3VLForConditionalGeneration:
        return f"it does not know a {type(model).__name__}"
    for config in (model.config.text_config, model.config.vision_config):
        if config._attn_implementation not in ATTENTION:
            return f"it does not know the attention backend {config._attn_implementation!r}"
    language, visual = model.model.language_model, model.model.visual
    if language.rotary_emb.rope_type != "default":
        return f"it does not know the rotary embedding {language.rotary_emb.rope_type!r}"
    if getattr(visual, "interpolation_mode", "bilinear") != "bilinear":
        return f"it does not know the interpolation {visual.interpolation_mode!r}"
    for layer in (language.layers[0], language.layers[-1], visual.blocks[0], visual.blocks[-1]):
        for name, module in layer.named_modules():
            if name.endswith(("_proj", "proj", "qkv", "fc1", "fc2")) and type(module) is not nn.Linear:
                return f"a layer is a {type(module).__name__} and not a plain one"
    # Not the layers': transformers leaves its own there once attentions or hidden states were asked for.
    for module in (model, model.model, language, visual):
        if module._forward_hooks or module._forward_pre_hooks:
            return "hooks look into the stock forward"
    if len({parameter.device for parameter in (model.lm_head.weight, visual.pos_embed.weight)}) > 1:
        return "the model lies on several devices"
    return None


def why_not_settings(looker: Looker, encoding: str) -> str | None:
    """Of what chooses and encodes."""
    config, selector = looker.config, looker.selector
    foveated = encoding == "foveated"
    reasons = {
        "the model is being trained": looker.strict,
        f"it does not know encoding={encoding!r}": encoding not in ("dense", "sparse", "foveated"),
        f"it does not know periphery={config.periphery!r}": foveated and config.periphery != "images",
        "straight_through needs gradients": config.straight_through,
        "pooling='lm' reads the question with the language model first": config.pooling == "lm",
        f"it does not know the selector {selector.name!r}": selector.name not in SELECTORS,
        "the selector reads what the vision encoder makes": selector.reads_tokens and encoding != "dense",
    }
    return next((why for why, applies in reasons.items() if applies), None)


def why_not_inputs(inputs: dict[str, Any], patch: int) -> str | None:
    """Of the request's inputs: what must be there, and nothing that the recorded path does not read.

    Images are read where they have the size of their patches of `patch` px, as `ask` hands them on.
    """
    if inputs.get("pixel_values_videos") is not None:
        if inputs.get("pixel_values") is not None:
            return "it does not know clips among images"
        given = (
            name
            for name, value in inputs.items()
            if value is not None and not (isinstance(value, (list, tuple)) and not value)
        )
        unread = [name for name in given if name not in PLAYED]
        return f"it does not read {unread[0]!r} beside clips" if unread else None
    grids, images = inputs.get("image_grid_thw"), inputs.get("original_image")
    if grids is None:
        return "inputs are missing"
    if isinstance(images, list) and [tuple(getattr(image, "shape", ())) for image in images] == [
        (3, patch * height, patch * width) for _, height, width in grids.tolist()
    ]:
        inputs = {name: value for name, value in inputs.items() if name != "original_image"}
    unknown = [name for name, value in inputs.items() if name not in TENSORS and value is not None]
    return f"it does not read {unknown[0]!r}" if unknown else None


def is_default(device: torch.device) -> bool:
    """Whether the fast path is on where nobody said anything: on CUDA, where launches are what costs."""
    return device.type == "cuda"


# ---------------------------------------------------------------- picking tokens

# Generation settings that the fast path follows, and values of others that change nothing.
FOLLOWED = (
    *("max_new_tokens", "do_sample", "temperature", "top_k", "top_p"),
    *("eos_token_id", "pad_token_id", "bos_token_id", "transformers_version"),
)
NEUTRAL = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "use_cache": True,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
}


@dataclass(frozen=True, slots=True)
class Picking:
    """How an answer is made of logits, and where it ends."""

    most: int  # new tokens
    ends: tuple[int, ...]  # ids that end a row; none: it always goes on to `most`
    pad_id: int  # what follows the end of a row
    warpers: LogitsProcessorList | None = None  # None: the highest logit
    criteria: Any = None  # further stopping criteria, as transformers has them
    standing: Standing | None = None  # an answer that stands

    @property
    def reads(self) -> bool:
        """Whether more than the highest logit decides: the next token is picked of what the device gives."""
        return self.warpers is not None or self.standing is not None

    def pick(self, logits_BV: Tensor, said_BT: Tensor) -> Tensor:
        """The next token of each row, after those that were `said`, on the host."""
        if self.standing is not None:
            logits_BV = self.standing(said_BT.to(logits_BV.device), logits_BV)
        if self.warpers is None:
            return logits_BV.argmax(-1)
        none = torch.zeros(logits_BV.shape[0], 0, dtype=torch.long, device=logits_BV.device)
        return torch.multinomial(self.warpers(none, logits_BV).softmax(-1), 1).squeeze(1)


def warpers_of(temperature: float | None, top_k: int | None, top_p: float | None) -> LogitsProcessorList:
    """In the order of transformers: temperature, the k highest, the highest that make up p."""
    known = (
        (TemperatureLogitsWarper, temperature, temperature not in (None, 1.0)),
        (TopKLogitsWarper, top_k, bool(top_k)),
        (TopPLogitsWarper, top_p, top_p is not None and top_p < 1.0),
    )
    return LogitsProcessorList(warper(value) for warper, value, wanted in known if wanted)


def ids_of(ids: Any) -> tuple[int, ...]:
    """End tokens as they are given: None, one, several, or a tensor."""
    ids = ids.tolist() if isinstance(ids, Tensor) else () if ids is None else ids
    return tuple(int(one) for one in ids) if isinstance(ids, Sequence) else (int(ids),)


def picking_of(model: Any, options: dict[str, Any]) -> Picking | str:
    """How to generate from the model's own settings and the caller's keywords, or why the fast path cannot."""
    options = dict(options)
    criteria, processors = options.pop("stopping_criteria", None), list(options.pop("logits_processor", None) or ())
    standing = processors.pop() if processors and isinstance(processors[-1], Standing) else None
    if processors:
        return "it does not know generate's 'logits_processor'"
    config = model.generation_config
    settings = config.to_diff_dict()
    for name, value in options.items():
        if not hasattr(config, name) or name == "generation_config":
            return f"it does not know generate's {name!r}"
        settings[name] = value
    for name, value in settings.items():
        followed = name in FOLLOWED or name.startswith("_")
        if followed or value is None or value is False or NEUTRAL.get(name, ...) == value:
            continue
        return f"it does not know generate's {name!r}"
    most = settings.get("max_new_tokens")
    if not isinstance(most, int) or most < 1:
        return "max_new_tokens is not given"
    ends = ids_of(settings.get("eos_token_id"))
    pad = settings.get("pad_token_id")
    pad = int(pad) if pad is not None else (ends[0] if ends else 0)
    warpers = None
    if settings.get("do_sample"):
        top_k = settings.get("top_k", 50)  # transformers samples among 50 unless told otherwise
        warpers = warpers_of(settings.get("temperature"), top_k, settings.get("top_p"))
    return Picking(most, ends, pad, warpers, StoppingCriteriaList(criteria) if criteria else None, standing)


class Rows:
    """The new tokens of all rows so far, on the host, and which rows have ended; streamed after the prompt."""

    def __init__(self, picking: Picking, prompt_BL: Tensor, streamer: Any = None) -> None:
        self.picking, self.prompt_BL, self.streamer = picking, prompt_BL, streamer
        self.done = [False] * prompt_BL.shape[0]
        self.steps: list[list[int]] = []

    def add(self, tokens: list[int]) -> None:
        """Note one token per row, the padding where a row has ended."""
        tokens = [self.picking.pad_id if end else token for token, end in zip(tokens, self.done, strict=True)]
        self.steps.append(tokens)
        self.done = [end or token in self.picking.ends for token, end in zip(tokens, self.done, strict=True)]
        if self.picking.criteria is not None:
            stopped = self.picking.criteria(torch.cat([self.prompt_BL, self.new_BT], dim=1), None).tolist()
            self.done = [end or stop for end, stop in zip(self.done, stopped, strict=True)]
        if self.streamer is not None:
            for shown in ([self.prompt_BL] if len(self.steps) == 1 else []) + [torch.tensor(tokens)]:
                self.streamer.put(shown)

    @property
    def finished(self) -> bool:
        return all(self.done) or len(self.steps) >= self.picking.most

    @property
    def new_BT(self) -> Tensor:
        return torch.tensor(self.steps, dtype=torch.long).view(-1, len(self.done)).T
