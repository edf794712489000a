"""Four known effects of the field, looked for in small: results/effects.json.

    python -m studies.effects positions MODEL --out FILE                                      on any machine
    python -m studies.effects sum --mini FILE DIR ... --mini-stock FILE DIR ... --out results/effects.json

`positions` asks what compact positions do. A DIR holds files of samples as `arr-coc eval` leaves them, 512 px, of mini
and of mini-stock, the control that never saw a cell missing: where attention prefers late positions, what simple
choices are worth beside designed ones, and what a missing cell does to counting is read from them.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.evaluation.field.batch import make_batch
from arr_coc.evaluation.field.data import Picture, batches, scene_pictures, score
from arr_coc.evaluation.field.engines import PlainEngine
from arr_coc.evaluation.field.methods import Method, build
from arr_coc.files import read_json_object, write_json
from arr_coc.qwen.model import ARRCOCQwen
from studies.look_twice.summary import Records, read

SIDE, QUARTERS = 512, 4
ALL = "plain dense 1.0"
LATE = "0.25"  # the share KEPT at which places are told
KEPT = (0.25, 0.1)  # shares KEPT with compact positions
CELLS_AT_ONCE = 12_288
COUNTING = "count"
MODELS = ("mini", "mini-stock")


def quarters(records: Records) -> list[float]:
    """Share of the kept cells in each quarter of the image, from its top, where a prompt begins, to its bottom."""
    found = np.zeros(QUARTERS)
    for record in records.values():
        rows, columns = record["grid"]
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(record["cells"]), np.uint8))[: rows * columns]
        found += bits.reshape(QUARTERS, -1).mean(1)
    return [round(float(share), 4) for share in found / found.sum()]


def places(methods: dict[str, Records]) -> dict[str, list[float]]:
    """Quarters of every method that keeps a quarter of the cells, encoded after the ViT."""
    chosen = {name: records for name, records in methods.items() if name.endswith(f" dense {LATE}")}
    return {name.split(" ")[0]: quarters(records) for name, records in sorted(chosen.items())}


def accuracy(records: Records, family: str | None = None) -> float:
    scores = [one["score"] for one in records.values() if family in (None, one["family"])]
    return round(sum(scores) / len(scores), 4)


def simple_and_designed(methods: dict[str, Records]) -> dict[str, dict[str, list[float]]]:
    """[accuracy, that of counting] by method and share KEPT, dense; the seeds of random as one."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for method, records in methods.items():
        selector, encoding, keep = method.rsplit(" ", 2)
        if encoding == "dense":
            pair = accuracy(records), accuracy(records, COUNTING)
            found.setdefault(selector.partition(":")[0], {}).setdefault(keep, []).append(pair)
    return {
        name: {keep: np.mean(pairs, axis=0).round(4).tolist() for keep, pairs in sorted(keeps.items(), reverse=True)}
        for name, keeps in sorted(found.items())
    }


def counting(methods: dict[str, Records]) -> dict[str, dict[str, float]]:
    """Accuracy of counting and of the rest with all tokens, and where a quarter is kept, after and before the ViT."""
    named = {"all": ALL, "dense": f"look_twice dense {LATE}", "sparse": f"look_twice sparse {LATE}"}
    found = {}
    for name, method in named.items():
        records = methods[method]
        rest = {question: one for question, one in records.items() if one["family"] != COUNTING}
        found[name] = {COUNTING: accuracy(records, COUNTING), "rest": accuracy(rest)}
    return found


@torch.no_grad()
def positions(model: str, pictures: Sequence[Picture]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """policy -> share KEPT -> family -> [accuracy, questions]; the same cells are kept under every policy."""
    owner = ARRCOCQwen.from_pretrained(model, selector="look_twice", fast=False, dtype="float32")
    settings = owner.arr_coc_config
    parts = [make_batch(owner, part) for part in batches(pictures, CELLS_AT_ONCE, owner.geometry.cell)]
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for policy in ("original", "compact"):
        owner.arr_coc_config = replace(settings, encoding="dense", position_policy=policy)
        engine = PlainEngine(owner, build(owner, ["look_twice"]), 96)
        for keep in KEPT:
            scores: dict[str, list[float]] = {}
            for batch in parts:
                made = engine.run(batch, Method("look_twice", "dense", keep))
                for query, given in zip(batch.queries, made.answers, strict=True):
                    right = score(query.metric, given, query.answers) or 0.0
                    for family in (query.family, "all"):
                        scores.setdefault(family, []).append(right)
            told = {family: [round(sum(v) / len(v), 4), len(v)] for family, v in sorted(scores.items())}
            found.setdefault(policy, {})[str(keep)] = told
    return found


def summed(measured: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """All four effects on one model."""
    methods = read(folders)[SIDE]
    return {
        "questions": len(methods[ALL]),
        "places": places(methods),
        "accuracy": simple_and_designed(methods),
        "counting": counting(methods),
        "positions": read_json_object(measured),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)
    asking = kinds.add_parser("positions")
    asking.add_argument("model")
    asking.add_argument("--questions", type=int, default=1000)
    asking.add_argument("--seed", type=int, default=777)
    summing = kinds.add_parser("sum")
    for name in MODELS:
        summing.add_argument(f"--{name}", dest=name, type=Path, nargs="+", required=True, metavar="PATH")
    for one in (asking, summing):
        one.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.what == "positions":
        write_json(options.out, positions(options.model, scene_pictures(options.questions, SIDE, options.seed)))
        return
    given = {name: getattr(options, name) for name in MODELS}
    write_json(options.out, {name: summed(measured, folders) for name, (measured, *folders) in given.items()})


if __name__ == "__main__":
    main()
