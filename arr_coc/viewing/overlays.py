"""Laid over an image that keeps its size: what was kept and what for, maps, and lines around cells and boxes.

H W grid of cells.

One style for all: cells kept for relevance are clear inside an orange line, cells kept for coverage are tinted blue,
dropped cells are grey and dim, or blurred where a small copy shows them. Boxes that hold the answer have a white line.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from arr_coc.qwen.answers import ImageSelection
from arr_coc.viewing.paper import RGB, beside, colour_map

DIMMED = 0.25  # brightness left of what was dropped
CELL = 32  # px on a side of a cell of a small copy, as Qwen3-VL has them
LIGHT, DARK = (255, 255, 255), (16, 16, 20)  # a light line on a dark one shows on any colour
RELEVANT: RGB = (255, 170, 0)  # orange and blue: apart for every kind of colour vision, and a line against a tint
COVERED: RGB = (60, 150, 230)
DOT: RGB = (130, 200, 255)  # the same, lighter: maps are dark where coverage goes
COVERED_TINT = 0.4  # share of the colour over cells kept for coverage: what they show stays readable
LEAST_CELL = 5  # px of a cell that a line can be drawn around
Box = tuple[float, float, float, float]  # left, top, right, bottom
Segment = tuple[float, float, float, float]  # x0, y0, x1, y1


def spread(values_HW: Tensor, size: tuple[int, int], smooth: bool) -> np.ndarray:
    """Values in [0, 1] of cells as one value per pixel, `[h, w, 1]`."""
    picture = Image.fromarray(values_HW.detach().cpu().float().clamp(0, 1).numpy(), mode="F")
    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(picture.resize(size, how))[..., None].clip(0, 1)


def kept_overlay(
    image: Image.Image,
    kept_HW: Tensor,
    periphery: tuple[int, int] | None = None,
    covered_HW: Tensor | None = None,
) -> Image.Image:
    """What the model saw, as large as the image: kept cells as they are, dropped cells dimmed and grey.

    With a `periphery` (cells of the small copy that it saw as well), dropped cells as that copy shows them. With
    `covered_HW` (kept cells that are there for even coverage) those are tinted. A line goes around all other kept ones.
    """
    whole = image.convert("RGB")
    kept_HW = kept_HW.cpu()
    relevant_HW = kept_HW if covered_HW is None else kept_HW & ~covered_HW.cpu()
    if bool(relevant_HW.all()):
        return whole
    picture = Image.composite(whole, _dropped(whole, periphery), _mask(kept_HW, image.size))
    if covered_HW is not None:
        tinted = Image.blend(picture, Image.new("RGB", image.size, COVERED), COVERED_TINT)
        picture = Image.composite(tinted, picture, _mask(covered_HW, image.size))
    return outline(picture, relevant_HW, RELEVANT)


def choice_overlay(image: Image.Image, choice: ImageSelection) -> Image.Image:
    """A choice as `kept_overlay` shows it."""
    return kept_overlay(image, choice.mask, choice.periphery, choice.covered_mask)


def _dropped(whole: Image.Image, periphery: tuple[int, int] | None) -> Image.Image:
    """The image as dropped cells are shown: as in the small copy if there was one, else grey and dim."""
    if periphery is None:
        return whole.convert("L").point(lambda value: DIMMED * value + 24).convert("RGB")
    small = (min(whole.width, CELL * periphery[1]), min(whole.height, CELL * periphery[0]))
    return whole.resize(small, Image.Resampling.BOX).resize(whole.size, Image.Resampling.BICUBIC)


def dotted(picture: Image.Image, cells_HW: Tensor) -> Image.Image:
    """A copy of the picture with a dot in some cells, in the colour of coverage: where a map must stay readable."""
    drawn, (height, width) = picture.convert("RGB").copy(), cells_HW.shape
    draw, scale_x, scale_y = ImageDraw.Draw(drawn), picture.width / width, picture.height / height
    reach = max(1.0, min(scale_x, scale_y) / 6)
    for y, x in cells_HW.nonzero().tolist():
        middle_x, middle_y = (x + 0.5) * scale_x, (y + 0.5) * scale_y
        box = (middle_x - reach, middle_y - reach, middle_x + reach, middle_y + reach)
        draw.ellipse(box, fill=DOT, outline=DARK if reach >= 3 else None)
    return drawn


def _mask(cells_HW: Tensor, size: tuple[int, int]) -> Image.Image:
    """White where the cells are, of that size."""
    cells = Image.fromarray((cells_HW.cpu().numpy() * 255).astype(np.uint8))
    return cells.resize(size, Image.Resampling.NEAREST)


def side_by_side(pictures: Sequence[Image.Image], gap: int = 12) -> Image.Image:
    """Pictures in a row, their tops aligned; a single one as it is."""
    return pictures[0] if len(pictures) == 1 else beside(pictures, gap)


def heat_overlay(image: Image.Image, heat_HW: Tensor) -> Image.Image:
    """Where the map is high the image shows through; elsewhere it is grey under the map's colours."""
    heat = spread(heat_HW, image.size, smooth=True)
    grey = np.asarray(image.convert("L"), dtype=np.float32)[..., None].repeat(3, axis=2)
    colours = np.asarray(colour_map(heat_HW).resize(image.size, Image.Resampling.BICUBIC), dtype=np.float32)
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    return Image.fromarray((heat * pixels + (1 - heat) * (0.55 * grey + 0.45 * colours)).clip(0, 255).astype(np.uint8))


def evidence_overlay(
    image: Image.Image,
    kept_HW: Tensor,
    boxes: Sequence[Box],
    periphery: tuple[int, int] | None = None,
    covered_HW: Tensor | None = None,
) -> Image.Image:
    """As `kept_overlay`, and the boxes that hold the answer inside a white line; as large as the image.

    Boxes are shares of the image, as `evidence=` takes them, or px of it, as scenes give them: px where any number is
    above 1.
    """
    shares = all(value <= 1 for box in boxes for value in box)
    across, down = image.size if shares else (1, 1)
    scaled = [(left * across, top * down, right * across, bottom * down) for left, top, right, bottom in boxes]
    return outline_boxes(kept_overlay(image, kept_HW, periphery, covered_HW), scaled)


def border(kept_HW: Tensor) -> list[Segment]:
    """The edges between a kept cell and a dropped one or the outside, in cells; edges in one line are joined."""
    kept = np.pad(kept_HW.detach().cpu().bool().numpy(), 1)
    across = kept[:, 1:-1][1:] != kept[:, 1:-1][:-1]  # [H + 1, W]: over each horizontal grid line
    down = kept[1:-1][:, 1:] != kept[1:-1][:, :-1]  # [H, W + 1]: over each vertical grid line
    segments: list[Segment] = []
    for y, line in enumerate(across):
        segments += [(start, y, end, y) for start, end in _runs(line)]
    for x, line in enumerate(down.T):
        segments += [(x, start, x, end) for start, end in _runs(line)]
    return segments


def _runs(line: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of each stretch of True, the end exclusive."""
    steps = np.flatnonzero(np.diff(np.pad(line, 1).astype(np.int8)))
    return list(zip(steps[::2].tolist(), steps[1::2].tolist(), strict=True))


def outline(picture: Image.Image, kept_HW: Tensor, colour: RGB = LIGHT) -> Image.Image:
    """A copy of the picture with a line on a dark one around the kept cells; without it where cells are too small."""
    height, width = kept_HW.shape
    scale_x, scale_y = picture.width / width, picture.height / height
    if min(scale_x, scale_y) < LEAST_CELL:
        return picture.copy()
    edges = [(x0 * scale_x, y0 * scale_y, x1 * scale_x, y1 * scale_y) for x0, y0, x1, y1 in border(kept_HW)]
    return _draw(picture, edges, min(line_width(picture), max(1, int(min(scale_x, scale_y) / 10))), colour)


def outline_boxes(picture: Image.Image, boxes: Sequence[tuple[float, float, float, float]]) -> Image.Image:
    """A copy of the picture with the same double line around boxes (left, top, right, bottom in px).

    The line keeps clear of the box by a pixel: boxes of words are tight, and their letters must stay readable.
    """
    edges: list[Segment] = []
    thin = line_width(picture)
    off = thin + 1
    for box in boxes:
        left, top, right, bottom = box[0] - off, box[1] - off, box[2] + off, box[3] + off
        edges += [(left, top, right, top), (left, bottom, right, bottom)]
        edges += [(left, top, left, bottom), (right, top, right, bottom)]
    return _draw(picture, edges, thin)


def _draw(picture: Image.Image, edges: Sequence[Segment], thin: int, colour: RGB = LIGHT) -> Image.Image:
    """Lines of 2 * thin + 1 px. The dark ones first, so that they do not cut the others where edges meet."""
    drawn = picture.convert("RGB").copy()
    draw = ImageDraw.Draw(drawn)
    right, bottom = picture.width - 1, picture.height - 1
    for ink, reach in ((DARK, thin), (colour, thin // 2)):
        for x0, y0, x1, y1 in edges:
            # Inside the picture by a line, so that edges along its rim are seen whole.
            (left, end_x), (top, end_y) = (
                sorted(min(max(thin, place), max(thin, most - thin)) for place in places)
                for places, most in (((x0, x1), right), ((y0, y1), bottom))
            )
            draw.rectangle((left - reach, top - reach, end_x + reach, end_y + reach), fill=ink)
    return drawn


def line_width(picture: Image.Image) -> int:
    """px of half an outline: 2 for pictures of the usual size, more for large ones."""
    return max(1, round(max(picture.size) / 320))
