"""How well a model reads the wide world: each split by name, the old world beside it, and what can be guessed.

    python -m studies.wide.evaluate --model arr_coc/models/mini --questions 4000 --out results/mini.json

Splits that take long come last, and the file is written after each: a run that is cut short loses one split. Splits
that are in the file already and are not asked again stay.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.evaluation.field.data import PER_IMAGE
from arr_coc.files import read_json_object, write_json
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
from studies.outcomes import Outcome, by_group, summary
from studies.wide.evaluate_views import view_outcomes, view_tests
from studies.wide.held_out import AXES
from studies.wide.making import make_wide

FIRST_SEED = 9_000_000  # of the tests; training counts its own seeds, in a split of its own
Test = tuple[str, Callable[[Answerer], list[Outcome]], dict[str, list[str]]]


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
    """(name, how it is answered, names to group its images by), drawn when their turn comes."""
    seen = ask_wide("seen", questions, (side, side))
    larger = ask_wide("seen", max(1, questions // 4), (2 * side, 2 * side))
    yield _of_images("seen", seen, dense_rows)
    for name, rows in view_tests(questions, seen, larger):
        groups = {"axes": [row.group for row in rows]} if name.endswith("held_out") else {}
        yield name, partial(view_outcomes, rows=rows), groups
    for axis in AXES:
        yield _of_images(axis, ask_wide(axis, questions, (side, side)), dense_rows)
    yield _of_images("old_seen", ask_about("seen", questions, (side, side)), dense_rows)
    yield _of_images("old_unseen", ask_about("unseen", questions, (side, side)), dense_rows)
    yield _of_images("sparse25", seen, sparse_rows)
    yield _of_images("sparse6", seen, partial(sparse_rows, share=0.06))
    yield _of_images("blank", seen, blind_rows)
    yield _of_images("another_image", seen, shuffled_rows)
    yield _of_images("double_size", larger, dense_rows)
    largest = ask_wide("seen", max(1, questions // 8), (4 * side, 4 * side))
    yield _of_images("fourfold_size", largest, dense_rows)


def _of_images(name: str, asked: list[Asked], make_rows: Callable[[Sequence[Asked]], list[Row]]) -> Test:
    groups = {"layouts": [a.scene.layout for a in asked]} if name == "layouts" else {}
    return name, partial(outcomes, asked=asked, make_rows=make_rows), groups


def evaluate(
    answerer: Answerer,
    questions: int,
    out: Path | None,
    seconds: float = 1e9,
    side: int = 512,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Accuracy with 95 % intervals, per split and family; no new split is begun after `seconds`. `only`: (): all."""
    started, report = time.monotonic(), read_json_object(out) if out else {}
    for name, answered, groups in tests(questions, side):
        if only and name not in only:
            continue
        found = answered(answerer)
        report[name] = summary(found) | {"families": by_group(found, "family")}
        for kind, names in groups.items():
            each = {group: [o for o in found if names[o.image] == group] for group in sorted(set(names))}
            report[name][kind] = {group: summary(several) for group, several in each.items()}
        print(f"{name:17s} {summary(found)}", flush=True)
        if out is not None:
            write_json(out, report)
        if time.monotonic() - started > seconds:
            break
    return report


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Evaluate a model on the wide world.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=500, help="per split (1024 px: a quarter, 2048 px: an eighth)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further split after this time")
    parser.add_argument("--only", nargs="+", default=(), help="names of splits")
    parser.add_argument("--side", type=int, default=512, help="px of the images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    if a.questions < 1:
        parser.error(f"--questions {a.questions}: ask at least one")
    dtype = torch.bfloat16 if torch.device(a.device).type == "cuda" else torch.float32
    evaluate(load_answerer(a.model, a.device, dtype), a.questions, a.out, a.seconds, a.side, a.only)


if __name__ == "__main__":
    main()
