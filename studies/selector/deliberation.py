"""What it costs that cells listen to each other, by their number, and what is lost where they listen to areas.

python -m studies.selector.deliberation --out results/deliberation.json

Up to `knowing.HEARD` cells nothing differs. So mini's adapter chooses and mini answers in drawn scenes of 512 px, 256
cells, once listening to every cell and once to 64 areas of four cells, the areas of an image of 2048 px; `--side 2048`
takes those themselves, and far longer. Time is CPU time, which a busy machine can tell too.
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

KEEP = 0.1  # fraction KEPT
CELL, AREA = 32, 4  # px; cells of an area
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


def answers(questions: int, side: int) -> Iterator[dict[str, Any]]:
    """Exact answers, and how much of the kept cells is the same, over square scenes: after each, of all so far."""
    model = ARRCOCQwen.from_pretrained("mini", encoding="sparse")
    assert model.processor is not None
    model.processor.image_processor.size["longest_edge"] = side**2
    areas = (side // CELL) ** 2 // AREA
    right: dict[str, list[tuple[int, float]]] = {"every cell": [], "areas": []}
    shared = []
    for number, asked in enumerate(ask_about("val", questions, (side, side), seed=777)):
        for question in asked.questions:
            kept = []
            for way, most in (("every cell", EVERY), ("areas", areas)):
                with listening_to(most):
                    answer = model.ask(asked.image, question.text, keep=KEEP)
                right[way].append((number, exact(answer.text, [question.answer])))
                kept.append(set(answer.selection[0].kept.tolist()))
            shared.append((number, len(kept[0] & kept[1]) / len(kept[0])))
        samples = {way: Clustered.of(rows) for way, rows in right.items()}
        yield {
            "side": side,
            "areas": areas,
            "keep": KEEP,
            "accuracy": {way: mean_of(one) for way, one in samples.items()},
            "difference": difference_of(samples["areas"], samples["every cell"]),
            "cells_shared": mean_of(Clustered.of(shared)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--side", type=int, default=512, help="px of the scenes")
    a = parser.parse_args()
    cost: dict[str, dict[str, float]] = {}
    for way, most in (("areas", knowing.HEARD), ("every cell", EVERY)):
        with listening_to(most):
            cost[way] = {str(side**2): cost_per_cell(side) for side in SIDES}
        print(way, cost[way], flush=True)
    found = {"command": "python -m studies.selector.deliberation --out results/deliberation.json"}
    for told in answers(a.questions, a.side):
        print(told["accuracy"], told["difference"], told["cells_shared"], flush=True)
        a.out.write_text(json.dumps({**found, "microseconds_a_cell": cost, **told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
