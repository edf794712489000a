"""Small pieces of ink with their place: what every element of a wide scene is drawn from.

A mask is int16 [h, w, 1] in 0..FULL, cut to its ink, as in `arr_coc_scenes`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, sin

import numpy as np
from PIL import Image

from arr_coc_scenes.masks import FULL, char_mask, trim
from arr_coc_scenes.types import RGB, Box, around
from studies.wide import held_out
from studies.wide.icons import is_solid, master

FILLS = ("solid", "gradient", "outline", "hatched", "dots")
RIM = 16  # ink fainter than this (of FULL) does not count for a box
_SHIFT = FULL.bit_length() - 1


@dataclass(frozen=True, slots=True)
class Sprite:
    """A mask whose top left corner is at (x, y) px, in one ink or in two from top to bottom."""

    mask: np.ndarray
    x: int
    y: int
    ink: RGB
    low_ink: RGB | None = None
    """The ink at the bottom of a gradient; None: one ink."""

    @property
    def box(self) -> Box:
        """The mask's place; tight, for masks are cut to their ink."""
        height, width = self.mask.shape[:2]
        return self.x, self.y, self.x + width, self.y + height


def paint(canvas: np.ndarray, sprite: Sprite) -> None:
    """Lay a sprite over the canvas [H, W, 3] uint8; what lies outside is cut."""
    x0, y0, x1, y1 = sprite.box
    left, top = max(0, x0), max(0, y0)
    right, bottom = min(canvas.shape[1], x1), min(canvas.shape[0], y1)
    if left >= right or top >= bottom:
        return
    mask = sprite.mask[top - y0 : bottom - y0, left - x0 : right - x0]
    ink: np.ndarray = np.array(sprite.ink, np.int16)
    if sprite.low_ink is not None:
        down = np.linspace(0.0, 1.0, y1 - y0, dtype=np.float32)[top - y0 : bottom - y0, None, None]
        ink = np.rint(ink + (np.array(sprite.low_ink, np.float32) - ink) * down).astype(np.int16)
    under = canvas[top:bottom, left:right].astype(np.int16)
    step = (ink - under) * mask
    step += FULL // 2
    step >>= _SHIFT
    under += step
    canvas[top:bottom, left:right] = under


def to_mask(ink: np.ndarray) -> np.ndarray:
    """Ink [h, w] uint8 in 0..255, cut to its box, as a mask."""
    cut = trim(ink, 2 * RIM)[0].astype(np.int16)
    return np.ascontiguousarray((cut * FULL + 127) // 255)[:, :, None]


# ---- things ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _filled(name: str, icons: str, fill: str) -> np.ndarray:
    """A thing's master with its inside taken out or patterned [h, w] uint8; as it is where that would hide it."""
    ink = master(name, icons)
    if fill in ("solid", "gradient") or not is_solid(name, icons):
        return ink
    inside = 255 - swell(np.pad(255 - ink, 8, constant_values=255), 6)[8:-8, 8:-8]
    y, x = np.mgrid[: ink.shape[0], : ink.shape[1]]
    keep = {
        "outline": np.zeros(ink.shape, bool),
        "hatched": (x + y) % 22 < 10,
        "dots": (x % 20 - 10) ** 2 + (y % 20 - 10) ** 2 < 42,
    }[fill]
    return np.where(keep, ink, np.where(inside > 128, 0, ink)).astype(np.uint8)


@lru_cache(maxsize=8192)
def thing_ink(name: str, icons: str, fill: str, angle: int, size: tuple[int, int]) -> np.ndarray:
    """The mask of a thing turned by `angle` degrees, as large as fits into `size` (width, height) px."""
    ink = Image.fromarray(_filled(name, icons, fill))
    if angle:
        ink = ink.rotate(angle, Image.Resampling.BILINEAR, expand=True)
        ink = Image.fromarray(np.ascontiguousarray(trim(np.asarray(ink), 2 * RIM)[0]))
    scale = min(size[0] / ink.width, size[1] / ink.height)
    wide, high = max(4, round(ink.width * scale)), max(4, round(ink.height * scale))
    small = np.asarray(ink.resize((wide, high), Image.Resampling.BOX if scale < 1 else Image.Resampling.BILINEAR))
    # Thin lines lose ink when they are scaled down: a little gain gives it back.
    return to_mask(np.minimum(small.astype(np.int32) * 5 // 4, 255).astype(np.uint8))


def fills(name: str, icons: str, held: bool) -> tuple[str, ...]:
    """The fills a thing of a set may have: held-out ones, or those of training."""
    found = held_out.choices(FILLS, held_out.FILLS, held)
    return found if is_solid(name, icons) else ("solid",)


# ---- letters ---------------------------------------------------------------------------------------------


def line_sprites(glyphs: Iterable[tuple[str, Box]], font: str, px: int, ink: RGB) -> list[Sprite]:
    """Characters that stand upright at their boxes."""
    return [Sprite(char_mask(font, px, char).ink, box[0], box[1], ink) for char, box in glyphs]


@lru_cache(maxsize=16384)
def _turned_char(font: str, px: int, char: str, angle: int) -> np.ndarray:
    ink = char_mask(font, px, char).ink[:, :, 0]
    image = Image.fromarray((ink * 255 // FULL).astype(np.uint8))
    return to_mask(np.asarray(image.rotate(angle, Image.Resampling.BILINEAR, expand=True)))


def bent_line(text: str, font: str, px: int, angle: int, bend: int) -> list[tuple[str, np.ndarray, int, int]]:
    """(character, mask, x, y) of a text turned by `angle` degrees whose ends differ by `bend` degrees of direction.

    Places are px from the top left corner of the whole.
    """
    pen, marks = 0.0, []
    for char in text:
        if char == " ":
            pen += 0.4 * px
            continue
        mask = char_mask(font, px, char)
        height, width = mask.ink.shape[:2]
        marks.append((char, pen + mask.left + width / 2, mask.top + height / 2))
        pen += mask.advance
    middle = pen / 2
    placed = []
    for char, along, across in marks:
        share = (along - middle) / max(1.0, pen)
        turn = round(angle - bend * share)
        x, y = _on_arc(along - middle, across, pen, angle, bend)
        mask_hw = _turned_char(font, px, char, turn)
        height, width = mask_hw.shape[:2]
        placed.append((char, mask_hw, round(x - width / 2), round(y - height / 2)))
    left, top = min(p[2] for p in placed), min(p[3] for p in placed)
    return [(char, mask_hw, x - left, y - top) for char, mask_hw, x, y in placed]


def _on_arc(along: float, across: float, length: float, angle: int, bend: int) -> tuple[float, float]:
    """Where a point `along` a straight line (from its middle) and `across` it (down) comes to lie."""
    if bend:
        radius = length / (bend * pi / 180)
        swing = along / radius
        along, across = (radius - across) * sin(swing), radius - (radius - across) * cos(swing)
    turn = -angle * pi / 180
    return along * cos(turn) - across * sin(turn), along * sin(turn) + across * cos(turn)


# ---- rims and shadows ------------------------------------------------------------------------------------


def swell(ink: np.ndarray, by: int) -> np.ndarray:
    """The largest value within `by` px up, down, left and right of every pixel of [h, w]."""
    for axis in (0, 1):
        reach = by
        while reach:
            step = min(reach, max(1, by // 2))
            ahead, behind = np.roll(ink, step, axis), np.roll(ink, -step, axis)
            ink = np.maximum(ink, np.maximum(ahead, behind))
            reach -= step
    return ink


def rim(sprite: Sprite, by: int, tone: RGB) -> Sprite:
    """A plain edge of `by` px around a sprite, to be drawn under it."""
    padded = np.pad(sprite.mask[:, :, 0], by)
    return Sprite(swell(padded, by)[:, :, None], sprite.x - by, sprite.y - by, tone)


def shadow(sprite: Sprite, dx: int, dy: int, tone: RGB) -> Sprite:
    """Half of a sprite's ink, moved: what it throws on the ground."""
    return Sprite(sprite.mask // 2, sprite.x + dx, sprite.y + dy, tone)


def box_of(sprites: Sequence[Sprite]) -> Box:
    """The box of all of some sprites (at least one)."""
    return around([sprite.box for sprite in sprites])


def outline_points(sprite: Sprite) -> np.ndarray:
    """Corners of a sprite's ink [P, 2] (x, y): the ends of every row, so that any mild warp of the box is exact."""
    inked = sprite.mask[:, :, 0] >= RIM
    rows = np.flatnonzero(inked.any(1))
    first = inked[rows].argmax(1)
    last = inked.shape[1] - inked[rows][:, ::-1].argmax(1)
    x = np.concatenate([first, first, last, last]) + sprite.x
    y = np.concatenate([rows, rows + 1, rows, rows + 1]) + sprite.y
    return np.stack([x, y], 1).astype(np.float64)
