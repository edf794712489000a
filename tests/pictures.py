"""Varied synthetic pictures for tests that need more than one kind of image."""

import random

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter


def varied(seed: int, size: tuple[int, int] = (384, 384)) -> torch.Tensor:
    """Shapes, lines, gradients, noise and blur in random colours: uint8 `[3, h, w]`."""
    rng = random.Random(seed)
    width, height = size
    colour = lambda: tuple(rng.randrange(256) for _ in range(3))  # noqa: E731
    image = Image.new("RGB", size, colour())
    if rng.random() < 0.4:
        ramp = np.linspace(0, 1, width)[None, :, None] * np.ones((height, 1, 1))
        image = Image.fromarray((np.array(colour()) * ramp + np.array(colour()) * (1 - ramp)).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(rng.randrange(2, 14)):
        x, y, side = rng.randrange(width), rng.randrange(height), rng.randrange(12, 120)
        kind = rng.choice(["ellipse", "rectangle", "line", "text"])
        if kind == "line":
            draw.line([x, y, rng.randrange(width), rng.randrange(height)], fill=colour(), width=rng.randrange(1, 9))
        elif kind == "text":
            draw.text((x, y), "".join(rng.choice("ABCDEFXYZ0123") for _ in range(6)), fill=colour())
        else:
            getattr(draw, kind)([x, y, x + side, y + side // rng.randrange(1, 4) + 1], fill=colour())
    if rng.random() < 0.3:
        image = image.filter(ImageFilter.GaussianBlur(rng.randrange(1, 6)))
    pixels = np.array(image).astype(np.float32)
    if rng.random() < 0.4:
        left = rng.randrange(width // 2)
        noise = np.random.default_rng(seed).normal(0, rng.randrange(4, 60), pixels[:, left : left + width // 2].shape)
        pixels[:, left : left + width // 2] += noise
    return torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)).permute(2, 0, 1)
