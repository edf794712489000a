"""The field by several processes: each runs some methods over all questions; then the table is made of their samples.

python -m studies.gpu.field_parallel run PARTS --side 512 --questions 4000 --workers 8
python -m studies.gpu.field_parallel run PARTS --side 512 --questions 4000 --selectors rival:path=runs/rival
python -m studies.gpu.field_parallel sum PARTS --times ALONE/field.json --out results/field.json
python -m studies.gpu.field_parallel sum PARTS --beside results/field.json

Answers do not depend on who else runs, but times do: `--times` takes them from a run of one process. The table can be
made on another machine than the answers; what made them stays in its "runs". `--beside` keeps rows, and the times, of
an older table, as where ARR-COC alone was trained anew and asked the first of the same questions: samples of others
are gone, so it is held against them by the two intervals, as if its questions were others. That finds less, never more.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import studies.rival.selector  # noqa: F401 (known as a selector from here on, in every process)
from arr_coc.config import Keep
from arr_coc.evaluation.field.data import scene_pictures
from arr_coc.evaluation.field.main import (
    KEEPS,
    Bench,
    FieldOptions,
    describe,
    evaluate_field,
    samples_path,
)
from arr_coc.evaluation.field.methods import FIELD, REFERENCE, Method
from arr_coc.evaluation.field.run import Samples
from arr_coc.evaluation.statistics import holm
from arr_coc.files import read_json_object, write_json
from arr_coc.selectors import PLAIN

SLOW = ("fastv",)  # answered one batch of whole sequences at a time: a process for each budget
BASE_DIGITS = 16  # of "weights": the model's own come first, then the adapter's
ORDER = ("rival", *(one.partition(":")[0] for one in FIELD), PLAIN)


def jobs_of(selectors: list[str], side: int) -> list[tuple[list[str], tuple[Keep, ...]]]:
    """What one process can do by itself: a method with all budgets, or a slow method with one."""
    jobs: list[tuple[list[str], tuple[Keep, ...]]] = []
    for name in selectors:
        jobs += [([name], (keep,)) for keep in KEEPS[side]] if name in SLOW else [([name], KEEPS[side])]
    return sorted(jobs, key=lambda job: job[0][0] not in SLOW)


def work(given: tuple[int, list[str], tuple[Keep, ...], argparse.Namespace]) -> str:
    """One job, into a folder of its own."""
    number, selectors, keeps, asked = given
    out = asked.parts / f"{asked.side}-{number}-{selectors[0].partition(':')[0]}" / "field.json"
    started = time.monotonic()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (a bar for each of many processes is of no use)
    asked_for = {"keeps": keeps, "sides": (asked.side,), "questions": asked.questions, "out": out}
    asked_for["cells_at_once"] = asked.cells
    evaluate_field(FieldOptions(asked.model, selectors=tuple(selectors), **asked_for), lambda line: None)
    return f"{time.monotonic() - started:6.1f} s  {asked.side} px  {selectors[0]} {keeps}"


def run(asked: argparse.Namespace) -> None:
    """All jobs, a few at a time."""
    jobs = [
        (asked.first + number, selectors, keeps, asked)
        for number, (selectors, keeps) in enumerate(jobs_of(asked.selectors, asked.side))
    ]
    with multiprocessing.get_context("spawn").Pool(asked.workers, maxtasksperchild=4) as pool:
        for line in pool.imap_unordered(work, jobs):
            print(line, flush=True)


def gather(parts: Path, side: int, out: Path) -> tuple[Samples, list[Method]] | None:
    """All samples of a side in one file beside `out`, and the methods that are in it."""
    files = sorted(parts.glob(f"{side}-*/field.scenes-{side}.jsonl"))
    if not files:
        return None
    lines = [file.read_text().splitlines() for file in files]
    header = header_of(side, [part[0] for part in lines], [REFERENCE in file.parent.name for file in files])
    path = samples_path(out, "scenes", side)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(line for part in lines for line in part[1:])]) + "\n")
    samples = Samples(path, json.loads(header)["about"])
    return samples, sorted(map(method_of, samples.records), key=lambda one: (ORDER.index(one.name), one.encoding))


def header_of(side: int, headers: list[str], ours: list[bool]) -> str:
    """The settings of all parts. Only ARR-COC reads its adapter: other methods may have been run beside another one."""
    abouts = [json.loads(header)["about"] for header in headers]
    shared = {json.dumps(about | {"weights": about["weights"][:BASE_DIGITS]}) for about in abouts}
    with_ours = {header for header, mine in zip(headers, ours, strict=True) if mine}
    if len(shared) > 1 or len(with_ours) > 1:
        found = "; ".join(sorted(shared if len(shared) > 1 else with_ours))
        raise ValueError(f"parts of {side} px were made with different settings, move some away: {found}")
    return next(iter(with_ours), headers[0])


def method_of(key: str) -> Method:
    """The method of a key as the samples have it."""
    selector, encoding, keep = key.rsplit(" ", 2)
    return Method(selector, encoding, float(keep) if "." in keep else int(keep))


def total(asked: argparse.Namespace) -> None:
    """The table of all parts."""
    old = read_json_object(asked.beside) if asked.beside else {}
    timed_rows = read_json_object(asked.times).get("rows", []) if asked.times else old.get("rows", [])
    alone = {row_key(row): row for row in timed_rows}
    report: dict[str, Any] = {"rows": [], "runs": {}}
    if asked.times:
        report["timed_runs"] = timed_runs(asked.times)
    for side in KEEPS:
        found = gather(asked.parts, side, asked.out)
        if found is None:
            continue
        samples, methods = found
        bench = Bench(FieldOptions(asked.model, selectors=tuple(dict.fromkeys(m.selector for m in methods))))
        about = samples.about
        pictures = scene_pictures(about["questions"], side, about["seed"])
        for row in bench.rows(pictures, methods, samples, {"dataset": "scenes", "side": side}).values():
            if timed := alone.get(row_key(row)):
                row |= {
                    "time_ms": timed["time_ms"],
                    "memory_mb": timed["memory_mb"],
                    "timed_n": timed.get("timed_n") or timed["n"],
                }
            elif asked.times:
                raise ValueError(f"no time of {row_key(row)} in {asked.times}: run it alone first")
            report["rows"].append(row)
            print(describe(row))
        report["runs"][f"{asked.out.stem}.scenes-{side}"] = about
    if old:
        report["runs"] = old["runs"] | {f"{name}, {REFERENCE}": about for name, about in report["runs"].items()}
        report["rows"] = sorted([*report["rows"], *beside(old, report["rows"])], key=_in_the_old_order(old))
    write_json(asked.out, read_json_object(asked.out) | report)


def beside(old: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of an older table that `rows` have no part in, held against the ARR-COC of `rows`."""
    new = {row_key(row): row for row in rows}
    kept = [dict(row) for row in old["rows"] if row_key(row) not in new and row["selector"] != REFERENCE]
    held: list[tuple[dict[str, Any], float]] = []
    for row in kept:
        side, _, encoding, keep = row_key(row)
        found = [new.get((side, REFERENCE, one, keep)) for one in (encoding, "sparse", "dense")]
        ours = next((one for one in found if one is not None), None)
        if ours is None or row["accuracy"] is None:
            continue
        gain = row["accuracy"] - ours["accuracy"]
        widths = [(one["ci95"][1] - one["ci95"][0]) / 2 for one in (row, ours)]
        half = max(math.hypot(*widths), 1e-9)
        interval = [round(gain - half, 5), round(gain + half, 5)]
        row |= {"gain_vs_arr_coc": {"mean": round(gain, 5), "ci95": interval, "n": min(row["n"], ours["n"])}}
        row |= {"against": f"{REFERENCE} {ours['encoding']} {ours['keep']}"}
        held.append((row, math.erfc(abs(gain) * 1.96 / half / math.sqrt(2))))
    for (row, _), p in zip(held, holm([p for _, p in held]), strict=True):
        row["p_vs_arr_coc"] = round(p, 6)
    return kept


def timed_runs(path: Path) -> dict:
    """What the times were measured with."""
    runs = read_json_object(path).get("runs")
    if not runs:
        raise ValueError(f"{path}: no report of a run; make it with python -m studies.rival.evaluate --out {path}")
    return runs


def _in_the_old_order(old: dict[str, Any]) -> Callable[[dict[str, Any]], int]:
    places = {row_key(row): place for place, row in enumerate(old["rows"])}
    return lambda row: places.get(row_key(row), len(places))


def row_key(row: dict) -> tuple:
    return row["side"], row["selector"], row["encoding"], row["keep"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "sum"])
    parser.add_argument("parts", type=Path, help="folder of the parts")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--side", type=int, default=512, choices=list(KEEPS))
    parser.add_argument("--questions", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="number of the first part, to add to those that are there")
    parser.add_argument("--selectors", nargs="+", default=[*FIELD, PLAIN])
    parser.add_argument("--cells", type=int, default=0, help="cells of a batch; bounds the memory of each process")
    parser.add_argument("--times", type=Path, help="report of a run of one process")
    parser.add_argument("--beside", type=Path, help="an older table, for the methods that are not in PARTS")
    parser.add_argument("--out", type=Path, default=Path("results/field.json"))
    asked = parser.parse_args()
    run(asked) if asked.what == "run" else total(asked)


if __name__ == "__main__":
    main()
