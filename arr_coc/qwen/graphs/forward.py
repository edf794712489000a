"""An own forward over the stock modules' weights, of fixed shapes, so that it can be recorded.

D width of the language model, H heads, G heads that share one key, d size of a head, f = d / 2, E = 1 + DeepStack
levels, V slots of visual tokens, B rows, M places of a prompt, S places of the cache.

The vision tower is `arr_coc.qwen.tower`; the language model runs over a static cache. Prompts are padded on the right,
so causal attention hides the padding by itself; new tokens then overwrite it in the cache, each row at its own place.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.qwen.tower import signed_tables, turn

HELD = 1 << 22  # keys of a first look that are multiplied at once: together they take fewer launches

# ---------------------------------------------------------------- language


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class StaticCache:
    """Keys and values of all layers: `[layers, 2, B, H / G, S, d]`. What stands beyond a row's length is never read."""

    stored: Tensor

    @classmethod
    def empty(cls, model: Any, batch: int, capacity: int) -> "StaticCache":
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


def turned(attention: Any, kind: str, x_BMD: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Queries `[B, H, M, d]` (`kind` "q") or keys `[B, H / G, M, d]` ("k") of one layer, turned."""
    heads = getattr(attention, f"{kind}_proj")(x_BMD).view(*x_BMD.shape[:2], -1, attention.head_dim)
    return turn(norm(getattr(attention, f"{kind}_norm"), heads), *tables).transpose(1, 2)


def project(attention: Any, x_BMD: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Query `[B, H, M, d]`, key and value `[B, H / G, M, d]` of one layer, turned."""
    value = attention.v_proj(x_BMD).view(*x_BMD.shape[:2], -1, attention.head_dim).transpose(1, 2)
    return turned(attention, "q", x_BMD, tables), turned(attention, "k", x_BMD, tables), value


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


def embed_prompt(language: Any, ids_BM: Tensor, visual_BM: Tensor, features_EVD: Tensor) -> Tensor:
    """What the first layer takes, `[B, M, D]`: words, and visual tokens in the slots that `visual_BM` names."""
    x = language.embed_tokens(ids_BM)
    return torch.where((visual_BM >= 0).unsqueeze(-1), features_EVD[0][visual_BM.clamp(min=0)].to(x.dtype), x)


def add_level(x_BMD: Tensor, number: int, visual_BM: Tensor, features_EVD: Tensor) -> Tensor:
    """What layer `number` hands on: with a DeepStack level added to visual tokens, where there is one for it."""
    if number + 1 >= features_EVD.shape[0]:
        return x_BMD
    level = features_EVD[number + 1][visual_BM.clamp(min=0)].to(x_BMD.dtype)
    return x_BMD + torch.where((visual_BM >= 0).unsqueeze(-1), level, torch.zeros_like(level))


def prefill(
    model: Any,
    cache: StaticCache,
    axis_f: Tensor,
    ids_BM: Tensor,
    visual_BM: Tensor,
    positions_3BM: Tensor,
    lengths_B: Tensor,
    features_EVD: Tensor,
) -> Tensor:
    """Run padded prompts, fill the cache, and give the logits `[B, words]` after each row's last token."""
    language = model.model.language_model
    x = embed_prompt(language, ids_BM, visual_BM, features_EVD)
    length = ids_BM.shape[1]
    tables = text_rotary(language.rotary_emb, axis_f, positions_3BM, x.dtype, (1,))
    for number, layer in enumerate(language.layers):
        query, key, value = project(layer.self_attn, norm(layer.input_layernorm, x), tables)
        keys, values = cache.of(number)
        keys[:, :, :length].copy_(key)
        values[:, :, :length].copy_(value)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = add_level(finish(layer, x, attended), number, visual_BM, features_EVD)
    last_B1D = (lengths_B - 1).view(-1, 1, 1).expand(-1, 1, x.shape[-1])
    return logits_of(model, x.gather(1, last_B1D).squeeze(1))


def products(asks: list[Tensor], keys: list[Tensor]) -> Tensor:
    """One query of each row, `[B, H, d]`, and all keys `[B, H / G, M, d]`, of some layers: `[layers, B, H, M]` fp32."""
    key = torch.stack(keys).float()
    query = torch.stack(asks).float().unflatten(2, (key.shape[2], -1))
    return (query @ key.transpose(-1, -2)).flatten(2, 3)


def read_first(
    model: Any,
    layers: int,
    axis_f: Tensor,
    ids_BM: Tensor,
    visual_BM: Tensor,
    positions_3BM: Tensor,
    lengths_B: Tensor,
    features_EVD: Tensor,
) -> Tensor:
    """Attention of each row's last token over its row, by head of the first `layers` layers: `[B, layers * H, M]` fp32.

    One row of each layer's matrix. Of the last of these layers nothing is needed but keys and that one query.
    """
    language = model.model.language_model
    x = embed_prompt(language, ids_BM, visual_BM, features_EVD)
    tables = text_rotary(language.rotary_emb, axis_f, positions_3BM, x.dtype, (1,))
    row_B, last_B = torch.arange(x.shape[0], device=x.device), lengths_B - 1
    asks: list[Tensor] = []
    keys: list[Tensor] = []
    logits: list[Tensor] = []
    for number, layer in enumerate(language.layers[:layers]):
        attention, inside = layer.self_attn, norm(layer.input_layernorm, x)
        if number + 1 < layers:
            query, key, value = project(attention, inside, tables)
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            x = add_level(finish(layer, x, attended), number, visual_BM, features_EVD)
            asks_BHd = query[row_B, :, last_B]
        else:
            key = turned(attention, "k", inside, tables)
            cos, sin = (one[row_B, last_B].unsqueeze(1) for one in tables)
            asks_BHd = turned(attention, "q", inside[row_B, last_B].unsqueeze(1), (cos, sin)).squeeze(2)
        asks.append(asks_BHd)
        keys.append(key)
        if len(keys) * key.numel() >= HELD or number + 1 == layers:
            logits.append(products(asks, keys))
            asks, keys = [], []
    hidden_BM = torch.arange(x.shape[1], device=x.device) >= lengths_B.unsqueeze(1)
    logits_KBHM = torch.cat(logits) * attention.scaling  # that of all layers
    attended_KBHM = logits_KBHM.masked_fill(hidden_BM.unsqueeze(1), -torch.inf).softmax(-1)
    return attended_KBHM.transpose(0, 1).flatten(1, 2)


def step(
    model: Any, cache: StaticCache, axis_f: Tensor, token_B: Tensor, position_B: Tensor, length_B: Tensor
) -> Tensor:
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
