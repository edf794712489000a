"""Sight beside the textures: cell averages cannot tell an umbrella from an anchor.

B batch, C texture channels, H W grid of cells, X width of the ViT, G channels of sight.

    textures  nothing more                                           G = 0
    stem      a small convolution over the fine level                G = its channels
    glance    the stem, and a small image through the model's ViT    G = those, and the glance's

What the ViT makes of the small image comes from outside (`qwen/vision.py`), without a gradient; here it is projected.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.config import FINE, SIGHTS
from arr_coc.records import TexturePyramid


def sight_width(sight: str, channels: int, glance_channels: int) -> int:
    """Number of channels that a sight adds to each cell: those of the stem, and of the glance."""
    return sum((channels, glance_channels)[: SIGHTS.index(sight)])


class Stem(nn.Module):
    """Fine level to cells: three convolutions, of which two halve the grid. Sees 11 fine samples, 88 px, a side."""

    def __init__(self, texture_channels: int, channels: int) -> None:
        super().__init__()
        assert FINE == 4, "two strides of 2 lead from the fine level to the cells"
        self.look = nn.Conv2d(texture_channels, channels, 3, padding=1)
        self.halve = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.gather = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, fine_BChw: Tensor) -> Tensor:
        seen = F.gelu(self.halve(F.gelu(self.look(fine_BChw))))
        gathered: Tensor = self.gather(seen)
        return gathered


class Sight(nn.Module):
    """The channels of sight for a pyramid, and for what the ViT saw at a glance."""

    def __init__(self, sight: str, texture_channels: int, channels: int, glance_channels: int, glance_dim: int) -> None:
        super().__init__()
        self.stem = Stem(texture_channels, channels) if sight != "textures" else None
        self.glance = nn.Conv2d(glance_dim, glance_channels, 1) if sight == "glance" else None

    def forward(self, pyramid: TexturePyramid, glance_BXHW: Tensor | None = None) -> Tensor | None:
        """`[B, G, H, W]`, or None where there is no sight but the textures."""
        if self.stem is None:
            return None
        seen = [self.stem(pyramid.fine_BChw)]
        if self.glance is not None:
            if glance_BXHW is None:
                raise ValueError("sight='glance' needs what the ViT saw: pass glance=, see arr_coc.qwen.vision")
            seen.append(self.glance(glance_BXHW.float()))
        return torch.cat(seen, dim=1)
