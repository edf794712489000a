"""Blocks as Markdown. Pictures lie beside the page; a dark one is shown where the reader's page is dark."""

from collections.abc import Iterable, Sequence

from arr_coc.evaluation.report.blocks import (
    BAD,
    GOOD,
    OURS,
    Block,
    Card,
    Cards,
    Cell,
    Fold,
    Heading,
    Pair,
    Picture,
    Table,
    Text,
)

MARKS = {GOOD: "✓ ", BAD: "✗ "}


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Text(text):
            return text
        case Table():
            return _table(block)
        case Picture():
            return _picture(block)
        case Pair(pictures):
            return "\n".join(_picture(picture, "48%") for picture in pictures)
        case Cards(cards):
            return "\n\n".join(_card(card) for card in cards)
        case Fold(title, inside):
            return f"<details><summary>{title}</summary>\n\n{to_markdown(inside)}\n</details>"


def _table(table: Table) -> str:
    lines = [_line(table.heads), _line(["---"] * len(table.heads)), *(_line(map(_cell, row)) for row in table.rows)]
    return "\n".join(lines)


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _cell(cell: Cell) -> str:
    text = cell.text.replace("|", "\\|").replace("\n", "<br>")
    return f"**{text}**" if cell.tone == OURS else MARKS.get(cell.tone, "") + text


def _picture(picture: Picture, width: str = "") -> str:
    about = _escaped(picture.about)
    size = f' width="{width}"' if width else ""
    image = f'<img src="{picture.name}" alt="{about}"{size}>'
    if picture.dark is None:
        return image
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{picture.dark_name}">'
    return f"<picture>{dark}{image}</picture>"


def _card(card: Card) -> str:
    pictures = "\n".join(_picture(picture, "45%") for picture in card.pictures)
    lines = "\n".join(f"- {name}: {_escaped(text)}" for name, text in card.lines)
    return f"**{card.title}**\n\n{pictures}\n\n{lines}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
