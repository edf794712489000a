"""The vision tower over padded sets of windows: all images of a request in one call, whatever their sizes.

I images, K slots of an image, P = 4 K patches, N cells, X width of the ViT, D width of the language model, H heads,
d size of a head, E = 1 + DeepStack levels.

The weights are the stock modules'. Nothing depends on the image's size but two numbers per image, so one recording
serves images of all sizes. Slots beyond an image's windows are hidden from attention by a mask; without any, there is
none, and attention takes its fastest way.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def patch_places(cells_IK: Tensor, width_I: Tensor, merge: int) -> tuple[Tensor, Tensor]:
    """Row and column of each patch `[I, P]`, window by window, from flat cells and the images' widths in cells."""
    within = torch.arange(merge * merge, device=cells_IK.device)
    y_IK, x_IK = cells_IK // width_I.unsqueeze(1), cells_IK % width_I.unsqueeze(1)
    rows = y_IK.unsqueeze(-1) * merge + within // merge
    columns = x_IK.unsqueeze(-1) * merge + within % merge
    return rows.flatten(1), columns.flatten(1)


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


def embed(visual: Any, rows_IPx: Tensor, cells_IK: Tensor, grid_I2: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Patches as the first block takes them, and the rotary tables."""
    conv = visual.patch_embed.proj  # its stride is its kernel: a matrix product
    x = F.linear(rows_IPx.to(conv.weight.dtype), conv.weight.flatten(1), conv.bias)
    row_IP, column_IP = patch_places(cells_IK, grid_I2[:, 1], visual.spatial_merge_size)
    x = x + learned_places(visual, row_IP, column_IP, grid_I2).to(x.dtype)
    return x, rotary(visual.rotary_pos_emb.inv_freq, row_IP, column_IP)


def see(visual: Any, rows_IPx: Tensor, cells_IK: Tensor, grid_I2: Tensor, mask_IK: Tensor | None = None) -> Tensor:
    """Visual tokens of all slots, `[E, I * K, D]`: the merged ones first, then the DeepStack levels.

    `rows_IPx` are the patches of each image's windows, `cells_IK` their places on grids of `grid_I2` cells (height,
    width), `mask_IK` True for real ones.
    """
    x, tables = embed(visual, rows_IPx, cells_IK, grid_I2)
    mask = None
    if mask_IK is not None:
        mask = mask_IK.repeat_interleave(visual.spatial_merge_size**2, dim=1, output_size=x.shape[1])[:, None, None]
    levels: list[Tensor] = []
    for number, block in enumerate(visual.blocks):
        x = x + attend(block, block.norm1(x), tables, mask)
        x = x + block.mlp(block.norm2(x))
        if number in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(number)]
            levels.append(merger(x))
    return torch.stack([visual.merger(x), *levels])


def last_hidden(visual: Any, rows_IPx: Tensor, cells_IK: Tensor, grid_I2: Tensor) -> Tensor:
    """The ViT's last hidden states before the merger, `[I, P, X]`."""
    x, tables = embed(visual, rows_IPx, cells_IK, grid_I2)
    for block in visual.blocks:
        x = x + attend(block, block.norm1(x), tables, None)
        x = x + block.mlp(block.norm2(x))
    return x
