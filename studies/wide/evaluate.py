"""How well a model reads the wide world: each split by name, the old world beside it, and what can be guessed.

    python -m studies.wide.evaluate --model arr_coc/models/mini --questions 4000 --out results/mini.json

Splits that take long come last, and the file is written after each: a run that is cut short loses one split. Splits
that are in the file already and are not asked again stay.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
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
from studies.wide.evaluate_views import ViewRow, view_outcomes, view_tests
from studies.wide.held_out import AXES
from studies.wide.making import make_wide

FIRST_SEED = 9_000_000  # of the tests; training counts its own seeds, in a split of its own
Answered = tuple[list[Outcome], dict[str, list[str]]]  # outcomes, names to group their images by
Test = tuple[str, Callable[[Answerer], Answered]]


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
    """(name, how it is answered): scenes are drawn when they are first asked about."""
    seen, larger = (
        cache(partial(ask_wide, "seen", number, (size, size)))
        for number, size in ((questions, side), (max(1, questions // 4), 2 * side))
    )
    yield "seen", partial(_of_images, seen, dense_rows)
    for name, draw in view_tests(questions, seen, larger):
        yield name, partial(_of_views, draw, name.endswith("held_out"))
    for axis in AXES:
        yield axis, partial(_of_images, partial(ask_wide, axis, questions, (side, side)), dense_rows)
    for split in ("seen", "unseen"):
        yield f"old_{split}", partial(_of_images, partial(ask_about, split, questions, (side, side)), dense_rows)
    yield "sparse25", partial(_of_images, seen, sparse_rows)
    yield "sparse6", partial(_of_images, seen, partial(sparse_rows, share=0.06))
    yield "blank", partial(_of_images, seen, blind_rows)
    yield "another_image", partial(_of_images, seen, shuffled_rows)
    yield "double_size", partial(_of_images, larger, dense_rows)
    largest = partial(ask_wide, "seen", max(1, questions // 8), (4 * side, 4 * side))
    yield "fourfold_size", partial(_of_images, largest, dense_rows)


def _of_images(
    draw: Callable[[], list[Asked]], make_rows: Callable[[Sequence[Asked]], list[Row]], answerer: Answerer
) -> Answered:
    """Outcomes; where layouts are held out, the name of the layout of each image beside them."""
    asked = draw()
    layouts = [a.scene.layout for a in asked] if asked[0].scene.split == "layouts" else []
    return outcomes(answerer, asked, make_rows), {"layouts": layouts} if layouts else {}


def _of_views(draw: Callable[[], list[ViewRow]], by_axis: bool, answerer: Answerer) -> Answered:
    rows = draw()
    return view_outcomes(answerer, rows), {"axes": [row.group for row in rows]} if by_axis else {}


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
    for name, answered in tests(questions, side):
        if only and name not in only:
            continue
        found, groups = answered(answerer)
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
