"""COCO-style files: instances become "Where is the dog?" with the boxes of all dogs, and what a detector found becomes
the boxes of examples that have none.

A detector's file is COCO-results-style: a list of objects with `image_id` (or `file_name`), `category_id` or `category`
(a name), `bbox` [x, y, width, height] in pixels, and `score`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from arr_coc.data import rows
from arr_coc.data.examples import FileExamples, FileImage, FileRow, ImageFolder
from arr_coc.data.questions import image_number
from arr_coc.data.rows import MAX_BROKEN, BadRow, Box, BrokenRows, Id, as_id, as_object, as_text, new_id, table

MIN_SCORE = 0.5  # of a detection, from which on it counts
Found = tuple[Id, str, Box | None]
"""Image, category name, and the box (None: a crowd, or of an image that is left out)."""
Detection = tuple[FileImage, str, Box | None]
"""Image, category name in small letters, and the box (None: of too low a score)."""


def read_coco(annotations: Path, images: Path, max_broken: float = MAX_BROKEN) -> FileExamples:
    """One example per image and category name, in the order of the file's images.

    Boxes are those of all annotations of that category in that image, clipped to it. Crowds (`iscrowd`) are no
    boxes: a category that is there only as a crowd is not asked about.
    """
    content = rows.read_json(annotations)
    folder, broken = ImageFolder(images), BrokenRows(max_broken)
    categories = read_categories(content, annotations, broken)
    listed: set[Id] = set()
    image_of = dict(broken.sift(table(content, "images", annotations), partial(_image, folder, listed), folder.hint))
    parse = partial(_annotation, image_of, listed, categories, set())
    boxes_of: dict[Id, dict[str, list[Box]]] = {image_id: {} for image_id in image_of}
    for image_id, category, box in broken.sift(table(content, "annotations", annotations), parse, folder.hint):
        if box is not None:
            boxes_of[image_id].setdefault(category, []).append(box)
    found = []
    for image_id, by_category in boxes_of.items():
        image = image_of[image_id]
        for category, boxes in by_category.items():
            name, question = f"{images.name}/{image.name}: {category}", f"Where is the {category}?"
            found.append(FileRow(name, image, question, "", tuple(boxes), category, image_id=image_id))
    return FileExamples(found, broken.lines, categories)


def read_categories(content: Any, path: Path, broken: BrokenRows) -> dict[Id, str]:
    """Names of the categories of a COCO file by their ids."""
    seen: set[Id] = set()

    def parse(row: object) -> tuple[Id, str]:
        category = as_object(row)
        return new_id(category, "id", seen), as_text(category, "name")

    return dict(broken.sift(table(content, "categories", path), parse))


def _image(folder: ImageFolder, listed: set[Id], row: object) -> tuple[Id, FileImage]:
    """Row of `images` -> (id, image); every id met is noted in `listed`, also where the image is broken."""
    entry = as_object(row)
    image_id = new_id(entry, "id", listed)
    image = folder.image(entry.get("file_name"))
    if "width" in entry and "height" in entry:
        declared = tuple(rows.as_numbers([entry["width"], entry["height"]], 2, "width, height"))
        if declared != image.size:
            size = f"{rows.sides(image.size)} px, upright, but was annotated at {declared[0]:g}x{declared[1]:g}"
            raise BadRow(f"image {image.name} is {size}: its boxes do not fit")
    return image_id, image


def _annotation(
    image_of: dict[Id, FileImage], listed: set[Id], categories: dict[Id, str], seen: set[Id], row: object
) -> Found:
    """Row of `annotations` -> what was found where."""
    note = as_object(row)
    if "id" in note:
        new_id(note, "id", seen)
    image_id, category_id = as_id(note, "image_id"), as_id(note, "category_id")
    if image_id not in listed:
        raise BadRow(f"unknown image id {image_id!r}")
    if category_id not in categories:
        raise BadRow(f"unknown category id {category_id!r}")
    crowd = note.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise BadRow(f"iscrowd is {crowd!r}, not 0 or 1")
    left_out = crowd or image_id not in image_of
    return image_id, categories[category_id], None if left_out else rows.coco_box(note, image_of[image_id].size)


# ---------------------------------------------------------------- boxes of a detector

_PLURALS = {
    **{"person": "people", "man": "men", "woman": "women", "child": "children"},
    **{"mouse": "mice", "goose": "geese", "foot": "feet", "tooth": "teeth"},
}
_SINGULARS = {plural: singular for singular, plural in _PLURALS.items()}


def attach_boxes(examples: FileExamples, results: Path, max_broken: float = MAX_BROKEN) -> FileExamples:
    """The examples, with boxes from a detector where their own are not known.

    A question that names categories, in singular or plural, gets the boxes of those alone; any other question gets
    all boxes of its image. Where the detector found nothing that fits, an example stays as it was: a detector
    that misses something does not prove that nothing is there. Examples from a COCO-style file know the names of
    category ids; for others, the results must have them.
    """
    content, names = rows.read_json(results), examples.categories
    if not isinstance(content, list):
        raise ValueError(f"{results}: not a list of detections; give a COCO-results-style file")
    if not names and any(isinstance(row, dict) and "category" not in row for row in content):
        raise ValueError(f"{results}: its categories are numbers; give their names in it (category)")
    broken, images, known = BrokenRows(max_broken), ImageFinder(examples.rows), {*names.values()}

    def parse(row: object) -> Detection | None:
        """A detection; None in an image of no example."""
        detected = as_object(row)
        image = images.find(as_id(detected, "image_id" if "image_id" in detected else "file_name"))
        category = _category(detected, names)
        known.add(category)  # a question may name one of which no box is good enough
        score = rows.as_numbers([detected.get("score")], 1, "score")[0]
        if image is None:
            return None
        box = rows.coco_box(detected, image.size)
        return image, _plain(category), box if score >= MIN_SCORE else None

    detections = [one for one in broken.sift(rows.places(content, results.name), parse) if one is not None]
    if not detections:
        raise ValueError(f"{results}: none of its {len(content)} detections is in an image of these examples")
    found: dict[FileImage, list[tuple[str, Box]]] = {}
    for image, category, box in detections:
        found.setdefault(image, []).extend([] if box is None else [(category, box)])
    named_in = category_finder(known)

    def boxed(row: FileRow) -> FileRow:
        wanted = named_in(row.question)
        fitting = tuple(box for category, box in found.get(row.image, ()) if category in wanted or not wanted)
        return replace(row, boxes=fitting) if row.boxes is None and fitting else row

    return replace(examples, rows=list(map(boxed, examples.rows)), broken=[*examples.broken, *broken.lines])


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


def _category(detected: dict[str, Any], names: Mapping[Id, str]) -> str:
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
