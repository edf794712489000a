"""Pixels and visual tokens: images cut into patches and put together again, and the ways through the stock ViT.

B images of one size, I images, N cells of an image, P patches, X values of a patch or width of the ViT, D
language-model width, H heads, d size of a head. The patches of a cell (a merge window, one visual token) are
consecutive.

    dense     the ViT sees everything, kept tokens go on, alone or    any checkpoint
              with what is merged into them
    sparse    only the kept windows enter the ViT, alone or with      the fast way
              a small copy of the image as context
    weighted  the ViT sees everything, all tokens go on, scaled       the compatible way
    glance    the whole image, small, as features of each cell        to choose by
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from arr_coc.config import GLANCE
from arr_coc.qwen.family import levels_of
from arr_coc.qwen.tower import last_hidden

Grid = tuple[int, int]  # cells: height, width

AT_ONCE = 8  # moments of a clip whose frames are made of patches at once
LARGE = 448  # px of the shorter side of a frame, from where it is read at half its size
QUERIES = 256  # rows of the ViT's attention matrix that are held at a time


# ---------------------------------------------------------------- patches


@lru_cache(maxsize=32)
def _column(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).view(3, 1, 1)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a model cuts images: sizes from its config, mean and deviation of the colours from its processor."""

    patch: int = 16  # px on a side
    merge: int = 2  # patches on a side of a cell
    frames: int = 2  # an image is shown as so many equal frames
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @classmethod
    def of(cls, vision_config: Any, processor: Any = None) -> "Geometry":
        images = getattr(processor, "image_processor", None)
        half = (0.5, 0.5, 0.5)
        return cls(
            vision_config.patch_size,
            vision_config.spatial_merge_size,
            vision_config.temporal_patch_size,
            tuple(getattr(images, "image_mean", None) or half),
            tuple(getattr(images, "image_std", None) or half),
        )

    @property
    def cell(self) -> int:
        """Px on a side of a cell."""
        return self.patch * self.merge

    @property
    def window(self) -> int:
        """Patches of a cell."""
        return self.merge**2

    def grid(self, height: int, width: int) -> Grid:
        """Cells of an image of whole cells, from its size in px."""
        return height // self.cell, width // self.cell

    def scale(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the colours, `[3, 1, 1]` each."""
        return _column(self.mean, device), _column(self.std, device)


def cut(image_B3hw: Tensor, geometry: Geometry) -> Tensor:
    """Images of whole cells as the patches of their cells, one frame: `[B, N, window, 3 * patch * patch]`."""
    merge, patch = geometry.merge, geometry.patch
    height, width = geometry.grid(*image_B3hw.shape[-2:])
    blocks = image_B3hw.view(-1, 3, height, merge, patch, width, merge, patch).permute(0, 2, 5, 3, 6, 1, 4, 7)
    return blocks.reshape(-1, height * width, geometry.window, 3 * patch * patch)


def patchify(image_B3hw: Tensor, geometry: Geometry) -> Tensor:
    """Images in [0, 1] of whole cells as flattened, normalised patches `[B, P, X]`: what `unpatchify` reads.

    Or pairs of frames, `[B, F, 3, h, w]`: an image is shown as F equal ones.
    """
    mean, std = geometry.scale(image_B3hw.device)
    frames = image_B3hw.unsqueeze(1) if image_B3hw.ndim == 4 else image_B3hw
    rows = cut(((frames - mean) / std).flatten(0, 1), geometry).flatten(1, 2).unflatten(0, frames.shape[:2])
    rows = rows.unflatten(-1, (3, -1)).permute(0, 2, 3, 1, 4)  # [B, P, 3, F, patch * patch]
    return rows.expand(-1, -1, -1, geometry.frames, -1).flatten(2)


def unpatchify(rows_PX: Tensor, grid: Grid, geometry: Geometry, channels: slice = slice(None)) -> Tensor:
    """The resized image `[3, h, w]` in [0, 1], or some `channels`, back from its flattened, normalised patches."""
    return _unpatched(rows_PX.unsqueeze(0), grid, geometry, channels, 1)[0, 0]


def frames_of(rows_PX: Tensor, grid: Grid, geometry: Geometry) -> Tensor:
    """The frames of a clip two by two, `[T, F, 3, h, w]` in [0, 1], from the patches of all.

    Large ones at half their size: textures are no finer, and a clip of them would fill the memory. They are halved
    patch by patch, before anything else is done with them.
    """
    halves = geometry.cell * min(grid) > LARGE and geometry.patch % 2 == 0
    made = replace(geometry, patch=geometry.patch // 2) if halves else geometry
    pairs = rows_PX.view(-1, grid[0] * grid[1] * geometry.window, rows_PX.shape[1])
    frames = []
    for some in pairs.split(AT_ONCE):
        if halves:
            patches = some.float().view(-1, 3 * geometry.frames, geometry.patch, geometry.patch)
            some = F.avg_pool2d(patches, 2).view(*some.shape[:2], -1)
        frames.append(_unpatched(some, grid, made, slice(None), geometry.frames))
    return torch.cat(frames)


def _unpatched(rows_BPX: Tensor, grid: Grid, geometry: Geometry, channels: slice, frames: int) -> Tensor:
    """Some `channels` of the first `frames` that each row shows, `[B, F, C, h, w]` in [0, 1]."""
    patch, merge, (height, width) = geometry.patch, geometry.merge, grid
    blocks = rows_BPX.view(-1, height, width, merge, merge, 3, geometry.frames, patch, patch)
    blocks = blocks[:, :, :, :, :, channels, :frames].permute(0, 6, 5, 1, 3, 7, 2, 4, 8).float()
    images = blocks.reshape(*blocks.shape[:3], height * geometry.cell, width * geometry.cell)
    mean, std = geometry.scale(images.device)
    return (images * std[channels] + mean[channels]).clamp(0, 1)


def resize(image_3hw: Tensor, grid: Grid, cell: int) -> Tensor:
    """An image in [0, 1] at the size of `grid` cells of `cell` px: however small, no least size is kept.

    Or several, `[F, 3, h, w]`.
    """
    size = (grid[0] * cell, grid[1] * cell)
    images = image_3hw if image_3hw.ndim == 4 else image_3hw.unsqueeze(0)
    return (
        F.interpolate(images, size=size, mode="bicubic", antialias=True).clamp(0, 1).view(*image_3hw.shape[:-2], *size)
    )


def still(image_B3hw: Tensor) -> Tensor:
    """Images as they are; of pairs of frames `[B, 2, 3, h, w]`, what is in either, half as strong."""
    return image_B3hw.mean(1) if image_B3hw.ndim == 5 else image_B3hw


# ---------------------------------------------------------------- visual tokens


def encode_dense(model: Any, pixel_values: Tensor, image_grid_thw: Tensor, last_input: bool = False) -> Any:
    """All tokens of all images: the stock output, split per image; with `last_input`, its last block's input too."""
    recorded = {"output_hidden_states": [len(model.model.visual.blocks) - 2]} if last_input else {}
    return model.model.get_image_features(pixel_values, image_grid_thw, return_dict=True, **recorded)


def take(features: Any, indices: Sequence[Tensor]) -> Any:
    """Cut the stock output to the kept cells of each image; the DeepStack levels with the same indices."""
    return _on_every_level(features, lambda level: [tokens[one] for tokens, one in zip(level, indices, strict=True)])


def merge(features: Any, weights: Sequence[Tensor | None], indices: Sequence[Tensor]) -> Any:
    """Make each image's kept tokens out of all of its tokens, by `[K, N]` weights, on every DeepStack level alike.

    Without weights the tokens of the kept cells are taken as they are. Sums are in fp32.
    """

    def merged(tokens: Tensor, weight: Tensor | None, index: Tensor) -> Tensor:
        return tokens[index] if weight is None else (weight @ tokens.float()).to(tokens.dtype)

    return _on_every_level(features, lambda level: map(merged, level, weights, indices))


def scale(features: Any, gates: Sequence[Tensor]) -> Any:
    """Multiply each image's tokens by one number per token, on every DeepStack level."""
    gated = [gate.unsqueeze(-1) for gate in gates]
    return _on_every_level(features, lambda level: [x * gate.to(x) for x, gate in zip(level, gated, strict=True)])


def repeated(features: Any, images: Sequence[int]) -> Any:
    """The stock output of images, each as often as it is named, in that order."""
    return _on_every_level(features, lambda level: [level[image] for image in images])


def _on_every_level(features: Any, change: Callable[[Sequence[Tensor]], Iterable[Tensor]]) -> Any:
    """`change` the tokens of all images: the merged ones, and those of every DeepStack level."""
    features.pooler_output = tuple(change(features.pooler_output))
    features.deepstack_features = [tuple(change(level)) for level in levels_of(features)] or None
    return features


def joined(parts: Sequence[Any]) -> Any:
    """The stock outputs of images and of clips as one: what each of its levels holds, images first."""
    first, *others = parts
    for other in others:
        first.pooler_output = (*first.pooler_output, *other.pooler_output)
        levels = zip(levels_of(first), levels_of(other), strict=True)
        first.deepstack_features = [(*one, *two) for one, two in levels] or None
        first.last_hidden_state = torch.cat([first.last_hidden_state, other.last_hidden_state])
        if first.hidden_states is not None:
            states = zip(first.hidden_states, other.hidden_states, strict=True)
            first.hidden_states = tuple(None if both[0] is None else torch.cat(both) for both in states)
    return first


def divided(features: Any, images: int) -> dict[str, Any]:
    """What the stock model is handed: of a joined output, the part of so many images, and that of clips."""
    parts = {"image": slice(None, images), "video": slice(images, None)}
    handed = {}
    for name, part in parts.items():
        if features.pooler_output[part]:
            handed[name] = copy.copy(features)
            handed[name].pooler_output = features.pooler_output[part]
            handed[name].deepstack_features = [level[part] for level in levels_of(features)] or None
    return handed


Context = tuple[Grid, Tensor]  # a small copy: its cells, and its patches [P, X]


def encode_sparse(
    model: Any,
    pixel_values: Tensor,
    image_grid_thw: Tensor,
    indices: Sequence[Tensor],
    context: Sequence[Context | None] | None = None,
) -> Any:
    """Only the kept windows go through the ViT, each at its original place; attention stays within an image.

    With `context`, the patches of an image's small copy go along, each where the patch under its centre stands: windows
    attend to them, but what they become is not handed on.
    """
    visual = model.model.visual
    merge = visual.spatial_merge_size
    window = merge * merge
    first_I = F.pad(image_grid_thw.prod(-1).cumsum(0), (1, 0))[:-1]
    within = torch.arange(window, device=pixel_values.device)
    patches, places, counts = [], [], []
    for image, (first, index) in enumerate(zip(first_I, indices, strict=True)):
        rows = (first + index.unsqueeze(1) * window + within).flatten()
        patches.append(pixel_values[rows])
        places.append(rows)
        small = None if context is None else context[image]
        if small is not None:
            grid = int(image_grid_thw[image, 1]) // merge, int(image_grid_thw[image, 2]) // merge
            patches.append(small[1].to(pixel_values))
            places.append(first + under_centres(small[0], grid, merge, pixel_values.device))
        counts.append([index.shape[0], 0 if small is None else small[1].shape[0] // window])
    rows = torch.cat(places)
    taps, tap_weights = get_vision_interpolation_indices_and_weights(
        image_grid_thw,
        num_grid_per_side=visual.num_grid_per_side,
        mode=visual.interpolation_mode,
        align_corners=visual.interpolation_align_corners,
        spatial_merge_size=merge,
    )
    lengths = torch.tensor([sum(both) for both in counts if sum(both)], device=pixel_values.device) * window
    features = visual(
        torch.cat(patches).to(visual.dtype),
        grid_thw=image_grid_thw,
        interp_indices=taps[rows],
        interp_weights=tap_weights[rows],
        position_ids=get_vision_position_ids(image_grid_thw, merge)[rows],
        cu_seqlens=F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)),
        return_dict=True,
    )
    parts = [count for both in counts for count in both]
    features.pooler_output = features.pooler_output.split(parts)[::2]
    features.deepstack_features = [level.split(parts)[::2] for level in levels_of(features)] or None
    return features


def under_centres(small: Grid, grid: Grid, merge: int, device: torch.device) -> Tensor:
    """For each patch of a copy of `small` cells, the patch of an image of `grid` cells that is under its centre, `[P]`.

    Both are counted in the ViT's order, a cell's `merge * merge` patches together; with `merge` 1, cells are counted.
    """
    side = torch.tensor([[1, merge * small[0], merge * small[1]]], device=device)
    y_P, x_P = get_vision_position_ids(side, merge).unbind(-1)
    y_P, x_P = (2 * y_P + 1) * grid[0] // (2 * small[0]), (2 * x_P + 1) * grid[1] // (2 * small[1])
    cell_P = (y_P // merge) * grid[1] + x_P // merge
    return (cell_P * merge + y_P % merge) * merge + x_P % merge


# ---------------------------------------------------------------- the glance


def glance_rows(image_B3hw: Tensor, small: Grid, geometry: Geometry) -> Tensor:
    """Patch rows `[B, P, X]` in fp32, as the ViT takes them, of images (or pairs of frames) shrunk to `small` cells."""
    size = (small[0] * geometry.cell, small[1] * geometry.cell)
    image_B3hw = image_B3hw.float()
    if image_B3hw.shape[-2:] != size:
        shrunk = F.interpolate(image_B3hw.flatten(0, -4), size=size, mode="area")
        image_B3hw = shrunk.view(*image_B3hw.shape[:-2], *size)
    return patchify(image_B3hw, geometry)


def glance_maps(hidden_BPX: Tensor, small: Grid, merge: int, grid: Grid) -> Tensor:
    """Features `[B, X, H, W]` of each cell of `grid` from the ViT's hidden states of the small image."""
    batch, _, width = hidden_BPX.shape
    hidden = F.layer_norm(hidden_BPX.float(), (width,))
    maps = hidden.view(batch, *small, merge, merge, width).permute(0, 5, 1, 3, 2, 4)
    maps_BXhw = maps.reshape(batch, width, small[0] * merge, small[1] * merge)
    return F.interpolate(maps_BXhw, size=grid, mode="bilinear", align_corners=False, antialias=True)


@torch.no_grad()
def glance(model: Any, image_B3hw: Tensor, grid: Grid, geometry: Geometry) -> Tensor:
    """Features `[B, X, H, W]` in fp32, each cell's of mean 0 and variance 1, of images in [0, 1].

    The ViT's last hidden states before the merger: of a small image one patch lies under about one cell. At 1024 px a
    side a glance is 256 px, a sixteenth of the patches: enough to tell what stands where, not to read it.
    """
    visual, merge = model.model.visual, geometry.merge
    small = GLANCE.grid(grid)
    rows_BPx = glance_rows(image_B3hw, small, geometry)
    cells_BN = torch.arange(small[0] * small[1], device=rows_BPx.device).expand(rows_BPx.shape[0], -1)
    grid_B2 = torch.tensor([small] * rows_BPx.shape[0], device=rows_BPx.device)
    return glance_maps(last_hidden(visual, rows_BPx, cells_BN, grid_B2), small, merge, grid)


# ---------------------------------------------------------------- inside the ViT


def cell_means(rows_PX: Tensor, window: int) -> Tensor:
    """Mean over the patches of each cell, fp32."""
    return rows_PX.float().unflatten(0, (-1, window)).mean(1)


def patch_features(model: Any, features: Any) -> tuple[Tensor, ...]:
    """The ViT's last hidden states before the merger, per image `[N, X]`."""
    means = cell_means(features.last_hidden_state, model.model.visual.spatial_merge_size**2)
    return means.split([tokens.shape[0] for tokens in features.pooler_output])


def received_attention(model: Any, features: Any, image_grid_thw: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Per image: attention that each cell receives in the last block `[N]`, and the keys of its patches `[N, d]`.

    Attention is a mean over heads and queries, so the patches of an image sum to one; keys are a mean over heads. Both
    are after the rotation by position, and means over the patches of a cell. `features` must come from
    `encode_dense(..., last_input=True)`: fused attention shows no weights, so the last block's queries and keys are
    made once more, and their attention is summed over chunks of queries, in memory O(chunk * P).
    """
    visual = model.model.visual
    window, block = visual.spatial_merge_size**2, visual.blocks[-1]
    recorded, depth = features.hidden_states, len(visual.blocks)
    hidden_PX = recorded[depth - 2] if len(recorded) == depth else recorded[-2]  # all were recorded, or only it
    query, key, _ = block.attn.qkv(block.norm1(hidden_PX)).unflatten(-1, (3, block.attn.num_heads, -1)).unbind(1)
    cos, sin = visual.rotary_pos_emb(hidden_PX, get_vision_position_ids(image_grid_thw, visual.spatial_merge_size))
    query, key = apply_rotary_pos_emb_vision(query, key, cos, sin)
    patches = [tokens.shape[0] * window for tokens in features.pooler_output]
    received = [
        cell_means(column_means(query_PHd, key_PHd, block.attn.scaling), window)
        for query_PHd, key_PHd in zip(query.split(patches), key.split(patches), strict=True)
    ]
    return received, [cell_means(key_PHd.float().mean(1), window) for key_PHd in key.split(patches)]


def column_means(query_PHd: Tensor, key_PHd: Tensor, scaling: float) -> Tensor:
    """Attention that each patch receives, mean over heads and queries, `[P]` fp32."""
    query_HPd, key_HdP = query_PHd.float().transpose(0, 1), key_PHd.float().permute(1, 2, 0)
    total_P = torch.zeros_like(key_HdP[0, 0])
    for chunk in query_HPd.split(QUERIES, dim=1):
        total_P += (chunk @ key_HdP * scaling).softmax(-1).sum((0, 1))
    return total_P / (query_HPd.shape[0] * query_HPd.shape[1])
