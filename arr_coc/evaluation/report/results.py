"""What the report is made of: the files of a results folder, read once and checked, with one clear line for a mistake.

A file that is not there is no mistake: what it would have said is reported as not measured yet.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIELD, EQUAL, MINI, SELECTOR = "field.json", "equal-tokens.json", "mini.json", "selector.json"
GPU, CPU = "speed-gpu.json", "speed-cpu.json"
NOTES = "field-notes.md"  # what people make of the field's figures, by paragraphs
ROWS_OF = {
    FIELD: ("dataset", "side", "selector", "trained", "encoding", "keep", "n", "accuracy", "ci95", "tokens", "time_ms"),
    EQUAL: ("selector", "encoding", "keep", "n", "accuracy", "ci95", "tokens"),
    GPU: ("side", "batch", "kept", "encoding", "mode", "select_ms", "ttft_ms", "peak_mb"),
    CPU: ("side", "batch", "kept", "encoding", "mode", "select_ms", "ttft_ms", "peak_mb"),
}
MAKERS = {
    FIELD: "arr-coc eval --out results/field.json",
    EQUAL: "arr-coc eval --equal-tokens --out results/equal-tokens.json",
    MINI: "python -m studies.mini.evaluation --out results/mini.json",
    SELECTOR: "python -m studies.selector.main --out results/selector.json",
    GPU: "arr-coc bench --shape qwen3-vl-2b --promised --out results/speed-gpu.json",
    CPU: "python -m studies.speed.ask --device cpu --out results/speed-cpu.json",
}

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """The files by name; those that are not there are missing in `documents`."""

    folder: Path
    documents: dict[str, Document]

    def rows(self, name: str) -> list[Document]:
        """The rows of a file; none where it is not there."""
        return list(self.documents.get(name, {}).get("rows", []))

    def at(self, name: str, *keys: str) -> Any:
        """A value inside a file; None where the file or the way to it is missing."""
        value: Any = self.documents.get(name)
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def text(self, name: str) -> str:
        """What people wrote beside the figures; empty where there is no such file."""
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    @property
    def gains(self) -> tuple[Document, str] | None:
        """What the equal-token test says, and the file that says it."""
        for name in (EQUAL, FIELD):
            if self.at(name, "gains"):
                return self.documents[name]["gains"], name
        return None


def read_results(folder: Path) -> Results:
    """All known files of a folder."""
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: no such folder; make results with {MAKERS[FIELD]}, or name their folder by --results"
        )
    documents = {name: read_document(folder / name) for name in MAKERS if (folder / name).is_file()}
    return Results(folder, documents)


def read_document(path: Path) -> Document:
    """One file of results; its rows are checked for what the report reads of each."""
    again = f"make it again with {MAKERS[path.name]}"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one as well
        raise ValueError(f"{path}: not JSON ({error}); {again}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: expected a JSON object; {again}")
    needed = ROWS_OF.get(path.name, ())
    rows = document.get("rows", [])
    if needed and not isinstance(rows, list):
        raise ValueError(f"{path}: rows is not a list; {again}")
    for number, row in enumerate(rows if needed else (), start=1):
        missing = [key for key in needed if not isinstance(row, dict) or key not in row]
        if missing:
            raise ValueError(f"{path}: row {number} lacks {', '.join(missing)}; {again}")
    return document
