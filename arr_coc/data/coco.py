"""COCO instances-style JSON with a folder of images -> "Where is the dog?", with the boxes of all dogs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arr_coc.data import rows
from arr_coc.data.examples import Box
from arr_coc.data.files import FileExamples, FileImage, FileRow, ImageFolder
from arr_coc.data.rows import MAX_BROKEN, BadRow, BrokenRows, Id, as_id, as_object, as_text, new_id, table

CROWDS = "annotations of crowds"
OF_BROKEN = "annotations of broken images"
Found = tuple[Id, str, Box | None]
"""Image, category name, and the box (None: a crowd, or of an image that is left out)."""


def read_coco(annotations: Path, images: Path, max_broken: int | float = MAX_BROKEN) -> FileExamples:
    """One example per image and category name, in the order of the file's images.

    Boxes are those of all annotations of that category in that image, clipped to it. Crowds (`iscrowd`) are no
    boxes: they are counted in `left_out`, and a category that is there only as a crowd is not asked about.
    """
    content = rows.read_json(annotations)
    folder, broken = ImageFolder(images), BrokenRows(max_broken)
    categories = read_categories(content, annotations, broken)
    listed: set[Id] = set()
    image_of = dict(broken.sift(table(content, "images", annotations), _image_parser(folder, listed), folder.hint))
    left_out = dict.fromkeys((CROWDS, OF_BROKEN), 0)
    parse = _annotation_parser(image_of, listed, categories, left_out)
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
    return FileExamples(found, broken.lines, left_out, categories)


def read_categories(content: Any, path: Path, broken: BrokenRows) -> dict[Id, str]:
    """Names of the categories of a COCO file by their ids."""
    seen: set[Id] = set()

    def parse(row: object) -> tuple[Id, str]:
        category = as_object(row)
        return new_id(category, "id", seen), as_text(category, "name")

    return dict(broken.sift(table(content, "categories", path), parse))


def _image_parser(folder: ImageFolder, listed: set[Id]) -> Callable[[object], tuple[Id, FileImage]]:
    """Row of `images` -> (id, image); every id met is noted in `listed`, also where the image is broken."""

    def parse(row: object) -> tuple[Id, FileImage]:
        entry = as_object(row)
        image_id = new_id(entry, "id", listed)
        image = folder.image(entry.get("file_name"))
        if "width" in entry and "height" in entry:
            declared = tuple(rows.as_numbers([entry["width"], entry["height"]], 2, "width, height"))
            if declared != image.size:
                raise BadRow(
                    f"image {image.name} is {rows.sides(image.size)} px, upright, but was annotated at "
                    f"{declared[0]:g}x{declared[1]:g}: its boxes do not fit"
                )
        return image_id, image

    return parse


def _annotation_parser(
    image_of: dict[Id, FileImage], listed: set[Id], categories: dict[Id, str], left_out: dict[str, int]
) -> Callable[[object], Found]:
    """Row of `annotations` -> what was found where; crowds and those of broken images are counted in `left_out`."""
    seen: set[Id] = set()

    def parse(row: object) -> Found:
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
        if crowd or image_id not in image_of:
            left_out[OF_BROKEN if image_id not in image_of else CROWDS] += 1
            return image_id, categories[category_id], None
        return image_id, categories[category_id], rows.coco_box(note, image_of[image_id].size)

    return parse
