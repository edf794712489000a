"""What it costs that cells listen to each other, by their number, and what is lost where they listen to areas.

python -m studies.selector.deliberation --out results/deliberation.json

Up to `knowing.HEARD` cells nothing differs. Above it, mini's adapter chooses and mini answers in drawn scenes of 2048
px (4,096 cells), once listening to every cell and once to areas. Time is CPU time, which a busy machine can tell too.
"""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from arr_coc import knowing
from arr_coc.evaluation.field.data import exact
from arr_coc.evaluation.statistics import Clustered, difference_of, mean_of
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.records import QuestionTokens
from studies.asked import ask_about

SIDE, KEEP = 2048, 0.05  # px; fraction KEPT
SIDES = (32, 64, 128)  # cells on a side of which the cost is measured
EVERY = 1 << 30


@contextmanager
def listening_to(most: int) -> Iterator[None]:
    """At most so many places are heard."""
    before = knowing.HEARD
    knowing.HEARD = most
    try:
        yield
    finally:
        knowing.HEARD = before


@torch.no_grad()
def cost_per_cell(side: int) -> float:
    """Microseconds of CPU a cell of one round of deliberation, the less of two runs."""
    torch.manual_seed(0)
    one_round = knowing.Deliberation().eval()
    cells, tokens = torch.randn(1, side * side, knowing.SHARED), torch.randn(1, 12, knowing.SHARED)
    question = QuestionTokens.of(tokens)
    times = []
    for _ in range(2):
        begun = time.process_time()
        one_round(cells, tokens, question.mask_BL, (side, side))
        times.append(time.process_time() - begun)
    return round(1e6 * min(times) / side**2, 2)


def answers(questions: int) -> dict[str, Any]:
    """Exact answers, and how much of the kept cells is the same, over scenes of 2048 px."""
    model = ARRCOCQwen.from_pretrained("mini", encoding="sparse")
    assert model.processor is not None
    model.processor.image_processor.size["longest_edge"] = SIDE**2
    right: dict[str, list[tuple[int, float]]] = {"every cell": [], "areas": []}
    shared = []
    for number, asked in enumerate(ask_about("val", questions, (SIDE, SIDE), seed=777)):
        for question in asked.questions:
            kept = []
            for way, most in (("every cell", EVERY), ("areas", knowing.HEARD)):
                with listening_to(most):
                    answer = model.ask(asked.image, question.text, keep=KEEP)
                right[way].append((number, exact(answer.text, [question.answer])))
                kept.append(set(answer.selection[0].kept.tolist()))
            shared.append((number, len(kept[0] & kept[1]) / len(kept[0])))
        told = {way: round(sum(value for _, value in rows) / len(rows), 4) for way, rows in right.items()}
        print(number, len(shared), told, flush=True)
    samples = {way: Clustered.of(rows) for way, rows in right.items()}
    return {
        "side": SIDE,
        "keep": KEEP,
        "accuracy": {way: mean_of(one) for way, one in samples.items()},
        "difference": difference_of(samples["areas"], samples["every cell"]),
        "cells_shared": mean_of(Clustered.of(shared)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=200)
    a = parser.parse_args()
    cost: dict[str, dict[str, float]] = {}
    for way, most in (("areas", knowing.HEARD), ("every cell", EVERY)):
        with listening_to(most):
            cost[way] = {str(side**2): cost_per_cell(side) for side in SIDES}
        print(way, cost[way], flush=True)
    found = {"command": "python -m studies.selector.deliberation --out results/deliberation.json"}
    a.out.write_text(json.dumps({**found, "microseconds_a_cell": cost, **answers(a.questions)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
