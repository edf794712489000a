"""Where a label and its value stand, as points with words, for the dense targets.

Every letter of a row or of a bar's texts, and the end of the bar, carry the word of that row or bar: a value knows
its label before any question is asked. Bars also carry the digits of their value (an axis does not print it
beside them), and the highest and the lowest say so.
"""

from dataclasses import dataclass

from arr_coc_scenes.draft import Bar, Draft
from arr_coc_scenes.types import Element, centre
from arr_coc_scenes.words import DAYS, GOODS, MONTHS, PEOPLE

PLACES = ("ones", "tens", "hundreds")
LINK_WORDS: tuple[str, ...] = (
    *(*GOODS, "total", *PEOPLE, *MONTHS, *DAYS, "highest", "lowest"),
    *(f"{place} {digit}" for place in PLACES for digit in range(10)),
)
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Link:
    """Words of LINK_WORDS that hold at some points (x, y) of the image, in px."""

    words: tuple[str, ...]
    points: tuple[Point, ...]


def links_of(draft: Draft) -> list[Link]:
    """One link per row and per bar."""
    found = [Link((row.word,), _letters(row.label, *row.values.values())) for row in draft.rows]
    if draft.bars:
        values = [bar.value for bar in draft.bars]
        found += [_bar_link(draft, bar, max(values), min(values)) for bar in draft.bars]
    return found


def _bar_link(draft: Draft, bar: Bar, highest: int, lowest: int) -> Link:
    digits = [f"{place} {digit}" for place, digit in zip(PLACES, reversed(str(bar.value)), strict=False)]
    rank = [name for name, value in (("highest", highest), ("lowest", lowest)) if bar.value == value]
    # One box of scale is a number printed at the bar; two are a tick of the axis and its line, which bars share.
    printed = [e for e in draft.elements if len(bar.scale) == 1 and e.box == bar.scale[0]]
    return Link((bar.word, *rank, *digits), (*_letters(bar.label, *printed), centre(bar.tip)))


def _letters(*texts: Element) -> tuple[Point, ...]:
    return tuple(centre(glyph.box) for text in texts for glyph in text.glyphs)
