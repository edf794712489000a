"""Between the plain path and the fast one: serve a request, or say once why the plain path does."""

from typing import Any

import torch
from torch import Tensor

from arr_coc.qwen.graphs.break_even import say_small
from arr_coc.qwen.graphs.layout import NotFast
from arr_coc.qwen.graphs.picking import Picking
from arr_coc.qwen.graphs.rules import picking_of, why_not_model, why_not_settings
from arr_coc.qwen.graphs.runner import FastResult, FastRunner, Job
from arr_coc.qwen.owner import Owner

TENSORS = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw", "question_mask")


def serve(
    owner: Owner, inputs: dict[str, Any], keep: Any, options: dict[str, Any], streamer: Any = None
) -> FastResult | None:
    """The answer to a request; None where the fast path is off or the plain path must give it.

    `inputs` are all that generate was given beside its `options`; `keep` is one dial, or one per row. All tokens kept
    is the plain path's own.
    """
    if not owner.fast or inputs["input_ids"] is None:
        return None
    keeps, small = owner.dials(keep, inputs["input_ids"])
    if all(dial == 1.0 for dial in keeps):
        return None
    owner.tell_of_selector()
    settings = owner.preparer()
    reason = why_not_model(owner.model) or why_not_settings(settings) or _why_not_inputs(inputs)
    picking: Picking | str = reason or picking_of(owner.model, options)
    if isinstance(picking, str):
        owner.tell(f"the fast path is left: {picking}")
        return None
    given: dict[str, Any] = {name: inputs.get(name) for name in TENSORS}
    if given["attention_mask"] is None:
        given["attention_mask"] = torch.ones_like(inputs["input_ids"])
    runner = owner.fast_runner
    fits = runner is not None and (runner.model, runner.compiled) == (owner.model, owner.compiled)
    if runner is None or not fits or runner.device != owner.device:
        runner = owner.fast_runner = FastRunner(owner.model, compiled=owner.compiled)
    try:
        served = runner.run(settings, Job(**given, keeps=keeps), picking, streamer)
    except NotFast as why:
        owner.tell(f"the fast path is left: {why}")
        return None
    say_small(served.images, small, owner.break_even)
    return served


def _why_not_inputs(inputs: dict[str, Any]) -> str | None:
    """Of the request's inputs: what must be there, and nothing that the fast path does not read."""
    if inputs.get("image_grid_thw") is None:
        return "inputs are missing"
    unknown = [name for name, value in inputs.items() if name not in TENSORS and value is not None]
    return f"it does not read {unknown[0]!r}" if unknown else None


def with_prompt(result: FastResult, input_ids: Tensor, device: torch.device) -> Tensor:
    """The caller's prompt and the new tokens, as generate returns them."""
    return torch.cat([input_ids.to(device), result.new_BT.to(device)], dim=1)
