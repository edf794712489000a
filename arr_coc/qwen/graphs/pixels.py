"""Pixels as the recorded path looks at them: pooled and shrunk in bounded parts, so that memory stays flat.

I images, G images of one grid, R patch rows of all images, H W grid of cells, C cells of all images.

`ask` holds the images, and they are read; `generate` has only their patch rows, and those are read as they lie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import FINE
from arr_coc.qwen.vision import Geometry, Grid
from arr_coc.texture import LUMA

CHUNK = 1536  # cells pooled at a time: 19 MB of pixels in fp32, and 25 MB for their luma


@dataclass(frozen=True, slots=True)
class Pixels:
    """What there is to look at: the patch rows of all images and, where the caller holds them, the images."""

    rows_Rx: Tensor
    images: list[Tensor] | None = None  # uint8 [3, h, w] of whole cells

    def canvases(self, grids: Sequence[Grid], geometry: Geometry) -> list[Tensor]:
        """Each image pooled to the finest level of its pyramid, `[5, 4 H, 4 W]`."""
        if self.images is not None:
            return [pool_image(image, geometry) for image in self.images]
        cells = pool_patches(self.rows_Rx, geometry).split([height * width for height, width in grids])
        return [
            of_image.view(height, width, 5, FINE, FINE).permute(2, 0, 3, 1, 4).reshape(5, height * FINE, width * FINE)
            for of_image, (height, width) in zip(cells, grids, strict=True)
        ]

    def shrunk(
        self, grids: Sequence[Grid], members: Sequence[int], size: tuple[int, int], geometry: Geometry
    ) -> Tensor:
        """Images of one grid at `size` px, by area: `[G, 3, h, w]` in [0, 1]; of a large one, a channel at a time."""
        rows = self.rows_Rx.split([height * width * geometry.window for height, width in grids])
        small = []
        for image in members:
            if self.images is None:
                small.append(shrink_patches(rows[image], grids[image], size, geometry))
                continue
            channels = self.images[image].split(_channels(grids[image]))
            shrunk = [F.interpolate((one.float() / 255).unsqueeze(0), size=size, mode="area") for one in channels]
            small.append(torch.cat(shrunk, dim=1))
        return torch.cat(small)


def _channels(grid: Grid) -> int:
    """How many channels of an image are looked at together: on a GPU it is the number of launches that costs."""
    return 3 if grid[0] * grid[1] <= CHUNK else 1


@lru_cache(maxsize=8)
def _luma(device: torch.device) -> Tensor:
    return torch.tensor(LUMA, device=device).view(1, 3, 1, 1)


def pool_patches(rows_Rx: Tensor, geometry: Geometry) -> Tensor:
    """Fine samples of each cell, `[C, 5, 4, 4]` in fp32: means of red, green, blue, luma and squared luma.

    `rows_Rx` are normalised patch rows, those of a cell next to each other.
    """
    merge, patch, samples = geometry.merge, geometry.patch, FINE // geometry.merge
    mean, std = geometry.scale(rows_Rx.device)
    weights = _luma(rows_Rx.device)
    pooled = []
    for rows in rows_Rx.split(CHUNK * geometry.window):
        pixels = (rows.view(-1, 3, geometry.frames, patch, patch)[:, :, 0].float() * std).add_(mean).clamp_(0, 1)
        luma = (pixels * weights).sum(1, keepdim=True)
        means = [F.avg_pool2d(pixels, patch // samples), F.avg_pool2d(luma, patch // samples)]
        means.append(F.avg_pool2d(luma.square_(), patch // samples))
        # [cell, window row, window column, channel, sample row, sample column]
        parts = torch.cat(means, dim=1).view(-1, merge, merge, 5, samples, samples).permute(0, 3, 1, 4, 2, 5)
        pooled.append(parts.reshape(-1, 5, FINE, FINE))
    return torch.cat(pooled)


def pool_image(image_3hw: Tensor, geometry: Geometry) -> Tensor:
    """The same of an image itself, uint8 of whole cells: `[5, 4 H, 4 W]`; a bounded number of rows at a time."""
    size, weights = geometry.cell // FINE, _luma(image_3hw.device)[0]
    rows = max(1, CHUNK * geometry.cell // image_3hw.shape[-1])
    pooled = []
    for strip in image_3hw.split(rows * geometry.cell, dim=1):
        pixels = strip.float() / 255
        luma = (pixels * weights).sum(0, keepdim=True)
        means = [F.avg_pool2d(pixels, size), F.avg_pool2d(luma, size)]
        pooled.append(torch.cat([*means, F.avg_pool2d(luma.square_(), size)]))
    return torch.cat(pooled, dim=1)


def shrink_patches(rows_Px: Tensor, grid: Grid, size: tuple[int, int], geometry: Geometry) -> Tensor:
    """An image `[1, 3, h, w]` in [0, 1] of `size` px, by area, from its patch rows."""
    merge, patch, (height, width) = geometry.merge, geometry.patch, grid
    blocks = rows_Px.view(height, width, merge, merge, 3, geometry.frames, patch, patch)[:, :, :, :, :, 0]
    mean, std = geometry.scale(rows_Px.device)
    small = []
    together = _channels(grid)
    for first in range(0, 3, together):
        part = slice(first, first + together)
        whole = blocks[:, :, :, :, part].permute(4, 0, 2, 5, 1, 3, 6).float()
        whole = whole.reshape(1, -1, height * merge * patch, width * merge * patch)
        whole = (whole * std[part]).add_(mean[part]).clamp_(0, 1)
        small.append(F.interpolate(whole, size=size, mode="area"))
    return torch.cat(small, dim=1)
