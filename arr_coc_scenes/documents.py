"""Layouts of documents: a page with a title, tables, and receipts."""

from arr_coc_scenes.draft import Draft, TableRow
from arr_coc_scenes.layouts import scatter
from arr_coc_scenes.masks import set_text
from arr_coc_scenes.splits import sign_word
from arr_coc_scenes.types import Box, Element
from arr_coc_scenes.words import GOODS, GOODS_COLUMNS, PEOPLE, PEOPLE_COLUMNS

_RANGES = {"weight": (1, 99), "stock": (1, 99), "age": (5, 90), "score": (10, 99), "height": (100, 199)}


def title_words(draft: Draft, most: int = 3) -> str:
    """One to `most` words in capitals."""
    count = draft.rng.randint(1, most) if draft.crowd > 0.3 else 1
    return " ".join(sign_word(draft.rng, draft.split) for _ in range(count))


def put_title(draft: Draft, page: str, text: str, px: int, box: Box, ground: tuple[int, int, int]) -> bool:
    """Set the title centred in the top of `box`, smaller or shorter until it fits; False if it cannot."""
    font = draft.any_font()
    while set_text(text, font, px).width > box[2] - box[0] - 12:
        if px > 16:
            px -= 2
        elif " " in text:
            text = text.rsplit(" ", 1)[0]
        else:
            return False
    x = box[0] + (box[2] - box[0] - set_text(text, font, px).width) // 2
    draft.title = draft.put_text(text, font, px, x, box[1] + 8, *draft.neutral_ink(ground))
    draft.page = page
    return True


def _body(draft: Draft, box: Box, ground: tuple[int, int, int]) -> None:
    """Lines of running text under a title: readable words now and then, else grey strokes."""
    rng = draft.rng
    shade = (170, 170, 170) if sum(ground) > 380 else (90, 90, 90)
    px, y = max(14, draft.text_px() * 3 // 4), box[1]
    while y + px < box[3]:
        right = box[0] + round((box[2] - box[0]) * rng.uniform(0.6, 1.0))
        if rng.random() < 0.25 * draft.crowd:
            text = sign_word(rng, draft.split)
            if set_text(text, draft.font, px).width < box[2] - box[0]:
                draft.put_text(text, draft.font, px, box[0], y, *draft.neutral_ink(ground))
        elif right > box[0] + 20:
            draft.rect((box[0], y + px // 4, right, y + px // 4 + max(2, px // 4)), shade)
        y += round(px * 1.7)


def lay_page(draft: Draft) -> bool:
    """A sheet with a title, lines of text below it, and a few things on the rest."""
    rng = draft.rng
    width, height = (round(s * rng.uniform(0.55, 0.8)) for s in (draft.width, draft.height))
    box = draft.spot(width, height)
    if box is None:
        return False
    ground = draft.paper(box, dark=rng.random() < 0.2)
    px = round(draft.text_px() * rng.uniform(1.0, 1.5))
    if not put_title(draft, "page", title_words(draft), px, box, ground):
        return False
    assert draft.title is not None
    _body(draft, (box[0] + 12, draft.title.box[3] + px, box[2] - 12, box[3] - 8), ground)
    draft.taken.append(box)
    scatter(draft, draft.between(1, 5))
    return True


def lay_poster(draft: Draft) -> bool:
    """A banner across the middle that holds the title, things above and below (unseen)."""
    px = round(draft.text_px() * draft.rng.uniform(1.0, 1.5))
    y = round(draft.height * draft.rng.uniform(0.4, 0.6))
    box = (8, y - px, draft.width - 8, y + px)
    ground = draft.paper(box, dark=draft.rng.random() < 0.5)
    lines = (box[0], y - 8 - round(px * 0.36), box[2], box[3])
    if not put_title(draft, "poster", title_words(draft), px, lines, ground):
        return False
    draft.taken.append(box)
    scatter(draft, draft.between(2, 8))
    return True


def _prices(draft: Draft, count: int) -> list[str]:
    """Different prices such as "3.40"."""
    return [f"{c // 20}.{5 * (c % 20):02d}" for c in draft.rng.sample(range(8, 240), count)]


def table_cells(draft: Draft, count: int) -> tuple[list[str], list[str], list[list[str]]]:
    """(row words, column words, cells as drawn with a header line and a label column) of a table."""
    rng = draft.rng
    goods = rng.random() < 0.6
    words = rng.sample(GOODS if goods else PEOPLE, count)
    columns = rng.sample(GOODS_COLUMNS if goods else PEOPLE_COLUMNS, 2 if draft.crowd > 0.4 else 1)
    lines = [["Item" if goods else "Name", *(c.capitalize() for c in columns)]]
    values = {
        c: _prices(draft, count) if c == "price" else [str(v) for v in rng.sample(range(*_RANGES[c]), count)]
        for c in columns
    }
    lines += [[word.capitalize(), *(values[c][k] for c in columns)] for k, word in enumerate(words)]
    return words, columns, lines


def _put_cells(draft: Draft, lines: list[list[str]], px: int, heading: int) -> list[list[Element]] | None:
    """Draw a ruled sheet of cells, `heading` pixels left free on top; None when it does not fit."""
    font = draft.any_font()
    step = round(px * draft.rng.uniform(0.7, 1.2))
    widths = [max(set_text(line[c], font, px).width for line in lines) + step for c in range(len(lines[0]))]
    pitch = round(px * draft.rng.uniform(1.5, 1.9))
    sheet = draft.spot(sum(widths) + 16, pitch * len(lines) + 8 + heading)
    if sheet is None:
        return None
    ground = draft.paper(sheet, dark=draft.rng.random() < 0.25)
    word, ink = draft.neutral_ink(ground)
    table: list[list[Element]] = []
    for r, line in enumerate(lines):
        x, y = sheet[0] + 8, sheet[1] + heading + 4 + r * pitch
        table.append([])
        for text, column in zip(line, widths, strict=True):
            table[-1].append(draft.put_line(text, font, px, x, y + round(pitch / 2 + px * 0.36), word, ink))
            x += column
        if r:
            draft.rect((sheet[0] + 4, y, sheet[2] - 4, y + 1), (140, 140, 140))
    if heading:
        put_title(draft, "table", title_words(draft, 2), px, sheet, ground)
    draft.taken.append(sheet)
    return table


def lay_table(draft: Draft, wide: bool = False) -> bool:
    """A table: one line per item or person, one or two columns of values; on its side if `wide` (unseen)."""
    count = draft.between(2, 7)
    px = draft.text_px(most=0.85)
    while count >= 2:
        words, columns, lines = table_cells(draft, min(count, 4) if wide else count)
        across = [list(column) for column in zip(*lines, strict=True)] if wide else lines
        turn = -1 if draft.mirrored else 1  # -1: the label column comes last
        heading = round(px * 1.8) if draft.rng.random() < 0.5 else 0
        cells = _put_cells(draft, [line[::turn] for line in across], px, heading)
        if cells is not None:
            cells = [line[::turn] for line in cells]
            upright = [list(column) for column in zip(*cells, strict=True)] if wide else cells
            draft.headers = dict(zip(columns, upright[0][1:], strict=True))
            for word, line in zip(words, upright[1:], strict=True):
                draft.rows.append(TableRow(word, line[0], dict(zip(columns, line[1:], strict=True))))
            draft.page = "table"
            scatter(draft, draft.between(1, 4))
            return True
        count, px = (count, px - 3) if px > 16 else (count - 1, px)
    return False


def lay_receipt(draft: Draft, menu: bool = False) -> bool:
    """Shop name, goods with prices, and the total; a `menu` is dark, its prices in front, without a total (unseen)."""
    rng, px, font = draft.rng, draft.text_px(most=0.85), draft.any_font()
    words = rng.sample(GOODS, draft.between(2, 8))
    lines = list(zip([w.capitalize() for w in words], _prices(draft, len(words)), strict=True))
    lines += [] if menu else [("Total", "00.00")]
    while True:
        pitch = round(px * 1.6)
        label_w, value_w = (max(set_text(line[k], font, px).width for line in lines) for k in (0, 1))
        sheet = draft.spot(label_w + value_w + 3 * px, pitch * (len(lines) + 2))
        if sheet is not None:
            break
        if px <= 16 and len(lines) <= 2:
            return False
        px, lines = (px - 2, lines) if px > 16 else (px, lines[1:])
    if not menu:
        cents = sum(int(price.replace(".", "")) for _, price in lines[:-1])
        lines[-1] = ("Total", f"{cents // 100}.{cents % 100:02d}")
    ground = draft.paper(sheet, dark=menu)
    if not put_title(draft, "menu" if menu else "receipt", title_words(draft, 2), px, sheet, ground):
        return False
    word, ink = draft.neutral_ink(ground)
    left, right = sheet[0] + 10, sheet[2] - 10
    for k, (label, price) in enumerate(lines):
        base = sheet[1] + pitch * (k + 1) + pitch // 2 + px
        end = right - set_text(price, font, px).width
        value_x, label_x = (left, left + value_w + px) if menu else (end, left)
        label_element = draft.put_line(label, font, px, label_x, base, word, ink)
        value = draft.put_line(price, font, px, value_x, base, word, ink)
        draft.rows.append(TableRow(label.lower(), label_element, {"price": value}))
    draft.taken.append(sheet)
    scatter(draft, draft.between(1, 4))
    return True
