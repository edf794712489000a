"""Dense targets for the auxiliary loss: what lies under every visual token.

Without it the language loss alone never finds the image (it settles at the answer prior). Per cell:
the names of things, their colours, the colours of texts, and for each of the cell's four patches the
characters whose middle falls into it, and the words that the label and value there stand for
(`studies/mini/links.py`). The head that reads them is dropped after training.

N cells, C classes. New classes go to the end: a head of fewer classes can then be widened.
"""

import string
from collections.abc import Iterable

import numpy as np

from arr_coc_scenes import COLOURS, THINGS, Box, Element
from studies.cells import CELL
from studies.mini.links import LINK_WORDS, Link

CHARACTERS = string.ascii_letters + string.digits + "$.,:;%&-'!?/+#()"
PATCH = CELL // 2
COVER = 0.15  # share of a cell that a thing must cover to be found there; its middle counts always

_THING = {name: number for number, name in enumerate(THINGS)}
_COLOUR = {name: len(THINGS) + number for number, name in enumerate(COLOURS)}
_TEXT_COLOUR = {name: len(THINGS) + len(COLOURS) + number for number, name in enumerate(COLOURS)}
_FIRST_CHARACTER = len(THINGS) + 2 * len(COLOURS)
_CHARACTER = {char: _FIRST_CHARACTER + number for number, char in enumerate(CHARACTERS)}
FIRST_LINK = _FIRST_CHARACTER + 4 * len(CHARACTERS)
_LINK = {word: FIRST_LINK + number for number, word in enumerate(LINK_WORDS)}
CLASSES = -(-(FIRST_LINK + 4 * len(LINK_WORDS)) // 8) * 8  # rows of whole tiles; the last few stay empty


def dense_targets(elements: Iterable[Element], height: int, width: int, links: Iterable[Link] = ()) -> np.ndarray:
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
    for link in links:
        linked = [_LINK[word] for word in link.words]
        for x, y in link.points:
            if (place := _patch(int(x), int(y), height, width)) is not None:
                cell, quarter = place
                targets[cell, [number + quarter * len(LINK_WORDS) for number in linked]] = 1
    return targets


def _patch(x: int, y: int, height: int, width: int) -> tuple[int, int] | None:
    """(cell, which of its four patches) at a point in px; None outside the grid."""
    column, row = x // PATCH, y // PATCH
    if not (0 <= row < 2 * height and 0 <= column < 2 * width):
        return None
    return row // 2 * width + column // 2, row % 2 * 2 + column % 2


def _mark_text(targets: np.ndarray, element: Element, height: int, width: int) -> None:
    colour = _TEXT_COLOUR.get(element.colour)
    for glyph in element.glyphs:
        x0, y0, x1, y1 = glyph.box
        place = _patch((x0 + x1) // 2, (y0 + y1) // 2, height, width)
        if place is None:
            continue
        cell, quarter = place
        if colour is not None:
            targets[cell, colour] = 1
        if glyph.char in _CHARACTER:
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
