"""How much GPU memory a run needs, from formulas, before anything is loaded.

Counted is what torch allocates at the peak of a step (`torch.cuda.max_memory_allocated`). A peak has a moment:
gradients come while activations go, so not all parts are there at once. Stages 1 and 3 run the base without gradients,
for the glance alone.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from arr_coc.config import Keep
from arr_coc.qwen.shapes import count_parts
from arr_coc.training.memory_parts import (
    feature_bytes,
    logit_bytes,
    lora_parameters,
    pixel_bytes,
    selector_bytes,
    text_saved,
    trained_parameters,
    vision_saved,
)
from arr_coc.training.memory_plan import Plan

TIERS_GB = (16, 24, 32)
RESERVE_GB = 1.0  # of a card that torch cannot have: CUDA's own context, the display, fragmentation
MOST_BATCH = 4096  # the search for the largest batch ends here
WORKSPACE = 32 * 2**20  # cuBLAS keeps such a buffer, taken from torch's allocator


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes. The total is the peak; it may be less than the sum, since not all parts are there at that moment."""

    weights: int
    gradients: int
    optimizer: int  # AdamW: two values per weight that learns, in the weight's dtype
    activations: int  # inputs, the selector's maps, and what both towers keep for the backward pass
    logits: int
    total: int
    moment: str  # when the peak is
    plan: Plan


def estimate(
    model_config: Any,
    how: str,
    stage: int,
    batch: int,
    image_side: int,
    keep: Keep,
    text_tokens: int,
    dtype: torch.dtype,
    checkpointing: bool,
    selector_parameters: int,
    **more: Any,
) -> MemoryEstimate:
    """What a step needs at its peak, for a dense Qwen3-VL of that config; `more` are the other fields of `Plan`."""
    run = (model_config, how, stage, batch, image_side, keep, text_tokens, dtype, checkpointing, selector_parameters)
    return estimate_plan(Plan(*run, **more))


def estimate_plan(plan: Plan) -> MemoryEstimate:
    """As `estimate`."""
    size = plan.dtype.itemsize
    own = 4 * (plan.selector_parameters + (lora_parameters(plan) if plan.how == "lora" else 0))
    weights = size * sum(count_parts(plan.model_config).values()) + own
    learning = size * trained_parameters(plan) + own
    kept, seeing = selector_bytes(plan)
    moments, logits, activations = {"textures": seeing, "selector": kept}, 0.0, kept
    if plan.stage == 2:
        moments, logits = answering_moments(plan, learning), logit_bytes(plan)
        activations = moments["end of the forward pass"] - logits
    if plan.accumulate:
        moments = {name: value + learning for name, value in moments.items()}
    moments["optimizer step"] = 2 * learning  # the gradients, and one copy that torch's AdamW makes
    moment = max(moments, key=lambda name: moments[name])
    total = weights + 2 * learning + moments[moment] + WORKSPACE
    sizes = (weights, learning, 2 * learning, int(activations), int(logits), int(total))
    return MemoryEstimate(*sizes, moment, plan)


def answering_moments(plan: Plan, learning: int) -> dict[str, float]:
    """What stands beside weights and optimizer at each moment of stage 2 that can be its peak."""
    size, text = plan.dtype.itemsize, plan.model_config.text_config
    kept, seeing = selector_bytes(plan)
    (vision, vision_peak), (decoder, decoder_peak) = vision_saved(plan), text_saved(plan)
    pixels = plan.batch * pixel_bytes(plan)
    kept += plan.batch * feature_bytes(plan) + vision
    # A layer that is made again meets the gradients of the layers behind it; else these take the place of what it kept.
    behind = learning - (size * count_parts(plan.model_config)["vision"] if plan.how == "all" else 0)
    moments = {"textures": seeing + pixels}
    if plan.learns == "none":
        moments["vision tower"] = kept + vision_peak + pixels
    else:
        moments["vision tower"] = kept + vision_peak + plan.checkpointing * behind
    if plan.how == "all":  # the word table's gradient is made whole, and then added to that of the output table
        moments["word table"] = kept + behind + size * text.vocab_size * text.hidden_size
    moments["decoder layer"] = kept + decoder + decoder_peak + plan.checkpointing * learning
    # Pixels are gone in the backward passes: nothing there reads them.
    return moments | {"end of the forward pass": kept + decoder + pixels + logit_bytes(plan)}


# ---------------------------------------------------------------- for people


def largest_batch(plan: Plan, card_gb: float) -> int:
    """The largest batch whose peak fits a card of so many GB, 0 where not even one row does."""
    room = (card_gb - RESERVE_GB) * 1e9
    low, high = 0, MOST_BATCH + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = estimate_plan(replace(plan, batch=middle)).total <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def describe(found: MemoryEstimate) -> str:
    """A short table for people: the parts, and which cards it fits."""
    plan = found.plan
    seen = (
        f"{plan.image_side} px, {plan.kept} of {plan.cells} visual tokens"
        if plan.stage == 2
        else f"{plan.image_side} px"
    )
    lines = [f"memory of stage {plan.stage}, adapting {plan.how}, batch {plan.batch}, {seen}"]
    parts = ("weights", "gradients", "optimizer", "activations", "logits")
    lines += [f"  {name:<12}{getattr(found, name) / 1e9:7.2f} GB" for name in parts]
    lines.append(f"  {'peak':<12}{found.total / 1e9:7.2f} GB ({found.moment})")
    for card in TIERS_GB:
        most = largest_batch(plan, card)
        says = "fits" if plan.batch <= most else "does not fit"
        lines.append(f"  {f'{card} GB card':<12}{says}, {f'largest batch {most}' if most else 'not even batch 1'}")
    return "\n".join(lines)
