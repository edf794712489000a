"""Qwen3-VL at its published sizes with random weights: what memory and speed need, and no download.

The settings (`shapes.json`) are those of the published checkpoints' config files. Parameters are made directly in their
dtype on their device, one by one, so a model costs its own size and no more: 4.3 GB in bf16 for 2B.
"""

import copy
import json
import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, Qwen3VLConfig

from arr_coc.config import GLANCE, SIGHTS
from arr_coc.qwen.family import is_hybrid

SHAPES: dict[str, dict[str, Any]] = json.loads((files("arr_coc.qwen") / "shapes.json").read_text())
"""Settings by name. Use `shape_config`, which copies them."""
WEIGHT_SPREAD = 0.02  # standard deviation of matrices and tables, as Qwen's own initializer_range


def shape_config(name: str) -> Any:
    """The configuration of a published size, fresh for every call."""
    if name not in SHAPES:
        raise ValueError(f"shape {name!r}: known shapes are {', '.join(SHAPES)}")
    config = Qwen3VLConfig(**copy.deepcopy(SHAPES[name]))
    config._attn_implementation = "sdpa"
    return config


def build_shape(
    name: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> Any:
    """A Qwen3VLForConditionalGeneration of that size with random weights, in evaluation mode.

    Matrices and tables are normal with a spread of 0.02, norms 1, biases 0; the same for the same seed and device.
    """
    return build_random(shape_config(name), device, dtype, seed)


def build_random(config: Any, device: str | torch.device, dtype: torch.dtype, seed: int = 0) -> Any:
    """As `build_shape`, for a configuration of any family."""
    device = torch.device(device)
    model = _on_meta(config)
    generator = torch.Generator(device=device).manual_seed(seed)
    made: dict[int, nn.Parameter] = {}  # tied tensors are one parameter under two names
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(_filled(name, parameter, device, dtype, generator))
            module._parameters[name] = made[id(parameter)]
    return model.to(device).eval()


def _filled(name: str, like: Tensor, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """A tensor of the shape of `like`: vectors named weight belong to norms."""
    tensor = torch.empty(like.shape, dtype=dtype, device=device)
    if tensor.ndim == 1:
        return tensor.fill_(1.0 if name == "weight" else 0.0)
    return tensor.normal_(0.0, WEIGHT_SPREAD, generator=generator)


def _on_meta(config: Any) -> Any:
    """The model with its parameters on the meta device. Buffers (rotary frequencies) are real, small and in fp32."""
    with init_empty_weights(include_buffers=False):
        model = AutoModelForImageTextToText.from_config(config)
    model.tie_weights()  # the empty tensors lost the tie when they were moved
    return model


def sight_dims(config: Any, sight: str) -> dict[str, Any]:
    """Sizes of a stock model, by its config, that an adapter with such a sight has to know."""
    text, place = config.text_config, SIGHTS.index(sight)
    if sight == "look" and is_hybrid(text):
        raise ValueError("sight='look' reads every layer and head, which are not alike in this family: use 'glance'")
    heads = GLANCE.layers(text.num_hidden_layers) * text.num_attention_heads
    return {
        "hidden_dim": text.hidden_size,
        "glance_dim": config.vision_config.hidden_size if place >= SIGHTS.index("glance") else 0,
        "look_dim": heads if place >= SIGHTS.index("look") else 0,
    }


def count_parts(config: Any) -> dict[str, int]:
    """Parameters of the vision tower, of the decoder, and of the word tables (tied ones once); nothing is allocated."""
    model = _empty(config.model_type, config.to_json_string(use_diff=False))
    vision = sum(p.numel() for p in model.model.visual.parameters())
    tables = {id(p): p.numel() for p in (model.get_input_embeddings().weight, model.lm_head.weight)}
    everything, embeddings = sum(p.numel() for p in model.parameters()), sum(tables.values())
    return {"vision": vision, "text": everything - vision - embeddings, "embeddings": embeddings}


def widths_of(config: Any, pattern: str) -> int:
    """Inputs and outputs, added up, of all matrices whose names match; nothing is allocated."""
    model = _empty(config.model_type, config.to_json_string(use_diff=False))
    linear = (part for name, part in model.named_modules() if re.fullmatch(pattern, name))
    return sum(part.in_features + part.out_features for part in linear if isinstance(part, nn.Linear))


@lru_cache(maxsize=4)
def _empty(family: str, settings: str) -> Any:
    """The model of a config, to be counted."""
    return _on_meta(CONFIG_MAPPING[family].from_dict(json.loads(settings)))
