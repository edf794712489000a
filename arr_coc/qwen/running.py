"""The stock model's forward and generate on prepared inputs.

They run on the compact sequence; what comes back speaks of the caller's own, full prompt. A cache that comes back is
marked with how its prompt was shortened, so that a later call can go on counting.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from arr_coc.qwen.positions import mark
from arr_coc.qwen.preparing import Prepared
from arr_coc.qwen.streaming import PromptRestorer


def pass_through(run: Callable[..., Any], **inputs: Any) -> Any:
    """No image: the stock model as it is, on what was given."""
    return run(**{name: value for name, value in inputs.items() if value is not None})


def next_positions(cache: Any, attention_mask: Tensor | None, input_ids: Tensor | None) -> Tensor | None:
    """Where tokens stand that follow a shortened prompt; None where the stock model counts by itself."""
    if input_ids is None or not hasattr(cache, "arr_coc"):
        return None
    positions: Tensor = cache.arr_coc.positions(attention_mask, cache.get_seq_length(), input_ids)
    return positions


def forward(model: Any, prepared: Prepared, cache: Any, with_info: bool, **kwargs: Any) -> Any:
    """The stock forward; `with_info` adds `output.arr_coc`. `kwargs` are the stock's own."""
    if isinstance(kwargs.get("logits_to_keep"), Tensor) and prepared.compact.dropped:
        raise ValueError("logits_to_keep as indices counts full columns, but tokens were dropped: give an int")
    return_dict = kwargs.pop("return_dict", None)
    runner = prepared.runner(model)
    output = runner(
        **prepared.model_inputs(),
        past_key_values=cache,
        labels=prepared.compact.labels,
        return_dict=True,
        **kwargs,
    )
    _mark(output.past_key_values, prepared, runner)
    if return_dict is False:
        return (*output.to_tuple(), prepared) if with_info else output.to_tuple()
    if with_info:
        output.arr_coc = prepared
    return output


def generate(model: Any, input_ids: Tensor, prepared: Prepared, streamer: PromptRestorer | None, **kwargs: Any) -> Any:
    """The stock generate; `input_ids` is the caller's prompt, which comes back in front."""
    length = prepared.compact.input_ids.shape[1]
    shift_lengths(kwargs, length - input_ids.shape[1])
    runner = prepared.runner(model)
    output = runner.generate(**prepared.model_inputs(), streamer=streamer, **kwargs)
    if isinstance(output, Tensor):
        return _restore_prompt(output, input_ids, length)
    output.sequences = _restore_prompt(output.sequences, input_ids, length)
    _mark(getattr(output, "past_key_values", None), prepared, runner)
    return output


def refuse_cache(cache: Any, only_marked: bool = False) -> None:
    """A prompt with images is prepared as a whole; a cache that was shortened cannot be matched with full ids."""
    if cache is None or (only_marked and not hasattr(cache, "arr_coc")):
        return
    if cache.get_seq_length():
        raise ValueError("a new question chooses anew: pass the whole conversation instead of past_key_values")


def shift_lengths(kwargs: dict[str, Any], shift: int) -> None:
    """Callers count max_length and min_length on their own, full prompt: count them on the compact one."""
    for name in ("max_length", "min_length"):
        if kwargs.get(name) is not None:
            kwargs[name] = max(0, kwargs[name] + shift)
    config = kwargs.get("generation_config")
    if config is not None and shift:
        config = copy.deepcopy(config)
        for name in ("max_length", "min_length"):
            if getattr(config, name, None):
                setattr(config, name, max(0, getattr(config, name) + shift))
        kwargs["generation_config"] = config


def _mark(cache: Any, prepared: Prepared, runner: Any) -> None:
    """Note on a cache, if there is one, how to go on from it and with what."""
    if cache is not None:
        mark(cache, prepared.compact)
        cache.arr_coc_runner = runner


def _restore_prompt(sequences: Tensor, prompt_BL: Tensor, compact_length: int) -> Tensor:
    """Put the caller's prompt in place of the compact one; several sequences of one prompt are next to each other."""
    per_prompt = sequences.shape[0] // prompt_BL.shape[0]
    prompt = prompt_BL.to(sequences.device).repeat_interleave(per_prompt, dim=0)
    return torch.cat([prompt, sequences[:, compact_length:]], dim=1)
