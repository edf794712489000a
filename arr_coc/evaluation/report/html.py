"""Blocks as one HTML file that needs nothing else: pictures are inside it, and there are no scripts.

It follows the reader's light or dark setting. On a narrow page wide tables scroll by themselves, and tables of
sentences turn into cards.
"""

import base64
import html
import re
from collections.abc import Sequence

from arr_coc.evaluation.report.blocks import Block, Card, Cards, Cell, Fold, Heading, Pair, Picture, Table, Text

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #59636e; --line: #d9dee3; --band: #f5f7f9;
  --good: #dcefe0; --bad: #fbe0dc; --even: #eceff2; --ours: #dcebf7; --link: #0060a8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181d; --ink: #e8eaed; --soft: #a3adb8; --line: #343a43; --band: #1c2026;
    --good: #1d3b27; --bad: #4a2420; --even: #272c33; --ours: #1c3a54; --link: #7cc0f5; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 1.2rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .6rem 0; }
h2 { font-size: 1.4rem; margin: 2.6rem 0 .4rem; }
h3 { font-size: 1.1rem; margin: 1.6rem 0 .3rem; }
p { max-width: 75ch; margin: .6rem 0; }
a { color: var(--link); }
code { font-size: .88em; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1rem 0; padding: .7rem 0;
  border-block: 1px solid var(--line); }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .86rem; }
th, td { padding: .32rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; line-height: 1.25; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); font-weight: 500; }
table.words { width: 100%; }
table.words th, table.words td { text-align: left; white-space: normal; vertical-align: top;
  overflow-wrap: break-word; }
table.words th:first-child { position: static; min-width: 9rem; }
td.good { background: var(--good); }
td.bad { background: var(--bad); }
td.even { background: var(--even); }
td.missing { color: var(--soft); font-style: italic; }
th.ours:first-child { background: var(--ours); font-weight: 700; }
.pair { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
img { display: block; width: 100%; height: auto; border-radius: 4px; }
.cards { display: grid; gap: 1.2rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 500px), 1fr)); }
.card { border: 1px solid var(--line); border-radius: 8px; padding: .8rem; background: var(--band); }
.card h4 { margin: 0 0 .5rem; font-size: 1rem; }
.card .two { display: grid; grid-template-columns: 1fr 1fr; gap: .5rem; }
.card dl { display: grid; grid-template-columns: auto 1fr; gap: .1rem .8rem; margin: .6rem 0 0; font-size: .88rem; }
.card dt { color: var(--soft); }
.card dd { margin: 0; overflow-wrap: anywhere; }
details { margin: .5rem 0; border-left: 3px solid var(--line); padding-left: .8rem; }
summary { cursor: pointer; padding: .25rem 0; }
@media (max-width: 640px) {
  body { padding-inline: .75rem; }
  h1 { font-size: 1.5rem; }
  table.words thead { display: none; }
  table.words, table.words tbody, table.words tr, table.words td, table.words th { display: block; width: 100%; }
  table.words tr { border: 1px solid var(--line); border-radius: 8px; margin: .6rem 0; overflow: hidden; }
  table.words td, table.words th { border: 0; padding: .3rem .7rem; }
  table.words td::before { content: attr(data-head) ": "; color: var(--soft); }
}
"""


def to_html(blocks: Sequence[Block]) -> str:
    title = next(block.text for block in blocks if isinstance(block, Heading) and block.level == 1)
    body = "\n".join(_block(block) + (_contents(blocks) if _names_page(block) else "") for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _names_page(block: Block) -> bool:
    return isinstance(block, Heading) and block.level == 1


def _contents(blocks: Sequence[Block]) -> str:
    links = [
        f'<a href="#{_anchor(block.text)}">{html.escape(block.text)}</a>'
        for block in blocks
        if isinstance(block, Heading) and block.level == 2
    ]
    return f"\n<nav>{' '.join(links)}</nav>"


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            anchor = f' id="{_anchor(text)}"' if level == 2 else ""
            return f"<h{level}{anchor}>{html.escape(text)}</h{level}>"
        case Text(text):
            return f"<p>{inline(text)}</p>"
        case Table():
            return _table(block)
        case Picture():
            return _picture(block)
        case Pair(pictures):
            return f'<div class="pair">{"".join(_picture(picture) for picture in pictures)}</div>'
        case Cards(cards):
            return f'<div class="cards">{"".join(_card(card) for card in cards)}</div>'
        case Fold(title, inside):
            held = "\n".join(_block(one) for one in inside)
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


def _picture(picture: Picture) -> str:
    image = f'<img src="{_inside(picture.name, picture.data)}" alt="{html.escape(picture.about)}">'
    if picture.dark is None:
        return image
    dark = _inside(picture.name, picture.dark)
    return f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">{image}</picture>'


def _inside(name: str, data: bytes) -> str:
    kind = "jpeg" if name.endswith(".jpg") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _card(card: Card) -> str:
    pictures = "".join(_picture(picture) for picture in card.pictures)
    lines = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in card.lines)
    return (
        f'<div class="card"><h4>{html.escape(card.title)}</h4><div class="two">{pictures}</div><dl>{lines}</dl></div>'
    )
