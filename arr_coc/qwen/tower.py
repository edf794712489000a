"""An own forward of the vision tower over the stock module's weights: padded sets of windows, all images in one call.

I images, K slots of an image, P patches of those, X width of the ViT, D width of the language model, d size of a head,
E = 1 + DeepStack levels.

Nothing depends on an image's size but two numbers, so one recording serves images of all sizes. Slots beyond an image's
windows are hidden from attention by a mask; without any, there is none, and attention takes its fastest way. Patches
are embedded by a matrix product: the stock convolution, whose stride is its kernel, takes three times as long on a CPU.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def patches_of(cells_IK: Tensor, window: int) -> Tensor:
    """The patches of flat cells, in the ViT's order: a cell's are together. `[I, P]`"""
    within = torch.arange(window, device=cells_IK.device)
    return (cells_IK.unsqueeze(-1) * window + within).flatten(1)


def patch_places(patches_IP: Tensor, width_I: Tensor, merge: int) -> tuple[Tensor, Tensor]:
    """Row and column of each patch `[I, P]`, from its number in the ViT's order and the images' widths in cells."""
    cells_IP, within_IP = patches_IP // merge**2, patches_IP % merge**2
    width_I1 = width_I.unsqueeze(1)
    return cells_IP // width_I1 * merge + within_IP // merge, cells_IP % width_I1 * merge + within_IP % merge


def _taps(place_IP: Tensor, size_I: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Two neighbours on an axis of the learned table, and their weights, each `[I, P, 2]`; corners are aligned."""
    source = place_IP.float() * (side - 1) / (size_I.unsqueeze(1) - 1).clamp(min=1)
    floor = source.floor()
    offsets = torch.arange(2, device=place_IP.device)
    taps = (floor.long().unsqueeze(-1) + offsets).clamp(0, side - 1)
    return taps, (1 - (source.unsqueeze(-1) - floor.unsqueeze(-1) - offsets).abs()).clamp(min=0)


def learned_places(visual: Any, row_IP: Tensor, column_IP: Tensor, grid_I2: Tensor) -> Tensor:
    """The learned position of each patch, resampled from the square table: `[I, P, X]` in fp32 or the table's dtype."""
    side, merge = visual.num_grid_per_side, visual.spatial_merge_size
    size_I2 = grid_I2 * merge
    row_taps, row_weights = _taps(row_IP, size_I2[:, 0], side)
    column_taps, column_weights = _taps(column_IP, size_I2[:, 1], side)
    total: Tensor | None = None
    for down in range(2):  # four taps one after the other: all at once would be the largest tensor of the tower
        for across in range(2):
            index = row_taps[..., down] * side + column_taps[..., across]
            weight = row_weights[..., down] * column_weights[..., across]
            part = F.embedding(index, visual.pos_embed.weight) * weight.unsqueeze(-1)
            total = part if total is None else total + part
    assert total is not None
    return total


def rotary(inverse_f: Tensor, row_IP: Tensor, column_IP: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines, and sines with the sign that `turn` needs, `[I, P, 1, 1, d]` in fp32."""
    angles = torch.cat([place.unsqueeze(-1).float() * inverse_f.float() for place in (row_IP, column_IP)], dim=-1)
    return signed_tables(angles.cos(), angles.sin(), (1, 1))


def signed_tables(cos: Tensor, sin: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Half-head tables as whole heads: the first half of the sines is negated, see `turn`."""
    shape = (*cos.shape[:-1], *heads, 2 * cos.shape[-1])
    return torch.cat([cos, cos], dim=-1).view(shape), torch.cat([-sin, sin], dim=-1).view(shape)


def turn(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary embedding of the last dimension: halves trade places, the sign is in the table."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)


def attend(block: Any, x_IPX: Tensor, tables: tuple[Tensor, Tensor], mask_I11P: Tensor | None) -> Tensor:
    """Attention of one block, every image within itself."""
    attention = block.attn
    images, patches, _ = x_IPX.shape
    qkv = attention.qkv(x_IPX).view(images, patches, 3, attention.num_heads, -1)
    turned = turn(qkv[:, :, :2].float(), *tables).to(x_IPX.dtype)  # query and key together: half of the launches
    query, key = (one.transpose(1, 2) for one in turned.unbind(2))
    value = qkv[:, :, 2].transpose(1, 2)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_I11P)
    return attention.proj(attended.transpose(1, 2).reshape(x_IPX.shape))


def embed(visual: Any, rows_IPx: Tensor, patches_IP: Tensor, grid_I2: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Patches as the first block takes them, and the rotary tables."""
    conv = visual.patch_embed.proj  # its stride is its kernel: a matrix product
    x = F.linear(rows_IPx.to(conv.weight.dtype), conv.weight.flatten(1), conv.bias)
    row_IP, column_IP = patch_places(patches_IP, grid_I2[:, 1], visual.spatial_merge_size)
    x = x + learned_places(visual, row_IP, column_IP, grid_I2).to(x.dtype)
    return x, rotary(visual.rotary_pos_emb.inv_freq, row_IP, column_IP)


class Heard(NamedTuple):
    """Small copies that windows attend to: patches, the patch of the full grid that each stands at, which are real."""

    rows_ICx: Tensor
    patches_IC: Tensor
    mask_IC: Tensor


def see(
    visual: Any,
    rows_IPx: Tensor,
    cells_IK: Tensor,
    grid_I2: Tensor,
    mask_IK: Tensor | None = None,
    heard: Heard | None = None,
) -> tuple[Tensor, Tensor]:
    """Visual tokens of all slots, `[E, I * K, D]`: the merged ones first, then the DeepStack levels.

    Also the last hidden states before the merger, `[I, P, X]`.

    `rows_IPx` are the patches of each image's windows, `cells_IK` their places on grids of `grid_I2` cells (height,
    width), `mask_IK` True for real ones. What is `heard` goes along, and is not handed on.
    """
    window, own = visual.spatial_merge_size**2, rows_IPx.shape[1]
    patches_IP = patches_of(cells_IK, window)
    real_IP = None if mask_IK is None else mask_IK.repeat_interleave(window, dim=1, output_size=own)
    if heard is not None:
        real_IP = torch.ones_like(patches_IP, dtype=torch.bool) if real_IP is None else real_IP
        windows = (rows_IPx, patches_IP, real_IP)
        rows_IPx, patches_IP, real_IP = (torch.cat(both, dim=1) for both in zip(windows, heard, strict=True))
    x, tables = embed(visual, rows_IPx, patches_IP, grid_I2)
    mask = None if real_IP is None else real_IP[:, None, None]
    levels: list[Tensor] = []
    for number, block in enumerate(visual.blocks):
        x = x + attend(block, block.norm1(x), tables, mask)
        x = x + block.mlp(block.norm2(x))
        if number in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(number)]
            levels.append(merger(x[:, :own].contiguous()))
    last = x[:, :own].contiguous()
    return torch.stack([visual.merger(last), *levels]), last


def last_hidden(visual: Any, rows_IPx: Tensor, cells_IK: Tensor, grid_I2: Tensor) -> Tensor:
    """The ViT's last hidden states before the merger, `[I, P, X]`."""
    x, tables = embed(visual, rows_IPx, patches_of(cells_IK, visual.spatial_merge_size**2), grid_I2)
    for block in visual.blocks:
        x = x + attend(block, block.norm1(x), tables, None)
        x = x + block.mlp(block.norm2(x))
    return x
