"""The bench: all tokens, after the ViT, sparse; plain and over graphs; any image size, batch and budget.

Rows are written as they are measured, so that little is lost when a run is cut off.
"""

import itertools
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from arr_coc.evaluation.bench.cases import ENCODINGS, MODES, Case, Subject, load_subject, make_inputs
from arr_coc.evaluation.bench.measure import measure, way_of
from arr_coc.evaluation.bench.report import Row, document, fit_table, save_plots, table
from arr_coc.files import read_json_object, whole_file, write_json
from arr_coc.qwen.vision import Geometry

GRID = ("sides", "batches", "kept", "encodings", "modes", "sights", "decode", "repeats")  # what cases are made of
Say = Callable[[str], None]


def grid_of_cases(
    sides: Sequence[int],
    batches: Sequence[int],
    kept: Sequence[int],
    encodings: Sequence[str] = ENCODINGS[:3],
    modes: Sequence[str] = MODES[:2],
    sights: Sequence[str] = ("stem",),
    decode: int = 0,
    repeats: int = 10,
    cell: int = Geometry().cell,
) -> list[Case]:
    """Every combination once; all tokens kept has neither a budget nor a sight, and decoding is timed at batch 1."""
    cases = []
    for side, batch, encoding, mode in itertools.product(sides, batches, encodings, modes):
        ways = [(1, sights[0])] if encoding == "dense" else list(itertools.product(kept, sights))
        for budget, sight in ways:
            steps = decode if batch == 1 else 0
            cases.append(Case(side, batch, budget, encoding, mode, sight, steps, repeats, cell))
    return cases


def run_cases(
    subject: Subject, cases: Sequence[Case], text: int, say: Say, out: Path | None = None, before: Sequence[Row] = ()
) -> list[Row]:
    """Measure one case after the other, after the rows of `before`; what does not fit the device is left out, and said.

    With every row the whole document is written to `out`.
    """
    rows = list(before)
    for number, case in enumerate(cases, start=1):
        inputs = make_inputs(subject.stock, case, text)
        try:
            row = measure(subject, case, inputs)
        except torch.OutOfMemoryError:
            say(f"{number}/{len(cases)} {asdict(case)}: does not fit this device")
            continue
        rows.append(row)
        if out is not None:
            write_json(out, document(rows, about(subject)))
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


def read_rows(path: Path) -> list[Row]:
    """Rows of an earlier run, of which all can be told; none where there is no such file."""
    rows = read_json_object(path).get("rows", [])
    try:
        table(rows)
        return list(document(rows, {})["rows"])
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: not rows of arr-coc bench ({why}); leave --append out, or move it away") from None


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
    with whole_file(path) as place:
        profiler.export_chrome_trace(str(place))
        try:
            json.loads(place.read_bytes())
        except (OSError, ValueError):  # the profiler does not tell what it could not write
            raise ValueError(f"{path}: the trace could not be written whole; check that its disk has room") from None


def bench(options: Any, say: Say, cases: Sequence[Case] = (), show: Say | None = None) -> Row:
    """Run all that was asked for and return the document; `cases` are measured instead where they are given.

    Tables go to `show`, else to `say`.
    """
    if options.text < 4:
        raise ValueError(f"{options.text} text tokens: give 4 or more")
    sights = tuple(dict.fromkeys([case.sight for case in cases] or options.sights))
    subject = load_subject(options.model, options.device, options.dtype, sights)
    if not cases:
        cell = Geometry.of(subject.stock.config.vision_config).cell
        cases = grid_of_cases(**{name: getattr(options, name) for name in GRID}, cell=cell)
    on_gpu = torch.device(subject.stock.device).type == "cuda"
    out = options.out or Path("out") / ("speed-gpu.json" if on_gpu else "speed-cpu.json")
    rows = run_cases(subject, cases, options.text, say, out, read_rows(out) if options.append else ())
    (show or say)(table(rows))
    if options.fit:
        (show or say)(fit_table(rows))
    for path in save_plots(rows, options.plot, about(subject)) if options.plot else ():
        say(str(path))
    if options.profile:
        write_trace(subject, cases[-1], options.text, options.profile)
    return document(rows, about(subject))
