"""Time to the first token and peak memory of a clip: all tokens, and a part of them chosen before the ViT.

python -m studies.speed.video --shape qwen3-vl-2b --frames 64 --side 768 --out results/speed-video.json
python -m studies.speed.video --frames 32 --side 512 --out results/speed-video-cpu.json     # mini, on the CPU

Weights of a shape are random, frames are noise with a square that moves: what is measured does not depend on them. The
plain model is transformers as it is; ours looks twice, eagerly and, with --recorded, over recordings, as it does on
GPUs unless told otherwise; all tokens over recordings stand beside it. One JSON document goes to --out.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from arr_coc.evaluation.bench.measure import synchronize, watch_peak
from arr_coc.files import write_whole
from arr_coc.images.clips import Clip
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.clips import ClipForm
from arr_coc.qwen.graphs.rules import Picking, picking_of
from arr_coc.qwen.graphs.runner import FastRunner
from arr_coc.qwen.memory import Memory
from arr_coc.qwen.shapes import build_shape

TEXT = 40  # tokens of the question
PARTS = ("select", "vision", "prefill")
Times = dict[str, float]


def moving(frames: int, side: int) -> Clip:
    """Noise that stands still, and a square that goes over it."""
    ground = torch.randint(0, 256, (3, side // 8, side // 8), generator=torch.Generator().manual_seed(0))
    whole = ground.repeat_interleave(8, 1).repeat_interleave(8, 2).to(torch.uint8).repeat(frames, 1, 1, 1)
    size = side // 6
    for number, frame in enumerate(whole):
        left = number * (side - size) // max(1, frames - 1)
        frame[:, size : 2 * size, left : left + size] = 255
    return Clip(whole, tuple(number / 2 for number in range(frames)))


def clip_inputs(config: Any, clip: Clip, device: torch.device) -> dict[str, torch.Tensor]:
    """As a processor makes them, but for the words: times of 6 tokens, and a question of TEXT."""
    vision = config.vision_config
    sizes = (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
    form = ClipForm(*sizes, 1, 2**40, (0.5,) * 3, (0.5,) * 3)
    rows, (t, height, width) = form.rows(clip)
    cells = height * width // form.merge**2
    start, pad, end = config.vision_start_token_id, config.video_token_id, config.vision_end_token_id
    words = [one for one in range(200) if one not in (start, pad, end, config.image_token_id)]
    moment = [*words[10:16], start, *[pad] * cells, end]
    ids = torch.tensor([[*words[:3], *moment * t, *words[20 : 20 + TEXT]]])
    asked = torch.zeros_like(ids, dtype=torch.bool)
    asked[:, -TEXT:] = True
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": 2 * (ids == config.video_token_id).int(),
        "pixel_values_videos": rows,
        "video_grid_thw": torch.tensor([[t, height, width]]),
        "question_mask": asked,
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def plain(owner: ARRCOCQwen, inputs: dict[str, Any]) -> Times:
    """Transformers as it is: the ViT by itself, then the language model on all tokens."""
    given = {name: value for name, value in inputs.items() if name not in ("question_mask", "pixel_values_videos")}
    started = _now(owner.device)
    stock = owner.model.model
    seen = stock.get_video_features(inputs["pixel_values_videos"], given["video_grid_thw"], return_dict=True)
    encoded = _now(owner.device)
    owner.model(**given, mm_encoder_outputs={"video": seen}, logits_to_keep=1, use_cache=True)
    return {"vision": encoded - started, "prefill": _now(owner.device) - encoded}


def chosen(owner: ARRCOCQwen, inputs: dict[str, Any], keep: float) -> Times:
    """Ours: the choice, the kept windows through the ViT, the language model on what is left."""
    given = {name: value for name, value in inputs.items() if name != "mm_token_type_ids"}
    owner.memory = Memory(0)  # a first question: nothing is remembered
    started = _now(owner.device)
    prepared = owner.prepare(**given, keep=keep)
    ready = _now(owner.device)
    prepared.runner(owner.model)(**prepared.model_inputs(), logits_to_keep=1, use_cache=True)
    parts = prepared.stopwatch.milliseconds()
    vision = parts.get("vision", 0.0)
    kept = sum(image.tokens_kept for image in prepared.images[0])
    prefill = _now(owner.device) - ready
    return {"select": ready - started - vision, "vision": vision, "prefill": prefill, "kept": kept, **_told(parts)}


def recorded(owner: ARRCOCQwen, inputs: dict[str, Any], keep: float) -> Times:
    """The same over recordings, which are made by the first run; with all tokens too."""
    given = {name: value for name, value in inputs.items() if name != "mm_token_type_ids"}
    owner.memory = Memory(0)
    runner = owner.fast_runner = owner.fast_runner or FastRunner(owner.model)
    picking = picking_of(owner.model, {"max_new_tokens": 1, "do_sample": False})
    assert isinstance(picking, Picking), picking
    served = runner.run(owner.looker(), owner.encoding, given, [keep], picking)
    kept = sum(image.tokens_kept for image in served.images[0])
    return {
        **{name: served.timings_ms.get(name, 0.0) for name in PARTS},
        "kept": kept,
        "wall": served.timings_ms["wall_ttft"],
    }


def _told(parts: Times) -> Times:
    return {f"part: {name}": ms for name, ms in parts.items() if name != "vision"}


def _now(device: torch.device) -> float:
    synchronize(device)
    return 1e3 * time.perf_counter()


@torch.no_grad()
def measured(run: Callable[[], Times], device: torch.device, repeats: int) -> dict[str, Any]:
    """Medians in ms after a run that does not count, and the peak of memory above what was there before."""
    with watch_peak(device) as peak:
        run()
        times = [run() for _ in range(repeats)]
    middle = {name: statistics.median(one[name] for one in times) for name in times[0]}
    return {**middle, "ttft_ms": sum(middle.get(name, 0.0) for name in PARTS), **peak, "repeats": repeats}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", help="random weights of that shape; without: mini")
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--side", type=int, default=768)
    parser.add_argument("--keeps", type=float, nargs="+", default=[0.25, 0.1, 0.05])
    parser.add_argument("--recorded", action="store_true", help="over recorded graphs too")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if wanted.shape:
        owner = ARRCOCQwen(build_shape(wanted.shape, device, dtype), break_even=0, fast=False).eval()
    else:
        owner = ARRCOCQwen.from_pretrained("mini", break_even=0, fast=False)
    inputs = clip_inputs(owner.model.config, moving(wanted.frames, wanted.side), device)
    look = owner.clip_selector.first_look
    t, height, width = inputs["video_grid_thw"][0].tolist()
    grid = (height // owner.geometry.merge, width // owner.geometry.merge)
    assert look is not None
    rows: dict[str, Any] = {"all": measured(lambda: plain(owner, inputs), device, wanted.repeats)}
    ways = {"": chosen, **({"recorded, ": recorded} if wanted.recorded else {})}
    for way, run in ways.items():
        if run is recorded:
            rows[f"{way}all"] = measured(lambda: recorded(owner, inputs, 1.0), device, wanted.repeats)
            if owner.fast_runner is not None:
                owner.fast_runner.recordings.clear()  # their memory is not what a choice takes
        for keep in wanted.keeps:
            row = measured(lambda run=run, keep=keep: run(owner, inputs, keep), device, wanted.repeats)  # type: ignore[misc]
            row["speed_up"] = rows["all"]["ttft_ms"] / row["ttft_ms"]
            row["choice_of_dense"] = row["select"] / rows["all"]["ttft_ms"]
            row["memory_saved"] = 1 - row["peak_above_mb"] / rows["all"]["peak_above_mb"]
            if run is recorded:
                row["speed_up_over_recorded"] = rows[f"{way}all"]["ttft_ms"] / row["ttft_ms"]
            rows[f"{way}{keep}"] = row
    told = {
        "model": wanted.shape or "mini",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "frames": wanted.frames,
        "side": wanted.side,
        "tokens": t * grid[0] * grid[1],
        "glance": {"moments": t, "cells": list(look.clip_grid(grid, t))},
        "rows": rows,
    }
    write_whole(wanted.out, json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
