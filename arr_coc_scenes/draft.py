"""A scene while it is being laid out: what is placed, what is still free, and the facts to ask about."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from arr_coc_scenes.drawing import clutter_size
from arr_coc_scenes.masks import TRAIN_FONTS, UNSEEN_FONTS, set_text, shift, thing_mask
from arr_coc_scenes.palette import choose_background, grey_tone, jittered, lab, visible_colours
from arr_coc_scenes.splits import HELD_OUT_PAIRS, HELD_OUT_SHARE, pair_allowed
from arr_coc_scenes.types import RGB, Box, Element, Glyph, Mark
from arr_coc_scenes.words import COLOURS, THINGS, WORDINGS, Wordings

_CLUTTER = "~-/\\"


@dataclass(slots=True)
class Sign:
    """A text to read, on a coloured plate, a neutral one (plate = "") or none, perhaps beside a thing."""

    text: Element
    box: Box
    plated: bool
    plate: str
    beside: Element | None


@dataclass(slots=True)
class TableRow:
    """A line of a table or a receipt: its word in a sentence, its label, its values by column."""

    word: str
    label: Element
    values: dict[str, Element]


@dataclass(slots=True)
class Bar:
    """A bar of a chart: its word in a sentence, its value, and what must be seen to read that value."""

    word: str
    value: int
    element: Element
    label: Element
    tip: Box
    """The end of the bar that tells its height; the body below it tells nothing more."""
    scale: tuple[Box, ...]
    """The number printed at the bar, or the tick and the line that leads to it."""


@dataclass
class Draft:
    """Everything about one scene in the making. Layouts fill it, askers read it."""

    rng: Random
    split: str
    width: int
    height: int
    hard: bool
    crowd: float
    mirrored: bool = False
    """Whether labels of tables stand at the right of their values, those of charts above the bars: in no split."""
    elements: list[Element] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    taken: list[Box] = field(default_factory=list)
    things: list[Element] = field(default_factory=list)
    signs: list[Sign] = field(default_factory=list)
    rows: list[TableRow] = field(default_factory=list)
    headers: dict[str, Element] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    bar_noun: str = ""
    title: Element | None = None
    page: str = ""
    """What the title is the title of: "page", "table", "receipt", "chart" ..."""
    odd: Element | None = None
    grey: Element | None = None
    loud: list[Box] = field(default_factory=list)
    """Boxes of bright things that stand beside the grey text."""
    papers: set[str] = field(default_factory=set)
    """Colours of the sheets and neutral plates that texts are written on: "black", "white"."""

    def __post_init__(self) -> None:
        self.background = choose_background(self.rng, self.width, self.height, self.hard)
        self.colours = visible_colours((self.background.low, self.background.high), self.hard)
        # Tossed once a scene: tossed per question, those that find no more to count would all end in noughts.
        self.may_count_none = self.rng.random() < 0.15
        self.font = self.any_font()

    @property
    def wording(self) -> Wordings:
        """The wordings that the next question is asked in."""
        return WORDINGS["unseen" if self.split == "unseen" else "seen"]

    # ---- sizes ------------------------------------------------------------------------------------------

    @property
    def side(self) -> int:
        """The shorter side of the image in pixels."""
        return min(self.width, self.height)

    def text_px(self, most: float = 1.0) -> int:
        """A font size: 14 to 16 if hard or the image tiny, else 18 to `most` of a fourteenth of the side."""
        if self.hard or self.side < 192:
            return self.rng.randint(14, 16)
        top = min(34, max(20, self.side // 14))
        return self.rng.randint(18, max(18, round(top * most)))

    def thing_px(self) -> int:
        """The size of a thing, a multiple of 4 so that masks are reused: 16 to 28 px when hard."""
        if self.hard:
            return 4 * self.rng.randint(4, 7)
        return 4 * self.rng.randint(6, max(8, min(22, self.side // 36)))

    def between(self, low: float, full: float) -> int:
        """A whole number that grows with `crowd`: about `low` at 0, up to `full` at 1."""
        top = low + (full - low) * self.crowd
        return self.rng.randint(max(1, round(low + (top - low) / 3)), max(1, round(top)))

    # ---- free room --------------------------------------------------------------------------------------

    def spot(self, width: int, height: int, gap: int = 8, area: Box | None = None) -> Box | None:
        """A box of that size at a random place where it keeps `gap` pixels from all that is placed, or None."""
        x0, y0, x1, y1 = area or (4, 4, self.width - 4, self.height - 4)
        if x1 - x0 < width or y1 - y0 < height:
            return None
        for _ in range(40):
            x, y = self.rng.randint(x0, x1 - width), self.rng.randint(y0, y1 - height)
            left, top, right, bottom = x - gap, y - gap, x + width + gap, y + height + gap
            if all(right <= t[0] or left >= t[2] or bottom <= t[1] or top >= t[3] for t in self.taken):
                return x, y, x + width, y + height
        return None

    # ---- things -----------------------------------------------------------------------------------------

    def pick_pair(self, name: str | None = None, colour: str | None = None) -> tuple[str, str]:
        """A (colour, thing) the split may show and the background lets one see; either may be given."""
        if self.split == "seen" and name is None and colour is None and self.rng.random() < HELD_OUT_SHARE:
            held = sorted(p for p in HELD_OUT_PAIRS if p[0] in self.colours)
            return self.rng.choice(held)
        while True:
            pair = colour or self.rng.choice(self.colours), name or self.rng.choice(THINGS)
            if pair_allowed(self.split, *pair):
                return pair
            if name is not None:
                colour = None  # a given name with a given colour may be held out: the colour yields

    def put_thing(self, colour: str, name: str, px: int, x: int, y: int) -> Element:
        """Place a thing with its top left corner at (x, y)."""
        height, width = thing_mask(name, px).shape[:2]
        ink = jittered(self.rng, COLOURS[colour])
        thing = Element("thing", (x, y, x + width, y + height), name, colour, "", (), ink, "", px)
        self.elements.append(thing)
        self.things.append(thing)
        self.taken.append(thing.box)
        return thing

    def scatter_thing(self, colour: str, name: str, px: int, gap: int = 8) -> Element | None:
        """Place a thing anywhere free; None when there is no room."""
        height, width = thing_mask(name, px).shape[:2]
        at = self.spot(width, height, gap)
        return self.put_thing(colour, name, px, *at[:2]) if at else None

    # ---- texts ------------------------------------------------------------------------------------------

    def any_font(self) -> str:
        """A font that the split may use."""
        return self.rng.choice(UNSEEN_FONTS if self.split == "unseen" else TRAIN_FONTS)

    def put_text(self, text: str, font: str, px: int, x: int, y: int, colour: str, ink: RGB) -> Element:
        """Place a line of text, the top left corner of its ink at (x, y)."""
        line = set_text(text, font, px)
        moved = tuple(Glyph(g.char, shift(g.box, x, y)) for g in line.glyphs)
        element = Element("text", (x, y, x + line.width, y + line.height), "", colour, text, moved, ink, font, px)
        self.elements.append(element)
        self.taken.append(element.box)
        return element

    def put_line(self, text: str, font: str, px: int, x: int, base: int, colour: str, ink: RGB) -> Element:
        """Place a line of text that stands on the baseline `base`, its ink from `x` on."""
        return self.put_text(text, font, px, x, base - set_text(text, font, px).rise, colour, ink)

    def neutral_ink(self, ground: RGB) -> tuple[str, RGB]:
        """Black or white, whichever reads on `ground`, as (colour word, ink)."""
        word = "black" if lab(ground)[0] > 58 else "white"
        return word, jittered(self.rng, COLOURS[word], 6)

    def rect(self, box: Box, ink: RGB, shape: str = "rect") -> None:
        """Draw a plate, a line or a frame under the elements."""
        self.marks.append(Mark(shape, box, ink))

    def paper(self, box: Box, dark: bool = False) -> RGB:
        """Lay a sheet with a thin frame over `box` and return its tone."""
        tone = grey_tone(self.rng, 22, 44, 5) if dark else grey_tone(self.rng, 238, 252, 4)
        self.rect(box, tone)
        self.papers.add("black" if dark else "white")
        edge = 90 if dark else 150
        self.rect(box, (edge, edge, edge), "frame")
        return tone

    def add_clutter(self) -> None:
        """Faint strokes in the free room: nothing to name, nothing to read."""
        most = self.width * self.height / 262144 * (14 if self.hard else 7)
        low = self.background.low
        step = -34 if sum(low) > 300 else 34
        ink = (low[0] + step, low[1] + step, low[2] + step)
        for _ in range(self.rng.randint(0, max(1, round(most * self.crowd)))):
            char = self.rng.choice(_CLUTTER)
            if at := self.spot(*clutter_size(char), gap=6):
                self.marks.append(Mark(char, at, ink))
                self.taken.append(at)

    # ---- facts ------------------------------------------------------------------------------------------

    def other_colours(self) -> set[str]:
        """Colour words that signs, bars and papers carry: not to be asked for as the colour of a thing."""
        signs = {s.text.colour for s in self.signs} | {s.plate for s in self.signs}
        return signs | {b.element.colour for b in self.bars} | self.papers


Layout = tuple[float, Callable[[Draft], bool], dict[str, float]]
"""The layout's share among scenes, how to lay it, how often to ask which family."""
