"""Pictograms from several icon and symbol fonts: which set has which thing, and its master drawing.

A master is the thing's ink at 128 px, cut to its box; fills and sizes are made from it (`sprites.py`).
"""

from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from arr_coc_scenes.masks import load_font, thing_mask, trim
from arr_coc_scenes.words import PICTOGRAMS, SHAPES, THINGS
from studies.wide import held_out
from studies.wide.faces import known
from studies.wide.shapes import DRAWINGS, VARIANTS, drawing

MASTER = 128
PLAIN = "plain"  # in place of a font: the polygons of `shapes.py`
_ALWAYS = ("sans", "sans-bold", PLAIN)

# Icon fonts with code points of their own.
_MATERIAL = {
    **{"sun": 0xF5A8, "cloud": 0xF15F, "umbrella": 0xF54A, "snowman": 0xF4B7, "telephone": 0xF602, "cup": 0xF176},
    **{"hand": 0xF2C7, "radiation": 0xF43C, "smiley": 0xF1F2, "moon": 0xF594, "crown": 0xF1A5, "note": 0xF387},
    **{"recycle": 0xF44C, "wheelchair": 0xF5A4, "dice": 0xF1CE, "flag": 0xF23B, "hammer": 0xF29B, "anchor": 0xF031},
    **{"sword": 0xF4E5, "scale": 0xF5D1, "flask": 0xF093, "gear": 0xF493, "lightning": 0xF241, "key": 0xF306},
    **{"scissors": 0xF190, "airplane": 0xF01D, "envelope": 0xF1EE, "pencil": 0xF3EB, "tick": 0xF12C, "flower": 0xF24A},
    **{"keyboard": 0xF30C, "house": 0xF2DC, "cat": 0xF11B, "cow": 0xF19A, "leaf": 0xF32A, "arrow": 0xF054},
    **{"star": 0xF4CE, "heart": 0xF2D1, "cross": 0xF415},
}
_AWESOME = {
    **{"sun": 0xF185, "cloud": 0xF0C2, "umbrella": 0xF0E9, "telephone": 0xF095, "cup": 0xF0F4, "hand": 0xF0A4},
    **{"smiley": 0xF118, "note": 0xF001, "flag": 0xF024, "anchor": 0xF13D, "flask": 0xF0C3, "gear": 0xF013},
    **{"lightning": 0xF0E7, "key": 0xF084, "scissors": 0xF0C4, "airplane": 0xF072, "envelope": 0xF0E0, "tick": 0xF00C},
    **{"pencil": 0xF040, "keyboard": 0xF11C, "house": 0xF015, "leaf": 0xF06C, "arrow": 0xF061, "star": 0xF005},
    **{"heart": 0xF004, "cross": 0xF067, "moon": 0xF186, "hammer": 0xF0E3, "recycle": 0xF1B8, "wheelchair": 0xF193},
    **{"snowflake": 0xF2DC, "scale": 0xF24E},
}
_FORK = {name: code for name, code in _AWESOME.items() if name not in ("smiley", "keyboard", "scissors", "hand")}
_FORK |= {"sun": 0xF329, "moon": 0xF328}
_ENTYPO = {
    **{"house": 0x2302, "keyboard": 0x2328, "cloud": 0x2601, "star": 0x2605, "hand": 0x261E},
    **{"heart": 0x2665, "note": 0x266B, "flag": 0x2691, "gear": 0x2699, "lightning": 0x26A1, "airplane": 0x2708},
    **{"envelope": 0x2709, "pencil": 0x270E, "tick": 0x2713},
}
# Drawings of the same things that emoji fonts have beside the plain symbols.
_EMOJI = {
    **{"house": 0x1F3E0, "key": 0x1F511, "hammer": 0x1F528, "cat": 0x1F408, "cow": 0x1F404, "monkey": 0x1F412},
    **{"horse": 0x1F40E, "flower": 0x1F337, "moon": 0x1F319, "snowman": 0x26C4, "crown": 0x1F451, "skull": 0x1F480},
    **{"smiley": 0x1F642, "note": 0x266A, "pencil": 0x270F, "scissors": 0x2700, "tick": 0x2713},
    **{"telephone": 0x1F4DE, "umbrella": 0x1F302, "dice": 0x2683, "hand": 0x261E, "clover": 0x1F340},
    **{"arrow": 0x27A1, "sword": 0x1F5E1, "snowflake": 0x2745, "star": 0x2605, "heart": 0x2665},
}
_SYMBOLS = {name: ord(char) for name, char in PICTOGRAMS.items()}
_BEASTS = ("cat", "cow", "monkey")
_PLAIN = {name: code for name, code in _SYMBOLS.items() if name not in _BEASTS}
# Drawings of 16 x 16 dots that nobody could tell.
_BLURRED = (
    *("skull", "keyboard", "wheel", "cup", "scale", "hammer", "sword", "crown", "spade", "lily", "snowman"),
    "flask",
)
_NOTO_1 = (
    *("wheel", "smiley", "moon", "note", "recycle", "flag", "hammer", "anchor", "sword", "scale", "flask", "gear"),
    *("lily", "house"),
)

# Sets of plain polygons: the number of the variant stands for the code point.
_PLAIN_SETS = {f"plain-{v}": dict.fromkeys(DRAWINGS, (PLAIN, v)) for v in range(VARIANTS)}
# Set -> thing -> (font, code point). "house" is the set of the old world: every thing, shapes as polygons.
SETS: dict[str, dict[str, tuple[str, int]]] = {
    **_PLAIN_SETS,
    "house": {name: ("sans", code) for name, code in _SYMBOLS.items()},
    "bold": {name: ("sans-bold", code) for name, code in _SYMBOLS.items()},
    "symbola": {name: ("symbola", code) for name, code in _SYMBOLS.items()},
    "emoji": {name: ("symbola", code) for name, code in _EMOJI.items()},
    "freeserif": {name: ("freeserif", code) for name, code in _PLAIN.items()},
    "pixels": {name: ("unifont", code) for name, code in _PLAIN.items() if name not in _BLURRED},
    "material": {name: ("material", code) for name, code in _MATERIAL.items()},
    "awesome": {name: ("awesome", code) for name, code in _AWESOME.items()},
    "fork": {name: ("fork", code) for name, code in _FORK.items()},
    "entypo": {name: ("entypo", code) for name, code in _ENTYPO.items()},
    "noto": {
        name: ("noto-1" if name in _NOTO_1 else "noto-2", code)
        for name, code in _SYMBOLS.items()
        if name not in (*_BEASTS, "trident", "key")
    },
}


@cache
def sets_of(name: str, wanted_held_out: bool) -> tuple[str, ...]:
    """The sets that draw a thing and whose font is there: held-out ones, or those of training; "house" if none."""
    there = [s for s, drawn in SETS.items() if name in drawn and drawn[name][0] in (*known(), *_ALWAYS)]
    found = held_out.choices(tuple(there), held_out.ICON_SETS, wanted_held_out)
    return found or ("house",)


def _glyph(font: str, code: int) -> np.ndarray:
    image = Image.new("L", (4 * MASTER, 4 * MASTER))
    face = load_font(font, round(MASTER * 1.4))
    stroke = 0 if font in ("material", "awesome", "fork", "entypo", "unifont") else 2
    ImageDraw.Draw(image).text(
        (2 * MASTER, 2 * MASTER), chr(code), fill=255, font=face, anchor="mm", stroke_width=stroke
    )
    return np.asarray(image)


@cache
def master(name: str, icons: str) -> np.ndarray:
    """The ink of a thing [h, w] uint8 with the longer side at 128 px; shapes that a set lacks are polygons."""
    assert name in THINGS
    if icons == "house" or (name in SHAPES and name not in SETS[icons]):
        ink = thing_mask(name, MASTER)[:, :, 0] * 2
        cut = trim(np.minimum(ink, 255).astype(np.uint8), 128)[0]
    else:
        font, code = SETS[icons][name]
        cut = trim(drawing(name, code) if font == PLAIN else _glyph(font, code), 128)[0]
    scale = MASTER / max(cut.shape)
    size = (max(8, round(cut.shape[1] * scale)), max(8, round(cut.shape[0] * scale)))
    return np.asarray(Image.fromarray(np.ascontiguousarray(cut)).resize(size, Image.Resampling.BOX))


@cache
def is_solid(name: str, icons: str) -> bool:
    """Whether enough of a thing's ink is thick, so that its outline or a pattern inside it still shows what it is."""
    ink = master(name, icons)
    thick = np.asarray(Image.fromarray(ink).filter(ImageFilter.MinFilter(9)))
    return float((thick > 128).sum()) > 0.45 * float((ink > 128).sum())
