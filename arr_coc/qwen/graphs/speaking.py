"""The language model over a static cache: prefill of padded prompts, and one step of decoding.

B rows, M places of a prompt, S places of the cache, V slots of visual tokens, E = 1 + DeepStack levels, D width,
H heads, G heads that share one key, d size of a head, f = d / 2.

The weights are the stock modules'. Prompts are padded on the right, so causal attention hides the padding by itself;
new tokens then overwrite it in the cache, each row at its own place.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.qwen.graphs.seeing import signed_tables, turn


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Cache:
    """Keys and values of all layers: `[layers, 2, B, H / G, S, d]`. What stands beyond a row's length is never read."""

    stored: Tensor

    @classmethod
    def empty(cls, model: Any, batch: int, capacity: int) -> "Cache":
        language = model.model.language_model
        first = language.layers[0].self_attn
        heads = first.k_proj.weight.shape[0] // first.head_dim
        shape = (len(language.layers), 2, batch, heads, capacity, first.head_dim)
        weight = first.k_proj.weight
        return cls(torch.zeros(shape, dtype=weight.dtype, device=weight.device))

    @property
    def capacity(self) -> int:
        return self.stored.shape[4]

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.stored[layer, 0], self.stored[layer, 1]


def axis_of_frequency(rotary: Any) -> list[int]:
    """Which of t, h, w turns each frequency: Qwen3-VL interleaves them."""
    axes = [0] * int(rotary.inv_freq.shape[0])
    for axis in (1, 2):
        for index in range(axis, min(len(axes), rotary.mrope_section[axis] * 3), 3):
            axes[index] = axis
    return axes


def text_rotary(
    rotary: Any, axis_f: Tensor, positions_3BM: Tensor, dtype: torch.dtype, heads: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines `[B, M, *heads, d]`, rounded to `dtype` as the stock model does."""
    chosen_BMf = positions_3BM.index_select(0, axis_f).permute(1, 2, 0)
    angles = chosen_BMf.float() * rotary.inv_freq.float()
    cos, sin = signed_tables(angles.cos(), angles.sin(), heads)
    return cos.to(dtype), sin.to(dtype)


def norm(module: Any, x: Tensor) -> Tensor:
    """A stock RMS norm in one launch."""
    return F.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)


def project(attention: Any, x_BMD: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Query `[B, H, M, d]`, key and value `[B, H / G, M, d]` of one layer, turned."""
    heads = (*x_BMD.shape[:2], -1, attention.head_dim)
    query = turn(norm(attention.q_norm, attention.q_proj(x_BMD).view(heads)), *tables)
    key = turn(norm(attention.k_norm, attention.k_proj(x_BMD).view(heads)), *tables)
    value = attention.v_proj(x_BMD).view(heads)
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def finish(layer: Any, x_BMD: Tensor, attended_BHMd: Tensor) -> Tensor:
    """Output projection and MLP of one layer, with their residuals."""
    x = x_BMD + layer.self_attn.o_proj(attended_BHMd.transpose(1, 2).flatten(2))
    mlp: Tensor = layer.mlp(norm(layer.post_attention_layernorm, x))
    return x + mlp


def logits_of(model: Any, hidden_BD: Tensor) -> Tensor:
    """Scores over the vocabulary `[B, words]` in fp32."""
    head: Tensor = model.lm_head(norm(model.model.language_model.norm, hidden_BD))
    return head.float()


def places_of(base_BM: Tensor, visual_BM: Tensor, cells_V: Tensor, width_V: Tensor, policy: str) -> Tensor:
    """(t, h, w) of every token, `[3, B, M]`: visual tokens stand where they stood in the full image."""
    positions_3BM = base_BM.expand(3, -1, -1)
    if policy == "compact":
        return positions_3BM
    offsets_3V = torch.stack([torch.zeros_like(cells_V), cells_V // width_V, cells_V % width_V])
    offsets_3BM = offsets_3V[:, visual_BM.clamp(min=0)]
    return positions_3BM + offsets_3BM * (visual_BM >= 0)


def prefill(
    model: Any,
    cache: Cache,
    axis_f: Tensor,
    ids_BM: Tensor,
    visual_BM: Tensor,
    positions_3BM: Tensor,
    lengths_B: Tensor,
    features_EVD: Tensor,
) -> Tensor:
    """Run padded prompts, fill the cache, and give the logits `[B, words]` after each row's last token."""
    language = model.model.language_model
    is_visual_BM1 = (visual_BM >= 0).unsqueeze(-1)
    slot_BM = visual_BM.clamp(min=0)
    x = language.embed_tokens(ids_BM)
    x = torch.where(is_visual_BM1, features_EVD[0][slot_BM].to(x.dtype), x)
    length = ids_BM.shape[1]
    tables = text_rotary(language.rotary_emb, axis_f, positions_3BM, x.dtype, (1,))
    for number, layer in enumerate(language.layers):
        query, key, value = project(layer.self_attn, norm(layer.input_layernorm, x), tables)
        keys, values = cache.of(number)
        keys[:, :, :length].copy_(key)
        values[:, :, :length].copy_(value)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = finish(layer, x, attended)
        if number + 1 < features_EVD.shape[0]:
            level = features_EVD[number + 1][slot_BM].to(x.dtype)
            x = x + torch.where(is_visual_BM1, level, torch.zeros_like(level))
    last_B1D = (lengths_B - 1).view(-1, 1, 1).expand(-1, 1, x.shape[-1])
    return logits_of(model, x.gather(1, last_B1D).squeeze(1))


def step(model: Any, cache: Cache, axis_f: Tensor, token_B: Tensor, position_B: Tensor, length_B: Tensor) -> Tensor:
    """One new token per row at place `length_B` of the cache: the logits `[B, words]` of the next."""
    language = model.model.language_model
    batch = token_B.shape[0]
    x = language.embed_tokens(token_B).unsqueeze(1)
    tables = text_rotary(language.rotary_emb, axis_f, position_B.view(1, batch, 1).expand(3, -1, -1), x.dtype, (1,))
    visible_B11S = (torch.arange(cache.capacity, device=x.device) <= length_B.unsqueeze(1))[:, None, None]
    for number, layer in enumerate(language.layers):
        query, key, value = project(layer.self_attn, norm(layer.input_layernorm, x), tables)
        keys, values = cache.of(number)
        place = length_B.view(batch, 1, 1, 1).expand_as(key)
        keys.scatter_(2, place, key)
        values.scatter_(2, place, value)
        # The heads that share a key stand as queries beside each other: no key is copied for them.
        grouped = query.reshape(batch, key.shape[1], -1, query.shape[-1])
        attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=visible_B11S)
        x = finish(layer, x, attended.reshape(query.shape))
    return logits_of(model, x.squeeze(1))
