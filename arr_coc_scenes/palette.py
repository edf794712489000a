"""Colours that can be told from what lies behind them."""

from functools import lru_cache
from random import Random

from arr_coc_scenes.drawing import FIELD, KINDS
from arr_coc_scenes.types import RGB, Background
from arr_coc_scenes.words import COLOURS

_JITTER = 9  # largest change of a channel from the colour of the word


@lru_cache(maxsize=4096)
def lab(rgb: RGB) -> tuple[float, float, float]:
    """CIE Lab (D65) of an sRGB colour: lightness 0..100, and two hue axes."""
    r, g, b = (((v / 255 + 0.055) / 1.055) ** 2.4 if v > 10 else v / 3294.6 for v in rgb)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def distance(a: RGB, b: RGB) -> float:
    """Difference of two colours as an eye sees it (CIE76; about 2 is just visible, black to white is 100)."""
    return float(sum((p - q) ** 2 for p, q in zip(lab(a), lab(b), strict=True)) ** 0.5)


def visible_colours(grounds: tuple[RGB, ...], hard: bool) -> list[str]:
    """Colour words whose ink stands out from every one of `grounds`; `hard` accepts lower contrast."""
    far, lighter = (32.0, 13.0) if hard else (42.0, 21.0)
    return [
        word
        for word, ink in COLOURS.items()
        if all(distance(ink, g) >= far and abs(lab(ink)[0] - lab(g)[0]) >= lighter for g in grounds)
    ]


def readable_colours(grounds: tuple[RGB, ...], hard: bool) -> list[str]:
    """Colour words for the ink of a text: thin strokes need a step in lightness, not only in hue."""
    step = 24.0 if hard else 34.0
    near = [[abs(lab(ink)[0] - lab(g)[0]) for g in grounds] for ink in COLOURS.values()]
    return [word for word, steps in zip(COLOURS, near, strict=True) if min(steps) >= step]


def jittered(rng: Random, rgb: RGB, by: int = _JITTER) -> RGB:
    """`rgb` with each channel moved by at most `by`."""
    r, g, b = (min(255, max(0, v + rng.randint(-by, by))) for v in rgb)
    return r, g, b


def grey_tone(rng: Random, low: int, high: int, tint: int = 0) -> RGB:
    """A grey between `low` and `high` with a tint of at most `tint` levels per channel."""
    level = rng.randint(low, high)
    return jittered(rng, (level, level, level), tint)


def choose_background(rng: Random, width: int, height: int, hard: bool) -> Background:
    """A background on which at least six colours are visible. Hard ones are rarely flat and vary more."""
    while True:
        kind = "flat" if rng.random() < (0.1 if hard else 0.3) else rng.choice(KINDS[1:])
        spread = rng.randint(4, 14) + (8 if hard else 0)
        low_tone, high_tone = rng.choice(((190, 246), (190, 246), (14, 56), (14, 56), (96, 150)))
        low = grey_tone(rng, low_tone, high_tone, tint=14)
        high = jittered(rng, (low[0] - spread, low[1] - spread, low[2] - spread), 6)
        if len(visible_colours((low, high), hard)) >= 6:
            offset = rng.randrange(max(1, FIELD - width)), rng.randrange(max(1, FIELD - height))
            return Background(kind, offset, rng.randrange(4), low, high)
