"""One image with one question, to learn from or to be asked: drawn, or from files that are checked by their headers.

A dataset of examples has `len` and gives an Example by index; the image is drawn or decoded only then. Files that fail
to decode only later raise BrokenExample from `__getitem__`; a training loop takes its examples through
`readable_example`, which walks on past them.
"""

import os
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Protocol

import numpy as np
from PIL import ExifTags, Image

from arr_coc.data.rows import BadRow, Box, Id, sides
from arr_coc.images.headers import MOST_ASPECT, MOST_PIXELS
from arr_coc.images.reader import MOST_BYTES, read_image
from arr_coc_scenes import Scene, draw_scene

FORMATS = ("JPEG", "PNG", "WEBP")  # whose size upright Pillow tells from the header alone

MOST_IN_A_ROW = 16  # so many unreadable files one after the other are a lost disk, not a bad file


@dataclass(frozen=True, slots=True)
class Example:
    """One image with one question."""

    name: str  # names the row in messages, e.g. "val2017/000000000139.jpg: dog"
    image: np.ndarray = field(repr=False)  # uint8 [height, width, 3], RGB, EXIF-upright
    question: str
    answer: str  # "" where there is none
    boxes: tuple[Box, ...] | None  # where the answer is; () means that nothing is there, None that it is not known
    family: str = ""  # group for reports
    hard: bool = False  # hard variants get double weight in stage 3
    answers: tuple[str, ...] = ()  # all answers that people gave, where there are several; `answer` stands for them


class BrokenExample(ValueError):
    """An image that passed the check of its header and yet does not decode. Names the row and the reason."""


class Examples(Protocol):
    """What every dataset of examples offers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


def readable_example(examples: Examples, index: int) -> tuple[Example, list[str]]:
    """The example at `index`, or the next one that decodes (from the end on to the start).

    Also gives the messages of those passed over, for the log. It depends on the index and the files alone, so a
    resumed run sees the same examples, and batches keep their size in every process. After 16 failures in a
    row it raises ValueError.
    """
    passed: list[str] = []
    for step in range(min(MOST_IN_A_ROW, len(examples))):
        try:
            return examples[(index + step) % len(examples)], passed
        except BrokenExample as why:
            passed.append(str(why))
    raise ValueError(
        f"{len(passed)} images in a row do not decode, first {passed[0]}; check the disk or copy them again"
    )


def scene_examples(scene: Scene) -> list[Example]:
    """All questions of a scene as examples that share one drawn image."""
    image, hard, start = draw_scene(scene), scene.difficulty == "hard", f"scenes/{scene.split}/{scene.seed}"
    examples = []
    for one in scene.questions:
        boxes = tuple((float(x0), float(y0), float(x1), float(y1)) for x0, y0, x1, y1 in one.evidence)
        examples.append(Example(f"{start}: {one.text}", image, one.text, one.answer, boxes, one.family, hard))
    return examples


# ---------------------------------------------------------------- from files


@dataclass(frozen=True, slots=True, eq=False)
class FileImage:
    """An image file whose header was read; one object per file, so it is known by its identity."""

    name: str  # path relative to its folder, with "/"
    path: Path
    size: tuple[int, int]  # (width, height) in px, upright


@dataclass(frozen=True, slots=True)
class FileRow:
    """An example whose image is still in its file."""

    name: str
    image: FileImage
    question: str
    answer: str = ""
    boxes: tuple[Box, ...] | None = None
    family: str = ""
    hard: bool = False
    image_id: Id | None = None  # the number or name under which annotation files know the image, where they do
    answers: tuple[str, ...] = ()  # all answers that people gave, where the file has several
    choices: tuple[str, ...] = ()  # what there is to choose from, where the file says so
    fixations: tuple[tuple[float, float], ...] | None = None  # where people looked, x and y in px


@dataclass(eq=False, repr=False)
class FileExamples:
    """Examples from image files. Images are decoded on access; what fails then raises BrokenExample."""

    rows: list[FileRow]
    broken: list[str]  # one line per row that was left out: file, row, reason
    categories: Mapping[Id, str] = field(default_factory=dict)  # names that the annotation file knows

    def __post_init__(self) -> None:
        if not self.rows:
            first = f"; first broken row: {self.broken[0]}" if self.broken else ": the data hold none"
            raise ValueError(f"no example is left{first}")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self.rows):
            raise IndexError(index)
        row = self.rows[index]
        try:
            pixels = np.array(read_image(row.image.path))
        except ValueError as why:
            raise BrokenExample(f"{row.name}: {why}") from None
        height, width = pixels.shape[:2]
        if (width, height) != row.image.size:
            raise BrokenExample(f"{row.name}: {width}x{height} decoded, its header said {sides(row.image.size)}")
        return Example(row.name, pixels, row.question, row.answer, row.boxes, row.family, row.hard, row.answers)


def inner_name(name: object) -> str:
    """The path of an image relative to its folder; BadRow where it is no path, or leads out of the folder."""
    if name is None:
        raise BadRow("no image: give the name of its file")
    if not isinstance(name, str) or not name:
        raise BadRow(f"image file name {name!r} is not a text")
    inner = os.path.normpath(name)
    if PureWindowsPath(name).anchor or inner.split(os.sep)[0] == ".." or "\0" in name:
        raise BadRow(f"image {name!r} is not inside the folder; give a relative path")
    return inner


class ImageFolder:
    """Image files below one folder, each checked once, by its header alone (about 0.1 ms)."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder of images; check the path")
        self.folder = folder
        self._known: dict[str, FileImage | BadRow] = {}
        self._missing: dict[str, None] = {}

    def image(self, name: object) -> FileImage:
        """The image with this path relative to the folder; BadRow where it is missing, unreadable or outside."""
        inner = inner_name(name)
        if inner not in self._known:
            try:
                self._known[inner] = self._read(inner)
            except BadRow as why:
                self._known[inner] = why
        known = self._known[inner]
        if isinstance(known, BadRow):
            raise BadRow(str(known))
        return known

    def note_missing(self, name: str) -> BadRow:
        """The reason for a row whose image is not there; counted once per image."""
        self._missing[name] = None
        return BadRow(f"image {name} is missing")

    def hint(self) -> str:
        """What to say of a half-copied folder at the end of an error."""
        if not self._missing:
            return ""
        asked = len(self._known.keys() | self._missing.keys())
        return (
            f". {self.folder}: {asked - len(self._missing)} of {asked} images are there, the first missing one is "
            f"{next(iter(self._missing))}; copy the folder again"
        )

    def _read(self, inner: str) -> FileImage:
        path = self.folder / inner
        try:
            if not path.is_file():
                raise self.note_missing(inner)
            return FileImage(Path(inner).as_posix(), path, upright_size(path))
        except OSError as error:
            raise BadRow(f"image {inner[:80]!r} cannot be read ({type(error).__name__})") from None


def upright_size(path: Path) -> tuple[int, int]:
    """(width, height) of an image file as `read_image` will give it, from its header; BadRow says why not."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadRow(f"image {path.name} is over {MOST_BYTES // 2**20} MB")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit follows, and is lower
            with Image.open(path, formats=FORMATS) as image:
                width, height = image.size
                # The method of the base class: that of PNG files would decode the whole image.
                turned = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError, OverflowError, struct.error) as error:
        if isinstance(error, BadRow):
            raise
        raise BadRow(f"image {path.name} is not a readable {', '.join(FORMATS)} file") from None
    if not 0 < width * height <= MOST_PIXELS or max(width, height) > MOST_ASPECT * min(width, height):
        raise BadRow(f"image {path.name} of {width}x{height} px is too large or too long")
    return (height, width) if turned else (width, height)
