"""What a scene's tables and charts say: entries of a label and a value, in the order in which they are drawn."""

from dataclasses import dataclass

from arr_coc_scenes.draft import Draft
from arr_coc_scenes.types import Box
from arr_coc_scenes.words import GOODS


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a table or a bar of a chart."""

    word: str
    """Its name in a sentence: "tea", "January"."""
    value: str
    """Its value as it is said: "3.40", "17"."""
    boxes: tuple[Box, ...]
    """What must be seen to know both, in px."""


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one kind, at least two: from top to bottom, or from left to right."""

    noun: str
    """What the entries are: "item", "name", "month" or "day"."""
    measure: str
    """What the values are: "price", "age" ..., "value" for bars."""
    below: bool
    """Whether the entries stand below each other."""
    entries: tuple[Entry, ...]


def value_columns(draft: Draft) -> list[Column]:
    """Every column of the scene's table or receipt (the total left out), or its bars; [] where there are none."""
    if len(draft.bars) > 1:
        bars = tuple(Entry(b.word, str(b.value), (b.label.box, b.tip, *b.scale)) for b in draft.bars)
        return [Column(draft.bar_noun, "value", _below(draft.bars[0].label.box, draft.bars[1].label.box), bars)]
    rows = [row for row in draft.rows if row.word != "total"]
    if len(rows) < 2:
        return []
    found = []
    for measure in sorted(rows[0].values):
        header = (draft.headers[measure].box,) if measure in draft.headers else ()
        entries = tuple(
            Entry(r.word, r.values[measure].text, (r.label.box, r.values[measure].box, *header)) for r in rows
        )
        below = _below(rows[0].label.box, rows[1].label.box)
        found.append(Column("item" if rows[0].word in GOODS else "name", measure, below, entries))
    return found


def _below(first: Box, second: Box) -> bool:
    """Whether the second box stands below the first, not beside it."""
    return second[1] >= first[3]
