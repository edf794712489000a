"""Documents of the wide world: forms, price lists, bills, pages in columns, tables turned on their side.

None is a layout of the unseen test: there, a turned table has its labels in the first line or column, and a menu has
its prices first.
"""

from arr_coc_scenes.documents import put_title, table_cells, title_words
from arr_coc_scenes.draft import Draft, TableRow
from arr_coc_scenes.layouts import scatter
from arr_coc_scenes.masks import set_text
from arr_coc_scenes.splits import sign_word
from arr_coc_scenes.types import RGB, Box, Element
from arr_coc_scenes.words import DAYS, GOODS, PEOPLE

_FIELDS = {"age": (5, 90), "score": (10, 99), "height": (100, 199)}


def _sheet(draft: Draft, width: int, height: int, dark_share: float) -> tuple[Box, RGB] | None:
    """A sheet of that size where there is room, and its tone; None when there is none."""
    box = draft.spot(width, height)
    if box is None:
        return None
    draft.taken.append(box)
    return box, draft.paper(box, dark=draft.rng.random() < dark_share)


def lay_form(draft: Draft) -> bool:
    """A form about one person: names of fields, and what is filled in, beside them or in boxes below them."""
    rng, px, font = draft.rng, draft.text_px(most=0.85), draft.any_font()
    hand = draft.any_font()
    fields = rng.sample(sorted(_FIELDS), 2 if draft.crowd < 0.4 else 3)
    person = rng.choice(PEOPLE)
    lines = [("Name", person), *((name.capitalize(), str(rng.randint(*_FIELDS[name]))) for name in fields)]
    rng.shuffle(lines)
    below = rng.random() < 0.4
    label_w = max(set_text(label, font, px).width for label, _ in lines)
    value_w = max(set_text(value, hand, px).width for _, value in lines) + px
    pitch = round(px * (3.4 if below else 2.2))
    width = max(label_w, value_w) + 3 * px if below else label_w + value_w + 4 * px
    found = _sheet(draft, width, pitch * len(lines) + 3 * px, 0.15)
    if found is None:
        return False
    box, ground = found
    word, ink = draft.neutral_ink(ground)
    if not put_title(draft, "page", title_words(draft, 2), px, box, ground):
        return False
    placed: dict[str, tuple[Element, Element]] = {}
    for number, (label, value) in enumerate(lines):
        base = box[1] + round(px * 3.2) + number * pitch
        x, value_base = (box[0] + px, base + round(px * 1.5)) if below else (box[0] + 2 * px + label_w, base)
        shade = (215, 215, 220) if sum(ground) > 380 else (70, 70, 76)
        draft.rect(
            (x, value_base - round(px * 1.05), x + value_w, value_base + round(px * 0.4)),
            shade,
            rng.choice(("rect", "frame")),
        )
        name = draft.put_line(label, font, px, box[0] + px, base, word, ink)
        placed[label.lower()] = name, draft.put_line(value, hand, px, x + px // 2, value_base, word, ink)
    draft.headers = {name: placed[name][0] for name in fields}
    draft.rows.append(TableRow(person, placed["name"][1], {name: placed[name][1] for name in fields}))
    draft.page = "page"
    scatter(draft, draft.between(1, 4))
    return True


def _prices(draft: Draft, count: int) -> list[str]:
    return [f"{c // 20}.{5 * (c % 20):02d}" for c in draft.rng.sample(range(8, 240), count)]


def lay_price_list(draft: Draft) -> bool:
    """Goods and prices in one or two columns, dots between them, the price behind or under its good."""
    rng, px, font = draft.rng, draft.text_px(most=0.85), draft.any_font()
    columns = rng.choice((1, 2)) if draft.side >= 256 else 1
    words = rng.sample(GOODS, draft.between(2, 5 * columns))
    prices = _prices(draft, len(words))
    under = rng.random() < 0.3
    label_w = max(set_text(word.capitalize(), font, px).width for word in words)
    value_w = max(set_text(price, font, px).width for price in prices)
    column_w = max(label_w, value_w) + 2 * px if under else label_w + value_w + 3 * px
    lines = -(-len(words) // columns)
    pitch = round(px * (2.9 if under else 1.7))
    found = _sheet(draft, column_w * columns + px, pitch * lines + 3 * px, 0.3)
    if found is None:
        return False
    box, ground = found
    word_ink = draft.neutral_ink(ground)
    if not put_title(draft, "menu", title_words(draft, 2), px, box, ground):
        return False
    dots = rng.random() < 0.6
    for number, (word, price) in enumerate(zip(words, prices, strict=True)):
        x = box[0] + px + number // lines * column_w
        base = box[1] + round(px * 3.1) + number % lines * pitch
        label = draft.put_line(word.capitalize(), font, px, x, base, *word_ink)
        end = x + column_w - px - set_text(price, font, px).width
        value_at = (x, base + round(px * 1.3)) if under else (end, base)
        value = draft.put_line(price, font, px, *value_at, *word_ink)
        if dots and not under:
            for dot in range(label.box[2] + 6, value.box[0] - 6, max(6, px // 3)):
                draft.rect((dot, base - 2, dot + 2, base), (130, 130, 130))
        draft.rows.append(TableRow(word, label, {"price": value}))
    scatter(draft, draft.between(1, 4))
    return True


def lay_bill(draft: Draft) -> bool:
    """A bill: a heading, a number and a day, goods with prices, lines, a total that stands apart."""
    rng, px, font = draft.rng, draft.text_px(most=0.8), draft.any_font()
    words = rng.sample(GOODS, draft.between(2, 6))
    prices = _prices(draft, len(words))
    cents = sum(int(price.replace(".", "")) for price in prices)
    lines = [*zip([w.capitalize() for w in words], prices, strict=True), ("Total", f"{cents // 100}.{cents % 100:02d}")]
    label_w, value_w = (max(set_text(line[k], font, px).width for line in lines) for k in (0, 1))
    pitch, width = round(px * 1.6), max(label_w + value_w + 4 * px, 9 * px)
    found = _sheet(draft, width, round(pitch * (len(lines) + 3.6)), 0.05)
    if found is None:
        return False
    box, ground = found
    ink = draft.neutral_ink(ground)
    if not put_title(draft, "receipt", title_words(draft, 1), px, box, ground):
        return False
    base = box[1] + pitch + round(px * 1.5)
    draft.put_line(f"{rng.choice(DAYS)[:3]} {rng.randint(10, 99)}", font, max(12, px * 3 // 4), box[0] + px, base, *ink)
    for number, (label, price) in enumerate(lines):
        base += pitch + (pitch // 3 if number == len(lines) - 1 else 0)
        if number in (0, len(lines) - 1):
            draft.rect((box[0] + 6, base - round(px * 1.1), box[2] - 6, base - round(px * 1.1) + 2), (140, 140, 140))
        name = draft.put_line(label, font, px, box[0] + px, base, *ink)
        end = box[2] - px - set_text(price, font, px).width
        draft.rows.append(TableRow(label.lower(), name, {"price": draft.put_line(price, font, px, end, base, *ink)}))
    scatter(draft, draft.between(1, 3))
    return True


def lay_columns(draft: Draft) -> bool:
    """A page of two or three columns of words and grey lines under a title."""
    rng = draft.rng
    width, height = (round(s * rng.uniform(0.6, 0.9)) for s in (draft.width, draft.height))
    found = _sheet(draft, width, height, 0.15)
    if found is None:
        return False
    box, ground = found
    px = round(draft.text_px(most=0.9) * rng.uniform(1.0, 1.6))
    if not put_title(draft, "page", title_words(draft), px, box, ground):
        return False
    assert draft.title is not None
    ink, small = draft.neutral_ink(ground), max(13, px // 2)
    shade = (176, 176, 180) if sum(ground) > 380 else (88, 88, 92)
    count = rng.choice((2, 2, 3))
    step = (width - 16) // count
    for column in range(count):
        x, y = box[0] + 10 + column * step, draft.title.box[3] + small
        while y + small < box[3] - 8:
            text = sign_word(rng, draft.split)
            if rng.random() < 0.2 * draft.crowd and set_text(text, draft.font, small).width < step - 14:
                draft.put_text(text, draft.font, small, x, y, *ink)
            else:
                draft.rect((x, y + small // 4, x + round((step - 14) * rng.uniform(0.6, 1.0)), y + small // 2), shade)
            y += round(small * 1.6)
    scatter(draft, draft.between(1, 4))
    return True


def lay_turned_table(draft: Draft) -> bool:
    """A table on its side, one column per item or person: labels in the last line, or heads at the right."""
    px = draft.text_px(most=0.8)
    count = draft.between(2, 4)
    while count >= 2:
        words, columns, lines = table_cells(draft, count)
        if _put_turned(draft, words, columns, lines, px):
            draft.page = "table"
            scatter(draft, draft.between(1, 4))
            return True
        count, px = (count, px - 3) if px > 16 else (count - 1, px)
    return False


def _put_turned(draft: Draft, words: list[str], columns: list[str], lines: list[list[str]], px: int) -> bool:
    """Draw `lines` (a head line, then one per word) turned; False when they do not fit."""
    rng, font = draft.rng, draft.any_font()
    heads_right = rng.random() < 0.5
    order = [*range(1, len(lines)), 0] if heads_right else list(range(len(lines)))
    rows = list(range(len(lines[0]))) if heads_right else [*range(1, len(lines[0])), 0]
    step, pitch = px, round(px * rng.uniform(1.6, 2.0))
    widths = [max(set_text(text, font, px).width for text in lines[c]) + step for c in order]
    found = _sheet(draft, sum(widths) + 16, pitch * len(rows) + 10, 0.2)
    if found is None:
        return False
    box, ground = found
    ink = draft.neutral_ink(ground)
    placed: dict[tuple[int, int], Element] = {}
    for r, row in enumerate(rows):
        x, base = box[0] + 8, box[1] + 4 + r * pitch + round(pitch / 2 + px * 0.36)
        for line, width in zip(order, widths, strict=True):
            placed[line, row] = draft.put_line(lines[line][row], font, px, x, base, *ink)
            x += width
        if r and rng.random() < 0.8:
            draft.rect((box[0] + 4, box[1] + 4 + r * pitch, box[2] - 4, box[1] + 5 + r * pitch), (140, 140, 140))
    draft.headers = {name: placed[0, number] for number, name in enumerate(columns, start=1)}
    for line, word in enumerate(words, start=1):
        values = {name: placed[line, number] for number, name in enumerate(columns, start=1)}
        draft.rows.append(TableRow(word, placed[line, 0], values))
    return True
