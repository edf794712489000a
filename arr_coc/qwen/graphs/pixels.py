"""Pixels as the recorded path looks at them: pooled and shrunk in bounded parts, so that memory stays flat.

I images, G images of one grid, R patch rows of all images, H W grid of cells.

`ask` holds the images, and they are read; `generate` has only their patch rows, and images are made of those.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import FINE
from arr_coc.qwen.vision import Geometry, Grid, unpatchify
from arr_coc.texture import LUMA

CHUNK = 1536  # cells looked at together: 19 MB of pixels in fp32, and 25 MB for their luma


@lru_cache(maxsize=8)
def _luma(device: torch.device) -> Tensor:
    return torch.tensor(LUMA, device=device).view(3, 1, 1)


@dataclass(frozen=True, slots=True)
class Pixels:
    """What there is to look at: the patch rows of all images and, where the caller holds them, the images."""

    rows_Rx: Tensor
    images: list[Tensor] | None = None  # uint8 [3, h, w] of whole cells

    def canvases(self, grids: Sequence[Grid], geometry: Geometry) -> list[Tensor]:
        """Each image pooled to the finest level of its pyramid, `[5, 4 H, 4 W]` in fp32.

        Means of red, green, blue, luma and squared luma.
        """
        size, weights = geometry.cell // FINE, _luma(self.rows_Rx.device)
        canvases = []
        for image in range(len(grids)):
            pooled = []
            for pixels in self._strips(image, grids, geometry):
                luma = (pixels * weights).sum(0, keepdim=True)
                means = [F.avg_pool2d(pixels, size), F.avg_pool2d(luma, size)]
                pooled.append(torch.cat([*means, F.avg_pool2d(luma.square_(), size)]))
            canvases.append(torch.cat(pooled, dim=1))
        return canvases

    def shrunk(
        self, grids: Sequence[Grid], members: Sequence[int], size: tuple[int, int], geometry: Geometry
    ) -> Tensor:
        """Images of one grid at `size` px, by area: `[G, 3, h, w]` in [0, 1]; of a large one, a channel at a time.

        On a GPU it is the number of launches that costs: small ones are shrunk as they are.
        """
        small = []
        for image in members:
            together = 3 if grids[image][0] * grids[image][1] <= CHUNK else 1
            for first in range(0, 3, together):
                (whole,) = self._strips(image, grids, geometry, slice(first, first + together), grids[image][0])
                small.append(F.interpolate(whole.unsqueeze(0), size=size, mode="area"))
        return torch.cat(small, dim=1).view(len(members), 3, *size)

    def _strips(
        self,
        image: int,
        grids: Sequence[Grid],
        geometry: Geometry,
        channels: slice = slice(None),
        rows: int | None = None,
    ) -> Iterator[Tensor]:
        """An image in [0, 1] as `[3, h, w]`, so many rows of cells at a time, or a bounded number of cells."""
        width = grids[image][1]
        rows = rows or max(1, CHUNK // width)
        if self.images is not None:
            for strip in self.images[image][channels].split(rows * geometry.cell, dim=1):
                yield strip.float() / 255
            return
        patches = self.rows_Rx.split([high * wide * geometry.window for high, wide in grids])[image]
        for part in patches.split(rows * width * geometry.window):
            yield unpatchify(part, (part.shape[0] // (width * geometry.window), width), geometry, channels)
