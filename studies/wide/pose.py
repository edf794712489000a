"""Scenes seen from aside: a projective map from the flat drawing to the picture, for pixels and for boxes alike.

A map is float64 [3, 3] on (x, y, 1) in px, pixel edges at whole numbers.
"""

from dataclasses import replace
from math import ceil, cos, floor, pi, sin
from random import Random

import numpy as np
from PIL import Image

from arr_coc_scenes.draft import Draft
from arr_coc_scenes.types import Box, Element, Glyph, around
from studies.wide.sprites import Sprite, outline_points

INNER = 0.88  # sides of the flat drawing over those of the picture
OUTER = 1.25  # sides of the ground under it: so wide that no mirrored edge shows anything but ground


def inner_size(size: tuple[int, int]) -> tuple[int, int]:
    """(width, height) px of the flat drawing of a posed picture of `size`."""
    return round(size[0] * INNER), round(size[1] * INNER)


def outer_size(size: tuple[int, int]) -> tuple[int, int]:
    """(width, height) px of the ground under the flat drawing of a posed picture of `size`."""
    return round(size[0] * OUTER), round(size[1] * OUTER)


def map_between(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The map that brings four points [4, 2] to four others."""
    rows, right = [], []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    found = np.linalg.solve(np.array(rows), np.array(right))
    return np.append(found, 1.0).reshape(3, 3)


def choose_pose(rng: Random, size: tuple[int, int]) -> np.ndarray:
    """A map from a flat drawing of `inner_size(size)` into a picture of `size`: turned by up to 9 degrees, tilted."""
    wide, high = inner_size(size)
    corners = np.array([(0, 0), (wide, 0), (wide, high), (0, high)], float)
    turn = rng.uniform(-9, 9) * pi / 180
    about = corners - (wide / 2, high / 2)
    turned = about @ np.array([[cos(turn), sin(turn)], [-sin(turn), cos(turn)]])
    bend = 0.07 * min(size)
    turned += np.array([[rng.uniform(-bend, bend), rng.uniform(-bend, bend)] for _ in range(4)])
    # Smaller until every corner lies inside the picture, then anywhere there is room.
    spans = turned.max(0) - turned.min(0)
    turned *= min(1.0, (size[0] - 4) / spans[0], (size[1] - 4) / spans[1])
    low, high_end = turned.min(0), turned.max(0)
    moved = [rng.uniform(2 - low[k], size[k] - 2 - high_end[k]) for k in (0, 1)]
    return map_between(corners, turned + moved)


def carry(pose: np.ndarray, points_P2: np.ndarray) -> np.ndarray:
    """Points [P, 2] after the map."""
    whole = np.concatenate([points_P2, np.ones((len(points_P2), 1))], 1) @ pose.T
    carried: np.ndarray = whole[:, :2] / whole[:, 2:]
    return carried


def carried_box(pose: np.ndarray, points_P2: np.ndarray) -> Box:
    """The box of points after the map, in whole px."""
    carried = carry(pose, points_P2)
    (x0, y0), (x1, y1) = carried.min(0), carried.max(0)
    return floor(x0 + 0.3), floor(y0 + 0.3), ceil(x1 - 0.3), ceil(y1 - 0.3)


def carried_corners(pose: np.ndarray, box: Box) -> Box:
    """The box of a full rectangle after the map."""
    x0, y0, x1, y1 = box
    return carried_box(pose, np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], float))


def warp(canvas: np.ndarray, pose: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The canvas [H, W, 3] after the map, in a picture of `size`; what the map leaves open is mirrored ground."""
    back = np.linalg.inv(pose)
    ends = carry(back, np.array([(0, 0), (size[0], 0), size, (0, size[1])], float))
    height, width = canvas.shape[:2]
    over = max(0.0, float(-ends.min()), float((ends - (width, height)).max()))
    pad = min(ceil(over) + 2, min(width, height) - 1)
    wider = Image.fromarray(np.pad(canvas, ((pad, pad), (pad, pad), (0, 0)), mode="reflect"))
    back = np.array([[1, 0, pad], [0, 1, pad], [0, 0, 1.0]]) @ back
    terms = (back / back[2, 2]).ravel()[:8].tolist()
    return np.array(wider.transform(size, Image.Transform.PERSPECTIVE, terms, Image.Resampling.BILINEAR))


def _posed_element(element: Element, sprites: list[Sprite], pose: np.ndarray) -> Element:
    boxes = [carried_box(pose, outline_points(sprite)) for sprite in sprites]
    glyphs = tuple(Glyph(g.char, box) for g, box in zip(element.glyphs, boxes, strict=bool(element.glyphs)))
    return replace(element, box=around(boxes), glyphs=glyphs)


def pose_draft(draft: Draft, sprites: list[list[Sprite]], pose: np.ndarray) -> None:
    """Move everything that a draft knows to where the map brings it; `sprites` are those of each element."""
    moved = {id(e): _posed_element(e, s, pose) for e, s in zip(draft.elements, sprites, strict=True)}
    boxes = {e.box: moved[id(e)].box for e in draft.elements}

    def box_after(box: Box) -> Box:
        return boxes[box] if box in boxes else carried_corners(pose, box)

    def after(element: Element) -> Element:
        return moved[id(element)]

    for sign in draft.signs:
        sign.text, sign.box = after(sign.text), box_after(sign.box)
        sign.beside = after(sign.beside) if sign.beside else None
    for row in draft.rows:
        row.label, row.values = after(row.label), {name: after(value) for name, value in row.values.items()}
    for bar in draft.bars:
        bar.element, bar.label, bar.tip = after(bar.element), after(bar.label), box_after(bar.tip)
        bar.scale = tuple(box_after(box) for box in bar.scale)
    draft.headers = {name: after(element) for name, element in draft.headers.items()}
    draft.title, draft.odd, draft.grey = (after(e) if e else None for e in (draft.title, draft.odd, draft.grey))
    draft.loud = [box_after(box) for box in draft.loud]
    draft.things = [after(thing) for thing in draft.things]
    draft.elements = [after(element) for element in draft.elements]
