"""Backgrounds: grey fields made once per kind, cropped by the scene and coloured through a table."""

from collections.abc import Callable
from functools import cache

import numpy as np
from PIL import Image

from arr_coc.scenes.types import RGB, Background

FIELD = 1024  # side of a field in pixels; larger images mirror it


def _stretch(field: np.ndarray) -> np.ndarray:
    low, high = float(field.min()), float(field.max())
    return np.rint((field - low) * (255.0 / (high - low))).astype(np.uint8)


def _mesh() -> tuple[np.ndarray, np.ndarray]:
    line = np.arange(FIELD, dtype=np.float32)
    return line[None, :], line[:, None]


def _blotches(seed: int, cells: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (cells, cells), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((FIELD, FIELD), Image.Resampling.BICUBIC)).astype(np.float32)


def _grain(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 1.0, (FIELD, FIELD)).clip(-2.5, 2.5).astype(np.float32)


def _waves(period_x: float, period_y: float) -> np.ndarray:
    x, y = _mesh()
    return np.sin(x * (6.2832 / period_x) + y * (6.2832 / period_y))


def _checks(cell: int) -> np.ndarray:
    x, y = _mesh()
    return ((x // cell + y // cell) % 2).astype(np.float32)


def _dots(period: int) -> np.ndarray:
    x, y = _mesh()
    far = ((x % period) - period / 2) ** 2 + ((y % period) - period / 2) ** 2
    return np.asarray(far < (period / 5) ** 2, dtype=np.float32)


def _slope(x_share: float) -> np.ndarray:
    x, y = _mesh()
    return x * x_share + y * (1 - abs(x_share))


def _glow() -> np.ndarray:
    x, y = _mesh()
    return -np.hypot(x - FIELD / 2, y - FIELD / 2)


FIELDS: dict[str, Callable[[], np.ndarray]] = {
    "gradient-down": lambda: _slope(0.0),
    "gradient-right": lambda: _slope(1.0),
    "gradient-slant": lambda: _slope(0.5),
    "gradient-glow": _glow,
    "noise-fine": lambda: _grain(1),
    "noise-cloud": lambda: _blotches(2, 12),
    "noise-rough": lambda: _blotches(3, 40) + 60 * _grain(4),
    "noise-mixed": lambda: _blotches(5, 6) + 0.5 * _blotches(6, 90),
    "texture-stripes": lambda: _waves(24, 1e9),
    "texture-slant": lambda: _waves(30, 42),
    "texture-weave": lambda: _waves(11, 1e9) + _waves(1e9, 13),
    "texture-checks": lambda: _checks(36),
    "texture-dots": lambda: _dots(28),
    "texture-paper": lambda: _grain(7) + 0.02 * _blotches(8, 128),
}
KINDS: tuple[str, ...] = ("flat", *FIELDS)


@cache
def field(kind: str) -> np.ndarray:
    """The grey field [FIELD, FIELD] uint8 of a kind: the same whoever asks first."""
    return _stretch(FIELDS[kind]())


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
