"""Pseudo-boxes: what a detector found becomes the boxes of examples that have none.

The file is COCO-results-style, as detectors write it: a list of objects with `image_id` (or `file_name`), `category_id`
or `category` (a name), `bbox` [x, y, width, height] in pixels, and `score`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from arr_coc.data import rows
from arr_coc.data.coco import read_categories
from arr_coc.data.examples import Box
from arr_coc.data.files import FileExamples, FileImage, FileRow
from arr_coc.data.questions import image_number
from arr_coc.data.rows import MAX_BROKEN, BadRow, BrokenRows, Id, as_id, as_object, as_text, read_json

OTHER_IMAGES = "detections in other images"
LOW_SCORE = "detections under min_score"
NONE_FOUND = "examples without a detection"
MIN_SCORE = 0.5
Detection = tuple[FileImage, str, Box]
"""Image, category name in small letters, box."""

_PLURALS = {
    **{"person": "people", "man": "men", "woman": "women", "child": "children"},
    **{"mouse": "mice", "goose": "geese", "foot": "feet", "tooth": "teeth"},
}
_SINGULARS = {plural: singular for singular, plural in _PLURALS.items()}


def attach_boxes(
    examples: FileExamples,
    results: str | Path,
    *,
    min_score: float = MIN_SCORE,
    replace_boxes: bool = False,
    categories: str | Path | None = None,
    max_broken: int | float = MAX_BROKEN,
) -> FileExamples:
    """The examples, with boxes from a detector where their own are not known (or everywhere: `replace_boxes`).

    A question that names categories, in singular or plural, gets the boxes of those alone; any other question gets
    all boxes of its image. Where the detector found nothing that fits, an example stays as it was: a detector
    that misses something does not prove that nothing is there. `categories` is any COCO-style file with the
    names of the category ids; examples from such a file bring their own.
    """
    if not 0.0 <= min_score <= 1.0:
        raise ValueError(f"min_score is {min_score}: give a number from 0 to 1")
    results = Path(results)
    content = read_json(results)
    if not isinstance(content, list):
        raise ValueError(f"{results}: not a list of detections; give a COCO-results-style file")
    broken = BrokenRows(max_broken)
    names = dict(examples.categories)
    if categories is not None:
        names = read_categories(read_json(Path(categories)), Path(categories), broken)
    elif not names and any(isinstance(row, dict) and "category" not in row for row in content):
        raise ValueError(f"{results}: its categories are numbers; give a COCO-style file with their names (categories)")
    left_out = dict.fromkeys((OTHER_IMAGES, LOW_SCORE, NONE_FOUND), 0)
    known = {*names.values(), *examples.categories.values()}
    parse = _detection_parser(ImageFinder(examples.rows), names, known, min_score, left_out)
    found: dict[FileImage, list[tuple[str, Box]]] = {}
    detections = broken.sift(rows.places(content, results.name), parse)
    if len(detections) == left_out[OTHER_IMAGES]:
        raise ValueError(f"{results}: none of its {len(content)} detections is in an image of these examples")
    for image, category, box in filter(None, detections):
        found.setdefault(image, []).append((category, box))
    named_in = category_finder(known)
    boxed = [_with_boxes(row, found.get(row.image, []), named_in, replace_boxes, left_out) for row in examples.rows]
    lines, counts = [*examples.broken, *broken.lines], {**examples.left_out, **left_out}
    return replace(examples, rows=boxed, broken=lines, left_out=counts)


def _with_boxes(
    row: FileRow,
    found: list[tuple[str, Box]],
    named_in: Callable[[str], set[str]],
    replace_boxes: bool,
    left_out: dict[str, int],
) -> FileRow:
    if row.boxes is not None and not replace_boxes:
        return row
    wanted = named_in(row.question)
    boxes = tuple(box for category, box in found if category in wanted or not wanted)
    if not boxes:
        left_out[NONE_FOUND] += 1
        return row
    return replace(row, boxes=boxes)


class ImageFinder:
    """Finds the image that a detector means: by id or path first, else by file name, stem or number in the name."""

    def __init__(self, examples: Iterable[FileRow]) -> None:
        self._exact: dict[Id, set[FileImage]] = {}
        self._loose: dict[Id, set[FileImage]] = {}
        for row in examples:
            path, number = row.image.path, row.image_id
            self._exact.setdefault(row.image.name, set()).add(row.image)
            if number is not None:
                self._exact.setdefault(number, set()).add(row.image)
            elif (number := image_number(path.name)) is not None:
                self._loose.setdefault(number, set()).add(row.image)
            for name in (path.name, path.stem):
                self._loose.setdefault(name, set()).add(row.image)

    def find(self, key: Id) -> FileImage | None:
        """The image, None where no example has it; BadRow where several could be meant."""
        fitting = self._exact.get(key) or self._loose.get(key) or set()
        if len(fitting) > 1:
            first, second = sorted(image.name for image in fitting)[:2]
            raise BadRow(f"image {key!r} could be {first} or {second}; give the path as image_id")
        return next(iter(fitting), None)


def _detection_parser(
    images: ImageFinder, names: dict[Id, str], known: set[str], min_score: float, left_out: dict[str, int]
) -> Callable[[object], Detection | None]:
    """Row of a results file -> detection; None for those that are only counted, in `left_out`.

    Every category met goes into `known`: a question may name one of which no box is good enough.
    """

    def parse(row: object) -> Detection | None:
        detected = as_object(row)
        image = images.find(as_id(detected, "image_id" if "image_id" in detected else "file_name"))
        category = _category(detected, names)
        known.add(category)
        score = rows.as_numbers([detected.get("score")], 1, "score")[0]
        if image is None:
            left_out[OTHER_IMAGES] += 1
            return None
        box = rows.coco_box(detected, image.size)
        if score < min_score:
            left_out[LOW_SCORE] += 1
            return None
        return image, _plain(category), box

    return parse


def _category(detected: dict[str, Any], names: dict[Id, str]) -> str:
    if "category" in detected:
        return as_text(detected, "category")
    category_id = as_id(detected, "category_id")
    if category_id not in names:
        raise BadRow(f"unknown category id {category_id!r}")
    return names[category_id]


def category_finder(names: Iterable[str]) -> Callable[[str], set[str]]:
    """A function from a question to the categories it names, in small letters.

    Whole words, singular or plural; the longest name wins, so that "hot dog" does not name "dog".
    """
    meant: dict[str, set[str]] = {}
    for name in {_plain(name) for name in names}:
        for form in _forms(name):
            meant.setdefault(form, set()).add(name)
    longest_first = sorted(meant, key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)") if meant else None

    def named_in(question: str) -> set[str]:
        found = pattern.findall(_plain(question)) if pattern else []
        return {name for form in found for name in meant[form]}

    return named_in


def _plain(text: str) -> str:
    """Small letters, single blanks; underscores as in "traffic_light" are blanks."""
    return " ".join(text.casefold().replace("_", " ").split())


def _forms(name: str) -> set[str]:
    """The name with its last word in singular and plural. Forms that are no words do no harm."""
    before, _, last = name.rpartition(" ")
    forms = {last, last + "s", last + "es"}
    forms |= {table[last] for table in (_PLURALS, _SINGULARS) if last in table}
    for ending, other in (("y", "ies"), ("f", "ves"), ("fe", "ves"), ("ies", "y"), ("es", ""), ("s", "")):
        stem = last.removesuffix(ending)
        # Two letters are too few to mean a thing: "bus" is no plural.
        if last.endswith(ending) and len(stem) > 2:
            forms.add(stem + other)
    return {f"{before} {form}".strip() for form in forms}
