"""What a selector learns from questions alone: scenes without boxes and answers, the model's attention as teacher.

    python -m studies.selector.alone --model runs/stock --seconds 600 --out runs/alone
    python -m studies.selector.alone --model runs/stock --config studies/selector/alone-cpu.json --seconds 1500 \
        --device cpu --out runs/alone
    python -m studies.selector.alone --steps 3 --questions 12 --out runs/alone-smoke --report out/alone.json

docs/training-mini.md says how runs/stock, the folder of mini-stock, is made; the second command is for one core without
a GPU. Given again, with its time used up, it only measures. The report compares, on scenes that it never saw, the
recall of the evidence of localised questions: the trained choice; looking twice; information x perspectival, which
knows no question (looking twice where nothing is asked); and chance.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from arr_coc.data.examples import Example
from arr_coc.evaluation.field.data import SPREAD, Picture, ids_of, scene_pictures
from arr_coc.evaluation.field.evidence import EvidenceBench, described, row_of, with_truth
from arr_coc.evaluation.field.main import FieldOptions
from arr_coc.evaluation.field.methods import REFERENCE, Method
from arr_coc.evaluation.field.run import Samples
from arr_coc.evaluation.statistics import Clustered, difference_of
from arr_coc.files import write_json
from arr_coc.training.config import read_selector_config
from arr_coc.training.data import draw_examples
from arr_coc.training.main import Places, train_selector

KEEPS = (0.06, 0.1, 0.25)
BLIND = "look_twice"  # asked nothing, it is information x perspectival
SIDE = 512


def draw_questions(seed: int, size: tuple[int, int], hard: bool, families: tuple[str, ...] | None) -> list[Example]:
    """The questions of a scene, and nothing else of it."""
    return [replace(one, answer="", boxes=None) for one in draw_examples(seed, size, hard, families)]


def localised(questions: int, asked: bool) -> list[Picture]:
    """Scenes with the questions whose evidence is in one place; not `asked`: with no words."""

    def some(picture: Picture) -> Picture:
        queries = (query for query in picture.queries if query.family not in SPREAD)
        return replace(picture, queries=tuple(query if asked else replace(query, text="") for query in queries))

    return with_truth([one for one in map(some, scene_pictures(questions, SIDE, seed=7)) if one.queries])


def measure(adapter: Path, questions: int, device: str | None) -> dict[str, Any]:
    """Rows of every choice, and by how much the trained one beats the one that knows no question."""
    options = FieldOptions(model=str(adapter), selectors=(REFERENCE, BLIND), device=device, bar=False)
    bench, rows, recalls = EvidenceBench(options), [], {}
    for asked in (True, False):
        pictures, name = localised(questions, asked), "asked" if asked else "blind"
        specs = list(bench.selectors) if asked else [BLIND, "random:seed=0"]
        methods = [Method(spec, "evidence", keep) for keep in KEEPS for spec in specs]
        samples = Samples(adapter / f"evidence-{name}.jsonl", bench.about(name, SIDE), bench.stamps)
        bench.fill(pictures, methods, samples, bar=False)
        ids = [one for one, _, _ in ids_of(pictures)]
        records = {method: [samples.records[method.key][one] for one in ids] for method in methods}
        rows += [row_of(method, records, {"dataset": name}) for method in methods]
        for method in methods:
            found = ((record["image"], record["recall"]) for record in records[method])
            recalls[name, method.selector, method.keep] = Clustered.of(found)
    gains = {
        str(keep): difference_of(recalls["asked", REFERENCE, keep], recalls["blind", BLIND, keep]) for keep in KEEPS
    }
    return {"rows": rows, "over_information_x_perspectival": gains}


def trained(out: Path) -> dict[str, Any]:
    """What the training of a folder was: settings that matter here, and how far it came."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    config = next(line["config"] for line in lines if "config" in line)
    steps = max(line["step"] for line in lines if "step" in line)
    told = {name: config[name] for name in ("target", "seconds", "seed", "cells_per_batch")}
    on_gpu, threads = torch.cuda.is_available(), torch.get_num_threads()
    machine = torch.cuda.get_device_name() if on_gpu else f"a CPU, threads: {threads}"
    command = " ".join(Path(word).name if "/" in word else word for word in sys.argv[1:])
    return {"command": f"python -m studies.selector.alone {command}", **told, "steps": steps, "machine": machine}


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Train a selector on questions alone, and measure it.")
    parser.add_argument("--model", default="mini", help="mini, or a folder such as mini-stock's")
    parser.add_argument("--config", type=Path, default=Path("configs/selector-mini-1.json"))
    parser.add_argument("--seconds", type=float, help="of training, start-up included")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--questions", type=int, default=1200, help="of the scenes that it is measured with")
    parser.add_argument("--device", help="cpu leaves a GPU alone")
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapter and its metrics")
    parser.add_argument("--report", type=Path, default=Path("results/questions-alone.json"))
    a = parser.parse_args()
    given: dict[str, Any] = {
        "model": a.model,
        "seconds": a.seconds,
        "steps": a.steps,
        "seed": a.seed,
        "target": "attention",
    }
    given["void_share"] = 0.0  # on images without structure attention teaches nothing
    config = read_selector_config(a.config, **given)
    train_selector(config, Places(a.out), lambda line: print(line, flush=True), a.device, draw_questions)
    found = measure(a.out, a.questions, a.device)
    for row in found["rows"]:
        print(row["dataset"], described(row))
    for keep, gain in found["over_information_x_perspectival"].items():
        print(f"over information x perspectival at {float(keep):.0%}: {100 * gain['mean']:+.1f} points {gain['ci95']}")
    write_json(a.report, {"model": Path(a.model).name, **trained(a.out), **found}, indent=1)


if __name__ == "__main__":
    main()
