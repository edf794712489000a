"""Masks of the things: pictograms from the font, shapes from polygons; one large master each, scaled down."""

from functools import cache, lru_cache
from math import cos, pi, sin

import numpy as np
from PIL import Image, ImageDraw

from arr_coc.scenes.fonts import FULL, load_font, trim
from arr_coc.scenes.words import PICTOGRAMS, SHAPES, STROKES

_MASTER = 256


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
