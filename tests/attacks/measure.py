"""Measures what docs/reliability.md tells: `python tests/attacks/measure.py PART... [--out results/reliability.json]`.

    images    600 hostile files: taken or refused, bytes a pixel, CPU seconds
    queue     a good question beside four of the worst images
    folders   240 hostile folders: exit codes, seconds, code that ran, weights that are not finite
    threads   8 threads, 2,000 questions over 60 sizes, against the same alone; memory of the last half
    rows      the tests that hold each row of the contract, and how many cases they tried (--only T12,T15: some rows)

Each part replaces what the file holds of it. `--questions N` is for a shorter run of threads.
"""

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

import test_hostile_folders
import test_hostile_images
import tiny
import torch
from attacks import folders
from attacks import images as attacks
from attacks.contract import ROWS, measure_row
from test_limits import ask_in_threads
from test_memory import resident_bytes

from arr_coc.images.reader import read_image
from arr_coc.qwen import looking

ROOT = Path(__file__).parents[2]
FORMATS = {"png": "PNG", "jpg": "JPEG", "jpeg": "JPEG", "webp": "WebP"}


def measure_images() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        found = [
            both
            for first in range(0, attacks.SEEDS, 10)
            for both in test_hostile_images.judge(Path(place), range(first, first + 10))
        ]
    held, costs, seconds = 0, {}, [one["seconds"] for _, one in found]
    for file, one in found:
        try:
            test_hostile_images.check_verdict(file, one)
            held += one["seconds"] <= 2.1
        except AssertionError as error:
            print(error, file=sys.stderr)
        if "pixels" in one and one["pixels"] >= 1_000_000:
            costs.setdefault(FORMATS[file.name.rpartition(".")[2]], []).append(one["bytes"] / one["pixels"])
    spare = [one["bytes"] - 8 * one["pixels"] for _, one in found if "pixels" in one]
    return {
        "tried": len(found),
        "held": held,
        "kinds": len(attacks.KINDS),
        "taken": sum("pixels" in one for _, one in found),
        "most_cpu_seconds": round(max(seconds), 2),
        "most_bytes_a_pixel": {name: round(max(several), 2) for name, several in sorted(costs.items())},
        "most_over_8_a_pixel_mb": round(max(spare) / 2**20, 1),
        "bad": [file.name for file, one in found if one["seconds"] > 2.1],
    }


def measure_queue() -> dict[str, Any]:
    """Four of the worst, and a good question that comes after them; the longest of three tries."""
    ours, good = tiny.wrapped(tiny.stock(), keep=0.5), attacks.saved(tiny.picture(640, 480), "png")
    worst = [attacks.make("large", 18).data, attacks.make("scans", 1).data] * 2

    def ask() -> tuple[str, float]:
        started = time.perf_counter()
        answer = ours.ask(read_image(good, boxed=True), "what is this?", max_new_tokens=8)
        return answer.text, time.perf_counter() - started

    def read(data: bytes) -> None:
        with contextlib.suppress(ValueError):
            read_image(data, boxed=True)

    ask()
    text, alone = ask()
    beside = []
    for _ in range(3):
        threads = [threading.Thread(target=read, args=(data,)) for data in worst]
        for thread in threads:
            thread.start()
        time.sleep(0.2)  # they were there first
        same, seconds = ask()
        assert same == text
        beside.append(seconds)
        for thread in threads:
            thread.join()
    return {"alone_seconds": round(alone, 2), "beside_four_of_the_worst_seconds": round(max(beside), 2)}


def measure_folders() -> dict[str, Any]:
    found = test_hostile_folders.judged(range(folders.COUNT))
    held, seconds = 0, [one["seconds"] for one in found]
    for one in found:
        try:
            test_hostile_folders.check(one)
            held += one["seconds"] <= 2
        except AssertionError as error:
            print(error, file=sys.stderr)
    return {
        "tried": len(found),
        "held": held,
        "by_name": len(folders.ATTACKS),
        "loaded": sum(one["code"] == 0 for one in found),
        "code_ran": sum(one["ran"] for one in found),
        "not_finite": sum(not one["finite"] for one in found),
        "median_seconds": round(statistics.median(seconds), 2),
        "most_seconds": round(max(seconds), 2),
        "most_cpu_seconds": round(max(one["cpu"] for one in found), 2),
        "slowest": max(found, key=lambda one: one["seconds"])["name"],
    }


def measure_threads(questions: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    ours = tiny.wrapped(tiny.stock(), keep=0.5, selector="look_twice")
    before, started, held = sum(looking.fallbacks.values()), time.perf_counter(), []
    together = []
    for half in range(2):
        together += ask_in_threads(ours, 8, questions // 2, 60, first=half * (questions // 2))
        gc.collect()
        ours.memory.clear()  # what is remembered of images is meant to stay, up to its limit
        held.append(resident_bytes())
    seconds = time.perf_counter() - started
    alone = ask_in_threads(ours, 1, questions, 60)
    return {
        "threads": 8,
        "sizes": 60,
        "tried": questions,
        "held": sum(one == other for one, other in zip(together, alone, strict=True)),
        "fallbacks": sum(looking.fallbacks.values()) - before,
        "memory_growth_of_last_half": round(held[1] / held[0] - 1, 4),
        "seconds": round(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=["images", "queue", "folders", "threads", "rows"])
    parser.add_argument("--questions", type=int, default=2_000)
    parser.add_argument("--only", default="", help=f"of {', '.join(ROWS)}, with commas between")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reliability.json")
    asked = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows = [partial(measure_row, name) for name in (asked.only.split(",") if asked.only else ROWS)]
    measures: dict[str, list[Callable[[], dict[str, Any]]]] = {
        **{"images": [measure_images], "queue": [measure_queue], "folders": [measure_folders]},
        **{"threads": [lambda: measure_threads(asked.questions)], "rows": rows},
    }
    for part in asked.parts:
        for measure in measures[part]:  # a row after the other: what was measured is written
            made = measure()
            results = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
            results[part] = {**(results.get(part, {}) if part == "rows" else {}), **made}
            asked.out.write_text(json.dumps(results, indent=1) + "\n")
            print(part, json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
