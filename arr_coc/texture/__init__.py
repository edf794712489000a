"""Image -> texture pyramid: named channels on a grid, at three scales.

B batch, C channels, H W grid of cells (one cell is one visual token), h w any finer grid.

The image is pooled to the finest level (4 x 4 samples a cell: 8 px each at Qwen3-VL's 32 px cell) before anything else,
so memory does not grow with the channels. Every value is in [0, 1]. A fine channel is measured once on the finest
level, and coarser levels average it. A level channel is measured on each level itself: position (the top row is 0, the
bottom row 1) and within-cell variance.

    channels.py  the canvas, and the 13 channels that are the default
    full.py      those of the whole array of 40; saliency.py: where people would look; text.py: where letters are
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import DETAIL, FINE, GROUPS, channel_names
from arr_coc.records import TexturePyramid
from arr_coc.texture import channels as basic
from arr_coc.texture import full
from arr_coc.texture.channels import LUMA, Canvas, canvas_of, position, position_grid, within_cell_variance
from arr_coc.texture.saliency import saliency
from arr_coc.texture.text import bare_paper, text_detected, text_likelihood

LEAST_DETAIL = 0.05  # mean detail under which an image is flat, not noisy

FineFunction = Callable[[Canvas], Tensor]
LevelFunction = Callable[[Canvas, int], Tensor]

# A maker gives all channels of its key at once, [B, channels, h, w].
FINE_CHANNELS: dict[tuple[str, ...], FineFunction] = {
    GROUPS["colour"]: lambda canvas: canvas.rgb_B3hw,
    ("sobel_x",): lambda canvas: canvas.gradients[0],
    ("sobel_y",): lambda canvas: canvas.gradients[1],
    ("sobel_magnitude",): basic.sobel_magnitude,
    ("spectral_residual",): basic.spectral_residual,
    ("colour_contrast",): basic.colour_contrast,
    ("local_contrast",): basic.local_contrast,
    ("cluster_ambiguity",): basic.cluster_ambiguity,
    GROUPS["clusters"]: full.clusters,
    GROUPS["edges"]: full.edges,
    ("low_pass",): full.low_pass,
    ("motion",): full.motion,
    ("saliency",): saliency,
    ("edge_distance",): full.edge_distance,
    ("text_likelihood",): text_likelihood,
    ("text_detected",): text_detected,
    GROUPS["semantic"]: full.semantic,
    GROUPS["temporal"]: full.temporal,
    GROUPS["history"]: full.history,
}
LEVEL_CHANNELS: dict[tuple[str, ...], LevelFunction] = {
    ("y",): lambda canvas, factor: position(canvas, factor, 0),
    ("x",): lambda canvas, factor: position(canvas, factor, 1),
    ("eccentricity",): full.eccentricity,
    ("within_cell_variance",): within_cell_variance,
    ("high_pass",): within_cell_variance,
}


def detail_spread(detail_B1HW: Tensor) -> Tensor:
    """How unevenly detail lies over the cells, relative to its mean: `[B]`; infinite where an image is flat.

    Noise 0.02, blocks 0.15, splatter 0.46 to 0.70; drawn scenes 0.65 to 6.
    """
    detail_BN = detail_B1HW.flatten(1)
    mean_B = detail_BN.mean(-1)
    spread_B = (detail_BN - mean_B.unsqueeze(-1)).square().mean(-1).sqrt() / mean_B.clamp(min=LEAST_DETAIL)
    return torch.where(mean_B > LEAST_DETAIL, spread_B, torch.full_like(spread_B, torch.inf))


def _makers(names: tuple[str, ...], registry: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The makers that give those of the names which are in a registry; where several do, what makes the least else."""
    groups = list(registry)
    chosen: list[tuple[str, ...]] = []
    for name in names:
        able = [group for group in groups if name in group]
        if able and not any(name in group for group in chosen):
            chosen.append(max(able, key=lambda group: (len(set(group) & set(names)), -len(group))))
    return chosen


@torch.no_grad()
def pyramid_of(canvas: Canvas, channels: int | Sequence[str] = 13) -> TexturePyramid:
    """A registered set, or channels by name, of a pooled image, at three scales. Reads nothing back to the host."""
    names = channel_names(channels)
    fine, on_levels = _makers(names, FINE_CHANNELS), _makers(names, LEVEL_CHANNELS)
    pooled = [name for group in fine for name in group]
    fine_BChw = torch.cat([canvas.rgb_B3hw[:, :0], *(FINE_CHANNELS[group](canvas) for group in fine)], dim=1)

    def level(factor: int) -> Tensor:
        # All channels in one pool: on a GPU it is the number of launches that costs.
        coarse = F.avg_pool2d(fine_BChw, factor) if factor > 1 and pooled else fine_BChw
        maps = dict(zip(pooled, coarse.unbind(1), strict=True))
        for group in on_levels:
            maps |= zip(group, LEVEL_CHANNELS[group](canvas, factor).unbind(1), strict=True)
        return torch.stack([maps[name] for name in names], dim=1).clamp(0, 1)

    cell_BCHW = level(FINE)
    known = [cell_BCHW[:, names.index(name)] for name in DETAIL if name in names]
    detail = known[0] if known else within_cell_variance(canvas, FINE).clamp(0, 1)
    return TexturePyramid(level(1), level(FINE // 2), cell_BCHW, names, detail_spread(detail))


def texture_pyramid(
    image: Tensor, grid_size: int | tuple[int, int], channels: int | Sequence[str] = 13
) -> TexturePyramid:
    """A registered set, or channels by name, of an image, on `grid_size` cells (int or (H, W)), at three scales.

    Of pairs of frames, `[B, 2, 3, h, w]`, what is in either, half as strong; motion and change are those from one to
    the other.
    """
    if image.ndim < 5:
        return pyramid_of(canvas_of(image, grid_size), channels)
    canvas = canvas_of(image.mean(1), grid_size)
    if not {*GROUPS["motion"], *GROUPS["temporal"]}.isdisjoint(channel_names(channels)):
        previous, latest = (canvas_of(frame, grid_size) for frame in image.unbind(1))
        canvas = replace(canvas, previous=previous, latest=latest)
    return pyramid_of(canvas, channels)


def generate_texture_array(
    image: Tensor,
    grid_size: int | tuple[int, int] = 32,
    channels: int | Sequence[str] = 13,
    glance: Tensor | None = None,
    previous: Tensor | None = None,
    history: Tensor | None = None,
) -> Tensor:
    """Textures of an image on a grid of cells: [B, channels, H, W], each in [0, 1], without a graph.

    `image` is uint8 0..255 or float 0..1, [3, h, w] or [B, 3, h, w]; `grid_size` a number of cells or (H, W);
    `channels` the size of a registered set (13, 40) or names. What else is known of the image fills channels of the 40
    that are zero without it: `glance` [B, X, h, w], what the model's ViT saw of a small copy; `previous`, the frame
    before, like the image; `history` [B, T, h, w], where T earlier questions looked, newest last, in [0, 1].
    """
    return pyramid_of(canvas_of(image, grid_size, glance, previous, history), channels).cell_BCHW
