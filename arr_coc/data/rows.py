"""Rows of annotation files: the checks of their fields, and the list of the broken ones.

A check raises BadRow with a reason; `BrokenRows.sift` counts and lists it, and goes on with the next row.
"""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

Id = int | str
Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in px of the upright image as stored; ends exclusive
Row = TypeVar("Row")
Parsed = TypeVar("Parsed")

MAX_BROKEN = 0.01  # of the rows of a table: published annotation files have a few bad rows in a thousand
_SHOWN = 3  # broken rows named in an error


class BadRow(ValueError):
    """A row that cannot be used; the message is the reason."""


class BrokenRows:
    """Counts and lists broken rows, and refuses more than a fraction `max_broken` of the rows of any one table.

    So many good annotations do not hide a half-copied folder of images.
    """

    def __init__(self, max_broken: float) -> None:
        if not 0.0 <= max_broken <= 1.0:
            raise ValueError(f"max_broken is {max_broken!r}: give a fraction from 0.0 to 1.0")
        self.max_broken = max_broken
        self.lines: list[str] = []

    def sift(
        self, rows: Iterable[tuple[str, Row]], parse: Callable[[Row], Parsed], hint: Callable[[], str] = str
    ) -> list[Parsed]:
        """What `parse` makes of the (place, row) pairs of one table, the broken ones left out.

        More broken rows than allowed raise ValueError that ends with `hint()`.
        """
        good: list[Parsed] = []
        lines: list[str] = []
        for place, row in rows:
            try:
                good.append(parse(row))
            except BadRow as why:
                lines.append(_one_line(f"{place}: {why}"))
        total = len(good) + len(lines)
        if len(lines) > self.max_broken * total:
            over = f"{len(lines)} of {total} rows are broken, over max_broken={self.max_broken}"
            raise ValueError(_one_line(f"{over}: {'; '.join(lines[:_SHOWN])}{hint()}"))
        self.lines += lines
        return good


def read_json(path: Path) -> Any:
    """The content of a JSON file; one clear line where it is missing or cut."""
    try:
        return json.loads(path.read_bytes())
    except OSError:
        raise ValueError(f"{path}: no such readable file; check the path") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error}); copy it again") from None


def table(content: Any, name: str, path: Path) -> list[tuple[str, Any]]:
    """The rows of the list `name` of a JSON file, each with its place for messages."""
    rows = content.get(name) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: no list {name!r} in it; check that it is the right kind of file")
    return places(rows, f"{path.name}: {name}")


def places(rows: list[Any], where: str) -> list[tuple[str, Any]]:
    """Rows, each with its place for messages."""
    return [(f"{where}[{number}]", row) for number, row in enumerate(rows)]


def as_object(row: object) -> dict[str, Any]:
    """The row, if it is a JSON object."""
    if not isinstance(row, dict):
        raise BadRow(f"a {type(row).__name__}, not an object")
    return row


def as_id(row: dict[str, Any], key: str) -> Id:
    """A whole number or a text that names something."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise BadRow(f"{key} is {_short(value)}, not a number or a name")
    return value


def new_id(row: dict[str, Any], key: str, seen: set[Id], what: str = "id") -> Id:
    """The row's id, noted in `seen`; BadRow where it was there before."""
    value = as_id(row, key)
    if value in seen:
        raise BadRow(f"duplicate {what} {value!r}")
    seen.add(value)
    return value


def as_list(value: object, what: str) -> list[Any]:
    """The value, if it is a list."""
    if not isinstance(value, list):
        raise BadRow(f"{what} is a {type(value).__name__}, not a list")
    return value


def as_text(row: dict[str, Any], key: str, default: str | None = None) -> str:
    """A text without blanks around it. Absent, null or empty gives `default`; where that is None, BadRow."""
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise BadRow(f"{key} is {_short(value)}, not a text")
    text = (value or "").strip()
    if not text and default is None:
        raise BadRow(f"no {key}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{key} is not valid Unicode") from None
    return text or default or ""


def as_numbers(value: object, count: int, what: str) -> list[float]:
    """`count` finite numbers."""
    if not isinstance(value, list) or len(value) != count:
        raise BadRow(f"{what} is {_short(value)}, not {count} numbers")
    try:
        numbers = [float(one) for one in value if isinstance(one, (int, float)) and not isinstance(one, bool)]
    except OverflowError:
        numbers = []
    if len(numbers) != count or not all(math.isfinite(one) for one in numbers):
        raise BadRow(f"{what} is {_short(value)}, not {count} finite numbers")
    return numbers


def clipped(x0: float, y0: float, x1: float, y1: float, size: tuple[int, int]) -> Box:
    """A box clipped to an image of (width, height) px; BadRow where it has no area or none inside the image."""
    if x1 <= x0 or y1 <= y0:
        raise BadRow(f"box {x0:g}, {y0:g} to {x1:g}, {y1:g} has no area")
    box = (max(x0, 0.0), max(y0, 0.0), min(x1, float(size[0])), min(y1, float(size[1])))
    if box[2] <= box[0] or box[3] <= box[1]:
        raise BadRow(f"box {x0:g}, {y0:g} to {x1:g}, {y1:g} lies outside the image of {sides(size)} px")
    return box


def in_pixels(row: dict[str, Any], key: str, count: int, what: str) -> list[list[float]]:
    """The row's list of so many numbers each, in pixels: shares of the image would all lie in its first pixel."""
    found = [as_numbers(one, count, what) for one in as_list(row[key], key)]
    if found and all(max(one) <= 1 for one in found):
        raise BadRow(f"{key} are shares of the image, not pixels: times its width and height")
    return found


def corner_boxes(row: dict[str, Any], key: str, size: tuple[int, int]) -> tuple[Box, ...] | None:
    """The row's list of [x0, y0, x1, y1], clipped to the image; None where it has none."""
    if row.get(key) is None:
        return None
    return tuple(clipped(x0, y0, x1, y1, size) for x0, y0, x1, y1 in in_pixels(row, key, 4, "box"))


def coco_box(row: dict[str, Any], size: tuple[int, int]) -> Box:
    """The row's bbox [x, y, width, height] as a box clipped to the image."""
    x, y, width, height = as_numbers(row.get("bbox"), 4, "bbox")
    return clipped(x, y, x + width, y + height, size)


def sides(size: tuple[int, int]) -> str:
    """(width, height) as it is written in messages."""
    return f"{size[0]}x{size[1]}"


def _one_line(message: str) -> str:
    """File names may hold anything; what is printed is one line of valid Unicode."""
    return " ".join(message.split()).encode(errors="backslashreplace").decode()


def _short(value: object) -> str:
    """A value in a message: never longer than a few words."""
    shown = "missing" if value is None else repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
