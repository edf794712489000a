"""Qwen3-VL at its published sizes with random weights: what memory and speed need, and no download.

The settings are those of the published checkpoints' config files. Parameters are made directly in their dtype on their
device, one by one, so a model costs its own size and no more: 4.3 GB in bf16 for 2B.
"""

import json
from functools import lru_cache
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

# text: hidden, layers, heads, intermediate, tied embeddings; vision: hidden, depth, intermediate, DeepStack taps.
_SIZES: dict[str, tuple[tuple[int, int, int, int, bool], tuple[int, int, int, list[int]]]] = {
    "qwen3-vl-2b": ((2048, 28, 16, 6144, True), (1024, 24, 4096, [5, 11, 17])),
    "qwen3-vl-4b": ((2560, 36, 32, 9728, True), (1024, 24, 4096, [5, 11, 17])),
    "qwen3-vl-8b": ((4096, 36, 32, 12288, False), (1152, 27, 4304, [8, 16, 24])),
}
WEIGHT_SPREAD = 0.02  # standard deviation of matrices and tables, as Qwen's own initializer_range


def _settings(name: str) -> dict[str, Any]:
    """All that Qwen3VLConfig needs to know of one published size."""
    (hidden, layers, heads, intermediate, tied), (v_hidden, v_depth, v_intermediate, taps) = _SIZES[name]
    rope = {"rope_type": "default", "rope_theta": 5_000_000.0, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    text = {
        **{"vocab_size": 151936, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_parameters": rope},
        **{"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers},
        **{"num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": tied},
    }
    vision = {
        **{"depth": v_depth, "hidden_size": v_hidden, "intermediate_size": v_intermediate, "num_heads": 16},
        **{"out_hidden_size": hidden, "deepstack_visual_indexes": taps, "num_position_embeddings": 2304},
        **{"patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2},
    }
    marks = {"vision_start_token_id": 151652, "vision_end_token_id": 151653}
    tokens = {"image_token_id": 151655, "video_token_id": 151656, **marks}
    return {"text_config": text, "vision_config": vision, **tokens, "tie_word_embeddings": tied}


SHAPES: dict[str, dict[str, Any]] = {name: _settings(name) for name in _SIZES}
"""Settings by name: `Qwen3VLConfig(**SHAPES["qwen3-vl-2b"])`. Use `shape_config`, which copies them."""


def shape_config(name: str) -> Any:
    """The configuration of a published size, fresh for every call."""
    if name not in SHAPES:
        raise ValueError(f"shape {name!r}: known shapes are {', '.join(SHAPES)}")
    config = Qwen3VLConfig(**_settings(name))
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
    """As `build_shape`, for any Qwen3-VL configuration."""
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
    if config.model_type != "qwen3_vl":
        raise ValueError(f"model type {config.model_type!r}: only the dense Qwen3-VL can be built from its shape")
    with init_empty_weights(include_buffers=False):
        model = Qwen3VLForConditionalGeneration(config)
    model.tie_weights()  # the empty tensors lost the tie when they were moved
    return model


def count_parts(config: Any) -> dict[str, int]:
    """Parameters of the vision tower, of the decoder, and of the word tables (tied ones once); nothing is allocated."""
    if config.model_type != "qwen3_vl":
        raise ValueError(f"model type {config.model_type!r}: only the dense Qwen3-VL can be counted")
    return dict(_count(config.to_json_string(use_diff=False)))


@lru_cache(maxsize=32)
def _count(settings: str) -> tuple[tuple[str, int], ...]:
    model = _on_meta(Qwen3VLConfig(**json.loads(settings)))
    vision = sum(p.numel() for p in model.model.visual.parameters())
    tables = {id(p): p.numel() for p in (model.get_input_embeddings().weight, model.lm_head.weight)}
    everything = sum(p.numel() for p in model.parameters())
    embeddings = sum(tables.values())
    return (("vision", vision), ("text", everything - vision - embeddings), ("embeddings", embeddings))
