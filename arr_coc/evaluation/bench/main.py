"""The bench: all tokens, after the ViT, sparse; plain and over graphs; any image size, batch and budget.

python -m arr_coc.evaluation.bench.main --model shape:qwen3-vl-2b --sides 1024 2048 --batches 1 --kept 200

A table goes to stderr, one JSON document to stdout as its last line. Rows are written as they are measured, so that
little is lost when a run is cut off.
"""

import argparse
import itertools
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from arr_coc.evaluation.bench.cases import (
    ENCODINGS,
    MODES,
    Case,
    Subject,
    load_subject,
    make_inputs,
    promised_cases,
)
from arr_coc.evaluation.bench.measure import measure, way_of
from arr_coc.evaluation.bench.report import Row, document, fit_table, save_plots, table
from arr_coc.files import write_json

GRID = ("sides", "batches", "kept", "encodings", "modes", "sights", "decode", "repeats")  # what cases are made of
Say = Callable[[str], None]
Save = Callable[[list[Row]], None]


def grid_of_cases(
    sides: Sequence[int],
    batches: Sequence[int],
    kept: Sequence[int],
    encodings: Sequence[str] = ENCODINGS,
    modes: Sequence[str] = MODES[:2],
    sights: Sequence[str] = ("stem",),
    decode: int = 0,
    repeats: int = 10,
) -> list[Case]:
    """Every combination once; all tokens kept has neither a budget nor a sight, and decoding is timed at batch 1."""
    cases = []
    for side, batch, encoding, mode in itertools.product(sides, batches, encodings, modes):
        ways = [(1, sights[0])] if encoding == "dense" else list(itertools.product(kept, sights))
        for budget, sight in ways:
            steps = decode if batch == 1 else 0
            cases.append(Case(side, batch, budget, encoding, mode, sight, steps, repeats))
    return cases


def run_cases(subject: Subject, cases: Sequence[Case], text: int, save: Save, say: Say) -> list[Row]:
    """Measure one case after the other; what does not fit the device is left out, and said."""
    rows: list[Row] = []
    for number, case in enumerate(cases, start=1):
        inputs = make_inputs(subject.stock, case, text)
        try:
            row = measure(subject, case, inputs)
        except torch.OutOfMemoryError:
            say(f"{number}/{len(cases)} {asdict(case)}: does not fit this device")
            continue
        rows.append(row)
        save(rows)
        say(
            f"{number}/{len(cases)} {case.side} px x{case.batch} {case.encoding} {row['kept']} {row['mode']} "
            f"{row['sight'] or ''}: {row['ttft_ms']:.1f} ms"
        )
        for name, error in ((row["recordings"] or {}).get("failed") or {}).items():
            say(f"  {name} could not be captured: {error}")
    return rows


def about(subject: Subject) -> Row:
    """What the figures were measured on."""
    device = torch.device(subject.stock.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": name,
        "device_type": device.type,
        "threads": torch.get_num_threads(),
        "dtype": str(subject.stock.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "model": subject.name,
    }


def saver(path: Path, subject: Subject, before: Sequence[Row] = ()) -> Save:
    """A function that writes rows, after those of `before`, to a file as a whole document."""

    def save(rows: list[Row]) -> None:
        write_json(path, document([*before, *rows], about(subject)))

    return save


def write_trace(subject: Subject, case: Case, text: int, path: Path) -> None:
    """A trace of three runs of one case, for a browser's trace viewer."""
    inputs = make_inputs(subject.stock, case, text)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.device(subject.stock.device).type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.no_grad():
        way = way_of(subject, case, inputs)
        for _ in range(2):
            way.once()
        with torch.profiler.profile(activities=activities) as profiler:
            for _ in range(3):
                way.once()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))


def read_rows(path: Path) -> list[Row]:
    """Rows of an earlier run; none where there is no such file."""
    return list(json.loads(path.read_text())["rows"]) if path.is_file() else []


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m arr_coc.evaluation.bench.main", description=__doc__)
    parser.add_argument("--model", default="mini", help="mini, a folder, a hub id, or shape:qwen3-vl-2b")
    parser.add_argument("--sides", type=int, nargs="+", default=[1024], help="px of square images")
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--kept", type=int, nargs="+", default=[200], help="visual tokens kept of each image")
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS), choices=ENCODINGS)
    parser.add_argument("--modes", nargs="+", default=list(MODES[:2]), choices=MODES)
    parser.add_argument("--sights", nargs="+", default=["stem"], choices=["textures", "stem", "glance"])
    parser.add_argument("--text", type=int, default=50, help="text tokens")
    parser.add_argument("--decode", type=int, default=0, help="tokens after the first whose time is taken, at batch 1")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--promised", action="store_true", help="the rows that the project's figures rest on, instead")
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--out", type=Path, help="file for the results; out/speed-gpu.json or out/speed-cpu.json if left out"
    )
    parser.add_argument("--append", action="store_true", help="keep the rows that are in the file already")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write pictures there")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write a trace of the last case there")
    parser.add_argument("--fit", action="store_true", help="say what fits cards of 16, 24 and 32 GB")
    return parser.parse_args(arguments)


def cases_of(options: Any) -> list[Case]:
    """The rows asked for: every combination of the options, or those that the figures rest on."""
    if options.promised:
        return promised_cases()
    return grid_of_cases(**{name: getattr(options, name) for name in GRID})


def bench(options: Any, say: Say) -> Row:
    """Run all that was asked for and return the document."""
    if options.text < 4:
        raise ValueError(f"{options.text} text tokens: give 4 or more")
    cases = cases_of(options)
    sights = tuple(dict.fromkeys(case.sight for case in cases))
    subject = load_subject(options.model, options.device, options.dtype, sights)
    on_gpu = torch.device(subject.stock.device).type == "cuda"
    out = options.out or Path("out") / ("speed-gpu.json" if on_gpu else "speed-cpu.json")
    before = read_rows(out) if options.append else []
    rows = [*before, *run_cases(subject, cases, options.text, saver(out, subject, before), say)]
    say(table(rows))
    if options.fit:
        say(fit_table(rows))
    for path in save_plots(rows, options.plot) if options.plot else ():
        say(str(path))
    if options.profile:
        write_trace(subject, cases[-1], options.text, options.profile)
    return document(rows, about(subject))


def main(arguments: Sequence[str] | None = None) -> None:
    made = bench(parse(arguments), lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(made))


if __name__ == "__main__":
    main()
