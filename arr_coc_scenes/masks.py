"""Masks of all that is drawn: characters of the fonts, and things.

Texts are set one character at a time. Things are pictograms from the font or shapes from polygons: one large master
each, scaled down.
"""

import os
from dataclasses import dataclass
from functools import cache, lru_cache
from math import cos, pi, sin
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from arr_coc_scenes.types import Box, Glyph, around
from arr_coc_scenes.words import PICTOGRAMS, SHAPES, STROKES

FILES = {
    "sans": "DejaVuSans.ttf",
    "sans-bold": "DejaVuSans-Bold.ttf",
    "serif": "DejaVuSerif.ttf",
    "serif-bold": "DejaVuSerif-Bold.ttf",
    "mono": "DejaVuSansMono.ttf",
    "mono-bold": "DejaVuSansMono-Bold.ttf",
    "stix": "STIXGeneral.ttf",
    "stix-bold": "STIXGeneralBol.ttf",
}
TRAIN_FONTS = ("sans", "sans-bold", "serif", "serif-bold", "mono", "mono-bold")
UNSEEN_FONTS = ("stix", "stix-bold")
# Fonts that a study brings: name -> whole path of its file. Empty here; no split of this package shows them.
FURTHER_FILES: dict[str, Path] = {}

# Full ink in a mask. 128 and not 255: a difference of two uint8 times 128 still fits an int16.
FULL = 128
# Ink fainter than this (of FULL) at the rim of a character does not count for its box.
_RIM = 16
_MASTER = 256  # px a side of the master of a thing


@dataclass(frozen=True, slots=True)
class CharMask:
    """A character cut to its ink [h, w, 1] int16 in 0..FULL, its offset from the pen, the pen's advance."""

    ink: np.ndarray
    left: int
    top: int
    advance: int


@cache
def font_folder() -> Path:
    """The folder that holds the .ttf files: $ARR_COC_FONTS, else the fonts that ship with matplotlib."""
    named = os.environ.get("ARR_COC_FONTS")
    if named:
        folder = Path(named)
    else:
        try:
            import matplotlib
        except ImportError as error:
            raise ValueError(
                "the scenes are drawn with matplotlib's fonts: install matplotlib, or set ARR_COC_FONTS "
                "to a folder with " + ", ".join(FILES.values())
            ) from error
        folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    missing = [name for name in FILES.values() if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"no {missing[0]} in {folder}: point ARR_COC_FONTS to a folder that has it")
    return folder


@lru_cache(maxsize=512)
def load_font(font: str, px: int) -> ImageFont.FreeTypeFont:
    """The font of that name (a key of FILES or FURTHER_FILES, or a file beside those of FILES) at `px` pixels."""
    path = FURTHER_FILES.get(font) or font_folder() / FILES.get(font, font)
    if not path.is_file():
        raise ValueError(f"no {path.name} in {path.parent}: copy it from matplotlib, or train without practice fonts")
    return ImageFont.truetype(str(path), px, layout_engine=ImageFont.Layout.BASIC)


def trim(ink: np.ndarray, rim: int) -> tuple[np.ndarray, int, int]:
    """Cut [h, w] to the pixels of at least `rim`; also the columns and rows cut off at left and top."""
    rows, columns = np.flatnonzero((ink >= rim).any(1)), np.flatnonzero((ink >= rim).any(0))
    assert rows.size, "nothing is drawn"
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], int(columns[0]), int(rows[0])


@lru_cache(maxsize=65536)
def char_mask(font: str, px: int, char: str) -> CharMask:
    """The mask of one character that has ink; offsets are from the pen on the baseline.

    A font's name may end in "*" and a width in percent: its characters, narrowed or stretched.
    """
    name, _, percent = font.partition("*")
    wide = int(percent or 100) / 100
    face = load_font(name, px)
    pad = round(px * wide)
    image = Image.new("L", (3 * px, 3 * px))
    ImageDraw.Draw(image).text((px, 2 * px), char, fill=255, font=face, anchor="ls")
    if percent:
        image = image.resize((3 * pad, 3 * px), Image.Resampling.BILINEAR)
    ink = (np.asarray(image).astype(np.int16) * FULL + 127) // 255
    cut, left, top = trim(ink, _RIM)
    advance = round(face.getlength(char) * wide)
    return CharMask(np.ascontiguousarray(cut)[:, :, None], left - pad, top - 2 * px, advance)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text that is set: the size of its ink, and its glyphs from the ink's top left corner."""

    width: int
    height: int
    rise: int
    """Pixels from the top of the ink down to the baseline."""
    glyphs: tuple[Glyph, ...]


@lru_cache(maxsize=8192)
def set_text(text: str, font: str, px: int) -> Line:
    """Set one line of text that has at least one character with ink."""
    assert text.strip(), "a text needs a character with ink"
    pen, placed = 0, []
    for char in text:
        if char == " ":
            pen += round(0.4 * px)
            continue
        mask = char_mask(font, px, char)
        h, w = mask.ink.shape[:2]
        x, y = pen + mask.left, mask.top
        placed.append((char, (x, y, x + w, y + h)))
        pen += mask.advance
    x0, y0, x1, y1 = around([box for _, box in placed])
    return Line(x1 - x0, y1 - y0, -y0, tuple(Glyph(char, shift(box, -x0, -y0)) for char, box in placed))


def shift(box: Box, dx: int, dy: int) -> Box:
    """`box` moved by (dx, dy) pixels."""
    return box[0] + dx, box[1] + dy, box[2] + dx, box[3] + dy


# ---------------------------------------------------------------- things


def _star_points() -> list[tuple[float, float]]:
    half = _MASTER / 2
    corners = [(half * (0.42 if k % 2 else 1.0), 2 * pi * (k / 10 - 0.25)) for k in range(10)]
    return [(half + r * cos(a), half + r * sin(a)) for r, a in corners]


def _heart_points() -> list[tuple[float, float]]:
    angles = [2 * pi * k / 90 for k in range(90)]
    points = [(16 * sin(a) ** 3, 13 * cos(a) - 5 * cos(2 * a) - 2 * cos(3 * a) - cos(4 * a)) for a in angles]
    return [(128 + 7.6 * x, 116 - 7.6 * y) for x, y in points]


def _draw_shape(name: str) -> Image.Image:
    image = Image.new("L", (_MASTER, _MASTER))
    pen = ImageDraw.Draw(image)
    end = _MASTER - 1
    if name in ("circle", "ring"):
        pen.ellipse((0, 0, end, end), fill=255)
        if name == "ring":
            pen.ellipse((60, 60, end - 60, end - 60), fill=0)
    elif name == "cross":
        pen.rectangle((88, 0, 167, end), fill=255)
        pen.rectangle((0, 88, end, 167), fill=255)
    else:
        points = {
            "square": [(0.0, 0.0), (end, 0.0), (end, end), (0.0, end)],
            "triangle": [(128.0, 12.0), (end, 236.0), (0.0, 236.0)],
            "star": _star_points(),
            "diamond": [(128.0, 0.0), (218.0, 128.0), (128.0, end), (38.0, 128.0)],
            "bowtie": [(0.0, 40.0), (end, 216.0), (end, 40.0), (0.0, 216.0)],
            "heart": _heart_points(),
        }[name]
        pen.polygon(points, fill=255)
    return image


def _draw_pictogram(name: str) -> Image.Image:
    image = Image.new("L", (4 * _MASTER, 3 * _MASTER))
    ImageDraw.Draw(image).text(
        (2 * _MASTER, 2 * _MASTER),
        PICTOGRAMS[name],
        fill=255,
        font=load_font("sans", _MASTER),
        anchor="ms",
        stroke_width=STROKES.get(name, 0),  # outline drawings vanish at 20 px: a stroke keeps them readable
    )
    return image


@cache
def _master(name: str) -> Image.Image:
    image = _draw_shape(name) if name in SHAPES else _draw_pictogram(name)
    return Image.fromarray(np.ascontiguousarray(trim(np.asarray(image), 128)[0]))


@lru_cache(maxsize=4096)
def thing_mask(name: str, px: int) -> np.ndarray:
    """Mask [h, w, 1] int16 in 0..FULL of the thing `name`; `px` is the mean of its width and height.

    The mean, not the longer side: a flat cloud as wide as a square would look much smaller than it.
    """
    master = _master(name)
    scale = 2 * px / sum(master.size)
    size = (max(1, round(master.width * scale)), max(1, round(master.height * scale)))
    ink = np.asarray(master.resize(size, Image.Resampling.BOX)).astype(np.int32)
    # Thin lines lose ink when they are scaled down: a little gain gives it back.
    ink = np.minimum(ink * (5 if px < 40 else 4) // 4, 255)
    return ((ink * FULL + 127) // 255).astype(np.int16)[:, :, None]
