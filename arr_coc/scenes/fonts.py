"""Fonts, and the masks of single characters. Texts are set one character at a time from cached masks."""

import os
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from arr_coc.scenes.types import Box, Glyph, around

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
# Further fonts for practice alone: no split shows them, and none is of the family of UNSEEN_FONTS.
PRACTICE_FILES = {
    "sans-oblique": "DejaVuSans-Oblique.ttf",
    "serif-italic": "DejaVuSerif-Italic.ttf",
    "modern": "cmr10.ttf",
    "modern-bold": "cmb10.ttf",
    "modern-sans": "cmss10.ttf",
    "modern-mono": "cmtt10.ttf",
}
# Fonts that a study brings: name -> whole path of its file. Empty here; no split of this package shows them.
FURTHER_FILES: dict[str, Path] = {}
# A font's name may end in "*" and a width in percent: its characters, narrowed or stretched.
PRACTICE_FONTS = (
    *TRAIN_FONTS,
    *PRACTICE_FILES,
    *(f"{font}*{width}" for font in TRAIN_FONTS for width in (82, 118)),
)

# Full ink in a mask. 128 and not 255: a difference of two uint8 times 128 still fits an int16.
FULL = 128
# Ink fainter than this (of FULL) at the rim of a character does not count for its box.
_RIM = 16


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
    """The font of that name (a key of FILES or PRACTICE_FILES) at `px` pixels."""
    path = FURTHER_FILES.get(font) or font_folder() / (FILES | PRACTICE_FILES)[font]
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
    """The mask of one character that has ink; offsets are from the pen on the baseline."""
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
