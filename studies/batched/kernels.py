"""The arithmetic of one Qwen3-VL block between its attentions, as plain functions over weights.

Every function works on a flat list of tokens and knows nothing of batches, so torch.compile sees one
dynamic dimension (the number of tokens) and compiles each of them once, whatever the image sizes.
Attention itself is left to `scaled_dot_product_attention`, which needs no compiler.

T tokens, D hidden, H heads, d size of a head, C cells (four patches each). The residual stream keeps
the dtype of the weights; matrix products run in `dtype`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Weights = tuple[Tensor, ...]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x @ weight.T + bias in `dtype`."""
    return F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32."""
    x = x.float()
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def rotate(x_THd: Tensor, cos_Tf: Tensor, sin_Tf: Tensor) -> Tensor:
    """Rotary embedding; the tables hold half a head (f = d / 2), since both halves turn by the same angle."""
    first, second = x_THd.float().chunk(2, dim=-1)
    cos, sin = cos_Tf[:, None], sin_Tf[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def vision_qkv(
    x_TD: Tensor, cos_Tf: Tensor, sin_Tf: Tensor, weights: Weights, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Norm, projection and rotation of one vision block: query, key, value, each [T, H, d]."""
    norm_w, norm_b, qkv_w, qkv_b = weights
    x = F.layer_norm(x_TD, (norm_w.shape[0],), norm_w, norm_b, 1e-6)
    head = 2 * cos_Tf.shape[-1]
    qkv = linear(x, qkv_w, qkv_b, dtype).view(x.shape[0], 3, norm_w.shape[0] // head, head)
    query, key, value = qkv.unbind(1)
    return (
        rotate(query, cos_Tf, sin_Tf).to(dtype),
        rotate(key, cos_Tf, sin_Tf).to(dtype),
        value.contiguous(),
    )


def vision_rest(x_TD: Tensor, attended_TD: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """The second half of a vision block: output projection, then the MLP, both with their residuals."""
    proj_w, proj_b, norm_w, norm_b, up_w, up_b, down_w, down_b = weights
    x = x_TD + linear(attended_TD, proj_w, proj_b, dtype)
    h = F.layer_norm(x, (norm_w.shape[0],), norm_w, norm_b, 1e-6)
    h = F.gelu(linear(h, up_w, up_b, dtype), approximate="tanh")
    return x + linear(h, down_w, down_b, dtype)


def merge(x_C4D: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """Patch merger: four patches become one visual token. A norm of the window's width follows joining."""
    norm_w, norm_b, first_w, first_b, second_w, second_b = weights
    if norm_w.shape[0] == first_w.shape[1]:
        x = F.layer_norm(x_C4D.flatten(1), (norm_w.shape[0],), norm_w, norm_b, 1e-6)
    else:
        x = F.layer_norm(x_C4D, (norm_w.shape[0],), norm_w, norm_b, 1e-6).flatten(1)
    x = F.gelu(linear(x, first_w, first_b, dtype))
    return linear(x, second_w, second_b, dtype)


def text_qkv(
    x_TD: Tensor, cos_Tf: Tensor, sin_Tf: Tensor, weights: Weights, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Norm, projections, head norms and rotation of a decoder layer. Key and value repeat to H heads."""
    norm_w, q_w, k_w, v_w, q_norm, k_norm = weights
    x = rms_norm(x_TD, norm_w)
    head = q_norm.shape[0]
    query = linear(x, q_w, None, dtype).unflatten(-1, (q_w.shape[0] // head, head))
    key = linear(x, k_w, None, dtype).unflatten(-1, (k_w.shape[0] // head, head))
    value = linear(x, v_w, None, dtype).unflatten(-1, (v_w.shape[0] // head, head))
    repeats = q_w.shape[0] // k_w.shape[0]
    query = rotate(rms_norm(query, q_norm), cos_Tf, sin_Tf).to(dtype)
    key = rotate(rms_norm(key, k_norm), cos_Tf, sin_Tf).to(dtype)
    return query, key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)


def text_rest(x_TD: Tensor, attended_TD: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    """The second half of a decoder layer: output projection, then the gated MLP, each with its residual."""
    o_w, norm_w, gate_w, up_w, down_w = weights
    x = x_TD + linear(attended_TD, o_w, None, dtype)
    h = rms_norm(x, norm_w)
    h = F.silu(linear(h, gate_w, None, dtype)) * linear(h, up_w, None, dtype)
    return x + linear(h, down_w, None, dtype)


def vision_weights(block: nn.Module) -> tuple[Weights, Weights]:
    """(`vision_qkv` weights, `vision_rest` weights) of a stock vision block."""
    b: Any = block
    first = (b.norm1.weight, b.norm1.bias, b.attn.qkv.weight, b.attn.qkv.bias)
    rest = (b.attn.proj.weight, b.attn.proj.bias, b.norm2.weight, b.norm2.bias)
    mlp = (b.mlp.linear_fc1.weight, b.mlp.linear_fc1.bias, b.mlp.linear_fc2.weight, b.mlp.linear_fc2.bias)
    return first, rest + mlp


def merger_weights(merger: nn.Module) -> Weights:
    """`merge` weights of a stock patch merger."""
    m: Any = merger
    first = (m.norm.weight, m.norm.bias, m.linear_fc1.weight, m.linear_fc1.bias)
    return (*first, m.linear_fc2.weight, m.linear_fc2.bias)


def text_weights(layer: nn.Module) -> tuple[Weights, Weights]:
    """(`text_qkv` weights, `text_rest` weights) of a stock decoder layer."""
    y: Any = layer
    a = y.self_attn
    first = (y.input_layernorm.weight, a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)
    rest = (a.o_proj.weight, y.post_attention_layernorm.weight)
    mlp = (y.mlp.gate_proj.weight, y.mlp.up_proj.weight, y.mlp.down_proj.weight)
    return (*first, a.q_norm.weight, a.k_norm.weight), rest + mlp
