"""Maps laid over the image they belong to; the picture stays the size of the image.

H W grid of cells.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from arr_coc.viewing.outlines import outline_boxes
from arr_coc.viewing.paper import beside, colour_map

DIMMED = 0.25  # brightness left of what was dropped
Box = tuple[float, float, float, float]  # left, top, right, bottom


def spread(values_HW: Tensor, size: tuple[int, int], smooth: bool) -> np.ndarray:
    """Values in [0, 1] of cells as one value per pixel, `[h, w, 1]`."""
    picture = Image.fromarray(values_HW.detach().cpu().float().clamp(0, 1).numpy(), mode="F")
    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(picture.resize(size, how))[..., None].clip(0, 1)


def kept_overlay(image: Image.Image, kept_HW: Tensor) -> Image.Image:
    """Kept cells as they are, dropped cells dimmed and grey."""
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    grey = np.asarray(image.convert("L"), dtype=np.float32)[..., None].repeat(3, axis=2)
    shown = spread(kept_HW.float(), image.size, smooth=False)
    return Image.fromarray((shown * pixels + (1 - shown) * (DIMMED * grey + 24)).clip(0, 255).astype(np.uint8))


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


def evidence_overlay(image: Image.Image, kept_HW: Tensor, boxes: Sequence[Box]) -> Image.Image:
    """Kept cells clear, dropped ones dimmed, and the boxes that hold the answer outlined; as large as the image.

    Boxes are shares of the image, as `evidence=` takes them, or px of it, as scenes give them: px where any number is
    above 1.
    """
    shares = all(value <= 1 for box in boxes for value in box)
    across, down = image.size if shares else (1, 1)
    scaled = [(left * across, top * down, right * across, bottom * down) for left, top, right, bottom in boxes]
    return outline_boxes(kept_overlay(image, kept_HW), scaled)
