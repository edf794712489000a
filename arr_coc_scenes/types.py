"""What a scene is made of: frozen records, boxes in pixels (x0, y0, x1, y1) with exclusive ends."""

from dataclasses import dataclass

Box = tuple[int, int, int, int]
RGB = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Glyph:
    """One character of a drawn text, with its tight ink box."""

    char: str
    box: Box


@dataclass(frozen=True, slots=True)
class Element:
    """One thing that is drawn and that a question may be about."""

    kind: str
    """One of "thing", "text" or "bar"."""
    box: Box
    """Tight ink box."""
    name: str
    """A thing's name ("umbrella"), else ""."""
    colour: str
    """Colour word of the ink (a key of COLOURS), else "" (grey ink)."""
    text: str
    """What a text says, as drawn, else ""."""
    glyphs: tuple[Glyph, ...]
    """The characters of a text, spaces left out."""
    ink: RGB
    """The colour really drawn: the word's colour with a little jitter."""
    font: str
    """Font of a text (a key of masks.FILES), else ""."""
    px: int
    """Font size of a text, mean of a thing's width and height, 0 for a bar."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something drawn under the elements that no question is about: plates, paper, lines, clutter."""

    shape: str
    """One of "rect" (filled), "frame" (2 px outline), or one character of clutter."""
    box: Box
    ink: RGB


@dataclass(frozen=True, slots=True)
class Background:
    """A crop of a cached grey field, coloured from `low` to `high`."""

    kind: str
    """A key of drawing.FIELDS, or "flat"."""
    offset: tuple[int, int]
    """(x, y) of the crop in the field."""
    flip: int
    """Bit 0: mirrored left-right, bit 1: mirrored top-bottom."""
    low: RGB
    high: RGB


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its answer and the parts of the image that hold it."""

    text: str
    answer: str
    family: str
    evidence: tuple[Box, ...]
    """Empty where the answer is that nothing is there."""
    distractors: tuple[Box, ...]
    """Elements that could be taken for the evidence."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole description: the same description always draws the same pixels."""

    seed: int
    split: str
    width: int
    height: int
    layout: str
    difficulty: str
    """Either "plain" or "hard"."""
    elements: tuple[Element, ...]
    questions: tuple[Question, ...]
    background: Background
    marks: tuple[Mark, ...]


def around(boxes: list[Box]) -> Box:
    """The smallest box that holds all of `boxes` (at least one)."""
    return (min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes))


def gap_between(a: Box, b: Box) -> float:
    """Distance in pixels between the nearest points of two boxes; 0 when they touch or overlap."""
    dx = max(a[0] - b[2], b[0] - a[2], 0)
    dy = max(a[1] - b[3], b[1] - a[3], 0)
    return float((dx * dx + dy * dy) ** 0.5)


def centre(box: Box) -> tuple[float, float]:
    """(x, y) of the middle of a box."""
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
