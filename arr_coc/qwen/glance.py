"""A glance: the whole image, small, through the model's own vision tower, as features of each cell.

B images of one size, H W grid of cells, X width of the ViT.

At 1024 px a side a glance is 256 px, a sixteenth of the patches: enough to tell what stands where, not to read it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 256  # px of the longer side of a glance, where the image has that many
SHRINK = 4  # above 1,024 px a glance has a quarter of the image's side


def glance_grid(grid: tuple[int, int], cell: int) -> tuple[int, int]:
    """The grid of cells of the small image, for an image of `grid` cells of `cell` px: at most the image's own."""
    longer = max(grid) * cell
    scale = min(1.0, max(LEAST, longer / SHRINK) / longer)
    return max(1, round(grid[0] * scale)), max(1, round(grid[1] * scale))


def glance_rows(image_B3hw: Tensor, small: tuple[int, int], mean: Tensor, std: Tensor, vision_config: Any) -> Tensor:
    """Patch rows `[B, patches, values]` in fp32, as the ViT takes them, of images in [0, 1] shrunk to `small` cells."""
    patch, merge, frames = (
        vision_config.patch_size,
        vision_config.spatial_merge_size,
        vision_config.temporal_patch_size,
    )
    size = (small[0] * patch * merge, small[1] * patch * merge)
    image = F.interpolate(image_B3hw.float(), size=size, mode="area")
    image = (image - mean.to(image).view(1, 3, 1, 1)) / std.to(image).view(1, 3, 1, 1)
    batch = image.shape[0]
    windows = image.view(batch, 3, small[0], merge, patch, small[1], merge, patch).permute(0, 2, 5, 3, 6, 1, 4, 7)
    rows = windows.unsqueeze(6).expand(*windows.shape[:6], frames, patch, patch)
    return rows.reshape(batch, -1, 3 * frames * patch * patch)


def glance_maps(hidden_BPX: Tensor, small: tuple[int, int], merge: int, grid: tuple[int, int]) -> Tensor:
    """Features `[B, X, H, W]` of each cell of `grid` from the ViT's hidden states of the small image."""
    batch, _, width = hidden_BPX.shape
    hidden = F.layer_norm(hidden_BPX.float(), (width,))
    maps = hidden.view(batch, *small, merge, merge, width).permute(0, 5, 1, 3, 2, 4)
    maps_BXhw = maps.reshape(batch, width, small[0] * merge, small[1] * merge)
    return F.interpolate(maps_BXhw, size=grid, mode="bilinear", align_corners=False, antialias=True)


@torch.no_grad()
def glance(model: Any, image_B3hw: Tensor, grid: tuple[int, int], mean: Tensor, std: Tensor) -> Tensor:
    """Features `[B, X, H, W]` in fp32, each cell's of mean 0 and variance 1, of images in [0, 1].

    The ViT's last hidden states before the merger: of a small image one patch lies under about one cell.
    """
    visual = model.model.visual
    merge = visual.spatial_merge_size
    small = glance_grid(grid, visual.patch_size * merge)
    rows_BPx = glance_rows(image_B3hw, small, mean, std, visual.config)
    grid_thw = torch.tensor([[1, small[0] * merge, small[1] * merge]] * rows_BPx.shape[0], device=rows_BPx.device)
    seen = visual(rows_BPx.flatten(0, 1).to(visual.dtype), grid_thw=grid_thw, return_dict=True)
    return glance_maps(seen.last_hidden_state.view(*rows_BPx.shape[:2], -1), small, merge, grid)
