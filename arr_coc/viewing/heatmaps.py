"""A map over its image with a colour bar and the cut; the scorers' maps side by side with their weights; and sheets of
texture channels and of what the question-blind scorers make of them.

C channels, H W grid of cells.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from arr_coc.config import SCORERS, blind_names
from arr_coc.images.reader import ImageLike, image_tensor, read_image
from arr_coc.knowing import inside_bits, stands_out, with_gaze
from arr_coc.qwen.answers import WAYS, ImageSelection
from arr_coc.texture import texture_pyramid
from arr_coc.viewing.cards import SWATCH, choice_legend, entry, headed, rows_of
from arr_coc.viewing.overlays import RELEVANT, choice_overlay, dotted, outline
from arr_coc.viewing.paper import (
    FAINT,
    INK,
    LONGEST,
    PAPER,
    RGB,
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
    wrap,
)

TINT = 0.7  # share of the map's colour in a picture, the rest is the image in grey
BAR, BAR_ROOM, BAR_LEAST = 16, 92, 120  # px: width of the colour bar, with its numbers, least height
PANEL = 300  # px of the longer side of one of several panels
NO_WEIGHT = 0.005  # a weight that reads 0.00
FADED = 0.6  # share of the paper over a map that was not used
TILE = 240  # px of the longer side of a tile
NARROWEST = 96  # px of a column at least, so that its label can be read
CELL = 32  # px of a cell where no model says it
MARGIN, LABEL, LINES = 12, 13, 2  # px, px of a label's letters, lines of it at most
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
    image: Image.Image, values_HW: Tensor, kept_HW: Tensor | None, covered_HW: Tensor | None, longest: int
) -> tuple[Image.Image, Image.Image]:
    """The map over the image, cells kept for relevance outlined and those for coverage dotted; and its colour bar."""
    values, low, high = stretched(values_HW)
    picture = tinted(fitted(image, longest), values)
    cut = None
    if kept_HW is not None:
        relevant_HW = _relevant(kept_HW, covered_HW)
        picture = outline(picture, relevant_HW, RELEVANT)
        picture = picture if covered_HW is None else dotted(picture, covered_HW.cpu())
        if bool(relevant_HW.any()):
            cut = min(high, max(low, cut_of(values_HW.nan_to_num(0, 0, 0), int(relevant_HW.sum()))))
    return picture, colour_bar(picture.height, low, high, cut)


def _relevant(kept_HW: Tensor, covered_HW: Tensor | None) -> Tensor:
    return kept_HW.cpu() if covered_HW is None else kept_HW.cpu() & ~covered_HW.cpu()


def map_legend(kept_HW: Tensor, covered_HW: Tensor | None) -> list[Image.Image]:
    """What line and dot mean, with the number of such cells."""
    relevant = int(_relevant(kept_HW, covered_HW).sum())
    covered = 0 if covered_HW is None else int(covered_HW.sum())
    ground, one = Image.new("RGB", SWATCH, shade(0.25)), torch.ones(1, 1, dtype=torch.bool)
    found = [entry(outline(ground, one, RELEVANT), f"kept for relevance: {relevant:,}")] if relevant else []
    return [*found, entry(dotted(ground, one), f"kept for coverage: {covered:,}")] if covered else found


def heatmap(
    image: Image.Image,
    values_HW: Tensor,
    *,
    kept_HW: Tensor | None = None,
    covered_HW: Tensor | None = None,
    title: str = "",
    weight: float = 1.0,
) -> Image.Image:
    """A map over its image, with a colour bar over the map's own range; pale where its `weight` is nothing.

    With `kept_HW` (bool), kept cells are outlined, and the bar shows the cut: the lowest of the K highest values, for K
    cells kept for relevance. With `covered_HW`, those kept for even coverage are dotted instead.
    """
    picture, bar = map_block(image, values_HW, kept_HW, covered_HW, LONGEST)
    both = beside([picture, bar])
    both = both if weight >= NO_WEIGHT else faded(both)
    blocks = [both]
    if title:
        blocks.insert(0, text_block(title, both.width, bold=True))
    if kept_HW is not None:
        blocks.append(rows_of(map_legend(kept_HW, covered_HW), both.width))
    return page(above(blocks))


def scorer_panels(image: Image.Image, selection: ImageSelection) -> Image.Image:
    """The scorers' maps side by side, each with its exponent, then relevance with the cut, and the tensions.

    A selection without the three maps (training-free, another method, or all kept) is shown by what it has, and the
    picture says what is missing.
    """

    def panel(values_HW: Tensor, *of: Tensor | None) -> Image.Image:
        kept_HW, covered_HW = of or (None, None)
        return beside(map_block(image, values_HW, kept_HW, covered_HW, PANEL), gap=8)

    scorers = {name: selection.maps[name] for name in SCORERS if name in selection.maps}
    blocks = [scorer_block(panel(map_HW), name, selection.weights[name]) for name, map_HW in scorers.items()]
    if selection.relevance is not None:
        map_HW = panel(selection.relevance, selection.mask.cpu(), selection.covered_mask.cpu())
        legend = above(map_legend(selection.mask, selection.covered_mask), 4)
        blocks.append(above([_titled(map_HW, "relevance", "what they give together"), legend], 8))
    else:
        seen = choice_overlay(fitted(image, PANEL), selection)
        blocks.append(above([_titled(seen, "kept", ""), *choice_legend([selection])], 8))
    row = beside(blocks, gap=20)
    why = f"Why these cells: {selection.why}." + (f" They follow {selection.balance}." if selection.balance else "")
    if scorers:
        words = text_block(why, row.width, SMALL, ink=FAINT)
        return page(above([row, tension_bars(selection.tensions), words], gap=16))
    row = padded(row, 520, 0)
    words = text_block(f"This choice has no maps of the three scorers. {why}", row.width, SMALL, ink=FAINT)
    return page(above([row, words], gap=16))


def scorer_block(block: Image.Image, name: str, weight: float) -> Image.Image:
    """A scorer's map with its name and exponent; faded where that is 0, since it chose nothing."""
    title, about = f"{name}, {weight_told(weight)}", WAYS[name]
    if weight >= NO_WEIGHT:
        return _titled(block, title, about)
    return _titled(faded(block), title, about, FAINT)


def faded(block: Image.Image) -> Image.Image:
    """A map that was not used: grey and pale."""
    return Image.blend(block.convert("L").convert("RGB"), Image.new("RGB", block.size, PAPER), FADED)


def weight_told(weight: float) -> str:
    return "no say in this question" if weight < NO_WEIGHT else f"exponent {weight:.2f}"


def _titled(block: Image.Image, title: str, about: str, ink: RGB = INK) -> Image.Image:
    width = max(block.width, 240)
    lines = [text_block(title, width, bold=True, ink=ink, most=1), text_block(about, width, SMALL, ink=FAINT)]
    return above([*(lines if about else lines[:1]), block], 4)


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


# ---------------------------------------------------------------- maps as labelled sheets


def sheet(tiles: Sequence[tuple[str, Image.Image]], size: tuple[int, int], columns: int) -> Image.Image:
    """Labelled tiles in rows, on paper that reads well on a light and on a dark page."""
    rows, width = -(-len(tiles) // columns), max(size[0], NARROWEST)
    lines = max(len(wrap(label, width, font(LABEL), LINES)) for label, _ in tiles)
    caption = text_block("", width, LABEL).height * lines + 9
    step_x, step_y = width + MARGIN, size[1] + caption + MARGIN
    page = Image.new("RGB", (columns * step_x + MARGIN, rows * step_y + MARGIN), PAPER)
    for place, (label, picture) in enumerate(tiles):
        x, y = MARGIN + place % columns * step_x, MARGIN + place // columns * step_y
        page.paste(text_block(label, width, LABEL, most=LINES), (x, y + 2))
        is_map = place and picture.width < size[0]  # cells; a picture is larger than its tile, or the first
        how = Image.Resampling.NEAREST if is_map else Image.Resampling.LANCZOS
        page.paste(picture.resize(size, how), (x, y + caption))
    return page


def _prepare(image: ImageLike, cell: int) -> tuple[Image.Image, Tensor, tuple[int, int], tuple[int, int]]:
    picture = read_image(image)
    grid = (max(1, round(picture.height / cell)), max(1, round(picture.width / cell)))
    scale = TILE / max(picture.size)
    size = (max(48, round(picture.width * scale)), max(48, round(picture.height * scale)))
    return picture, image_tensor(picture), grid, size


def texture_sheet(image: ImageLike, channels: int = 13, cell: int = CELL) -> Image.Image:
    """The image and every texture channel of it, at the finest level; cells of `cell` px."""
    picture, pixels, grid, size = _prepare(image, cell)
    pyramid = texture_pyramid(pixels, grid, channels)
    labels = [f"{index}  {name.replace('_', ' ')}" for index, name in enumerate(pyramid.names)]
    maps = zip(labels, pyramid.fine_BChw[0], strict=True)
    drawn = sheet([("image", picture), *((label, colour_map(values)) for label, values in maps)], size, columns=7)
    return headed(drawn, "What ARR-COC sees before it knows the question", tokens="Dark is 0, bright is 1.")


@torch.no_grad()
def question_blind_maps(image: ImageLike, channels: int = 13, cell: int = CELL) -> Image.Image:
    """Information and perspectival, as looking twice has them where nobody asks: nothing is trained on a model."""
    picture, pixels, grid, size = _prepare(image, cell)
    pyramid = texture_pyramid(pixels, grid, with_gaze(channels))
    information, perspectival = inside_bits(pyramid, blind_names(channels)).mean(1)[0], stands_out(pyramid)[0]
    tiles = [
        ("image", picture),
        ("information: how much is there", colour_map(stretched(information)[0])),
        ("perspectival: what stands out", colour_map(stretched(perspectival)[0])),
    ]
    title, legend = (
        "What can be said without a question",
        "By untrained scorers. Dark: the least in this image, bright: the most.",
    )
    return headed(sheet(tiles, size, columns=3), title, tokens=legend)
