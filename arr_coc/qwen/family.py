"""What families of models differ in, as far as it matters here: DeepStack levels, and layers without attention.

    qwen3_vl, qwen3_vl_moe    levels of the ViT are added inside the language model; every layer attends
    qwen3_5, qwen3_5_moe      no levels; most layers pass a state along (linear attention), every fourth attends

A layer that passes a state along has no keys to look at, and what it made of a sequence cannot be cut: tokens are
dropped before such a model, never inside, and what it read once is not used again.
"""

from typing import Any

from torch import Tensor

FAMILIES = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")


def check_family(model_type: str) -> None:
    if model_type not in FAMILIES:
        raise ValueError(
            f"a model of type {model_type!r} is no Qwen3-VL or Qwen3.5: expected {', '.join(FAMILIES[:-1])} "
            f"or {FAMILIES[-1]}"
        )


def deepstack_levels(config: Any) -> int:
    """How many levels of the ViT a model adds inside its language model; `config` is the whole model's."""
    return len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())


def levels_of(features: Any) -> list[Any]:
    """DeepStack levels of the ViT's output; none where the family has none."""
    return getattr(features, "deepstack_features", None) or []


def is_hybrid(text_config: Any) -> bool:
    """Whether some layers pass a state along in place of attending."""
    return "linear_attention" in (getattr(text_config, "layer_types", None) or ())


def attending_layers(text_config: Any) -> list[int]:
    """Numbers of the decoder layers that attend."""
    kinds = getattr(text_config, "layer_types", None) or ["full_attention"] * text_config.num_hidden_layers
    return [number for number, kind in enumerate(kinds) if kind != "linear_attention"]


def read_layers(wanted: int, text_config: Any) -> int:
    """How many decoder layers are read where `wanted` were meant: up to the last of them that attends, or the first."""
    attend = attending_layers(text_config)
    return 1 + max((number for number in attend if number < wanted), default=attend[0])


def refuse_inside(text_config: Any, who: str) -> None:
    if is_hybrid(text_config):
        raise ValueError(
            f"{who} drops tokens inside the language model, whose linear attention has passed over them by then: "
            "use selector='look_twice'"
        )


def keys_in(cache: Any) -> Tensor | None:
    """Keys of the first layer of a cache that holds any."""
    return next((keys for layer in cache.layers if (keys := getattr(layer, "keys", None)) is not None), None)
