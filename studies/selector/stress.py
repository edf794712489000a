"""Pictures that try to mislead a selector: bright corners in scenes, and images without any structure."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image, ImageDraw

from arr_coc.scenes import COLOURS, draw_scene
from arr_coc.scenes.types import Box, Mark, gap_between
from studies.asked import Asked

LOUD = ("red", "orange", "yellow", "green", "blue", "purple", "pink")
CORNER = (56, 40)  # px: width and height of a bright plate
MARGIN = 8  # px between a plate and the edge, and the least to anything else
UNSTRUCTURED = ("noise", "grain", "blocks", "splatter")


def corner_boxes(width: int, height: int) -> tuple[Box, ...]:
    """Where the four plates of an image of that size stand."""
    left, right = (MARGIN, MARGIN + CORNER[0]), (width - MARGIN - CORNER[0], width - MARGIN)
    top, bottom = (MARGIN, MARGIN + CORNER[1]), (height - MARGIN - CORNER[1], height - MARGIN)
    return tuple((x[0], y[0], x[1], y[1]) for y in (top, bottom) for x in (left, right))


def with_corners(asked: Asked, seed: int) -> Asked | None:
    """The scene with a bright plate in every corner; None where something stands there, or no colour is free.

    The plates have colours that nothing in the scene has and no question names, and no text, so that every question
    keeps its answer and its evidence.
    """
    scene = asked.scene
    boxes = corner_boxes(scene.width, scene.height)
    taken = [element.box for element in scene.elements] + [mark.box for mark in scene.marks]
    if any(gap_between(corner, box) < MARGIN for corner in boxes for box in taken):
        return None
    said = " ".join(question.text for question in asked.questions).split()
    worn = {element.colour for element in scene.elements} | {word.strip(".,?") for word in said}
    free = [colour for colour in LOUD if colour not in worn]
    if not free:
        return None
    rng = np.random.default_rng([seed, scene.seed])
    plates = tuple(Mark("rect", box, COLOURS[free[int(rng.integers(len(free)))]]) for box in boxes)
    louder = replace(scene, marks=(*scene.marks, *plates))
    return replace(asked, scene=louder, image=draw_scene(louder))


def corner_pairs(asked: Sequence[Asked], seed: int) -> list[tuple[Asked, Asked]]:
    """(scene, the same with bright corners) for all scenes that have room for them."""
    changed = [(one, with_corners(one, seed)) for one in asked]
    return [(before, after) for before, after in changed if after is not None]


def unstructured(kind: str, px: int, seed: int) -> np.ndarray:
    """An image uint8 `[px, px, 3]` with nothing in it: noise of each pixel, of grey grain, of blocks, or splatter."""
    rng = np.random.default_rng([UNSTRUCTURED.index(kind), seed])
    if kind == "noise":
        return rng.integers(0, 256, (px, px, 3), dtype=np.uint8)
    if kind == "grain":
        grey = rng.normal(rng.uniform(70, 185), rng.uniform(15, 45), (px, px, 1)).clip(0, 255)
        return np.repeat(grey.astype(np.uint8), 3, axis=2)
    if kind == "blocks":
        return rng.integers(0, 256, (px // 8, px // 8, 3), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    return _splatter(px, rng)


def _splatter(px: int, rng: np.random.Generator) -> np.ndarray:
    """Drops of paint everywhere: many small, few large, in any colour."""
    image = Image.new("RGB", (px, px), tuple(rng.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    count = px * px // 400
    radii = (2 * rng.pareto(2.0, count) + 2).clip(max=px / 16)
    for radius, (x, y), ink in zip(
        radii.tolist(), rng.uniform(0, px, (count, 2)).tolist(), rng.integers(0, 256, (count, 3)).tolist(), strict=True
    ):
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=tuple(ink))
    return np.asarray(image)
