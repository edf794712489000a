"""Things drawn from plain polygons and discs, each in three proportions: another hand than any font.

Coordinates are shares of the side, x to the right and y down. "-" before a part takes ink away.
"""

from collections.abc import Callable
from functools import cache
from math import cos, pi, sin

import numpy as np
from PIL import Image, ImageDraw

VARIANTS = 3
_SIDE = 384  # px of a drawing before it is shrunk to a master
Point = tuple[float, float]
# (kind, numbers): "disc" x0 y0 x1 y1, "box" x0 y0 x1 y1, "path" x y x y ..., each perhaps with "-" before it.
Part = tuple[str, tuple[float, ...]]
Drawing = Callable[[int], list[Part]]


def _polygon(count: int, inner: float, turn: float = -0.25) -> tuple[float, ...]:
    """A star of `count` points whose inner corners lie at `inner` of the outer ones' distance."""
    corners = [(0.5 * (inner if k % 2 else 1.0), 2 * pi * (k / (2 * count) + turn)) for k in range(2 * count)]
    return tuple(v for r, a in corners for v in (0.5 + r * cos(a), 0.5 + r * sin(a)))


def _rays(v: int) -> list[Part]:
    parts: list[Part] = [("disc", (0.27, 0.27, 0.73, 0.73))]
    count = (8, 12, 6)[v]
    for k in range(count):
        a, wide = 2 * pi * k / count, 0.06
        ends = [(0.3, a - wide), (0.5, a - wide / 2), (0.5, a + wide / 2), (0.3, a + wide)]
        parts.append(("path", tuple(n for r, b in ends for n in (0.5 + r * cos(b), 0.5 + r * sin(b)))))
    return parts


def _petals(v: int) -> list[Part]:
    count = (5, 6, 8)[v]
    parts: list[Part] = []
    for k in range(count):
        x, y = 0.5 + 0.3 * cos(2 * pi * k / count), 0.5 + 0.3 * sin(2 * pi * k / count)
        parts.append(("disc", (x - 0.19, y - 0.19, x + 0.19, y + 0.19)))
    return [*parts, ("-disc", (0.37, 0.37, 0.63, 0.63))]


def _heart(v: int) -> list[Part]:
    low = (0.95, 1.0, 0.9)[v]
    lobes: list[Part] = [("disc", (0.0, 0.05, 0.52, 0.57)), ("disc", (0.48, 0.05, 1.0, 0.57))]
    return [*lobes, ("path", (0.035, 0.42, 0.965, 0.42, 0.5, low)), ("path", (0.2, 0.2, 0.8, 0.2, 0.5, 0.6))]


def _face(v: int) -> list[Part]:
    eyes: list[Part] = [("-disc", (0.27, 0.27, 0.4, 0.42)), ("-disc", (0.6, 0.27, 0.73, 0.42))]
    mouth: list[Part] = [("-disc", (0.22, 0.35, 0.78, 0.84)), ("disc", (0.18, 0.22, 0.82, 0.72))]
    return (
        [("disc", (0, 0, 1, 1)), *mouth, *eyes]
        if v
        else [("disc", (0, 0, 1, 1)), ("-box", (0.25, 0.62, 0.75, 0.72)), *eyes]
    )


def _teeth(v: int) -> list[Part]:
    count = (8, 6, 10)[v]
    parts: list[Part] = [("disc", (0.14, 0.14, 0.86, 0.86))]
    for k in range(count):
        a = 2 * pi * k / count
        ends = [(0.3, a - 0.3), (0.5, a - 0.17), (0.5, a + 0.17), (0.3, a + 0.3)]
        parts.append(("path", tuple(n for r, b in ends for n in (0.5 + r * cos(b), 0.5 + r * sin(b)))))
    return [*parts, ("-disc", (0.36, 0.36, 0.64, 0.64))]


DRAWINGS: dict[str, Drawing] = {
    "circle": lambda v: [("disc", (0, (0, 0.06, 0)[v], 1, (1, 0.94, 1)[v]))],
    "square": lambda v: [("box", (0, (0, 0.05, 0)[v], 1, (1, 0.95, 1)[v]))],
    "triangle": lambda v: [("path", ((0.5, 0.5, 0.35)[v], (0.0, 0.14, 0.08)[v], 1, 1, 0, 1))],
    "star": lambda v: [("path", _polygon((5, 5, 6)[v], (0.5, 0.36, 0.55)[v]))],
    "diamond": lambda v: [("path", (0.5, 0, (1.0, 0.8, 0.9)[v], 0.5, 0.5, 1, (0.0, 0.2, 0.1)[v], 0.5))],
    "bowtie": lambda v: [
        ("path", (0, (0.2, 0.3, 0.12)[v], 0.5, 0.5, 0, (0.8, 0.7, 0.88)[v])),
        ("path", (1, (0.2, 0.3, 0.12)[v], 0.5, 0.5, 1, (0.8, 0.7, 0.88)[v])),
        ("disc", (0.4, 0.4, 0.6, 0.6)),
    ],
    "cross": lambda v: [
        ("box", ((0.38, 0.28, 0.42)[v], 0, (0.62, 0.72, 0.58)[v], 1)),
        ("box", (0, (0.38, 0.28, 0.42)[v], 1, (0.62, 0.72, 0.58)[v])),
    ],
    "ring": lambda v: [
        ("disc", (0, 0, 1, 1)),
        ("-disc", ((0.15, 0.2, 0.32)[v], (0.15, 0.2, 0.32)[v], (0.85, 0.8, 0.68)[v], (0.85, 0.8, 0.68)[v])),
    ],
    "heart": _heart,
    "sun": _rays,
    "flower": _petals,
    "smiley": _face,
    "gear": _teeth,
    "cloud": lambda v: [
        ("disc", (0, 0.4, 0.4, 0.8)),
        ("disc", (0.2, (0.15, 0.2, 0.1)[v], 0.7, (0.65, 0.7, 0.6)[v])),
        ("disc", (0.55, 0.35, 1.0, 0.8)),
        ("box", (0.2, 0.5, 0.8, 0.8)),
    ],
    "moon": lambda v: [("disc", (0, 0, 1, 1)), ("-disc", ((0.3, 0.4, 0.25)[v], -0.06, 1.25, (0.9, 0.94, 1.0)[v]))],
    "house": lambda v: [
        ("path", (0.5, 0, 1, 0.45, 0, 0.45)),
        ("box", (0.12, 0.45, 0.88, 1)),
        ("-box", ((0.4, 0.2, 0.55)[v], 0.62, (0.6, 0.42, 0.75)[v], 1)),
    ],
    "arrow": lambda v: [
        ("box", (0, (0.38, 0.42, 0.34)[v], 0.6, (0.62, 0.58, 0.66)[v])),
        ("path", ((0.55, 0.5, 0.6)[v], 0.12, 1, 0.5, (0.55, 0.5, 0.6)[v], 0.88)),
    ],
    "lightning": lambda v: [
        ("path", (0.55, 0, 0.15, 0.56, 0.46, 0.56, 0.34, 1, 0.85, (0.38, 0.42, 0.34)[v], 0.53, 0.4, 0.75, 0))
    ],
    "envelope": lambda v: [
        ("box", (0, 0.18, 1, 0.82)),
        ("-path", (0.0, 0.2, 0.5, (0.56, 0.6, 0.5)[v], 1.0, 0.2, 1.0, 0.27, 0.5, (0.65, 0.69, 0.59)[v], 0.0, 0.27)),
    ],
    "flag": lambda v: [
        ("box", (0.1, 0, 0.2, 1)),
        (
            "path",
            (0.2, 0.04, 0.95, (0.3, 0.04, 0.04)[v], (0.9, 0.95, 0.7)[v], 0.3, (0.3, 0.95, 0.95)[v], 0.56, 0.2, 0.56),
        ),
    ],
    "umbrella": lambda v: [
        ("disc", (0, 0.05, 1, 1.05)),
        ("-box", (0, (0.52, 0.5, 0.55)[v], 1, 1.1)),
        ("box", (0.46, 0.5, 0.54, 0.92)),
        ("box", (0.46, 0.86, 0.7, 0.94)),
    ],
    "tick": lambda v: [
        ("path", (0, 0.55, 0.14, 0.42, 0.36, 0.66, 0.86, (0.1, 0.2, 0.05)[v], 1, (0.22, 0.32, 0.2)[v], 0.37, 0.92))
    ],
    "crown": lambda v: [
        ("path", (0, 0.2, 0.25, 0.5, 0.5, (0.08, 0.15, 0.0)[v], 0.75, 0.5, 1, 0.2, 0.9, 0.85, 0.1, 0.85)),
        ("box", (0.1, 0.8, 0.9, 0.95)),
    ],
    "key": lambda v: [
        ("disc", (0, 0.3, 0.4, 0.7)),
        ("-disc", (0.12, 0.42, 0.28, 0.58)),
        ("box", (0.36, 0.44, 1, 0.56)),
        ("box", ((0.7, 0.78, 0.66)[v], 0.5, (0.8, 0.88, 0.74)[v], 0.76)),
        ("box", (0.9, 0.5, 1.0, 0.7)),
    ],
    "cup": lambda v: [
        ("disc", (0.55, 0.25, 0.98, 0.7)),
        ("-disc", (0.65, 0.34, 0.88, 0.6)),
        ("path", (0.05, 0.15, 0.75, 0.15, (0.66, 0.75, 0.7)[v], 0.9, (0.14, 0.05, 0.1)[v], 0.9)),
    ],
    "snowman": lambda v: [
        ("disc", (0.3, 0.0, 0.7, 0.36)),
        ("disc", (0.22, 0.28, 0.78, 0.7)),
        ("disc", (0.12, 0.56, 0.88, 1.0)),
        ("-disc", (0.41, 0.12, 0.47, 0.18)),
        ("-disc", (0.53, 0.12, 0.59, 0.18)),
    ],
    "leaf": lambda v: [
        ("path", (0.05, 0.95, 0.1, 0.5, 0.35, 0.18, 0.95, 0.05, 0.85, 0.62, 0.52, 0.9)),
        (
            "-path",
            (0.1, 0.95, 0.7, 0.3, 0.74, 0.34, 0.16, 0.98) if v else (0.1, 0.95, 0.6, 0.4, 0.63, 0.43, 0.15, 0.98),
        ),
    ],
}


@cache
def drawing(name: str, variant: int) -> np.ndarray:
    """The ink of a thing [S, S] uint8, with room around it."""
    image = Image.new("L", (_SIDE, _SIDE))
    pen = ImageDraw.Draw(image)
    for kind, numbers in DRAWINGS[name](variant):
        ink, shape = (0, kind[1:]) if kind.startswith("-") else (255, kind)
        at = [_SIDE * (0.1 + 0.8 * n) for n in numbers]
        if shape == "disc":
            pen.ellipse(at, fill=ink)
        elif shape == "box":
            pen.rectangle(at, fill=ink)
        else:
            pen.polygon(at, fill=ink)
    return np.asarray(image)
