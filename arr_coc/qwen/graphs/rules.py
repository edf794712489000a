"""When the fast path applies. Every rule gives the reason why not, in words, or None."""

from typing import Any

import torch
from torch import nn
from transformers import Qwen3VLForConditionalGeneration, StoppingCriteriaList

from arr_coc.qwen.graphs.picking import Picking, ids_of, warpers_of
from arr_coc.qwen.preparing import Preparer

ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")  # all of them the same mathematics
SELECTORS = ("arr_coc", "training_free")  # these judge without reading back to the host

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


def why_not_settings(settings: Preparer) -> str | None:
    """Of what chooses and encodes."""
    if settings.strict:
        return "the model is being trained"
    if settings.encoding not in ("dense", "sparse"):
        return f"it does not know encoding={settings.encoding!r}"
    if settings.config.straight_through:
        return "straight_through needs gradients"
    if settings.config.pooling == "lm":
        return "pooling='lm' reads the question with the language model first"
    if settings.selector.name not in SELECTORS:
        return f"it does not know the selector {settings.selector.name!r}"
    if settings.selector.reads_tokens and settings.encoding == "sparse":
        return "the selector reads what the vision encoder makes"
    return None


def picking_of(model: Any, options: dict[str, Any]) -> Picking | str:
    """How to generate from the model's own settings and the caller's keywords, or why the fast path cannot."""
    options = dict(options)
    criteria = options.pop("stopping_criteria", None)
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
    return Picking(most, ends, pad, warpers, StoppingCriteriaList(criteria) if criteria else None)


def is_default(device: torch.device) -> bool:
    """Whether the fast path is on where nobody said anything: on CUDA, where launches are what costs."""
    return device.type == "cuda"
