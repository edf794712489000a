"""Sight: what the participatory scorer is shown of an image, which is a small copy of it and never its full size.

B batch, C texture channels, H W grid of cells, X width of the ViT, G channels of sight.

    textures  textures of the small copy                                G = C
    stem      those, and a small convolution over its finer samples     G = C and the stem's
    glance    those, and what the model's own ViT makes of the copy     G = all these and the glance's
    look      as glance; and where the language model looked at it for the question, which comes with the question

Cell averages cannot tell an umbrella from an anchor; a glance can. What the ViT makes of the copy comes from outside
(`qwen/vision.py`), without a gradient; here it is projected.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.config import SIGHTS
from arr_coc.records import TexturePyramid

SMALLER = 2  # times, a side: what textures of the small copy are taken from


def sight_width(sight: str, texture_channels: int, channels: int, glance_channels: int) -> int:
    """Number of channels that a sight gives each cell: textures, those of the stem, and of the glance."""
    return sum((texture_channels, channels, glance_channels)[: SIGHTS.index(sight) + 1])


class Stem(nn.Module):
    """Samples of a small copy to its cells: three convolutions, of which two halve the grid."""

    def __init__(self, texture_channels: int, channels: int) -> None:
        super().__init__()
        self.look = nn.Conv2d(texture_channels, channels, 3, padding=1)
        self.halve = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.gather = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, small_BChw: Tensor) -> Tensor:
        seen = F.gelu(self.halve(F.gelu(self.look(small_BChw))))
        gathered: Tensor = self.gather(seen)
        return gathered


class Sight(nn.Module):
    """The channels of sight for a pyramid, and for what the ViT saw at a glance."""

    def __init__(self, sight: str, texture_channels: int, channels: int, glance_channels: int, glance_dim: int) -> None:
        super().__init__()
        kind = SIGHTS.index(sight)
        self.stem = Stem(texture_channels, channels) if kind >= SIGHTS.index("stem") else None
        self.glance = nn.Conv2d(glance_dim, glance_channels, 1) if kind >= SIGHTS.index("glance") else None

    def forward(self, pyramid: TexturePyramid, glance_BXHW: Tensor | None = None) -> Tensor:
        """`[B, G, H, W]`"""
        small = F.avg_pool2d(pyramid.cell_BCHW, SMALLER, ceil_mode=True, count_include_pad=False)
        seen = [_enlarged(small, pyramid.grid)]
        if self.stem is not None:
            # Samples of a copy of half the size are the middle level's.
            seen.append(_enlarged(self.stem(pyramid.middle_BChw), pyramid.grid))
        if self.glance is not None:
            if glance_BXHW is None:
                raise ValueError("sight='glance' needs what the ViT saw: pass glance=, see arr_coc.qwen.vision")
            seen.append(self.glance(glance_BXHW.float()))
        return torch.cat(seen, dim=1)


def _enlarged(small_BChw: Tensor, grid: tuple[int, int]) -> Tensor:
    """A small copy's map on the image's own cells."""
    return F.interpolate(small_BChw, size=grid, mode="bilinear", align_corners=False)
