"""How well a model reads the wide world: each split by name, the old world beside it, and what can be guessed.

    python -m studies.wide.evaluate --model runs/wide/model --questions 500 --out results.json

Splits that take long come last, and the file is written after each: a run that is cut short loses one split.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.evaluation.field.data import PER_IMAGE
from studies.answering import Answerer, Row
from studies.asked import Asked, ask_about
from studies.mini.evaluation import (
    blind_rows,
    dense_rows,
    load_answerer,
    outcomes,
    shuffled_rows,
    sparse_rows,
)
from studies.outcomes import by_group, summary
from studies.wide.held_out import AXES
from studies.wide.making import make_wide

FIRST_SEED = 9_000_000  # of the tests; training counts its own seeds, in a split of its own
Test = tuple[str, list[Asked], Callable[[Sequence[Asked]], list[Row]]]


def ask_wide(split: str, questions: int, size: tuple[int, int]) -> list[Asked]:
    """Wide scenes of `split` with `questions` questions in all; at most PER_IMAGE of a scene, drawn at random."""
    asked: list[Asked] = []
    left, number = questions, 0
    while left > 0:
        wide = make_wide(FIRST_SEED + number, split, size)
        order = np.random.default_rng([1, number]).permutation(len(wide.scene.questions))
        chosen = tuple(wide.scene.questions[i] for i in order[: min(PER_IMAGE, left)].tolist())
        asked.append(Asked(wide.scene, wide.pixels, chosen))
        left, number = left - len(chosen), number + 1
    return asked


def tests(questions: int, side: int) -> Iterator[Test]:
    """(name, scenes and questions, how they are shown), drawn when their turn comes."""
    seen = ask_wide("seen", questions, (side, side))
    yield "seen", seen, dense_rows
    for axis in AXES:
        yield axis, ask_wide(axis, questions, (side, side)), dense_rows
    yield "old_seen", ask_about("seen", questions, (side, side)), dense_rows
    yield "old_unseen", ask_about("unseen", questions, (side, side)), dense_rows
    yield "sparse25", seen, sparse_rows
    yield "blank", seen, blind_rows
    yield "another_image", seen, shuffled_rows
    yield "double_size", ask_wide("seen", max(1, questions // 4), (2 * side, 2 * side)), dense_rows


def evaluate(
    answerer: Answerer, questions: int, out: Path | None, seconds: float = 1e9, side: int = 512
) -> dict[str, Any]:
    """Accuracy with 95 % intervals, per split and family; no new split is begun after `seconds`."""
    started, report = time.monotonic(), dict[str, Any]()
    for name, asked, make_rows in tests(questions, side):
        found = outcomes(answerer, asked, make_rows)
        report[name] = summary(found) | {"families": by_group(found, "family")}
        layouts = sorted({a.scene.layout for a in asked})
        if name == "layouts":
            report[name]["layouts"] = {
                layout: summary([o for o in found if asked[o.image].scene.layout == layout]) for layout in layouts
            }
        print(f"{name:14s} {summary(found)}", flush=True)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(report, indent=1) + "\n")
        if time.monotonic() - started > seconds:
            break
    return report


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Evaluate a model on the wide world.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=500, help="questions per split (double size: a quarter)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further split after this time")
    parser.add_argument("--side", type=int, default=512, help="px of the images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    if a.questions < 1:
        parser.error(f"--questions {a.questions}: ask at least one")
    dtype = torch.bfloat16 if torch.device(a.device).type == "cuda" else torch.float32
    evaluate(load_answerer(a.model, a.device, dtype), a.questions, a.out, a.seconds, a.side)


if __name__ == "__main__":
    main()
