"""The files that our own report reads, and what made each of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_coc.evaluation.field.main import KEEPS, FieldOptions
from arr_coc.evaluation.field.methods import FIELD as METHODS
from arr_coc.evaluation.report.pages import MISSING, NONE, Block, Cell, heading, table
from arr_coc.evaluation.report.results import FIELD, FIELD_KEYS, MAKER, RIVAL, Measured, read_document
from arr_coc.selectors import PLAIN

EQUAL, MINI, SELECTOR = "equal-tokens.json", "mini.json", "selector.json"
GPU, CPU = "speed-gpu.json", "speed-cpu.json"
WITH_RIVAL = "python -m studies.rival.evaluate"  # `arr-coc eval` with one selector more
NOTES = "field-notes.md"  # what people make of the field's figures, by paragraphs
_SPEED_ROWS = ("side", "batch", "kept", "encoding", "mode", "select_ms", "ttft_ms", "peak_mb")


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file of results: the command that makes it, and what the report reads of each of its rows."""

    maker: str
    row_keys: tuple[str, ...] = ()


FILES = {
    FIELD: KnownFile(MAKER, FIELD_KEYS),
    EQUAL: KnownFile(
        "python -m studies.equal_tokens --out results/equal-tokens.json",
        ("selector", "encoding", "keep", "n", "accuracy", "ci95", "tokens"),
    ),
    MINI: KnownFile("python -m studies.wide.evaluate --model arr_coc/models/mini --out results/mini.json"),
    SELECTOR: KnownFile("python -m studies.selector.main --out results/selector.json"),
    GPU: KnownFile(
        "python -m studies.speed.bench --model shape:qwen3-vl-2b --promised --out results/speed-gpu.json", _SPEED_ROWS
    ),
    CPU: KnownFile("python -m studies.speed.ask --device cpu --out results/speed-cpu.json", _SPEED_ROWS),
}


@dataclass(frozen=True, slots=True)
class Results:
    """The files by name; those that are not there are missing in `documents`."""

    documents: dict[str, dict[str, Any]]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a file; none where it is not there."""
        return list(self.documents.get(name, {}).get("rows", []))

    def at(self, name: str, *keys: str) -> Any:
        """A value inside a file; None where the file or the way to it is missing."""
        value: Any = self.documents.get(name)
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


def read_results(folder: Path) -> Results:
    """All known files of a folder."""
    read = {name: read_document(folder / name, known.maker, known.row_keys) for name, known in FILES.items()}
    return Results({name: document for name, document in read.items() if document})


def gains_of(results: Results) -> tuple[dict[str, Any], str] | None:
    """What the equal-token test says, and the file that says it."""
    return next(((gains, name) for name in (EQUAL, FIELD) if (gains := results.at(name, "gains"))), None)


def source_blocks(measured: Measured) -> list[Block]:
    """What made each file, on what, with how many questions."""
    results = read_results(measured.folder)
    rows: list[list[Cell | str]] = []
    for name, known in FILES.items():
        if name not in results.documents:
            rows.append([f"`{name}`", Cell("not measured yet", MISSING), f"`{known.maker}`", NONE, NONE, NONE])
            continue
        rows += [
            [f"`{name}`", what, f"`{command}`", *more] for what, command, *more in _runs(results, name, known.maker)
        ]
    heads = ("file", "what", "command", "device", "questions", "seed")
    return [heading("What made each file"), table(heads, rows, wide_words=True)]


def _runs(results: Results, name: str, maker: str) -> list[tuple[str, str, str, str, str]]:
    document = results.documents[name]
    runs = document.get("runs") if isinstance(document.get("runs"), dict) else {}
    if name in (FIELD, EQUAL):
        timed = {f"{key}, times": run for key, run in (document.get("timed_runs") or {}).items()}
        return [
            (key, _field_command(results, name, run), run.get("device", NONE), *_asked(run))
            for key, run in {**(runs or {}), **timed}.items()
        ] or [("rows", maker, NONE, NONE, NONE)]
    if runs:
        return [
            (key, f"{maker} --parts {key} --questions {run.get('questions')}", run.get("device", NONE), *_asked(run))
            for key, run in runs.items()
        ]
    whole = document.get("overall", document.get("seen"))
    questions = whole.get("n") if isinstance(whole, dict) else None
    model = document.get("model", "mini")
    device = str(document.get("device") or NONE)
    if not questions:
        return [(str(model), maker, device, NONE, NONE)]
    return [(str(model), f"{maker} --questions {questions}", device, f"{questions:,}", "0")]


def _asked(run: Mapping[str, Any]) -> tuple[str, str]:
    questions, seed = run.get("questions"), run.get("seed")
    return NONE if questions is None else f"{questions:,}", NONE if seed is None else str(seed)


def _field_command(results: Results, name: str, run: Mapping[str, Any]) -> str:
    """The command as it could be typed again: what is as it is by default is left out."""
    verb, _, out = FILES[name].maker.partition(" --out ")
    words = [verb]
    if name == FIELD:
        here = [row for row in results.rows(FIELD) if (row["dataset"], row["side"]) == (run["dataset"], run["side"])]
        if any(row["selector"].startswith(f"{RIVAL}:") for row in here):
            words = [WITH_RIVAL]
        if run["dataset"] != "scenes":
            words.append(f"--data {run['dataset']}")
        words += [f"--side {run['side']}"] if run["side"] is not None else []
        words += _unusual("--selector", [_portable(row["selector"]) for row in here], (*METHODS, PLAIN))
        words += _unusual(
            "--keep", [r["keep"] for r in here if r["selector"] != PLAIN], KEEPS.get(run["side"] or 0, ())
        )
        encodings = [row["encoding"] for row in here if row["selector"] != PLAIN]
        words += _unusual("--encoding", encodings, FieldOptions().encodings)
    words += [f"--questions {run.get('questions')}", f"--seed {run.get('seed')}", f"--device {run.get('device')}"]
    words += [f"--model {run['model']}"] if run.get("model") != "mini" else []
    return " ".join([*words, f"--out {out}"])


def _portable(selector: str) -> str:
    """Without the folders of the machine that it was asked on."""
    return re.sub(r"path=/(?:[^,/]+/)*", "path=", selector)


def _unusual(option: str, found: Sequence[Any], usual: Sequence[Any]) -> list[str]:
    used = list(dict.fromkeys(found))
    return [] if set(used) == set(usual) else [f"{option} {value}" for value in used]
