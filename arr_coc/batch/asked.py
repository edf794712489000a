"""Rows to be asked, from a JSONL, CSV or Parquet file or from a folder, read as they come: there may be millions.

A row holds `image` (a path relative to the folder of the images, or several), `question`, and if it likes `id` and
`keep`; other columns are passed over. A row that cannot be asked says why in `error`, and keeps its place.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from arr_coc.config import Keep, check_keep
from arr_coc.data.examples import inner_name
from arr_coc.data.questions import json_row, numbered_lines
from arr_coc.data.rows import BadRow, as_id, as_text

FILES = (".jsonl", ".csv", ".parquet")
PICTURES = (".png", ".jpg", ".jpeg", ".webp")
QUESTIONS = "questions"  # the name of the file of a folder that has one
COLUMNS = ("id", "image", "question", "keep")
NEEDS_ARROW = "Parquet needs pyarrow: pip install 'pyarrow>=17', or give the file as JSONL"

Given = dict[Any, Any] | BadRow  # by the names of columns; by None, cells of a CSV that have no column
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class AskedRow:
    """One row. `id` is its own, or "row 1" and so on where it has none, or the path of the image in a folder."""

    id: str
    image: tuple[str, ...]
    question: str
    keep: Keep | None = None  # None: as the job says
    error: str = ""  # why it cannot be asked


def read_asked(source: Path, questions: Sequence[str] = ()) -> Iterator[AskedRow]:
    """Every row, each under an id of its own; `questions` are for the images of a folder that has none."""
    seen: set[str] = set()
    for number, given in enumerate(_given(source, questions), start=1):
        row = _parsed(number, given)
        if row.id in seen:
            row = replace(row, id=f"{row.id} (row {number})", error=f"the id {row.id} was there before")
        while row.id in seen:
            row = replace(row, id=f"{row.id}'")
        seen.add(row.id)
        yield row


def place_of(source: Path) -> Path:
    """The file that is read: the source itself, or the file of questions of a folder that has one."""
    own = [source / f"{QUESTIONS}{ending}" for ending in FILES]
    return next((file for file in own if file.is_file()), source)


def _given(source: Path, questions: Sequence[str]) -> Iterable[Given]:
    place = place_of(source)
    if place.is_dir():
        return _of_folder(place, questions)
    if questions:
        raise ValueError("--question is for a folder of images: a file has its questions in its rows")
    if not place.is_file():
        raise ValueError(f"{source}: no such file or folder; check the path")
    readers = dict(zip(FILES, (_of_jsonl, _of_csv, _of_parquet), strict=True))
    if place.suffix.lower() not in readers:
        raise ValueError(f"{place.name}: give a file that ends in {', '.join(FILES)}, or a folder of images")
    return readers[place.suffix.lower()](place)


# ---------------------------------------------------------------- one row


def _parsed(number: int, given: Given) -> AskedRow:
    """A row as it can be asked; the first thing that is wrong with it is its error."""
    problems = [str(given)] if isinstance(given, BadRow) else []
    row: dict[Any, Any] = {} if isinstance(given, BadRow) else given
    if any(row.get(None) or ()):  # of a CSV, and most often the rest of a question
        problems.append("more cells than columns: put text with commas in quotes")

    def part(read: Callable[[], Part], otherwise: Part) -> Part:
        try:
            return read()
        except ValueError as why:
            problems.append(" ".join(str(why).split()))
            return otherwise

    # Not the number alone: that would be the id of another row, where ids are numbers.
    name = f"row {number}" if row.get("id") is None else part(lambda: str(as_id(row, "id")), f"row {number}")
    images = part(lambda: _images(row.get("image")), tuple[str, ...]())
    question = part(lambda: as_text(row, "question"), "")
    keep = part(lambda: read_dial(row.get("keep")), None)
    return AskedRow(_whole(name), images, question, keep, _whole(problems[0]) if problems else "")


def _images(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):  # several, in a cell of a CSV
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadRow("image is no list of paths that can be read") from None
    if value is None or value == []:
        raise BadRow("no image")
    names = value if isinstance(value, list) else [value]
    return tuple(_whole(Path(inner_name(name)).as_posix(), "image") for name in names)


def read_dial(value: Any) -> Keep | None:
    """The dial of a row, as a number or as text; a plain 1 is all, as over HTTP."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value != "auto":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return check_keep(value)
    return check_keep(1.0 if type(value) is int and value == 1 else value)


def _whole(text: str, what: str = "") -> str:
    """Text that every file can hold: half of a surrogate pair is spelled out, or refused where `what` says of what."""
    told = text.encode(errors="backslashreplace").decode()
    if what and told != text:
        raise BadRow(f"{what} {told} is not valid Unicode")
    return told


# ---------------------------------------------------------------- files and folders


def _of_jsonl(file: Path) -> Iterator[Given]:
    for _, (_, line) in numbered_lines(file):
        try:
            yield json_row(line)
        except BadRow as why:
            yield why


def _of_csv(file: Path) -> Iterator[Given]:
    # Undecodable bytes cost their row alone.
    with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as text:
        # Strict: a quote that is never closed would swallow all rows after it.
        reader = csv.DictReader(text, strict=True, skipinitialspace=True)
        try:
            _check_columns(file, [str(name).strip() for name in reader.fieldnames or ()])
        except csv.Error as error:
            raise ValueError(f"{file.name}: not a CSV ({error}); save it again") from None
        while True:
            try:
                yield {name and name.strip(): value or None for name, value in next(reader).items()}
            except StopIteration:
                return
            except csv.Error as error:
                yield BadRow(f"not a row of a CSV ({error})")


def _of_parquet(file: Path) -> Iterator[Given]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(NEEDS_ARROW) from None
    try:
        with parquet.ParquetFile(file) as table:
            there = table.schema_arrow.names
            _check_columns(file, there)
            for batch in table.iter_batches(1024, columns=[name for name in COLUMNS if name in there]):
                yield from map(_of_arrow, (batch.slice(row, 1) for row in range(batch.num_rows)))
    except (ArrowException, OSError):  # of a page that is damaged, or of the disk
        raise ValueError(f"{file.name}: not a Parquet file that can be read; copy it again") from None


def _of_arrow(row: Any) -> Given:
    try:
        return dict(*row.to_pylist())
    except ValueError as why:  # text that is not Unicode: a file may hold it
        return BadRow(f"a value cannot be read ({why})")


def _check_columns(file: Path, there: Sequence[str]) -> None:
    if missing := [name for name in ("image", "question") if name not in there]:
        told = f"no column {' and no column '.join(missing)}, but {', '.join(map(repr, there))[:100] or 'none'}"
        raise ValueError(f"{file.name}: {told}; name them so, parted by commas in the first line of a CSV")


def _of_folder(folder: Path, questions: Sequence[str]) -> Iterator[Given]:
    """Every image below it, asked what the lines of a text beside it say (photo.jpg, photo.txt), else `questions`."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if _is_picture(path))
    if not names:
        raise ValueError(f"{folder}: no image in it; give a folder of {', '.join(PICTURES)} files")
    for name in names:
        beside = (folder / name).with_suffix(".txt")
        lines = beside.read_text(encoding="utf-8", errors="replace").splitlines() if beside.is_file() else questions
        asked = [line.strip() for line in lines if line.strip()]
        for number, question in enumerate(asked or [None], start=1):
            yield {"id": name if number == 1 else f"{name}#{number}", "image": name, "question": question}


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and not path.name.startswith(".") and path.is_file()
