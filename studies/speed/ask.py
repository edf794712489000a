"""The whole of `ask`, from the image to the answer: all tokens against a part of them, and many asks in a row.

python -m studies.speed.ask --side 1024 --keep 0.25 --device cpu --out results/speed-cpu.json
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from arr_coc.config import Keep
from arr_coc.evaluation.bench.cases import Subject
from arr_coc.evaluation.bench.main import about, read_rows
from arr_coc.evaluation.bench.measure import MEGABYTE, PARTS, resident, summarize, synchronize, watch_peak
from arr_coc.evaluation.bench.report import Row, document, speed_ups, table
from arr_coc.files import write_json
from arr_coc.qwen.answers import Answer
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc_scenes import draw_scene, make_scene


def picture_and_question(side: int, seed: int = 0) -> tuple[Image.Image, str]:
    """A drawn scene of that size with its first question."""
    for number in range(seed, seed + 100):
        scene = make_scene(number, "seen", (side, side))
        if scene.questions:
            return Image.fromarray(draw_scene(scene)), scene.questions[0].text
    raise ValueError(f"no scene of {side} px with a question: give another size")


def parts_of(answer: Answer, wall_ms: float) -> dict[str, float]:
    """An answer's times under the names of the bench."""
    times = answer.timings_ms
    select = sum(value for name, value in times.items() if name not in (*PARTS, "generate"))
    return {
        "select": times.get("select", select),
        "vision": times["vision"],
        "prefill": times["prefill"],
        "wall": wall_ms,
    }


def ask_rows(
    owner: ARRCOCQwen, name: str, side: int, keeps: Sequence[Keep], repeats: int, most_tokens: int = 16
) -> list[Row]:
    """One row per dial. The dials take turns, so that what slows the machine down slows all of them down."""
    picture, question = picture_and_question(side)

    def once(keep: Keep) -> tuple[Answer, float]:
        synchronize(owner.device)
        start = time.perf_counter()
        answer = owner.ask(picture, question, keep=keep, max_new_tokens=most_tokens)
        synchronize(owner.device)
        return answer, 1e3 * (time.perf_counter() - start)

    peaks, answers = {}, {}
    for keep in keeps:  # the warm-up
        with watch_peak(owner.device) as peak:
            answers[keep] = once(keep)[0]
        peaks[keep] = peak
    taken: dict[Keep, list[tuple[Answer, float]]] = {keep: [] for keep in keeps}
    for _ in range(repeats):
        for keep in keeps:
            taken[keep].append(once(keep))
    rows = []
    for keep in keeps:
        whole = answers[keep].tokens_kept == answers[keep].tokens_total
        about_it = {"model": name, "side": side, "batch": 1, "tokens": answers[keep].tokens_total, "mode": "ask"}
        about_it |= {"kept": answers[keep].tokens_kept, "text_tokens": None, "decode_ms": None}
        about_it |= {
            "encoding": "dense" if whole else owner.encoding,
            "sight": None if whole else owner.arr_coc_config.sight,
        }
        times = summarize([parts_of(answer, wall) for answer, wall in taken[keep]])
        asked = statistics.median(wall for _, wall in taken[keep])
        rows.append({**about_it, **times, "ask_ms": asked, **peaks[keep]})
    return rows


def memory_mb(device: torch.device) -> float:
    """What is held now: by tensors on CUDA, by the process elsewhere."""
    gc.collect()
    return torch.cuda.memory_allocated(device) / MEGABYTE if device.type == "cuda" else resident("VmRSS")


def soak(owner: ARRCOCQwen, asks: int, keep: Keep, side: int = 512, settle: int = 50) -> Row:
    """Memory before and after `asks` asks of changing questions about pictures, once `settle` of them have been had."""
    pictures = [picture_and_question(side, seed) for seed in range(0, 40, 4)]
    before = 0.0
    for number in range(settle + asks):
        if number == settle:
            before = memory_mb(owner.device)
        owner.ask(*pictures[number % len(pictures)], keep=keep, max_new_tokens=8)
    after = memory_mb(owner.device)
    return {"asks": asks, "before_mb": before, "after_mb": after, "growth": after / before - 1 if before else None}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.speed.ask", description=__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--keep", type=float, default=0.25, help="share KEPT")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--soak", type=int, default=0, help="asks in a row whose memory is watched")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    owner = ARRCOCQwen.from_pretrained(options.model, device=options.device, break_even=0)
    rows = [row for row in read_rows(options.out) if row["mode"] != "ask"]
    rows += ask_rows(owner, options.model, options.side, [1.0, options.keep], options.repeats)
    made: dict[str, Any] = document(rows, about(Subject(options.model, owner.model)))
    made["ask_speed_up"] = next(one["over_dense_ask"] for one in speed_ups(rows) if one["mode"] == "ask")
    if options.soak:
        made["soak"] = soak(owner, options.soak, options.keep)
    write_json(options.out, made)
    print(table(rows), file=sys.stderr)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
