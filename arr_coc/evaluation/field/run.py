"""What a method answered to a batch, a line per answer, and the file of all: a run that was killed goes on from there.

A unit is one method on one batch. Its lines are written together; what is left of a unit that was cut is thrown away.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from arr_coc.evaluation.field.batch import Batch, prompt_digest
from arr_coc.evaluation.field.data import Record, found_evidence, score
from arr_coc.evaluation.field.engines import Engine, Outcome
from arr_coc.evaluation.field.methods import Method
from arr_coc.files import append_whole, write_whole

Answered = dict[str, dict[str, Record]]  # per method, per question


def read_samples(path: Path, then: str) -> tuple[dict[str, Any], Answered, int]:
    """What was asked of which model, the answers, and where the last whole line ends; `then` says what else to do."""
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1  # a last line may be cut short by a kill
    records: Answered = {}
    try:
        first, *lines = (json.loads(line) for line in whole[:end].splitlines())
        for record in lines:
            records.setdefault(record["method"], {})[record["question"]] = record
        return {**first["about"]}, records, end
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not a file of samples ({error}); {then}") from None


class Samples:
    """The file of samples: a header that says what was asked of which model, then a line per answer."""

    def __init__(self, path: Path, about: dict[str, Any], stamps: Mapping[str, str] | None = None) -> None:
        """`stamps` are of the weights and settings of each selector: a line that others made is refused."""
        self.path, self.about, self.stamps = path, about, stamps or {}
        self.records: Answered = {}
        if path.is_file() and path.stat().st_size:
            self._read()
        else:
            write_whole(path, json.dumps({"about": about}) + "\n")

    def _read(self) -> None:
        """What an earlier run left; a last line that was cut is taken off the file."""
        header, self.records, end = read_samples(self.path, "move it away to start anew")
        different = [key for key in {*header, *self.about} if header.get(key) != self.about.get(key)]
        if different:
            raise ValueError(
                f"{self.path} was made with another {', '.join(sorted(different))}: give another --out, or move it away"
            )
        for method, lines in self.records.items():
            made_by = {line["by"] for line in lines.values() if "by" in line}
            if (stamp := self._stamp(method)) and made_by - {stamp}:
                raise ValueError(
                    f"{self.path} was made with other weights of {method.split(' ')[0]}: give another --out, or move it"
                )
        with self.path.open("r+b") as file:
            file.truncate(end)

    def has(self, method: Method, ids: Sequence[str]) -> bool:
        """Whether a unit is there as a whole."""
        known = self.records.get(method.key, {})
        return all(name in known for name in ids)

    def add(self, records: Sequence[Record]) -> None:
        """Write the lines of a unit, at once; lines of it that were there already are passed over."""
        stamped = [r | ({"by": by} if (by := self._stamp(r["method"])) else {}) for r in records]
        new = [r for r in stamped if r["question"] not in self.records.get(r["method"], {})]
        append_whole(self.path, "".join(json.dumps(record) + "\n" for record in new))
        for record in new:
            self.records.setdefault(record["method"], {})[record["question"]] = record

    def _stamp(self, method: str) -> str | None:
        return self.stamps.get(method.split(" ")[0])


def unit(batch: Batch, method: Method, engine: Engine) -> list[Record]:
    """The lines of one method on one batch."""
    device = batch.owner.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    made, memory = engine.run(batch, method), None
    if device.type == "cuda":
        # Dense methods share what the ViT made: each is charged with its peak.
        shared = batch.features_bytes if method.encoding == "dense" else 0
        memory = round(max(shared, torch.cuda.max_memory_allocated(device)) / 2**20, 1)
    cost = {"time_ms": {part: round(ms, 3) for part, ms in made.time_ms.items()}, "memory_mb": memory}
    return [_line(batch, row, method, made) | cost for row in range(batch.rows)]


def _line(batch: Batch, row: int, method: Method, made: Outcome) -> Record:
    query, given = batch.queries[row], made.answers[row].strip()
    known = query.boxes is not None
    recall, precision = found_evidence(set(made.kept[row]), batch.evidence_R[row]) if known else (None, None)
    return {
        "method": method.key,
        "question": batch.ids[row],
        "image": batch.pictures[row].number,
        "family": query.family,
        "groups": list(query.groups),
        "text": query.text,
        "expected": query.answers[0] if query.answers else None,
        "answer": given,
        "score": score(query.metric, given, query.answers, query.choices),
        "tokens": made.tokens[row],
        "total": batch.cells,
        "grid": list(batch.grid),
        "cells": pack_cells(made.kept[row], batch.cells),
        "covered": pack_cells(made.covered[row], batch.cells),
        "recall": recall,
        "precision": precision,
        "prompt": prompt_digest(made.prompts[row], batch.owner.processor.tokenizer),
    }


def pack_cells(kept: Sequence[int], total: int) -> str:
    """Kept cells as hexadecimal digits: bit n is cell n."""
    return f"{sum(1 << cell for cell in kept):0{-(-total // 4)}x}"
