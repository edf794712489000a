"""What a page is made of, said once, and how it becomes Markdown and HTML.

Texts may hold `code`, **bold** and new lines. Pictures of the Markdown lie beside it; the HTML is one file that needs
nothing else, without scripts. It follows the reader's light or dark setting; on a narrow page wide tables scroll by
themselves, and tables of sentences turn into cards.
"""

import base64
import html
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

GOOD, BAD, EVEN, MISSING, OURS = "good", "bad", "even", "missing", "ours"  # tones: always said in words as well
MARKS = {GOOD: "✓ ", BAD: "✗ "}
NONE, MINUS = "\u2013", "\u2212"


class Block(ABC):
    """A part of a page, which knows how it is said in Markdown and in HTML."""

    __slots__ = ()

    @abstractmethod
    def markdown(self) -> str: ...

    @abstractmethod
    def html(self) -> str: ...

    def illustrations(self) -> Sequence["Illustration"]:
        """Its pictures, in order."""
        return ()


@dataclass(frozen=True, slots=True)
class Heading(Block):
    """Level 1 names the page, 2 a section, 3 a part of it."""

    text: str
    level: int = 2

    def markdown(self) -> str:
        return f"{'#' * self.level} {self.text}"

    def html(self) -> str:
        anchor = f' id="{_anchor(self.text)}"' if self.level == 2 else ""
        return f"<h{self.level}{anchor}>{html.escape(self.text)}</h{self.level}>"


@dataclass(frozen=True, slots=True)
class Text(Block):
    text: str

    def markdown(self) -> str:
        return self.text

    def html(self) -> str:
        return f"<p>{inline(self.text)}</p>"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    text: str
    tone: str = ""

    def marked(self) -> str:
        """In Markdown, with a mark for its tone."""
        return f"**{self.text}**" if self.tone == OURS else MARKS.get(self.tone, "") + self.text


@dataclass(frozen=True, slots=True)
class Table(Block):
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

    def markdown(self) -> str:
        return "\n".join(markdown_table(self.heads, [[cell.marked() for cell in row] for row in self.rows]))

    def html(self) -> str:
        heads = "".join(f'<th scope="col">{inline(head)}</th>' for head in self.heads)
        rows = "\n".join(f"<tr>{''.join(_cells(self.heads, row))}</tr>" for row in self.rows)
        kind = ' class="words"' if self.wide_words else ""
        whole = f"<table{kind}><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
        return f'<div class="scroll" tabindex="0">{whole}</div>'


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

    def files(self) -> dict[str, bytes]:
        """What lies beside the Markdown."""
        return {self.name: self.data} | ({} if self.dark is None else {self.dark_name: self.dark})

    def beside(self, width: str) -> str:
        """In Markdown, `width` of the page wide."""
        return self._shown([*self.files()], f'alt="{escaped(self.about)}" width="{width}"')

    def inside(self) -> str:
        """In HTML, with its bytes."""
        start = f"data:image/{'jpeg' if self.name.endswith('.jpg') else 'png'};base64,"
        coded = [start + base64.b64encode(data).decode("ascii") for data in self.files().values()]
        return self._shown(coded, f'alt="{html.escape(self.about)}"')

    def _shown(self, addresses: Sequence[str], more: str) -> str:
        image = f'<img src="{addresses[0]}" {more}>'
        dark = [f'<source media="(prefers-color-scheme: dark)" srcset="{one}">' for one in addresses[1:]]
        return f"<picture>{dark[0]}{image}</picture>" if dark else image


@dataclass(frozen=True, slots=True)
class Pair(Block):
    """Pictures that stand side by side where there is room."""

    pictures: tuple[Illustration, ...]

    def markdown(self) -> str:
        return "\n".join(picture.beside("48%") for picture in self.pictures)

    def html(self) -> str:
        return f'<div class="pair">{"".join(picture.inside() for picture in self.pictures)}</div>'

    def illustrations(self) -> Sequence[Illustration]:
        return self.pictures


@dataclass(frozen=True, slots=True)
class Fold(Block):
    """Shown when asked for."""

    title: str
    blocks: tuple[Block, ...]

    def markdown(self) -> str:
        return f"<details><summary>{self.title}</summary>\n\n{to_markdown(self.blocks)}\n</details>"

    def html(self) -> str:
        held = "\n".join(block.html() for block in self.blocks)
        return f"<details><summary>{inline(self.title)}</summary>\n{held}\n</details>"

    def illustrations(self) -> Sequence[Illustration]:
        return pictures_of(self.blocks)


def pictures_of(blocks: Sequence[Block]) -> list[Illustration]:
    """All pictures, in order."""
    return [picture for block in blocks for picture in block.illustrations()]


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
    return "\n\n".join(block.markdown() for block in blocks) + "\n"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown, the one that all pages of the project are made with."""
    escaped = ([cell.replace("|", "\\|").replace("\n", "<br>") for cell in row] for row in rows)
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *escaped)]


def escaped(text: str) -> str:
    """A text between tags or quotation marks of Markdown."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


# ---------------------------------------------------------------- HTML


def to_html(blocks: Sequence[Block]) -> str:
    title = next(block.text for block in blocks if isinstance(block, Heading) and block.level == 1)
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    body = "\n".join(block.html() + (_contents(blocks) if block == Heading(title, 1) else "") for block in blocks)
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


def inline(text: str) -> str:
    """Escaped, with `code`, **bold** and new lines."""
    safe = html.escape(text).replace("\n", "<br>")
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe)


def _cells(heads: Sequence[str], row: Sequence[Cell]) -> list[str]:
    tones = [f' class="{cell.tone}"' if cell.tone else "" for cell in row]
    first = f'<th scope="row"{tones[0]}>{inline(row[0].text)}</th>'
    others = zip(heads[1:], tones[1:], row[1:], strict=True)
    return [
        first,
        *(f'<td{tone} data-head="{html.escape(head)}">{inline(one.text)}</td>' for head, tone, one in others),
    ]
