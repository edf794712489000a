"""What happens inside the vision encoder, for selectors that ask for it: its last hidden states, keys and attention.

P patches of an image, N cells (four consecutive patches each), H heads, d size of a head, X width of the ViT.

Fused attention shows no weights. So the input of the last block is kept, its queries and keys are made once more, and
their attention is summed over chunks of queries: memory O(chunk * P), whatever kernel the model itself runs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_position_ids

QUERIES = 256  # rows of the attention matrix that are held at a time


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
    `encode_dense(..., last_input=True)`.
    """
    visual = model.model.visual
    window, block = visual.spatial_merge_size**2, visual.blocks[-1]
    hidden_PX = _last_input(features, len(visual.blocks))
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


def _last_input(features: Any, depth: int) -> Tensor:
    """What went into the last block: the output of the one before, whether only it or all were recorded."""
    recorded: Sequence[Tensor] = features.hidden_states
    return recorded[depth - 2] if len(recorded) == depth else recorded[-2]
