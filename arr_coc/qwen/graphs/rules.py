"""When the recorded path applies. Every rule gives the reason why not, in words, or None."""

from typing import Any

import torch
from torch import nn
from transformers import Qwen3VLForConditionalGeneration

from arr_coc.qwen.looking import Looker

ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")  # all of them the same mathematics
SELECTORS = ("arr_coc", "look_twice", "training_free")  # these judge without reading back to the host
TENSORS = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw", "question_mask")  # what it reads


def why_not(looker: Looker, encoding: str, inputs: dict[str, Any]) -> str | None:
    """Of a request: the first reason there is."""
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
        return "it does not know clips"
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
