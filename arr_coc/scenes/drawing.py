"""Scene description -> pixels. No randomness here: everything that varies is in the description."""

import numpy as np

from arr_coc.scenes.backgrounds import fill, paint
from arr_coc.scenes.fonts import FULL, char_mask
from arr_coc.scenes.masks import thing_mask
from arr_coc.scenes.types import RGB, Box, Element, Mark, Scene

_SHIFT = FULL.bit_length() - 1
FRAME = 2  # width in pixels of a frame's line
CLUTTER_PX = 20  # font size of clutter characters


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


def _draw_mark(canvas: np.ndarray, mark: Mark) -> None:
    x0, y0, x1, y1 = mark.box
    if mark.shape == "rect":
        _fill(canvas, mark.box, mark.ink)
    elif mark.shape == "frame":
        for side in (
            (x0, y0, x1, y0 + FRAME),
            (x0, y1 - FRAME, x1, y1),
            (x0, y0, x0 + FRAME, y1),
            (x1 - FRAME, y0, x1, y1),
        ):
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
