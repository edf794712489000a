"""What a page is made of, said once, and how it becomes Markdown and HTML.

Texts may hold `code`, **bold** and new lines. Pictures of the Markdown lie beside it; the HTML is one file that needs
nothing else, without scripts. It follows the reader's light or dark setting; on a narrow page wide tables scroll by
themselves, and tables of sentences turn into cards.
"""

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

GOOD, BAD, EVEN, MISSING, OURS = "good", "bad", "even", "missing", "ours"  # tones: always said in words as well
MARKS = {GOOD: "✓ ", BAD: "✗ "}
NONE, MINUS = "\u2013", "\u2212"


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
class Illustration:
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

    pictures: tuple[Illustration, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One failure: pictures, and lines of (name, text)."""

    title: str
    pictures: tuple[Illustration, ...]
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cards:
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Shown when asked for."""

    title: str
    blocks: tuple["Block", ...]


Block = Heading | Text | Table | Pair | Cards | Fold


def pictures_of(blocks: Sequence[Block]) -> list[Illustration]:
    """All pictures, in order."""
    found: list[Illustration] = []
    for block in blocks:
        match block:
            case Pair(pictures):
                found += pictures
            case Cards(cards):
                found += [picture for card in cards for picture in card.pictures]
            case Fold(_, inside):
                found += pictures_of(inside)
    return found


# ---------------------------------------------------------------- numbers


def share(value: float | None) -> str:
    """A share in per cent."""
    return NONE if value is None else f"{100 * value:.1f}"


def signed(difference: float) -> str:
    """A difference of shares in points; what rounds to nothing has no minus."""
    return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", MINUS)


def probability(p: float | None) -> str:
    return NONE if p is None else f"{p:.4f}" if p >= 0.0001 else "< 0.0001"


# ---------------------------------------------------------------- Markdown


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Text(text):
            return text
        case Table(heads, rows):
            return "\n".join(markdown_table(heads, [[_marked(cell) for cell in row] for row in rows]))
        case Pair(pictures):
            return "\n".join(_beside(picture, "48%") for picture in pictures)
        case Cards(cards):
            return "\n\n".join(_markdown_card(card) for card in cards)
        case Fold(title, inside):
            return f"<details><summary>{title}</summary>\n\n{to_markdown(inside)}\n</details>"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown, the one that all pages of the project are made with."""
    escaped = ([cell.replace("|", "\\|").replace("\n", "<br>") for cell in row] for row in rows)
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *escaped)]


def _marked(cell: Cell) -> str:
    return f"**{cell.text}**" if cell.tone == OURS else MARKS.get(cell.tone, "") + cell.text


def _beside(picture: Illustration, width: str = "") -> str:
    size = f' width="{width}"' if width else ""
    image = f'<img src="{picture.name}" alt="{_escaped(picture.about)}"{size}>'
    if picture.dark is None:
        return image
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{picture.dark_name}">'
    return f"<picture>{dark}{image}</picture>"


def _markdown_card(card: Card) -> str:
    pictures = "\n".join(_beside(picture, "45%") for picture in card.pictures)
    lines = "\n".join(f"- {name}: {_escaped(text)}" for name, text in card.lines)
    return f"**{card.title}**\n\n{pictures}\n\n{lines}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


# ---------------------------------------------------------------- HTML


def to_html(blocks: Sequence[Block]) -> str:
    title = next(block.text for block in blocks if isinstance(block, Heading) and block.level == 1)
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    body = "\n".join(_html(block) + (_contents(blocks) if block == Heading(title, 1) else "") for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _contents(blocks: Sequence[Block]) -> str:
    heads = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    links = (f'<a href="#{_anchor(text)}">{html.escape(text)}</a>' for text in heads)
    return f"\n<nav>{' '.join(links)}</nav>"


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            anchor = f' id="{_anchor(text)}"' if level == 2 else ""
            return f"<h{level}{anchor}>{html.escape(text)}</h{level}>"
        case Text(text):
            return f"<p>{inline(text)}</p>"
        case Table():
            return _table(block)
        case Pair(pictures):
            return f'<div class="pair">{"".join(_inside(picture) for picture in pictures)}</div>'
        case Cards(cards):
            return f'<div class="cards">{"".join(_html_card(card) for card in cards)}</div>'
        case Fold(title, inside):
            held = "\n".join(_html(one) for one in inside)
            return f"<details><summary>{inline(title)}</summary>\n{held}\n</details>"


def inline(text: str) -> str:
    """Escaped, with `code`, **bold** and new lines."""
    safe = html.escape(text).replace("\n", "<br>")
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe)


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{inline(head)}</th>' for head in table.heads)
    rows = "\n".join(f"<tr>{''.join(_cells(table.heads, row))}</tr>" for row in table.rows)
    kind = ' class="words"' if table.wide_words else ""
    whole = f"<table{kind}><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'<div class="scroll" tabindex="0">{whole}</div>'


def _cells(heads: Sequence[str], row: Sequence[Cell]) -> list[str]:
    made = []
    for place, (head, cell) in enumerate(zip(heads, row, strict=True)):
        tone = f' class="{cell.tone}"' if cell.tone else ""
        if not place:
            made.append(f'<th scope="row"{tone}>{inline(cell.text)}</th>')
        else:
            made.append(f'<td{tone} data-head="{html.escape(head)}">{inline(cell.text)}</td>')
    return made


def _inside(picture: Illustration) -> str:
    image = f'<img src="{_data(picture.name, picture.data)}" alt="{html.escape(picture.about)}">'
    if picture.dark is None:
        return image
    dark = _data(picture.name, picture.dark)
    return f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">{image}</picture>'


def _data(name: str, data: bytes) -> str:
    kind = "jpeg" if name.endswith(".jpg") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _html_card(card: Card) -> str:
    pictures = "".join(_inside(picture) for picture in card.pictures)
    lines = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in card.lines)
    return (
        f'<div class="card"><h4>{html.escape(card.title)}</h4><div class="two">{pictures}</div><dl>{lines}</dl></div>'
    )
