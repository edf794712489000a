"""Charts of the wide world: lines, pies, and bars that lie with their labels behind or inside them.

None is a layout of the unseen test: there, lying bars have their labels before them.
"""

from itertools import pairwise
from math import cos, pi, sin
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from arr_coc_scenes.charts import begin_chart, put_bar
from arr_coc_scenes.draft import Bar, Draft
from arr_coc_scenes.layouts import scatter
from arr_coc_scenes.palette import jittered, visible_colours
from arr_coc_scenes.types import RGB, Box, Element
from arr_coc_scenes.words import COLOURS
from studies.wide.draft import WideDraft
from studies.wide.sprites import Sprite, to_mask

_TIP = 32  # px of a bar that count as its end
_FINER = 3  # slices and lines are drawn this much larger and shrunk


def _disc(radius: int) -> np.ndarray:
    side = 2 * radius * _FINER
    image = Image.new("L", (side, side))
    ImageDraw.Draw(image).ellipse((0, 0, side - 1, side - 1), fill=255)
    return to_mask(np.asarray(image.resize((2 * radius, 2 * radius), Image.Resampling.BOX)))


def _stroke(draft: WideDraft, start: tuple[int, int], end: tuple[int, int], ink: RGB, width: int) -> None:
    """A line between two points, under the elements."""
    x0, y0 = min(start[0], end[0]) - width, min(start[1], end[1]) - width
    size = abs(start[0] - end[0]) + 2 * width, abs(start[1] - end[1]) + 2 * width
    image = Image.new("L", (size[0] * 2, size[1] * 2))
    ends = [((x - x0) * 2, (y - y0) * 2) for x, y in (start, end)]
    ImageDraw.Draw(image).line(ends, fill=255, width=2 * width)
    ink_hw = np.asarray(image.resize(size, Image.Resampling.BOX)).astype(np.int16)
    draft.under.append(Sprite(((ink_hw * 128 + 127) // 255)[:, :, None], x0, y0, ink))


def lay_line(draft: Draft) -> bool:
    """Points joined by a line, labels below; values at the points, or an axis with ticks at the left."""
    assert isinstance(draft, WideDraft)
    plot = begin_chart(draft)
    if plot is None:
        return False
    plan, area, px = plot.plan, plot.area, plot.plan.px
    left = area[0] + (plot.size(str(plan.top))[0] + 10 if plan.step else 0)
    base, top = area[3] - round(px * 1.5), area[1] + round(px * 1.6)
    least = max(max(plot.size(t)[0] for t in plan.labels) + px // 2, 24)
    if not plot.keep((area[2] - left) // least) or base - top < 40:
        return False
    unit, slot = (base - top) / max(plan.values), (area[2] - left) / len(plan.words)
    ticked = plan.step > 0 and plan.step * unit >= px + 2
    ticks: dict[int, Element] = {}
    for value in plot.ticks() if ticked else (0,):
        y = base - round(value * unit)
        draft.rect((left, y, area[2], y + 1), (165, 165, 165))
        if ticked:
            w, h = plot.size(str(value))
            ticks[value] = plot.write(draft, str(value), left - 6 - w, y - h // 2)
    places = [(left + round((k + 0.5) * slot), base - round(v * unit)) for k, v in enumerate(plan.values)]
    ink, radius = jittered(draft.rng, COLOURS[plan.colours[0]]), max(4, px // 4)
    for start, end in pairwise(places):
        _stroke(draft, start, end, ink, max(2, px // 8))
    for k, (word, label, value) in enumerate(zip(plan.words, plan.labels, plan.values, strict=True)):
        x, y = places[k]
        sprite = Sprite(_disc(radius), x - radius, y - radius, ink)
        point = draft.put(Element("bar", sprite.box, "", plan.colours[0], "", (), ink, "", 0), [sprite])
        w, h = plot.size(str(value))
        text = draft.put_line(
            label, plan.font, px, x - plot.size(label)[0] // 2, base + round(px * 1.2), plot.word, plot.ink
        )
        scale: tuple[Box, ...]
        if ticked:
            scale = (ticks[value].box, (left, y, max(left + 1, x - radius), y + 1))
        else:
            below = _falls(plan.values, k) and y + radius + 3 + h < base - 2
            beside = y + radius + 3 if below else y - radius - 3 - h
            scale = (plot.write(draft, str(value), x - w // 2, beside).box,)
        draft.bars.append(Bar(word, value, point, text, point.box, scale))
    draft.chart = "line"
    scatter(draft, draft.between(1, 3))
    return True


def _falls(values: list[int], k: int) -> bool:
    """Whether both neighbours of a point are higher: its number then stands below it, clear of the lines."""
    near = values[max(0, k - 1) : k] + values[k + 1 : k + 2]
    return bool(near) and min(near) > values[k]


def lay_lying_bars(draft: Draft) -> bool:
    """Bars that lie, with their labels inside them or at the right edge, the value at their end."""
    assert isinstance(draft, WideDraft)
    plot = begin_chart(draft)
    if plot is None:
        return False
    plan, area, px = plot.plan, plot.area, plot.plan.px
    label_w = max(plot.size(t)[0] for t in plan.labels) + 10
    value_w = plot.size(str(plan.top))[0] + 10
    pitch = round(px * 1.7)
    if not plot.keep((area[3] - area[1]) // pitch) or area[2] - area[0] - label_w - value_w < 70:
        return False
    slot = (area[3] - area[1]) / len(plan.words)
    right = area[2] - label_w
    unit = (right - area[0] - value_w) / max(plan.values)
    for k, (word, label, value) in enumerate(zip(plan.words, plan.labels, plan.values, strict=True)):
        middle, half = area[1] + round((k + 0.5) * slot), max(4, round(slot * 0.32))
        start = right - max(3, round(value * unit))
        element = put_bar(draft, (start, middle - half, right, middle + half), plan.colours[k])
        text = plot.write(draft, label, right + 6, middle - plot.size(label)[1] // 2)
        w, h = plot.size(str(value))
        scale = plot.write(draft, str(value), start - 5 - w, middle - h // 2)
        tip = (*element.box[:2], min(right, start + _TIP), element.box[3])
        draft.bars.append(Bar(word, value, element, text, tip, (scale.box,)))
    scatter(draft, draft.between(1, 3))
    return True


def _slice_mask(radius: int, start: float, end: float) -> tuple[np.ndarray, int, int]:
    """(mask, x, y) of a slice between two angles in degrees, clockwise from the right; places from the pie's corner."""
    side = 2 * radius * _FINER
    image = Image.new("L", (side, side))
    ImageDraw.Draw(image).pieslice((0, 0, side - 1, side - 1), start, end, fill=255)
    small = np.asarray(image.resize((2 * radius, 2 * radius), Image.Resampling.BOX))
    rows, columns = np.flatnonzero((small >= 32).any(1)), np.flatnonzero((small >= 32).any(0))
    return to_mask(small), int(columns[0]), int(rows[0])


def lay_pie(draft: Draft) -> bool:
    """A pie: slices in different colours, the label and the value of each outside of it."""
    assert isinstance(draft, WideDraft)
    plot = begin_chart(draft)
    if plot is None:
        return False
    plan, area, px = plot.plan, plot.area, plot.plan.px
    ground = next(mark.ink for mark in reversed(draft.marks) if mark.shape == "rect")
    inks = visible_colours((ground,), draft.hard)
    if not plot.keep(min(5, len(inks))):
        return False
    label_w = max(plot.size(t)[0] for t in (*plan.labels, str(plan.top)))
    centre = (area[0] + area[2]) // 2, (area[1] + area[3]) // 2
    radius = min((area[2] - area[0]) // 2 - label_w - 14, (area[3] - area[1]) // 2 - round(2.8 * px))
    values = [max(v, round(0.2 * max(plan.values))) for v in plan.values]  # a thinner slice has no room for its label
    if radius < 34 or len(set(values)) < len(values):
        return False
    colours = draft.rng.sample(inks, len(values))
    start = draft.rng.uniform(0, 360)
    for k, (word, label, value) in enumerate(zip(plan.words, plan.labels, values, strict=True)):
        end = start + 360 * value / sum(values)
        element, tip = _put_slice(draft, centre, radius, (start, end), colours[k])
        text, scale = _put_beside(draft, plot, centre, radius, (start + end) / 2, (label, str(value)))
        draft.bars.append(Bar(word, value, element, text, tip, (scale.box,)))
        start = end
    draft.chart = "pie"
    scatter(draft, draft.between(1, 3))
    return _apart(draft)


def _put_slice(
    draft: WideDraft, centre: tuple[int, int], radius: int, span: tuple[float, float], colour: str
) -> tuple[Element, Box]:
    """A slice between two angles in degrees, and the box of its part near the rim, where its width is seen."""
    mask, x, y = _slice_mask(radius, *span)
    ink = jittered(draft.rng, COLOURS[colour])
    sprite = Sprite(mask, centre[0] - radius + x, centre[1] - radius + y, ink)
    # No colour word on the element: cells under its box would be told a colour that lies elsewhere.
    element = draft.put(Element("bar", sprite.box, "", "", "", (), ink, "", 0), [sprite])
    draft.papers.add(colour)
    middle, half, box = sum(span) * pi / 360, radius // 4, element.box
    cx, cy = round(centre[0] + 0.75 * radius * cos(middle)), round(centre[1] + 0.75 * radius * sin(middle))
    return element, (max(box[0], cx - half), max(box[1], cy - half), min(box[2], cx + half), min(box[3], cy + half))


def _put_beside(
    draft: WideDraft, plot: Any, centre: tuple[int, int], radius: int, degrees: float, lines: tuple[str, str]
) -> tuple[Element, Element]:
    """The label and the value of a slice, one under the other, outside of the pie at an angle."""
    label, value = lines
    (label_w, label_h), (value_w, value_h) = plot.size(label), plot.size(value)
    wide, high, middle = max(label_w, value_w), label_h + value_h + 5, degrees * pi / 180
    x, y = centre[0] + (radius + 8) * cos(middle), centre[1] + (radius + 8) * sin(middle)
    left = round(x if cos(middle) > 0 else x - wide)
    top = round(y - high / 2 + sin(middle) * high / 2)
    return plot.write(draft, label, left, top), plot.write(draft, value, left, top + label_h + 5)


def _apart(draft: Draft) -> bool:
    """Whether no two texts of the chart touch."""
    boxes = [e.box for e in draft.elements if e.kind == "text"]
    return all(
        a[2] + 2 <= b[0] or b[2] + 2 <= a[0] or a[3] + 2 <= b[1] or b[3] + 2 <= a[1]
        for k, a in enumerate(boxes)
        for b in boxes[k + 1 :]
    )
