"""What a page is made of: blocks, each of them said in Markdown and in HTML at once.

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
class Illustration:
    """A file beside the Markdown, inside the HTML; `dark` is shown on dark pages."""

    name: str  # of the file, with its ending
    about: str  # for those who do not see it
    data: bytes
    dark: bytes | None = None

    def files(self) -> dict[str, bytes]:
        """What lies beside the Markdown."""
        stem, _, ending = self.name.rpartition(".")
        return {self.name: self.data} | ({} if self.dark is None else {f"{stem}-dark.{ending}": self.dark})

    def beside(self, width: str) -> str:
        """In Markdown, `width` of the page wide."""
        return _picture([*self.files()], f'alt="{escaped(self.about)}" width="{width}"')

    def inside(self) -> str:
        """In HTML, with its bytes."""
        start = f"data:image/{'jpeg' if self.name.endswith('.jpg') else 'png'};base64,"
        coded = [start + base64.b64encode(data).decode("ascii") for data in self.files().values()]
        return _picture(coded, f'alt="{html.escape(self.about)}"')


def _picture(addresses: Sequence[str], more: str) -> str:
    image = f'<img src="{addresses[0]}" {more}>'
    dark = [f'<source media="(prefers-color-scheme: dark)" srcset="{one}">' for one in addresses[1:]]
    return f"<picture>{dark[0]}{image}</picture>" if dark else image


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a page in both forms, the pictures that it shows, and its link in the list of sections, if any."""

    markdown: str
    html: str
    pictures: tuple[Illustration, ...] = ()
    link: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    text: str
    tone: str = ""


Line = Sequence[Cell | str]  # of a table


def heading(text: str, level: int = 2) -> Block:
    """Level 1 names the page, 2 a section, 3 a part of it."""
    anchor, safe = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"), html.escape(text)
    named, link = (f' id="{anchor}"', f'<a href="#{anchor}">{safe}</a>') if level == 2 else ("", "")
    return Block(f"{'#' * level} {text}", f"<h{level}{named}>{safe}</h{level}>", link=link)


def paragraph(text: str) -> Block:
    return Block(text, f"<p>{inline(text)}</p>")


def bullets(lines: Sequence[str]) -> Block:
    """A list of short lines."""
    held = "".join(f"<li>{inline(line)}</li>" for line in lines)
    return Block("\n".join(f"- {line}" for line in lines), f"<ul>{held}</ul>")


def table(heads: Sequence[str], lines: Iterable[Line], wide_words: bool = False, ours: str = "\n") -> Block:
    """The first column names the line; lines whose name starts with `ours` are marked.

    With `wide_words` cells hold sentences: they may be broken, and a narrow page shows each line as a card.
    """
    rows = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in line] for line in lines]
    rows = [[Cell(row[0].text, OURS) if row[0].text.startswith(ours) else row[0], *row[1:]] for row in rows]
    assert all(len(row) == len(heads) for row in rows), f"a line has other than {len(heads)} cells"
    marked = [[f"**{c.text}**" if c.tone == OURS else MARKS.get(c.tone, "") + c.text for c in row] for row in rows]
    top = "".join(f'<th scope="col">{inline(head)}</th>' for head in heads)
    body = "\n".join(f"<tr>{''.join(_cells(heads, row))}</tr>" for row in rows)
    kind = ' class="words"' if wide_words else ""
    whole = f"<table{kind}><thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    return Block("\n".join(markdown_table(heads, marked)), f'<div class="scroll" tabindex="0">{whole}</div>')


def _cells(heads: Sequence[str], row: Sequence[Cell]) -> list[str]:
    first, *others = ((f' class="{cell.tone}"' if cell.tone else "", inline(cell.text)) for cell in row)
    held = zip(heads[1:], others, strict=True)
    return [
        f'<th scope="row"{first[0]}>{first[1]}</th>',
        *(f'<td{tone} data-head="{html.escape(head)}">{text}</td>' for head, (tone, text) in held),
    ]


def side_by_side(*pictures: Illustration) -> Block:
    """Pictures beside each other, where there is room."""
    shown = "".join(picture.inside() for picture in pictures)
    return Block("\n".join(one.beside("48%") for one in pictures), f'<div class="pair">{shown}</div>', pictures)


def fold(title: str, *blocks: Block) -> Block:
    """Shown when asked for."""
    held = "\n".join(block.html for block in blocks)
    return Block(
        f"<details><summary>{title}</summary>\n\n{to_markdown(blocks)}\n</details>",
        f"<details><summary>{inline(title)}</summary>\n{held}\n</details>",
        tuple(picture for block in blocks for picture in block.pictures),
    )


# ---------------------------------------------------------------- numbers


def share(value: float | None) -> str:
    """A share in per cent."""
    return NONE if value is None else f"{100 * value:.1f}"


def signed(difference: float) -> str:
    """A difference of shares in points; what rounds to nothing has no minus."""
    return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", MINUS)


def probability(p: float | None) -> str:
    return NONE if p is None else f"{p:.4f}" if p >= 0.0001 else "< 0.0001"


# ---------------------------------------------------------------- whole pages


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(block.markdown for block in blocks) + "\n"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown, the one that all pages of the project are made with."""
    escaped = ([cell.replace("|", "\\|").replace("\n", "<br>") for cell in row] for row in rows)
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *escaped)]


def escaped(text: str) -> str:
    """A text between tags or quotation marks of Markdown."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def to_html(blocks: Sequence[Block]) -> str:
    """The first block names the page; the list of its sections follows it."""
    title, *others = blocks
    contents = f"<nav>{' '.join(block.link for block in blocks if block.link)}</nav>"
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    body = "\n".join([title.html, contents, *(block.html for block in others)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title.markdown.removeprefix('# '))}</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def inline(text: str) -> str:
    """Escaped, with `code`, **bold** and new lines."""
    safe = html.escape(text).replace("\n", "<br>")
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe)
