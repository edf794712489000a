"""Layouts of bar charts: upright in training, lying in the unseen test."""

from dataclasses import dataclass

from arr_coc_scenes.documents import put_title, title_words
from arr_coc_scenes.draft import Bar, Draft
from arr_coc_scenes.layouts import scatter
from arr_coc_scenes.masks import set_text
from arr_coc_scenes.palette import jittered, visible_colours
from arr_coc_scenes.types import RGB, Box, Element
from arr_coc_scenes.words import COLOURS, DAYS, GOODS, MONTHS

_LINE = (150, 150, 150)
_TIP = 32  # pixels of a bar that count as its end


@dataclass(slots=True)
class _Plan:
    """What a chart shows, before it has a place."""

    words: list[str]
    labels: list[str]
    noun: str
    values: list[int]
    top: int
    step: int
    """Distance of the ticks in units of the values; 0: values are printed at the bars."""
    colours: list[str]
    font: str
    px: int


def _plan(draft: Draft, ground: RGB) -> _Plan:
    rng = draft.rng
    names, noun = rng.choice(((MONTHS, "month"), (MONTHS, "month"), (DAYS, "day"), (GOODS, "item")))
    count = min(draft.between(2, 7), len(names))
    words = rng.sample(names, count)
    if noun != "item":
        words.sort(key=names.index)
    labels = [w.capitalize() if noun == "item" else w[:3] for w in words]
    printed = rng.random() < 0.55
    step = 0 if printed else rng.choice((1, 2, 5, 10, 20))
    top = rng.randint(20, 99) if printed else step * rng.randint(max(4, count), 9)
    values = rng.sample(range(step or 2, top + 1, step or 1), count)
    inks = visible_colours((ground,), draft.hard)
    one_colour = rng.random() < 0.4 or count > len(inks)
    colours = [rng.choice(inks)] * count if one_colour else rng.sample(inks, count)
    return _Plan(words, labels, noun, values, top, step, colours, draft.any_font(), draft.text_px(most=0.7))


def put_bar(draft: Draft, box: Box, colour: str) -> Element:
    element = Element("bar", box, "", colour, "", (), jittered(draft.rng, COLOURS[colour]), "", 0)
    draft.elements.append(element)
    draft.taken.append(box)
    return element


@dataclass(slots=True)
class _Plot:
    """A chart's plan with its place: the area under the title, and the ink of its texts."""

    plan: _Plan
    area: Box
    word: str
    ink: RGB

    def size(self, text: str) -> tuple[int, int]:
        """(width, height) in pixels of a text on this chart."""
        line = set_text(text, self.plan.font, self.plan.px)
        return line.width, line.height

    def write(self, draft: Draft, text: str, x: int, y: int) -> Element:
        """Put a text with the top left corner of its ink at (x, y)."""
        return draft.put_text(text, self.plan.font, self.plan.px, x, y, self.word, self.ink)

    def keep(self, most: int) -> bool:
        """Keep the first `most` bars; False when fewer than two are left."""
        for part in (self.plan.words, self.plan.labels, self.plan.values, self.plan.colours):
            del part[most:]
        return len(self.plan.words) >= 2

    def ticks(self) -> range:
        """Values of the ticks, from 0 to the highest bar."""
        return range(0, max(self.plan.values) + 1, self.plan.step)


def begin_chart(draft: Draft) -> _Plot | None:
    """A sheet of 0.62 to 0.92 of the image's sides, a plan, often a title; None when they do not fit."""
    width, height = (round(s * draft.rng.uniform(0.62, 0.92)) for s in (draft.width, draft.height))
    sheet = draft.spot(width, height)
    if sheet is None:
        return None
    ground = draft.paper(sheet, dark=draft.rng.random() < 0.25)
    plan = _plan(draft, ground)
    top = sheet[1] + 8
    if draft.rng.random() < 0.7:
        if not put_title(draft, "chart", title_words(draft, 2), round(plan.px * 1.2), sheet, ground):
            return None
        assert draft.title is not None
        top = draft.title.box[3] + plan.px // 2
    draft.page, draft.bar_noun = "chart", plan.noun
    draft.taken.append(sheet)
    return _Plot(plan, (sheet[0] + 8, top, sheet[2] - 8, sheet[3] - 8), *draft.neutral_ink(ground))


def lay_chart(draft: Draft) -> bool:
    """Upright bars with labels below; values above the bars, or an axis with ticks at the left."""
    plot = begin_chart(draft)
    if plot is None:
        return False
    plan, area, px = plot.plan, plot.area, plot.plan.px
    left = area[0] + (plot.size(str(plan.top))[0] + 10 if plan.step else 0)
    over = draft.mirrored  # labels above the bars, not below them
    base, top = area[3] - (4 if over else round(px * 1.5)), area[1] + round(px * (2.9 if over else 1.4))
    line = area[1] + px if over else base + round(px * 1.2)
    least = max(max(plot.size(t)[0] for t in plan.labels) + px // 2, 18)
    if not plot.keep((area[2] - left) // least) or base - top < 40:
        return False
    unit, slot = (base - top) / max(plan.values), (area[2] - left) / len(plan.words)
    # Where the numbers of the ticks would touch, the values stand at the bars instead.
    ticked = plan.step > 0 and plan.step * unit >= px + 2
    ticks: dict[int, Element] = {}
    for value in plot.ticks() if ticked else (0,):
        y = base - round(value * unit)
        draft.rect((left, y, area[2], y + 1), _LINE)
        if ticked:
            w, h = plot.size(str(value))
            ticks[value] = plot.write(draft, str(value), left - 6 - w, y - h // 2)
    for k, (word, label, value) in enumerate(zip(plan.words, plan.labels, plan.values, strict=True)):
        middle, y = left + round((k + 0.5) * slot), base - round(value * unit)
        half = max(4, round(slot * 0.3))
        element = put_bar(draft, (middle - half, y, middle + half, base), plan.colours[k])
        start = middle - plot.size(label)[0] // 2
        text = draft.put_line(label, plan.font, px, start, line, plot.word, plot.ink)
        scale: tuple[Box, ...]
        if ticked:
            scale = (ticks[value].box, (left, y, max(left + 1, middle - half), y + 1))
        else:
            w, h = plot.size(str(value))
            scale = (plot.write(draft, str(value), middle - w // 2, y - h - 4).box,)
        tip = (*element.box[:3], min(base, y + _TIP))
        draft.bars.append(Bar(word, value, element, text, tip, scale))
    scatter(draft, draft.between(1, 3))
    return True


def lay_side_chart(draft: Draft) -> bool:
    """Lying bars with labels at the left and values at their ends, or ticks below (unseen)."""
    plot = begin_chart(draft)
    if plot is None:
        return False
    plan, area, px = plot.plan, plot.area, plot.plan.px
    value_w = plot.size(str(plan.top))[0] + 10
    left = area[0] + max(plot.size(t)[0] for t in plan.labels) + 10
    right, bottom = area[2] - value_w, area[3] - (round(px * 1.5) if plan.step else 4)
    if not plot.keep((bottom - area[1]) // round(px * 1.5)) or right - left < 60:
        return False
    unit, slot = (right - left) / max(plan.values), (bottom - area[1]) / len(plan.words)
    ticked = plan.step > 0 and plan.step * unit >= value_w
    ticks: dict[int, Element] = {}
    for value in plot.ticks() if ticked else (0,):
        x = left + round(value * unit)
        draft.rect((x, area[1], x + 1, bottom), _LINE)
        if ticked:
            ticks[value] = plot.write(draft, str(value), x - plot.size(str(value))[0] // 2, bottom + px // 3)
    for k, (word, label, value) in enumerate(zip(plan.words, plan.labels, plan.values, strict=True)):
        middle, x = area[1] + round((k + 0.5) * slot), left + round(value * unit)
        half = max(3, round(slot * 0.3))
        element = put_bar(draft, (left, middle - half, x, middle + half), plan.colours[k])
        w, h = plot.size(label)
        text = plot.write(draft, label, left - 6 - w, middle - h // 2)
        scale: tuple[Box, ...]
        if ticked:
            scale = (ticks[value].box, (x, min(middle + half, bottom - 1), x + 1, bottom))
        else:
            scale = (plot.write(draft, str(value), x + 5, middle - plot.size(str(value))[1] // 2).box,)
        tip = (max(left, x - _TIP), *element.box[1:])
        draft.bars.append(Bar(word, value, element, text, tip, scale))
    scatter(draft, draft.between(1, 3))
    return True
