"""How a picture was taken: soft, compressed, grainy, unevenly lit. Nothing moves, so boxes stay as they are."""

from functools import cache
from io import BytesIO
from random import Random

import numpy as np
from PIL import Image

# Kind -> its share among scenes of training; "lines" is held out (`held_out.py`).
CAPTURES = {"clean": 4.0, "soft": 1.0, "jpeg": 1.5, "grain": 1.2, "light": 1.5, "phone": 1.0, "lines": 1.0}
_FIELD = 1024


@cache
def _grain(number: int) -> np.ndarray:
    """Noise of one tenth of the range, int16 [FIELD, FIELD, 1]."""
    made = np.random.default_rng(number).normal(0.0, 9.0, (_FIELD, _FIELD, 1)).clip(-26, 26)
    return np.rint(made).astype(np.int16)


@cache
def _light(number: int) -> np.ndarray:
    """Uneven light as a coarse field, float32 [16, 16] in 0..1."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[:16, :16] / 15.0
    angle = rng.uniform(0, 2 * np.pi)
    slope = np.cos(angle) * x + np.sin(angle) * y
    spot = np.exp(-8 * ((x - rng.uniform()) ** 2 + (y - rng.uniform()) ** 2))
    made = slope + rng.uniform(0, 1.5) * spot
    return ((made - made.min()) / (made.max() - made.min())).astype(np.float32)


def _soft(canvas: np.ndarray, rng: Random) -> np.ndarray:
    """Seen with too few pixels: shrunk a little and brought back."""
    height, width = canvas.shape[:2]
    share = rng.uniform(0.68, 0.85)
    small = Image.fromarray(canvas).resize((round(width * share), round(height * share)), Image.Resampling.BILINEAR)
    return np.array(small.resize((width, height), Image.Resampling.BILINEAR))


def _jpeg(canvas: np.ndarray, rng: Random) -> np.ndarray:
    held = BytesIO()
    Image.fromarray(canvas).save(held, "JPEG", quality=rng.randint(35, 80))
    return np.array(Image.open(held))


def _grained(canvas: np.ndarray, rng: Random) -> np.ndarray:
    height, width = canvas.shape[:2]
    noise = _grain(rng.randrange(4))
    if height > _FIELD or width > _FIELD:
        noise = np.tile(noise, (-(-height // _FIELD), -(-width // _FIELD), 1))
    y, x = rng.randint(0, noise.shape[0] - height), rng.randint(0, noise.shape[1] - width)
    return np.clip(canvas + noise[y : y + height, x : x + width], 0, 255).astype(np.uint8)


def _lit(canvas: np.ndarray, rng: Random) -> np.ndarray:
    """Darker at one side by up to 36 %, in 1/256 steps so that all stays in whole numbers."""
    height, width = canvas.shape[:2]
    depth = rng.uniform(0.15, 0.36)
    coarse = Image.fromarray(np.rint(255 * (1 - depth * _light(rng.randrange(24)))).astype(np.uint8))
    shade = np.asarray(coarse.resize((width, height), Image.Resampling.BILINEAR))
    return ((canvas.astype(np.uint16) * (shade.astype(np.uint16) + 1)[:, :, None]) >> 8).astype(np.uint8)


def _lined(canvas: np.ndarray, rng: Random) -> np.ndarray:
    """Every third row darker, as on an old screen."""
    lined, first = canvas.copy(), rng.randrange(3)
    lined[first::3] = (lined[first::3].astype(np.uint16) * 5 // 8).astype(np.uint8)
    return lined


def capture(canvas: np.ndarray, kind: str, rng: Random, fine: bool) -> np.ndarray:
    """The canvas uint8 [H, W, 3] as a camera, a scanner or a screen shows it; `fine` letters are not blurred."""
    if kind == "soft":
        return canvas if fine else _soft(canvas, rng)
    if kind == "jpeg":
        return _jpeg(canvas, rng)
    if kind == "grain":
        return _grained(canvas, rng)
    if kind == "light":
        return _lit(canvas, rng)
    if kind == "phone":
        return _jpeg(_grained(_lit(canvas, rng), rng), rng)
    if kind == "lines":
        return _lined(canvas, rng)
    assert kind == "clean", kind
    return canvas
