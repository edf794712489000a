"""A wide scene in the making: the draft of `arr_coc_scenes`, with a look, and sprites for what it places."""

from dataclasses import dataclass, field
from math import exp, log

import numpy as np

from arr_coc_scenes.masks import thing_mask
from arr_coc_scenes.palette import grey_tone, jittered, visible_colours
from arr_coc_scenes.splits import HELD_OUT_PAIRS
from arr_coc_scenes.types import RGB, Background, Box, Element
from arr_coc_scenes.words import COLOURS, THINGS, WORDINGS, Wordings
from studies.mini.styles import PracticeDraft
from studies.wide.faces import LEAST_PX, text_fonts
from studies.wide.icons import sets_of
from studies.wide.looks import Look
from studies.wide.sprites import FULL, Sprite, box_of, fills, line_sprites, rim, shadow, thing_ink

_SMALLEST_PATTERN = 36  # px of a thing under which every fill but a solid one would hide it
_SIZES = (12, 13, 14, 15, 16, 18, 20, 22, 24, 27, 30, 34, 38, 44, 50, 58, 68, 80, 96, 120)


@dataclass
class WideDraft(PracticeDraft):
    """Layouts fill it and askers read it as they do a plain draft; `sprites_of` says how to draw it."""

    look: Look | None = None
    alike: bool = False
    """Whether all things of a name must look the same: where one is odd, the others must be alike."""
    drawn: dict[int, list[Sprite]] = field(default_factory=dict)
    """Sprites by the number of their element; elements without are upright text or full boxes."""
    under: list[Sprite] = field(default_factory=list)
    """Plates, rims and shadows, drawn before all elements."""
    chart: str = "bars"
    """What the draft's bars are drawn as: "bars", "line" or "pie"."""
    dress: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """How a thing of a name is drawn here: icon set, fill, degrees."""

    def __post_init__(self) -> None:
        self.mirrored, look = self.style.mirrored, self.chosen
        self.background = Background(look.ground, (0, 0), 0, look.tones[0], look.tones[-1])
        self.colours = visible_colours(look.tones, self.hard)
        self.may_count_none = self.rng.random() < 0.15
        self.font = self.any_font()

    @property
    def chosen(self) -> Look:
        """The look, which every wide draft has."""
        assert self.look is not None
        return self.look

    @property
    def wording(self) -> Wordings:
        """Held-out wordings in their own split, else those of training and of practice."""
        if self.chosen.held_wordings:
            return WORDINGS["unseen"]
        return self.style.wordings if self.rng.random() < self.style.rephrased else WORDINGS["seen"]

    # ---- sizes and fonts --------------------------------------------------------------------------------

    def text_px(self, most: float = 1.0) -> int:
        """A font size of 12 to 120 px: signs (`most` 1) up to a sixth of the side, lines of documents smaller."""
        low = 22 if self.chosen.roomy else 13
        if self.hard or self.side < 192:
            return self.rng.randint(12, 16)
        if most < 1:
            high = min(44.0, self.side / 15 * most + 4)
        else:
            high = min(120.0, self.side / (6 if self.rng.random() < 0.25 else 12))
        high = max(low + 4, high)
        wanted = exp(log(low) + (log(high) - log(low)) * self.rng.random() ** 1.6)
        return min(_SIZES, key=lambda px: abs(px - wanted))

    def any_font(self) -> str:
        """A font of training, or a held-out one in their split; thin ones only where letters are large."""
        fonts = text_fonts(self.chosen.held_fonts)
        sturdy = [font for font in fonts if font not in LEAST_PX]
        return self.rng.choice(fonts if self.chosen.roomy or not sturdy else sturdy)

    # ---- things -----------------------------------------------------------------------------------------

    def pick_pair(self, name: str | None = None, colour: str | None = None) -> tuple[str, str]:
        """As in a plain draft; in the split of pairs, a held-out one wherever the name leaves a choice."""
        if self.chosen.held_pairs:
            able = sorted(p for p in HELD_OUT_PAIRS if p[0] in self.colours and name in (None, p[1]))
            if able:
                return self.rng.choice(able)
        return super().pick_pair(name, colour)

    def _dress(self, name: str, px: int) -> tuple[str, str, int]:
        """(icon set, fill, degrees) of a thing: one way per name where all must be alike, mostly so elsewhere."""
        rng, look = self.rng, self.chosen
        if name not in self.dress or not (self.alike or rng.random() < 0.8):
            icons = rng.choice(sets_of(name, look.held_styles))
            held_fill = look.held_styles and rng.random() < 0.5
            fill = rng.choice(("solid", *fills(name, icons, held_fill))) if px >= _SMALLEST_PATTERN else "solid"
            # A square on its corner is a diamond: these two stay nearly upright.
            steps = min(look.turn, 5 if name in ("square", "diamond") else 20) // 5
            self.dress[name] = icons, fill, 5 * rng.randint(-steps, steps)
        return self.dress[name]

    def put_thing(self, colour: str, name: str, px: int, x: int, y: int) -> Element:
        """Place a thing inside the box that the old world's drawing of it would take at (x, y)."""
        assert name in THINGS
        high, wide = thing_mask(name, px).shape[:2]
        icons, fill, angle = self._dress(name, px)
        mask = thing_ink(name, icons, fill, angle, (wide, high))
        left, top = x + (wide - mask.shape[1]) // 2, y + (high - mask.shape[0]) // 2
        ink = jittered(self.rng, COLOURS[colour])
        sprite = Sprite(mask, left, top, ink, self._low_ink(ink) if fill == "gradient" else None)
        thing = Element("thing", sprite.box, name, colour, "", (), ink, icons, px)
        self.put(thing, [sprite])
        self.things.append(thing)
        self._lift([sprite], max(2, px // 14))
        return thing

    def _low_ink(self, ink: RGB) -> RGB:
        """A little lighter or darker, so that the colour keeps its name."""
        towards, share = self.rng.choice(((255, 0.25), (0, 0.16)))
        r, g, b = (round(v + (towards - v) * share) for v in ink)
        return r, g, b

    def _lift(self, sprites: list[Sprite], by: int) -> None:
        """The rim or the shadow that the look gives to what lies on the ground; nothing on a plate or a sheet."""
        look = self.chosen
        place = box_of(sprites)
        if any(_holds(mark.box, place) for mark in self.marks if mark.shape == "rect"):
            return
        if look.rim is not None:
            self.under += [rim(sprite, by, look.rim) for sprite in sprites]
        elif look.shadow is not None:
            tone = grey_tone(self.rng, 30, 70) if sum(look.low) > 330 else (0, 0, 0)
            self.under += [shadow(sprite, *look.shadow, tone) for sprite in sprites]

    # ---- everything that is placed ----------------------------------------------------------------------

    def put(self, element: Element, sprites: list[Sprite]) -> Element:
        """Add an element that is drawn by sprites."""
        self.drawn[len(self.elements)] = sprites
        self.elements.append(element)
        self.taken.append(element.box)
        return element

    def put_text(self, text: str, font: str, px: int, x: int, y: int, colour: str, ink: RGB) -> Element:
        """As in a plain draft; on bare ground with the rim of the look."""
        element = super().put_text(text, font, px, x, y, colour, ink)
        if self.chosen.rim is not None:
            glyphs = [(g.char, g.box) for g in element.glyphs]
            self._lift(line_sprites(glyphs, font, px, ink), max(2, px // 10))
        return element

    def paper(self, box: Box, dark: bool = False) -> RGB:
        """A sheet of a pale or dark tint, with or without a frame."""
        rng = self.rng
        tone = grey_tone(rng, 16, 52, 10) if dark else grey_tone(rng, 228, 252, rng.choice((3, 8, 14)))
        if self.chosen.shadow is not None:
            dx, dy = self.chosen.shadow
            r, g, b = (v * 5 // 8 for v in self.chosen.low)
            self.rect((box[0] + dx, box[1] + dy, box[2] + dx, box[3] + dy), (r, g, b))
        self.rect(box, tone)
        self.papers.update(("black",) if dark else ("white",))
        if rng.random() < 0.6:
            self.rect(box, grey_tone(rng, 70, 160, 20), "frame")
        return tone

    def sprites_of(self, number: int) -> list[Sprite]:
        """How to draw the element of that number, at its flat place."""
        if number in self.drawn:
            return self.drawn[number]
        element = self.elements[number]
        if element.glyphs:
            return line_sprites([(g.char, g.box) for g in element.glyphs], element.font, element.px, element.ink)
        x0, y0, x1, y1 = element.box
        return [Sprite(np.full((max(1, y1 - y0), max(1, x1 - x0), 1), FULL, np.int16), x0, y0, element.ink)]


def _holds(outer: Box, inner: Box) -> bool:
    return outer[0] <= inner[0] and outer[1] <= inner[1] and outer[2] >= inner[2] and outer[3] >= inner[3]
