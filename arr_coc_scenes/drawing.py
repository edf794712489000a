"""Scene description -> pixels. No randomness here: everything that varies is in the description.

A background is a crop of a grey field, made once per kind and coloured through a table; marks and elements lie on it.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from PIL import Image

from arr_coc_scenes.masks import FULL, char_mask, thing_mask
from arr_coc_scenes.types import RGB, Background, Box, Element, Mark, Scene

_SHIFT = FULL.bit_length() - 1
FRAME = 2  # width in pixels of a frame's line
CLUTTER_PX = 20  # font size of clutter characters
FIELD = 1024  # side of a field in pixels; larger images mirror it


def _blotches(seed: int, cells: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (cells, cells), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((FIELD, FIELD), Image.Resampling.BICUBIC)).astype(np.float32)


def _grain(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 1.0, (FIELD, FIELD)).clip(-2.5, 2.5).astype(np.float32)


def _wave(x: np.ndarray, y: np.ndarray, period_x: float, period_y: float) -> np.ndarray:
    return np.sin(x * (6.2832 / period_x) + y * (6.2832 / period_y))


def _dots(x: np.ndarray, y: np.ndarray, period: int) -> np.ndarray:
    far = ((x % period) - period / 2) ** 2 + ((y % period) - period / 2) ** 2
    return np.asarray(far < (period / 5) ** 2, dtype=np.float32)


# By the places of its columns, [1, FIELD], and of its rows, [FIELD, 1].
FIELDS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "gradient-down": lambda x, y: x * 0.0 + y * 1.0,
    "gradient-right": lambda x, y: x * 1.0 + y * 0.0,
    "gradient-slant": lambda x, y: x * 0.5 + y * 0.5,
    "gradient-glow": lambda x, y: -np.hypot(x - FIELD / 2, y - FIELD / 2),
    "noise-fine": lambda x, y: _grain(1),
    "noise-cloud": lambda x, y: _blotches(2, 12),
    "noise-rough": lambda x, y: _blotches(3, 40) + 60 * _grain(4),
    "noise-mixed": lambda x, y: _blotches(5, 6) + 0.5 * _blotches(6, 90),
    "texture-stripes": lambda x, y: _wave(x, y, 24, 1e9),
    "texture-slant": lambda x, y: _wave(x, y, 30, 42),
    "texture-weave": lambda x, y: _wave(x, y, 11, 1e9) + _wave(x, y, 1e9, 13),
    "texture-checks": lambda x, y: ((x // 36 + y // 36) % 2).astype(np.float32),
    "texture-dots": lambda x, y: _dots(x, y, 28),
    "texture-paper": lambda x, y: _grain(7) + 0.02 * _blotches(8, 128),
}
KINDS: tuple[str, ...] = ("flat", *FIELDS)


@cache
def field(kind: str) -> np.ndarray:
    """The grey field [FIELD, FIELD] uint8 of a kind: the same whoever asks first."""
    line = np.arange(FIELD, dtype=np.float32)
    made = FIELDS[kind](line[None, :], line[:, None])
    low, high = float(made.min()), float(made.max())
    return np.rint((made - low) * (255.0 / (high - low))).astype(np.uint8)


def fill(canvas: np.ndarray, rgb: RGB) -> None:
    """Set every pixel of [h, w, 3]. A whole row at a time: ten times faster than pixel by pixel."""
    canvas[:] = np.tile(np.array(rgb, np.uint8), canvas.shape[1]).reshape(1, -1, 3)


def paint(background: Background, width: int, height: int) -> np.ndarray:
    """A fresh canvas [height, width, 3] uint8."""
    if background.kind == "flat":
        canvas = np.empty((height, width, 3), np.uint8)
        fill(canvas, background.low)
        return canvas
    steps = np.linspace(0.0, 1.0, 256)[:, None]
    low, high = np.array(background.low, float), np.array(background.high, float)
    table = np.rint(low + (high - low) * steps).astype(np.uint8)
    grey = field(background.kind)
    if width > FIELD or height > FIELD:
        grey = np.pad(grey, ((0, max(0, height - FIELD)), (0, max(0, width - FIELD))), mode="symmetric")
    x = min(background.offset[0], grey.shape[1] - width)
    y = min(background.offset[1], grey.shape[0] - height)
    crop = grey[y : y + height, x : x + width]
    if background.flip & 1:
        crop = crop[:, ::-1]
    if background.flip & 2:
        crop = crop[::-1]
    # Pillow's palette is a third faster here than numpy's take, which widens the indices to eight bytes.
    image = Image.fromarray(np.ascontiguousarray(crop))
    image.putpalette(table.tobytes())
    return np.array(image.convert("RGB"))


# ---------------------------------------------------------------- marks and elements


def _blend(canvas: np.ndarray, box: Box, mask: np.ndarray, ink: RGB) -> None:
    """Lay `ink` over the canvas inside `box` by `mask` [h, w, 1] in 0..FULL; what lies outside is cut."""
    height, width = canvas.shape[:2]
    x0, y0 = max(0, box[0]), max(0, box[1])
    x1, y1 = min(width, box[2]), min(height, box[3])
    if x0 >= x1 or y0 >= y1:
        return
    under = canvas[y0:y1, x0:x1].astype(np.int16)
    part = mask[y0 - box[1] : y1 - box[1], x0 - box[0] : x1 - box[0]]
    step = np.array(ink, np.int16) - under
    step *= part
    step += FULL // 2
    step >>= _SHIFT  # by FULL: a shift costs a fifth of a division
    under += step
    canvas[y0:y1, x0:x1] = under


def _fill(canvas: np.ndarray, box: Box, ink: RGB) -> None:
    x0, y0, x1, y1 = (max(0, v) for v in box)
    fill(canvas[y0:y1, x0:x1], ink)


def frame_sides(box: Box) -> tuple[Box, ...]:
    """The four lines of a frame."""
    x0, y0, x1, y1 = box
    level = (x0, y0, x1, y0 + FRAME), (x0, y1 - FRAME, x1, y1)
    return *level, (x0, y0, x0 + FRAME, y1), (x1 - FRAME, y0, x1, y1)


def _draw_mark(canvas: np.ndarray, mark: Mark) -> None:
    if mark.shape == "rect":
        _fill(canvas, mark.box, mark.ink)
    elif mark.shape == "frame":
        for side in frame_sides(mark.box):
            _fill(canvas, side, mark.ink)
    else:
        _blend(canvas, mark.box, char_mask("sans", CLUTTER_PX, mark.shape).ink, mark.ink)


def _draw_element(canvas: np.ndarray, element: Element) -> None:
    if element.kind == "thing":
        _blend(canvas, element.box, thing_mask(element.name, element.px), element.ink)
    elif element.kind == "bar":
        _fill(canvas, element.box, element.ink)
    else:
        for glyph in element.glyphs:
            _blend(canvas, glyph.box, char_mask(element.font, element.px, glyph.char).ink, element.ink)


def clutter_size(char: str) -> tuple[int, int]:
    """(width, height) in pixels of a clutter mark."""
    height, width = char_mask("sans", CLUTTER_PX, char).ink.shape[:2]
    return width, height


def draw_scene(scene: Scene) -> np.ndarray:
    """The image of a scene, uint8 [height, width, 3], RGB."""
    canvas = paint(scene.background, scene.width, scene.height)
    for mark in scene.marks:
        _draw_mark(canvas, mark)
    for element in scene.elements:
        _draw_element(canvas, element)
    return canvas
