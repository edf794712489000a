"""Two choices in one picture: what both kept, and what only one of them did.

H W grid of cells.
"""

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from arr_coc.qwen.answers import ImageSelection
from arr_coc.viewing.outlines import outline
from arr_coc.viewing.overlays import kept_overlay, spread
from arr_coc.viewing.paper import INK, RGB, SMALL, above, beside, fitted, page, text_block

FIRST: RGB = (86, 180, 233)  # sky blue and orange: apart for every kind of colour vision, and striped differently
SECOND: RGB = (230, 159, 0)
STRIPE = 8  # px from one stripe to the next
TINT = 0.35  # share of the colour between the stripes


def difference(image: Image.Image, first: ImageSelection, second: ImageSelection) -> Image.Image:
    """Cells kept by both are clear, those of one alone striped (rising: first, falling: second), all others dimmed."""
    if first.grid != second.grid:
        raise ValueError(f"grids of {first.grid} and {second.grid} cells differ: compare two choices in one image")
    one_HW, two_HW = first.mask.cpu(), second.mask.cpu()
    small = fitted(image)
    picture = kept_overlay(small, one_HW | two_HW)
    picture = striped(picture, one_HW & ~two_HW, FIRST, rising=True)
    picture = striped(picture, two_HW & ~one_HW, SECOND, rising=False)
    picture = outline(picture, one_HW | two_HW)
    legend = [
        _entry(None, f"kept by both: {int((one_HW & two_HW).sum())}"),
        _entry((FIRST, True), f"only by the first: {int((one_HW & ~two_HW).sum())}"),
        _entry((SECOND, False), f"only by the second: {int((two_HW & ~one_HW).sum())}"),
    ]
    return page(above([picture, above(legend, gap=4)]))


def striped(picture: Image.Image, cells_HW: Tensor, colour: RGB, rising: bool) -> Image.Image:
    """The picture with some cells tinted and striped: stripes that rise to the right, or that fall."""
    pixels = np.asarray(picture, dtype=np.float32)
    y, x = np.mgrid[: picture.height, : picture.width]
    on_stripe = ((x + y if rising else x - y) % STRIPE < STRIPE // 3)[..., None]
    amount = spread(cells_HW.float(), picture.size, smooth=False) * np.where(on_stripe, 1.0, TINT)
    mixed = (1 - amount) * pixels + amount * np.array(colour, dtype=np.float32)
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8))


def _entry(stripes: tuple[RGB, bool] | None, words: str) -> Image.Image:
    """A line of the legend: a swatch as in the picture, and words."""
    swatch = Image.new("RGB", (30, 18), (255, 255, 255))
    if stripes is not None:
        swatch = striped(swatch, torch.ones(1, 1), stripes[0], stripes[1])
    ImageDraw.Draw(swatch).rectangle((0, 0, 29, 17), outline=INK)
    return beside([swatch, text_block(words, 260, SMALL)], gap=8)
