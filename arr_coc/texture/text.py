"""Where letters are: a cheap filter that is always there, and the detector of `rapidocr` for documents; bare paper.

B batch, H W grid of cells, h w the finest level (samples of 8 px).
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import DETAIL, FINE, GROUPS
from arr_coc.records import TexturePyramid
from arr_coc.texture.channels import LUMA, Canvas, box, within_cell_variance

logger = logging.getLogger(__name__)

# Fitted by logistic regression on drawn documents (`studies/text_channel.py`): line, block, colour, constant.
LINE, BLOCK, COLOUR, CONSTANT = 1.15, 3.61, -2.15, 3.38
LEAST = 0.01  # detail and colour under it are noise
WRITTEN = 0.15  # share of the cells that hold writing from which an image is a written page
# What a bare cell varies at most: paper's grain, over that of the page's emptiest cells, and in all (13 grey levels).
GRAINIER, GRAIN, MOST_GRAIN = 1.5, 0.02, 0.1

Corners = list[list[float]]
"""Of a text line: its corners, x and y in px."""
Detector = Callable[[Any], list[Corners]]
"""A uint8 image `[h, w, 3]` (numpy) -> its text lines."""


def stroke_logs(detail_B1hw: Tensor, rgb_B3hw: Tensor, luma_B1hw: Tensor) -> Tensor:
    """Logarithms of the detail along a line, of that in a block of lines, and of the colour, `[B, 3, h, w]`."""
    line = F.avg_pool2d(F.pad(detail_B1hw, (4, 4, 1, 1), mode="replicate"), (3, 9), stride=1)
    colour = (rgb_B3hw - luma_B1hw).norm(dim=1, keepdim=True)
    colour = F.avg_pool2d(F.pad(colour, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return (torch.cat([line, box(detail_B1hw, 3), colour], dim=1) + LEAST).log()


def _likelihood(logs_B3hw: Tensor) -> Tensor:
    line, block, colour = logs_B3hw.split(1, dim=1)
    return (LINE * line + BLOCK * block + COLOUR * colour + CONSTANT).sigmoid()


def text_likelihood(canvas: Canvas) -> Tensor:
    """Strokes finer than a sample, going on along a line and in a block of lines, in little colour: [0, 1]."""
    return _likelihood(stroke_logs(within_cell_variance(canvas, 1), canvas.rgb_B3hw, canvas.luma_B1hw))


@torch.no_grad()
def bare_paper(pyramid: TexturePyramid) -> Tensor:
    """Cells of written pages that hold nothing but paper, `[B, H, W]` bool; no cell of an image that is none.

    Nothing is in a cell whose pixels and colours vary hardly more than those of the page's emptiest cells. What is left
    of a budget goes to writing first. Elsewhere emptiness tells too: between two things, how far they are apart.
    """
    fine = dict(zip(pyramid.names, pyramid.fine_BChw.split(1, dim=1), strict=True))
    finer = next(name for name in DETAIL if name in fine)
    colours = [fine[name] for name in GROUPS["colour"]]
    rgb_B3hw = torch.cat(colours, dim=1)
    luma_B1hw = sum((share * one for share, one in zip(LUMA, colours, strict=True)), torch.zeros_like(colours[0]))
    ranges_BHW = (F.max_pool2d(rgb_B3hw, FINE) + F.max_pool2d(-rgb_B3hw, FINE)).amax(1)
    held_BHW = torch.maximum(ranges_BHW, pyramid.cell_BCHW[:, pyramid.names.index(finer)])
    emptiest_BN = held_BHW.flatten(1).sort(-1).values
    emptiest_B11 = emptiest_BN[:, emptiest_BN.shape[1] // 20].view(-1, 1, 1)
    bare_BHW = held_BHW < (GRAINIER * emptiest_B11 + GRAIN).clamp(max=MOST_GRAIN)
    likely_BHW = F.avg_pool2d(_likelihood(stroke_logs(fine[finer], rgb_B3hw, luma_B1hw)), FINE)[:, 0]
    written_BHW = (likely_BHW > 0.5) & ~bare_BHW  # likelihood reaches over the edges of what is written
    return bare_BHW & (written_BHW.float().mean((1, 2), keepdim=True) > WRITTEN)


@cache
def detector() -> Detector | None:
    """The detector of rapidocr, whose weights lie in its wheel; None, and a line that says how, without it."""
    try:
        from rapidocr import RapidOCR
    except ImportError:
        logger.warning("text_detected: rapidocr is not installed, the filter is used; pip install 'arr-coc[text]'")
        return None
    engine = RapidOCR(params={"Global.log_level": "warning"})

    def lines(image: Any) -> list[Corners]:
        found = engine(image, use_det=True, use_cls=False, use_rec=False).boxes
        return [] if found is None else [corners.tolist() for corners in found]

    return lines


def text_detected(canvas: Canvas) -> Tensor:
    """The most that a text line found by the detector covers of any sample of a cell, [0, 1], for the whole cell.

    A line may be a third as high as a cell, and its mean would say so. Without the detector it is the filter.
    """
    find, image = detector(), canvas.image_B3hw
    if find is None or image is None:
        return text_likelihood(canvas)
    pixels = image if image.dtype == torch.uint8 else (image.float().clamp(0, 1) * 255).round().to(torch.uint8)
    found = [find(one.permute(1, 2, 0).contiguous().cpu().numpy()) for one in pixels]
    height, width = image.shape[-2:]
    masks = torch.stack([inside(lines, height, width) for lines in found]).unsqueeze(1)
    most = F.max_pool2d(F.interpolate(masks, size=canvas.luma_B1hw.shape[-2:], mode="area"), FINE)
    return F.interpolate(most, scale_factor=FINE, mode="nearest").to(canvas.luma_B1hw)


def inside(lines: list[Corners], height: int, width: int) -> Tensor:
    """1 for pixels inside a convex text line, else 0: `[h, w]`."""
    mask = torch.zeros(height, width)
    for corners in lines:
        xs, ys = ([corner[axis] for corner in corners] for axis in (0, 1))
        left, right = (min(max(0, int(end)), width) for end in (min(xs), max(xs) + 1))
        top, bottom = (min(max(0, int(end)), height) for end in (min(ys), max(ys) + 1))
        y = torch.arange(top, bottom).view(-1, 1) + 0.5
        x = torch.arange(left, right) + 0.5
        ends = [*corners[1:], corners[0]]
        turns = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for (ax, ay), (bx, by) in zip(corners, ends, strict=True)]
        sides = torch.stack(turns)
        within = (sides >= 0).all(0) | (sides <= 0).all(0)  # corners may go round either way
        mask[top:bottom, left:right] = torch.maximum(mask[top:bottom, left:right], within.float())
    return mask
