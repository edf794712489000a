"""Grounds of wide scenes: flat, fields of grey coloured from tone to tone, fractal clouds, clutter, photographs.

Fields are made once and cropped. Photographs come from a pack that is never part of the repository; without it their
share goes to the clouds.
"""

import os
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, ImageDraw

from arr_coc_scenes.drawing import FIELD, field, fill
from arr_coc_scenes.drawing import KINDS as OLD_KINDS
from arr_coc_scenes.types import RGB
from studies.wide.faces import PACK

PHOTOS = "photos.npz"
# Kinds by their weight among scenes; the old kinds share one.
KINDS = ("flat", "field", "clouds", "paper", "clutter", "photo", "mosaic", "bricks")
WEIGHTS = {
    "flat": 2.0,
    "field": 2.5,
    "clouds": 2.0,
    "paper": 1.0,
    "clutter": 1.2,
    "photo": 2.5,
    "mosaic": 1.0,
    "bricks": 1.0,
}
BUSY = ("clutter", "photo")  # too uneven for bare ink: things and letters get a rim there


@cache
def photos() -> list[np.ndarray]:
    """Photographs of the pack, uint8 [h, w, 3], each decoded once; [] without a pack."""
    path = Path(os.environ.get(PACK, "")) / PHOTOS
    if not os.environ.get(PACK) or not path.is_file():
        return []
    from io import BytesIO

    with np.load(path) as stored:
        return [np.asarray(Image.open(BytesIO(stored[name].tobytes())).convert("RGB")) for name in stored.files]


def _octaves(seed: int, roughness: float) -> np.ndarray:
    """A fractal: blotches of 4 to 256 cells, each finer layer fainter by `roughness`."""
    rng = np.random.default_rng(seed)
    whole = np.zeros((FIELD, FIELD), np.float32)
    share = 1.0
    for cells in (4, 8, 16, 32, 64, 128, 256):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells), dtype=np.uint8))
        whole += share * np.asarray(coarse.resize((FIELD, FIELD), Image.Resampling.BICUBIC), np.float32)
        share *= roughness
    return whole


def _fibres(seed: int) -> np.ndarray:
    """Paper: short strokes on a fine grain."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(110, 146, (FIELD, FIELD), dtype=np.uint8))
    pen = ImageDraw.Draw(image)
    for x, y, dx, dy, tone in rng.integers((0, 0, -14, -14, 60), (FIELD, FIELD, 15, 15, 200), (2500, 5)).tolist():
        pen.line((x, y, x + dx, y + dy), fill=tone)
    return np.asarray(image, np.float32)


def _mosaic(seed: int) -> np.ndarray:
    """Tiles of uneven shape, one tone each."""
    rng = np.random.default_rng(seed)
    sites, tones = rng.integers(0, 256, (150, 2)), rng.integers(0, 256, 150)
    y, x = np.mgrid[:256, :256]
    far = (x[..., None] - sites[:, 0]) ** 2 + (y[..., None] - sites[:, 1]) ** 2
    tiles = Image.fromarray(tones[far.argmin(2)].astype(np.uint8))
    return np.asarray(tiles.resize((FIELD, FIELD), Image.Resampling.NEAREST), np.float32)


def _bricks() -> np.ndarray:
    """A wall: bricks of a few tones between pale joints."""
    rng = np.random.default_rng(9)
    y, x = np.mgrid[:FIELD, :FIELD]
    row = y // 28
    moved = x + 32 * (row % 2)
    tones = rng.integers(60, 160, (FIELD // 28 + 1, FIELD // 64 + 2))
    joint = (y % 28 < 3) | (moved % 64 < 3)
    return np.where(joint, 255, tones[row, moved // 64]).astype(np.float32)


@cache
def wide_field(kind: str, number: int) -> np.ndarray:
    """A grey field [FIELD, FIELD] uint8 of a kind; `number` chooses among several."""
    if kind == "field":
        return field(OLD_KINDS[1 + number % (len(OLD_KINDS) - 1)])
    made = {
        "clouds": lambda: _octaves(number, (0.45, 0.6, 0.75)[number % 3]),
        "paper": lambda: _fibres(number),
        "mosaic": lambda: _mosaic(number),
        "bricks": _bricks,
    }[kind]()
    low, high = float(made.min()), float(made.max())
    return np.rint((made - low) * (255.0 / (high - low))).astype(np.uint8)


def _coloured(rng: Random, grey: np.ndarray, size: tuple[int, int], low: RGB, high: RGB) -> np.ndarray:
    """A crop of a field, coloured from `low` to `high`, as a fresh canvas."""
    width, height = size
    if width > FIELD or height > FIELD:
        grey = np.pad(grey, ((0, max(0, height - FIELD)), (0, max(0, width - FIELD))), mode="symmetric")
    x, y = rng.randint(0, grey.shape[1] - width), rng.randint(0, grey.shape[0] - height)
    crop = grey[y : y + height, x : x + width][:: rng.choice((1, -1)), :: rng.choice((1, -1))]
    steps = np.linspace(0.0, 1.0, 256)[:, None]
    table = np.rint(np.array(low) + (np.array(high, float) - np.array(low)) * steps).astype(np.uint8)
    image = Image.fromarray(np.ascontiguousarray(crop))
    image.putpalette(table.tobytes())
    return np.array(image.convert("RGB"))


def _clutter(rng: Random, size: tuple[int, int], low: RGB) -> np.ndarray:
    """Overlapping strokes, boxes and discs of muted tones: nothing to name, nothing to read."""
    image = Image.new("RGB", size, low)
    pen = ImageDraw.Draw(image)
    for _ in range(rng.randint(20, 60)):
        tone = tuple(min(255, max(0, v + rng.randint(-38, 38))) for v in low)
        x, y = rng.randrange(size[0]), rng.randrange(size[1])
        w, h = rng.randint(8, size[0] // 3), rng.randint(8, size[1] // 3)
        way = rng.random()
        if way < 0.45:
            pen.line((x, y, x + rng.randint(-w, w), y + rng.randint(-h, h)), fill=tone, width=rng.randint(1, 9))
        elif way < 0.75:
            pen.rectangle((x, y, x + w, y + h), fill=tone if rng.random() < 0.6 else None, outline=tone)
        else:
            pen.arc((x, y, x + w, y + h), rng.randrange(360), rng.randrange(360), fill=tone, width=rng.randint(1, 7))
    return np.array(image)


def _photo(rng: Random, size: tuple[int, int], tone: RGB) -> np.ndarray:
    """Part of a photograph, mirrored or not, often veiled by a tone."""
    found = photos()
    picture = found[rng.randrange(len(found))]
    share = rng.uniform(0.6, 1.0)
    side = min(picture.shape[1] / size[0], picture.shape[0] / size[1]) * share
    width, height = max(8, round(side * size[0])), max(8, round(side * size[1]))
    x, y = rng.randint(0, picture.shape[1] - width), rng.randint(0, picture.shape[0] - height)
    crop = Image.fromarray(np.ascontiguousarray(picture[y : y + height, x : x + width][:, :: rng.choice((1, -1))]))
    large = crop.resize(size, Image.Resampling.BILINEAR)
    veil = rng.choice((0.0, 0.3, 0.5, 0.7))
    return np.array(Image.blend(large, Image.new("RGB", size, tone), veil) if veil else large)


def paint_ground(rng: Random, kind: str, size: tuple[int, int], low: RGB, high: RGB) -> np.ndarray:
    """A fresh canvas uint8 [height, width, 3] of `size` (width, height) px; `low` and `high` are its tones."""
    if kind == "flat":
        canvas = np.empty((size[1], size[0], 3), np.uint8)
        fill(canvas, low)
        return canvas
    if kind == "clutter":
        return _clutter(rng, size, low)
    if kind == "photo" and photos():
        return _photo(rng, size, low)
    grey = wide_field("clouds" if kind == "photo" else kind, rng.randrange(14 if kind == "field" else 6))
    return _coloured(rng, grey, size, low, high)
