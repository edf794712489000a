"""Layouts of training alone: labels and values that stand together in other ways than in the world's tables and charts.

Who has only met labels left of values and bars that stand takes that for the meaning of a table or a chart. None of
these is a layout of the unseen test: there, labels head columns, and lying bars have their labels at the left.
"""

from arr_coc_scenes.charts import begin_chart, put_bar
from arr_coc_scenes.documents import table_cells
from arr_coc_scenes.draft import Bar, Draft, TableRow
from arr_coc_scenes.layouts import scatter
from arr_coc_scenes.masks import set_text
from arr_coc_scenes.types import Box, Element


def lay_cards(draft: Draft) -> bool:
    """Cards in a row or below each other: the label on top of each, under it a line for every measure and value."""
    px = draft.text_px(most=0.85)
    count = draft.between(2, 5)
    while count >= 2:
        if _put_cards(draft, count, px, across=draft.rng.random() < 0.6):
            draft.page = "table"
            scatter(draft, draft.between(1, 4))
            return True
        count, px = (count, px - 3) if px > 16 else (count - 1, px)
    return False


def _put_cards(draft: Draft, count: int, px: int, across: bool) -> bool:
    """One card per item or person in a strip of the image; False when they do not fit."""
    words, columns, lines = table_cells(draft, count)
    if draft.rng.random() < 0.4:
        columns, lines = columns[:1], [line[:2] for line in lines]
    font, pad = draft.any_font(), max(6, px // 3)
    # With one measure the value stands alone under the label; with two each has its name before it.
    names = [""] if len(columns) == 1 else [f"{name.capitalize()} " for name in columns]
    width = 2 * pad + max(
        set_text(text, font, px).width
        for line in lines[1:]
        for text in (line[0], *(name + value for name, value in zip(names, line[1:], strict=True)))
    )
    pitch = round(px * 1.5)
    height, gap = pitch * (1 + len(columns)) + pad, draft.rng.randint(6, 14)
    span = count * ((width if across else height) + gap) - gap
    at = draft.spot(span, height) if across else draft.spot(width, span)
    if at is None:
        return False
    for number, (word, line) in enumerate(zip(words, lines[1:], strict=True)):
        x, y = (at[0] + number * (width + gap), at[1]) if across else (at[0], at[1] + number * (height + gap))
        label, *values = _put_card(draft, (x, y, x + width, y + height), ["", *names], line, font, px)
        draft.rows.append(TableRow(word, label, dict(zip(columns, values, strict=True))))
    return True


def _put_card(draft: Draft, box: Box, names: list[str], texts: list[str], font: str, px: int) -> list[Element]:
    """Lines of a name and a text, centred on a sheet; returns the texts as they were put."""
    ground = draft.paper(box, dark=draft.rng.random() < 0.25)
    word, ink = draft.neutral_ink(ground)
    pitch, put = round(px * 1.5), []
    for number, (name, text) in enumerate(zip(names, texts, strict=True)):
        whole = set_text(name + text, font, px).width
        x, base = box[0] + (box[2] - box[0] - whole) // 2, box[1] + number * pitch + round(pitch * 0.9)
        if name:
            draft.put_line(name.strip(), font, px, x, base, word, ink)
        put.append(draft.put_line(text, font, px, x + whole - set_text(text, font, px).width, base, word, ink))
    draft.taken.append(box)
    return put


def lay_bar_list(draft: Draft) -> bool:
    """Bars that lie, each under its label, the value behind its end."""
    plot = begin_chart(draft)
    if plot is None:
        return False
    plan, area, px = plot.plan, plot.area, plot.plan.px
    value_w = plot.size(str(plan.top))[0] + 10
    pitch, right = round(px * 2.6), area[2] - value_w
    if not plot.keep((area[3] - area[1]) // pitch) or right - area[0] < 60:
        return False
    unit, thick = (right - area[0]) / max(plan.values), max(6, round(px * 0.7))
    from_right = draft.mirrored  # bars grow to the left, from a common end at the right
    for k, (word, label, value) in enumerate(zip(plan.words, plan.labels, plan.values, strict=True)):
        top, length = area[1] + k * pitch, max(3, round(value * unit))
        bar_y = top + round(px * 1.35)
        w, h = plot.size(str(value))
        if from_right:
            box = (area[2] - length, bar_y, area[2], bar_y + thick)
            label_x, value_x = area[2] - plot.size(label)[0], area[2] - length - 5 - w
        else:
            box = (area[0], bar_y, area[0] + length, bar_y + thick)
            label_x, value_x = area[0], area[0] + length + 5
        text = draft.put_line(label, plan.font, px, label_x, top + px, plot.word, plot.ink)
        element = put_bar(draft, box, plan.colours[k])
        scale = plot.write(draft, str(value), value_x, bar_y + (thick - h) // 2)
        tip = (box[0], box[1], min(box[2], box[0] + 32), box[3]) if from_right else (max(box[0], box[2] - 32), *box[1:])
        draft.bars.append(Bar(word, value, element, text, tip, (scale.box,)))
    scatter(draft, draft.between(1, 3))
    return True
