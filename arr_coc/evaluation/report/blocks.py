"""What a page is made of, said once for HTML and Markdown. Texts may hold `code`, **bold** and new lines."""

from collections.abc import Sequence
from dataclasses import dataclass

GOOD, BAD, EVEN, MISSING, OURS = "good", "bad", "even", "missing", "ours"  # tones: always said in words as well


@dataclass(frozen=True, slots=True)
class Heading:
    """Level 1 names the page, 2 a section, 3 a part of it."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """The first column names the line."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    wide_words: bool = False  # cells hold sentences: they may be broken, and a narrow page shows each line as a card

    @classmethod
    def of(
        cls, heads: Sequence[str], rows: Sequence[Sequence[Cell | str]], wide_words: bool = False, ours: str = ""
    ) -> "Table":
        """From texts and cells; lines whose first text starts with `ours` are marked."""
        made = []
        for row in rows:
            assert len(row) == len(heads), f"{len(row)} cells under {len(heads)} heads"
            cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
            if ours and cells[0].text.startswith(ours):
                cells[0] = Cell(cells[0].text, OURS)
            made.append(tuple(cells))
        return cls(tuple(heads), tuple(made), wide_words)


@dataclass(frozen=True, slots=True)
class Picture:
    """A file beside the Markdown, inside the HTML; `dark` is shown on dark pages."""

    name: str  # of the file, with its ending
    about: str  # for those who do not see it
    data: bytes
    dark: bytes | None = None

    @property
    def dark_name(self) -> str:
        stem, _, ending = self.name.rpartition(".")
        return f"{stem}-dark.{ending}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Pictures that stand side by side where there is room."""

    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One failure: pictures, and lines of (name, text)."""

    title: str
    pictures: tuple[Picture, ...]
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cards:
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Shown when asked for."""

    title: str
    blocks: tuple["Block", ...]


Block = Heading | Text | Table | Picture | Pair | Cards | Fold


def pictures_of(blocks: Sequence[Block]) -> list[Picture]:
    """All pictures, in order."""
    found: list[Picture] = []
    for block in blocks:
        if isinstance(block, Picture):
            found.append(block)
        elif isinstance(block, Pair):
            found += block.pictures
        elif isinstance(block, Cards):
            found += [picture for card in block.cards for picture in card.pictures]
        elif isinstance(block, Fold):
            found += pictures_of(block.blocks)
    return found
