"""A generic JSONL of questions about images: one object per line.

    {"image": "photos/1.jpg", "question": "What is on the table?", "answer": "a cup", "boxes": [[10, 20, 60, 90]]}

    image      path relative to the folder of the JSONL file, and inside it
    question   a text
    answer     optional text
    boxes      optional list of [x0, y0, x1, y1] in pixels, ends exclusive; [] nothing is there; absent: not known
    family     optional text, the group in reports
    hard       optional true or false: double weight in stage 3
null counts as absent; other keys are ignored.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from arr_coc.data.examples import Box
from arr_coc.data.files import FileExamples, FileRow, ImageFolder
from arr_coc.data.rows import MAX_BROKEN, BadRow, BrokenRows, as_numbers, as_object, as_text, clipped

Line = tuple[int, bytes]


def read_jsonl(file: Path, max_broken: int | float = MAX_BROKEN) -> FileExamples:
    """One example per line, in the order of the file; blank lines are no rows."""
    if not file.is_file():
        raise ValueError(f"{file}: no such JSONL file; check the path")
    folder = ImageFolder(file.parent)
    broken = BrokenRows(max_broken)
    rows = broken.sift(_lines(file), _line_parser(file, folder), folder.hint)
    return FileExamples(rows, broken.lines)


def _lines(file: Path) -> Iterator[tuple[str, Line]]:
    """(place, (line number from 1, bytes)); undecoded, so that one bad byte costs one line."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{file.name}:{number}", (number, line)


def _line_parser(file: Path, folder: ImageFolder) -> Callable[[Line], FileRow]:
    def parse(numbered: Line) -> FileRow:
        number, line = numbered
        try:
            row = as_object(json.loads(line.decode("utf-8-sig")))
        except BadRow:
            raise
        except (ValueError, RecursionError) as error:
            raise BadRow(f"not valid JSON ({error})") from None
        question = as_text(row, "question")
        answer, family = as_text(row, "answer", ""), as_text(row, "family", "")
        hard = row.get("hard")
        if hard is not None and not isinstance(hard, bool):
            raise BadRow(f"hard is a {type(hard).__name__}, not true or false")
        image = folder.image(row.get("image"))
        boxes = _boxes(row.get("boxes"), image.size)
        return FileRow(f"{file.name}:{number} {image.name}", image, question, answer, boxes, family, bool(hard))

    return parse


def _boxes(value: object, size: tuple[int, int]) -> tuple[Box, ...] | None:
    """The boxes of a line, clipped to the image; None where it has none."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadRow(f"boxes is a {type(value).__name__}, not a list")
    corners = (as_numbers(box, 4, "box") for box in value)
    return tuple(clipped(x0, y0, x1, y1, size) for x0, y0, x1, y1 in corners)
