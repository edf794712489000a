"""A map over its image with a colour bar and the cut; and the scorers' maps side by side with their weights.

H W grid of cells.
"""

from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from arr_coc.config import SCORERS
from arr_coc.qwen.answers import ImageSelection
from arr_coc.viewing.overlays import kept_overlay, outline
from arr_coc.viewing.paper import (
    FAINT,
    INK,
    LONGEST,
    PAPER,
    SMALL,
    above,
    beside,
    colour_map,
    fitted,
    font,
    padded,
    page,
    shade,
    text_block,
)

TINT = 0.7  # share of the map's colour in a picture, the rest is the image in grey
BAR, BAR_ROOM, BAR_LEAST = 16, 92, 120  # px: width of the colour bar, with its numbers, least height
PANEL = 300  # px of the longer side of one of several panels
ABOUT = {
    "information": "how much is there",
    "perspectival": "what stands out",
    "participatory": "what the question wants",
}
TENSION_ENDS = {
    "particularize": ("compress", "particularize"),
    "explore": ("exploit", "explore"),
    "diversify": ("focus", "diversify"),
}


def cut_of(values_HW: Tensor, kept: int) -> float:
    """The lowest of the `kept` highest values: where a ranking by this map alone would cut."""
    return float(values_HW.detach().flatten().float().sort(descending=True).values[max(0, kept - 1)])


def number(value: float) -> str:
    """Three digits; what would read 0.000 and is more says so."""
    return "< 0.001" if 0 < value < 0.0005 else f"{value:.3f}"


def stretched(values_HW: Tensor) -> tuple[Tensor, float, float]:
    """The map over the whole of [0, 1], and its least and highest value; a flat map becomes 0. Finite on the CPU."""
    values_HW = values_HW.detach().cpu().float().nan_to_num(0, 0, 0)
    low, high = float(values_HW.min()), float(values_HW.max())
    return (values_HW - low) / max(high - low, 1e-6), low, high


def tinted(picture: Image.Image, values_HW: Tensor) -> Image.Image:
    """The picture in grey under the map's colours, one colour per cell; values in [0, 1]."""
    colours = colour_map(values_HW).resize(picture.size, Image.Resampling.NEAREST)
    return Image.blend(picture.convert("L").convert("RGB"), colours, TINT)


def colour_bar(height: int, low: float, high: float, cut: float | None) -> Image.Image:
    """Colours from the highest value down to the least, with both numbers, and a mark where the cut is."""
    height = max(height, BAR_LEAST)
    block = Image.new("RGB", (BAR_ROOM, height), PAPER)
    ramp = torch.linspace(1, 0, height).view(-1, 1)
    block.paste(colour_map(ramp).resize((BAR, height)), (0, 0))
    draw, face, left = ImageDraw.Draw(block), font(SMALL), BAR + 8
    draw.text((left, 0), number(high), fill=INK, font=face)
    draw.text((left, height), number(low), fill=INK, font=face, anchor="ls")
    if cut is not None:
        place = 0.0 if high <= low else (cut - low) / (high - low)
        y = round((1 - place) * (height - 1))
        draw.line((-1, y, BAR + 6, y), fill=INK, width=3)
        words = np.clip(y, 2.5 * SMALL, height - 2.6 * SMALL)  # between the two ends' numbers
        draw.text((left, float(words)), f"cut\n{number(cut)}", fill=INK, font=font(SMALL, bold=True), anchor="lm")
    return block


def map_block(
    image: Image.Image, values_HW: Tensor, kept_HW: Tensor | None, longest: int
) -> tuple[Image.Image, Image.Image]:
    """The map over the image with the kept cells outlined, and its colour bar."""
    values, low, high = stretched(values_HW)
    picture = tinted(fitted(image, longest), values)
    cut = None
    if kept_HW is not None:
        picture = outline(picture, kept_HW)
        cut = min(high, max(low, cut_of(values_HW.nan_to_num(0, 0, 0), int(kept_HW.sum()))))
    return picture, colour_bar(picture.height, low, high, cut)


def heatmap(image: Image.Image, values_HW: Tensor, *, kept_HW: Tensor | None = None, title: str = "") -> Image.Image:
    """A map over its image, with a colour bar over the map's own range.

    With `kept_HW` (bool), kept cells are outlined, and the bar shows the cut: the lowest of the K highest values. Cells
    kept for even coverage may lie below it.
    """
    picture, bar = map_block(image, values_HW, kept_HW, LONGEST)
    both = beside([picture, bar])
    blocks = [both]
    if title:
        blocks.insert(0, text_block(title, both.width, bold=True))
    if kept_HW is not None:
        below = int((kept_HW.cpu() & (values_HW.cpu() < cut_of(values_HW, int(kept_HW.sum())))).sum())
        words = f"outlined: {int(kept_HW.sum())} of {kept_HW.numel()} cells kept"
        words += f", {below} of them below the cut" if below else ""
        blocks.append(text_block(words, both.width, SMALL, ink=FAINT))
    return page(above(blocks))


def scorer_panels(image: Image.Image, selection: ImageSelection) -> Image.Image:
    """The scorers' maps side by side, each with its weight, then relevance with the cut, and the tensions.

    A selection without the three maps (training-free, another method, or all kept) is shown by what it has, and the
    picture says what is missing.
    """

    def panel(values_HW: Tensor, title: str, about: str, kept_HW: Tensor | None = None) -> Image.Image:
        return _titled(beside(map_block(image, values_HW, kept_HW, PANEL), gap=8), title, about)

    scorers = {name: selection.maps[name] for name in SCORERS if name in selection.maps}
    blocks = [
        panel(map_HW, f"{name}, weight {selection.weights[name]:.2f}", ABOUT[name]) for name, map_HW in scorers.items()
    ]
    cells = f"{selection.cells_kept} of {selection.tokens_total} cells"
    if selection.relevance is not None:
        blocks.append(panel(selection.relevance, "relevance", f"outlined: {cells} kept", selection.mask.cpu()))
    else:
        seen = kept_overlay(fitted(image, PANEL), selection.mask, selection.periphery)
        blocks.append(_titled(seen, "kept", cells))
    row = beside(blocks, gap=20)
    if scorers:
        return page(above([row, tension_bars(selection.tensions)], gap=16))
    row = padded(row, 520, 0)
    words = f"This choice has no maps of the three scorers: {selection.reason}."
    return page(above([row, text_block(words, row.width, SMALL, ink=FAINT)], gap=16))


def _titled(block: Image.Image, title: str, about: str) -> Image.Image:
    width = max(block.width, 240)
    return above([text_block(title, width, bold=True, most=1), text_block(about, width, SMALL, ink=FAINT), block], 4)


def tension_bars(tensions: Mapping[str, float]) -> Image.Image:
    """A small bar per tension, from its one end to the other, with the number."""
    blocks = []
    for name, value in tensions.items():
        low, high = TENSION_ENDS[name]
        block = Image.new("RGB", (PANEL + BAR_ROOM + 18, 40), PAPER)
        draw = ImageDraw.Draw(block)
        draw.text((0, 0), f"{low} - {high}", fill=INK, font=font(SMALL))
        draw.text((PANEL, 0), f"{value:.2f}", fill=INK, font=font(SMALL, bold=True), anchor="ra")
        draw.rectangle((0, 24, PANEL, 34), fill=(220, 220, 216))
        draw.rectangle((0, 24, round(PANEL * min(1.0, max(0.0, value))), 34), fill=shade(0.25))
        blocks.append(block)
    return beside(blocks)
