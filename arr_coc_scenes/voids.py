"""Images without structure: whatever is asked of them, no cell answers.

A selector that never met such an image sees things in noise; one that did gives a flat map, and the allocator then
keeps an even grid.
"""

import numpy as np
from PIL import Image, ImageDraw


def draw_void(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """An image uint8 `[height, width, 3]` with nothing in it to be asked about."""
    return VOIDS[int(rng.integers(len(VOIDS)))](rng, width, height)


def _noise(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Independent values per block of 1 to 32 px, in colour or in grey, of any contrast."""
    side = int(2 ** rng.integers(0, 6))
    shape = (-(-height // side), -(-width // side), 3 if rng.random() < 0.6 else 1)
    spread, middle = rng.uniform(8, 128), rng.uniform(40, 215)
    values = rng.uniform(-1, 1, shape) if rng.random() < 0.5 else rng.normal(0, 0.5, shape)
    blocks = (middle + spread * values).clip(0, 255).repeat(side, axis=0).repeat(side, axis=1)
    return np.broadcast_to(blocks[:height, :width], (height, width, 3)).astype(np.uint8)


def _field(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Colours that run smoothly into each other, from a few random points, with a little grain."""
    few = rng.integers(0, 256, (int(rng.integers(1, 5)), int(rng.integers(1, 5)), 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    return (smooth + rng.normal(0, rng.uniform(0, 12), (height, width, 1))).clip(0, 255).astype(np.uint8)


def _paint(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Drops and strokes everywhere, small ones many, large ones few, in a few colours or in any."""
    image = Image.new("RGB", (width, height), tuple(rng.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    count = int(width * height / rng.uniform(60, 300))
    inks = rng.integers(0, 256, (int(rng.integers(2, 40)), 3)).tolist()
    reach = (rng.pareto(2.0, (count, 2)) * 3 + 1).clip(max=min(width, height) / 12)
    places = rng.uniform(0, 1, (count, 2)) * (width, height)
    round_ones = rng.random() < 0.7
    for (x, y), (across, down) in zip(places.tolist(), reach.tolist(), strict=True):
        box = (x - across, y - down, x + across, y + down)
        ink = tuple(inks[int(rng.integers(len(inks)))])
        pen.ellipse(box, fill=ink) if round_ones else pen.rectangle(box, fill=ink)
    return np.asarray(image)


VOIDS = (_noise, _field, _paint)
