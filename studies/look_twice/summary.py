"""Sum up answers of looking twice beside those of the field: results/look-twice.json.

    arr-coc eval --selector look_twice --selector fastv ... --out DIR/field.json     answers, on any machine
    python -m studies.look_twice.summary --field DIR [DIR ...] [--control DIR ...] [--choice FILE] [--times FILE]

A DIR holds files of samples as `arr-coc eval` leaves them. Only questions that looking twice has answered count, at its
budgets; a method is compared with it question by question on those that both have answered, images as clusters.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.evaluation.statistics import Clustered, difference_of, flip_p, mean_of
from arr_coc.files import read_json_object, write_json

OURS, ALL = "look_twice", "plain dense 1.0"
COUNTING = "count"

Records = dict[str, dict[str, Any]]  # by question


def read(folders: Sequence[Path]) -> dict[int, dict[str, Records]]:
    """Answers by side in px and method; all must be about the same weights and seed."""
    found: dict[int, dict[str, Records]] = {}
    about: set[tuple[Any, ...]] = set()
    for path in sorted(path for folder in folders for path in folder.glob("*.jsonl")):
        header, *lines = path.read_text().splitlines()
        told = json.loads(header)["about"]
        about.add((told["weights"][:16], told["seed"], told["dataset"]))  # no method here reads the adapter, the rest
        for line in lines:
            record = json.loads(line)
            found.setdefault(told["side"], {}).setdefault(record["method"], {})[record["question"]] = record
    if len(about) > 1:
        raise ValueError(f"answers of different models or seeds: {sorted(about)}")
    return found


def clustered(records: Records, questions: Sequence[str], name: str = "score") -> Clustered:
    pairs = ((records[question]["image"], records[question][name]) for question in questions)
    return Clustered.of((image, value) for image, value in pairs if value is not None)


def row_of(method: str, records: Records, questions: Sequence[str]) -> dict[str, Any]:
    selector, encoding, keep = method.rsplit(" ", 2)
    families: dict[str, list[float]] = {}
    for question in questions:
        families.setdefault(records[question]["family"], []).append(records[question]["score"])
    return {
        "selector": selector,
        "encoding": encoding,
        "keep": keep,
        "accuracy": mean_of(clustered(records, questions)),
        "recall": mean_of(clustered(records, questions, "recall")),
        "families": {name: round(sum(values) / len(values), 4) for name, values in sorted(families.items())},
    }


def compared(ours: Records, theirs: Records, questions: Sequence[str]) -> dict[str, Any]:
    """What we are ahead, with its interval and p."""
    a, b = clustered(ours, questions), clustered(theirs, questions)
    p = flip_p((a.values - b.values).reshape(-1, 1), np.asarray(a.images))
    return {**difference_of(a, b), "p": round(float(p[0]), 5)}


def table(methods: dict[str, Records]) -> dict[str, Any]:
    """Rows of all methods, and how we compare with each at its budget, encoded after and before the ViT."""
    own = {method: records for method, records in methods.items() if method.startswith(OURS)}
    questions = sorted(set.intersection(*(set(records) for records in own.values())))
    keeps = {method.rsplit(" ", 1)[1] for method in (*own, ALL)}
    asked = {
        method: [question for question in questions if question in records]
        for method, records in methods.items()
        if method.rsplit(" ", 1)[1] in keeps
    }
    against = []
    for method, common in asked.items():
        keep = method.rsplit(" ", 1)[1]
        for encoding in ("dense", "sparse"):
            mine = f"{OURS} {encoding} {keep}"
            if method not in own and mine in own and common:
                against.append({"ours": mine, "theirs": method, **compared(own[mine], methods[method], common)})
    rows = [row_of(method, methods[method], common) for method, common in asked.items() if common]
    return {"questions": len(questions), "rows": rows, "against": against}


def without_counting(methods: dict[str, Records]) -> dict[str, float]:
    """Share of the accuracy with all tokens that each of our rows keeps on all families but counting."""
    own = {method: records for method, records in methods.items() if method.startswith(OURS)}
    questions = set.intersection(*(set(records) for records in own.values()), set(methods[ALL]))
    asked = [question for question in questions if methods[ALL][question]["family"] != COUNTING]
    full = clustered(methods[ALL], asked).mean
    return {method: round(clustered(records, asked).mean / full, 4) for method, records in own.items()}


def over_fastv(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ms to the first token of each sparse row, and how many times as long FastV takes at the same budget."""
    ms = {(one["side"], one["selector"], one["encoding"], one["keep"]): one["time_ms"]["first_token"] for one in rows}
    found = []
    for (side, selector, encoding, keep), own in ms.items():
        if (selector, encoding) == (OURS, "sparse"):
            theirs = ms[side, "fastv", "dense", keep]
            found.append({"side": side, "keep": keep, "ms": own, "fastv_ms": theirs, "times": round(theirs / own, 2)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--field", type=Path, nargs="+", required=True)
    parser.add_argument("--control", type=Path, nargs="*", default=())
    parser.add_argument("--choice", type=Path)
    parser.add_argument("--times", type=Path, help="report of one run of looking twice and FastV alone")
    parser.add_argument("--out", type=Path, default=Path("results/look-twice.json"))
    options = parser.parse_args()
    found: dict[str, Any] = {"field": {str(side): table(methods) for side, methods in read(options.field).items()}}
    if options.control:
        control = read(options.control)
        found["control"] = {str(side): table(methods) for side, methods in control.items()}
        found["control_without_counting"] = {str(side): without_counting(methods) for side, methods in control.items()}
    if options.choice:
        found["choice"] = read_json_object(options.choice)
    if options.times:
        found["over_fastv"] = over_fastv(read_json_object(options.times)["rows"])
    write_json(options.out, found)


if __name__ == "__main__":
    main()
