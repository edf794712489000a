"""What came of rows: a line of JSON each, added as they are answered, so that any stop leaves whole lines.

A JSONL is that file itself. For a Parquet the lines gather beside it (OUT.part.jsonl); at the end it is written whole
from them and from what it held before, and they go. Whatever was killed when, every id is in it once.
"""

import base64
import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.batch.asked import NEEDS_ARROW, AskedRow
from arr_coc.config import Keep
from arr_coc.files import append_whole, whole_file
from arr_coc.qwen.answers import ImageSelection, total_ms
from arr_coc.serving.engine import Finished

Record = dict[str, Any]
FORMS = (".jsonl", ".parquet")
COLUMNS = {
    **{"id": "string", "image": "list<string>", "question": "string", "model": "string", "keep": "string"},
    **{"answer": "string", "tokens_kept": "int32", "tokens_total": "int32"},
    **{"grid": "list<list<int32>>", "kept_mask": "list<binary>", "error": "string", "ms": "double"},
}  # of a Parquet; in JSON, masks are base64, and a dial is a number where it is one
ASKED = ("id", "image", "question", "model", "keep")
HEAD = b'{"id": '  # how a line of ours begins
PART = ".part.jsonl"
AT_ONCE = 4096  # rows of a Parquet in memory


def record_of(row: AskedRow, model: str, keep: Keep, outcome: Finished | str) -> Record:
    """The record of a row; an outcome that is a text is its error."""
    asked = {"id": row.id, "image": list(row.image), "question": row.question, "model": model}
    done = None if isinstance(outcome, str) else outcome
    return {
        **asked,
        "keep": keep if row.keep is None else row.keep,
        "answer": done and done.text,
        "tokens_kept": done and done.tokens_kept,
        "tokens_total": done and done.tokens_total,
        "grid": done and [list(image.grid) for image in done.images],
        "kept_mask": done and [packed(image) for image in done.images],
        "error": None if done else outcome,
        "ms": done and round(total_ms(done.timings_ms), 2),
    }


def packed(image: ImageSelection) -> str:
    """Kept cells, row by row, 8 to a byte, the first one the highest bit; the last byte filled up with 0: base64."""
    bits = np.packbits(image.mask.cpu().numpy().reshape(-1))
    return base64.b64encode(bits.tobytes()).decode()


def said_of(record: Record) -> int:
    """A number that stands for what was asked, of whom and how."""
    return hash((tuple(record["image"]), record["question"], record["model"], str(record["keep"])))


class Results:
    """The file, held by one run at a time. `done` are the ids in it, and what was asked under them."""

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in FORMS:
            raise ValueError(f"{path.name}: give an OUT that ends in {' or '.join(FORMS)}")
        self.path, self.is_table = path, path.suffix.lower() == ".parquet"
        if self.is_table:
            _arrow()
        self.lines = path.with_name(path.name + PART) if self.is_table else path
        self.done: dict[str, int] = {}
        self._end = 0  # of the last whole line, in bytes

    @contextlib.contextmanager
    def held(self) -> Iterator["Results"]:
        """Read what is there, and add to it; a last line that was cut is taken off. On leaving well, it is whole."""
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"{self.path}: a folder or a device; give the name of a file")
        self.lines.parent.mkdir(parents=True, exist_ok=True)
        with self.lines.open("ab") as file:
            _lock(file, self.path)
            self.done = {one["id"]: said_of(one) for one in chain(self._lines(), self._table(ASKED))}
            file.truncate(self._end)
            yield self
            if self.is_table:
                self._write_table()

    def add(self, records: Iterable[Record]) -> None:
        """Lines, all of them or none; an id that is there is not written again."""
        new = {one["id"]: one for one in records if one["id"] not in self.done}
        append_whole(self.lines, "".join(json.dumps(one) + "\n" for one in new.values()))
        self.done |= {name: said_of(one) for name, one in new.items()}

    def is_done(self, wanted: Record) -> bool:
        """Whether the row has been answered; ValueError where its id stands for something else."""
        known = self.done.get(wanted["id"])
        if known is not None and known != said_of(wanted):
            held = f"{self.path.name} holds {wanted['id']!r}"
            raise ValueError(f"{held} with another question, image, dial or model: give another OUT")
        return known is not None

    # ---------------------------------------------------------------- lines

    def _lines(self, but: Collection[str] = ()) -> Iterator[Record]:
        """Every whole line. What follows the last of them must be the beginning of a line of ours."""
        self._end = 0
        with self.lines.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") and line[: len(HEAD)] == HEAD[: len(line)]:
                    return
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    raise self._foreign() from None
                if not isinstance(record, dict) or record.keys() != COLUMNS.keys() or not line.endswith(b"\n"):
                    raise self._foreign()
                self._end += len(line)
                if record["id"] not in but:
                    yield record

    def _foreign(self) -> ValueError:
        return ValueError(f"{self.lines.name} holds other lines than those of this command: give another OUT")

    # ---------------------------------------------------------------- a table

    def _table(self, columns: Sequence[str]) -> Iterator[Record]:
        for batch in self._batches(columns):
            yield from batch.to_pylist()

    def _batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        if not self.is_table or not self.path.exists():
            return
        arrow, parquet = _arrow()
        try:
            with parquet.ParquetFile(self.path) as table:
                if table.schema_arrow.names != list(COLUMNS):
                    raise ValueError
                yield from table.iter_batches(AT_ONCE, columns=columns)
        except (ValueError, arrow.ArrowException):
            raise ValueError(f"{self.path.name} is no table of this command's: give another OUT") from None

    def _write_table(self) -> None:
        """All of it, whole or not at all; then the lines are not needed any more."""
        arrow, parquet = _arrow()
        schema = arrow.schema([(name, _kind(arrow, kind)) for name, kind in COLUMNS.items()])
        there = {one["id"] for one in self._table(("id",))}
        lines = self._lines(but=there)
        if self.lines.stat().st_size:
            with whole_file(self.path) as place, parquet.ParquetWriter(str(place), schema, compression="zstd") as out:
                for batch in self._batches():  # which others may have written again, in types of their own
                    out.write_table(arrow.Table.from_batches([batch]).cast(schema))
                while several := [_typed(one) for one in islice(lines, AT_ONCE)]:
                    out.write_table(arrow.Table.from_pylist(several, schema=schema))
        with contextlib.suppress(PermissionError):  # where open files stay; its ids are known
            self.lines.unlink()


def _typed(record: Record) -> Record:
    """A record as a row of a Parquet."""
    masks = record["kept_mask"] and [base64.b64decode(mask) for mask in record["kept_mask"]]
    return {**record, "keep": str(record["keep"]), "kept_mask": masks}


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(NEEDS_ARROW) from None
    return pyarrow, parquet


def _kind(arrow: Any, kind: str) -> Any:
    """A type of Arrow by its name."""
    if kind.startswith("list<"):
        return arrow.list_(_kind(arrow, kind[5:-1]))
    return getattr(arrow, {"double": "float64"}.get(kind, kind))()


def _lock(file: Any, path: Path) -> None:
    """For one run alone. However the process ends, the system frees it."""
    if os.name == "nt":  # no such locks there
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another run writes {path.name}: wait for its end, or give another OUT") from None
    except OSError:
        return  # a disk of the network without locks
