"""Pixels -> visual tokens of the kept cells, three ways, through the stock vision model.

I images, N cells of an image, P patches, D language-model width. Four consecutive patch rows are one 2 x 2 merge
window, one cell, one visual token.

    dense     the ViT sees everything, kept tokens go on, alone or    any checkpoint
              with what is merged into them
    sparse    only the kept windows enter the ViT                     the fast way
    weighted  the ViT sees everything, all tokens go on, scaled       the compatible way
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids


def cells_of(image_grid_thw: Tensor, merge: int) -> list[tuple[int, int]]:
    """(H, W) in cells of each image."""
    grids = image_grid_thw.tolist()
    assert all(t == 1 for t, _, _ in grids), "an image has one frame"
    return [(h // merge, w // merge) for _, h, w in grids]


def unpatchify(rows_PX: Tensor, grid: tuple[int, int], vision_config: Any, mean: Tensor, std: Tensor) -> Tensor:
    """The resized image `[3, h, w]` in [0, 1] back from its flattened, normalised patches."""
    patch, merge, frames = (
        vision_config.patch_size,
        vision_config.spatial_merge_size,
        vision_config.temporal_patch_size,
    )
    height, width = grid
    blocks = rows_PX.float().view(height, width, merge, merge, 3, frames, patch, patch)[:, :, :, :, :, 0]
    image = blocks.permute(4, 0, 2, 5, 1, 3, 6).reshape(3, height * merge * patch, width * merge * patch)
    return (image * std.to(image).view(3, 1, 1) + mean.to(image).view(3, 1, 1)).clamp(0, 1)


def patchify(image_3hw: Tensor, vision_config: Any, mean: Tensor, std: Tensor) -> Tensor:
    """An image in [0, 1] of whole cells as flattened, normalised patches: what `unpatchify` reads."""
    patch, merge, frames = (
        vision_config.patch_size,
        vision_config.spatial_merge_size,
        vision_config.temporal_patch_size,
    )
    height, width = image_3hw.shape[1] // (patch * merge), image_3hw.shape[2] // (patch * merge)
    image = (image_3hw - mean.to(image_3hw).view(3, 1, 1)) / std.to(image_3hw).view(3, 1, 1)
    blocks = image.view(3, height, merge, patch, width, merge, patch).permute(1, 4, 2, 5, 0, 3, 6)
    return blocks.unsqueeze(5).expand(-1, -1, -1, -1, -1, frames, -1, -1).reshape(-1, 3 * frames * patch * patch)


def encode_dense(model: Any, pixel_values: Tensor, image_grid_thw: Tensor, last_input: bool = False) -> Any:
    """All tokens of all images: the stock output, split per image; with `last_input`, its last block's input too."""
    recorded = {"output_hidden_states": [len(model.model.visual.blocks) - 2]} if last_input else {}
    return model.model.get_image_features(pixel_values, image_grid_thw, return_dict=True, **recorded)


def take(features: Any, indices: Sequence[Tensor]) -> Any:
    """Cut the stock output to the kept cells of each image; the DeepStack levels with the same indices."""
    features.pooler_output = tuple(tokens[index] for tokens, index in zip(features.pooler_output, indices, strict=True))
    features.deepstack_features = [
        tuple(tokens[index] for tokens, index in zip(level, indices, strict=True))
        for level in features.deepstack_features
    ]
    return features


def merge(features: Any, weights: Sequence[Tensor | None], indices: Sequence[Tensor]) -> Any:
    """Make each image's kept tokens out of all of its tokens, by `[K, N]` weights, on every DeepStack level alike.

    Without weights the tokens of the kept cells are taken as they are. Sums are in fp32.
    """

    def merged(level: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(
            tokens[index] if weight is None else (weight @ tokens.float()).to(tokens.dtype)
            for tokens, weight, index in zip(level, weights, indices, strict=True)
        )

    features.pooler_output = merged(features.pooler_output)
    features.deepstack_features = [merged(level) for level in features.deepstack_features]
    return features


def scale(features: Any, gates: Sequence[Tensor]) -> Any:
    """Multiply each image's tokens by one number per token, on every DeepStack level."""

    def scaled(level: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tokens * gate.to(tokens).unsqueeze(-1) for tokens, gate in zip(level, gates, strict=True))

    features.pooler_output = scaled(features.pooler_output)
    features.deepstack_features = [scaled(level) for level in features.deepstack_features]
    return features


def encode_sparse(model: Any, pixel_values: Tensor, image_grid_thw: Tensor, indices: Sequence[Tensor]) -> Any:
    """Only the kept windows go through the ViT, each at its original place; attention stays within an image."""
    visual = model.model.visual
    merge = visual.spatial_merge_size
    window = merge * merge
    first_I = F.pad(image_grid_thw.prod(-1).cumsum(0), (1, 0))[:-1]
    within = torch.arange(window, device=pixel_values.device)
    rows = torch.cat(
        [
            (first + index.unsqueeze(1) * window + within).flatten()
            for first, index in zip(first_I, indices, strict=True)
        ]
    )
    counts = [index.shape[0] for index in indices]
    taps, tap_weights = get_vision_interpolation_indices_and_weights(
        image_grid_thw,
        num_grid_per_side=visual.num_grid_per_side,
        mode=visual.interpolation_mode,
        align_corners=visual.interpolation_align_corners,
        spatial_merge_size=merge,
    )
    features = visual(
        pixel_values[rows].to(visual.dtype),
        grid_thw=image_grid_thw,
        interp_indices=taps[rows],
        interp_weights=tap_weights[rows],
        position_ids=get_vision_position_ids(image_grid_thw, merge)[rows],
        cu_seqlens=_segments(counts, window, pixel_values.device),
        return_dict=True,
    )
    features.pooler_output = torch.split(features.pooler_output, counts)
    features.deepstack_features = [torch.split(level, counts) for level in features.deepstack_features]
    return features


def _segments(counts: Sequence[int], window: int, device: torch.device) -> Tensor:
    """Ends of each image's patches in the packed sequence, starting with 0."""
    lengths = torch.tensor(counts, device=device) * window
    return F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
