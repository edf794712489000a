"""Maps laid over the image they belong to; the picture stays the size of the image.

H W grid of cells.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from arr_coc.viewing.sheets import PAPER, colour_map

DIMMED = 0.25  # brightness left of what was dropped


def _spread(values_HW: Tensor, size: tuple[int, int], smooth: bool) -> np.ndarray:
    """Values in [0, 1] of cells as one value per pixel, `[h, w, 1]`."""
    picture = Image.fromarray(values_HW.detach().cpu().float().clamp(0, 1).numpy(), mode="F")
    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(picture.resize(size, how))[..., None].clip(0, 1)


def kept_overlay(image: Image.Image, kept_HW: Tensor) -> Image.Image:
    """Kept cells as they are, dropped cells dimmed and grey."""
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    grey = np.asarray(image.convert("L"), dtype=np.float32)[..., None].repeat(3, axis=2)
    shown = _spread(kept_HW.float(), image.size, smooth=False)
    return Image.fromarray((shown * pixels + (1 - shown) * (DIMMED * grey + 24)).clip(0, 255).astype(np.uint8))


def side_by_side(pictures: Sequence[Image.Image], gap: int = 12) -> Image.Image:
    """Pictures in a row, their tops aligned; a single one as it is."""
    if len(pictures) == 1:
        return pictures[0]
    width = sum(picture.width for picture in pictures) + gap * (len(pictures) - 1)
    row = Image.new("RGB", (width, max(picture.height for picture in pictures)), PAPER)
    x = 0
    for picture in pictures:
        row.paste(picture, (x, 0))
        x += picture.width + gap
    return row


def heat_overlay(image: Image.Image, heat_HW: Tensor) -> Image.Image:
    """Where the map is high the image shows through; elsewhere it is grey under the map's colours."""
    heat = _spread(heat_HW, image.size, smooth=True)
    grey = np.asarray(image.convert("L"), dtype=np.float32)[..., None].repeat(3, axis=2)
    colours = np.asarray(colour_map(heat_HW).resize(image.size, Image.Resampling.BICUBIC), dtype=np.float32)
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    return Image.fromarray((heat * pixels + (1 - heat) * (0.55 * grey + 0.45 * colours)).clip(0, 255).astype(np.uint8))
