"""Dense targets for the auxiliary loss: what lies under every visual token.

Without it the language loss alone never finds the image (it settles at the answer prior). Per cell:
the names of things, their colours, the colours of texts, and for each of the cell's four patches the
characters whose middle falls into it. The head that reads them is dropped after training.

N cells, C classes.
"""

import string
from collections.abc import Iterable

import numpy as np

from arr_coc.qwen.cells import CELL
from arr_coc.scenes import COLOURS, THINGS, Box, Element

CHARACTERS = string.ascii_letters + string.digits + "$.,:;%&-'!?/+#()"
PATCH = CELL // 2
COVER = 0.15  # share of a cell that a thing must cover to be found there; its middle counts always

_THING = {name: number for number, name in enumerate(THINGS)}
_COLOUR = {name: len(THINGS) + number for number, name in enumerate(COLOURS)}
_TEXT_COLOUR = {name: len(THINGS) + len(COLOURS) + number for number, name in enumerate(COLOURS)}
_FIRST_CHARACTER = len(THINGS) + 2 * len(COLOURS)
_CHARACTER = {char: _FIRST_CHARACTER + number for number, char in enumerate(CHARACTERS)}
CLASSES = _FIRST_CHARACTER + 4 * len(CHARACTERS)


def dense_targets(elements: Iterable[Element], height: int, width: int) -> np.ndarray:
    """uint8 [N, C], 1 where a class is present, for a grid of `height` x `width` cells."""
    targets = np.zeros((height * width, CLASSES), np.uint8)
    for element in elements:
        if element.text:
            _mark_text(targets, element, height, width)
        elif element.name or element.colour:
            classes = [_THING.get(element.name), _COLOUR.get(element.colour)]
            present = [number for number in classes if number is not None]
            for cell in _covered(element.box, height, width):
                targets[cell, present] = 1
    return targets


def _mark_text(targets: np.ndarray, element: Element, height: int, width: int) -> None:
    colour = _TEXT_COLOUR.get(element.colour)
    for glyph in element.glyphs:
        x0, y0, x1, y1 = glyph.box
        column, row = (x0 + x1) // 2 // PATCH, (y0 + y1) // 2 // PATCH
        if not (0 <= row < 2 * height and 0 <= column < 2 * width):
            continue
        cell = row // 2 * width + column // 2
        if colour is not None:
            targets[cell, colour] = 1
        if glyph.char in _CHARACTER:
            quarter = row % 2 * 2 + column % 2
            targets[cell, _CHARACTER[glyph.char] + quarter * len(CHARACTERS)] = 1


def _covered(box: Box, height: int, width: int) -> list[int]:
    """Cells of which the box covers at least the share COVER, and the cell of its middle."""
    x0, y0, x1, y1 = box
    middle = min((y0 + y1) // 2 // CELL, height - 1) * width + min((x0 + x1) // 2 // CELL, width - 1)
    cells = {max(0, middle)}
    for row in range(max(0, y0 // CELL), min(height, -(-y1 // CELL))):
        tall = min(y1, (row + 1) * CELL) - max(y0, row * CELL)
        for column in range(max(0, x0 // CELL), min(width, -(-x1 // CELL))):
            wide = min(x1, (column + 1) * CELL) - max(x0, column * CELL)
            if tall * wide >= COVER * CELL * CELL:
                cells.add(row * width + column)
    return sorted(cells)
