"""Inside the language model: choosing after its first layers, and where an answer's tokens attended.

B rows, L full length, M compact length, T tokens that attend, H W grid of cells, E dropped columns (the most of any
row), K layers that see all, D width, h heads, G key and value heads, d size of a head.

The stock model is neither patched nor copied. A request gets a shallow view of it (the same modules, the same weights)
whose language model is one of the three modules here, so whatever the stock code does around its layers is still done
by it, and two requests do not see each other.

Layers 0 to K-1 keep the keys and values of every token: kept ones in the cache, as everywhere else, dropped ones beside
it. The caller's cache has the compact length in all layers, so masks, beams and positions work as for any other choice.

The first layers see whole sequences of many rows, so rows go through them in parts: what a layer makes on its way, and
a mask, are never there for all rows at once.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, MoeModelOutputWithPast
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb

from arr_coc.attending import kept_indices
from arr_coc.qwen.family import attending_layers
from arr_coc.qwen.request import cells_of

HELD = 2**30  # bytes of attention weights, had they been made, for which rows go through the first layers at once


@dataclass(frozen=True, slots=True)
class Begun:
    """What the first layers made of the whole sequence."""

    layers: int  # K
    hidden_BLD: Tensor  # what goes into layer K
    keys: list[Tensor]  # per layer [B, G, L, d]
    values: list[Tensor]
    mask_BL: Tensor  # bool, False for padding
    attended_BL: Tensor | None  # attention of each row's last token at layer K, mean over heads, fp32; None: not asked


def begin(model: Any, inputs: dict[str, Any], layers: int) -> Begun:
    """Run the first layers of the language model over the whole sequence; `inputs` are those of the stock model."""
    language = model.model.language_model
    if layers >= len(language.layers):
        raise ValueError(f"a language model of {len(language.layers)} layers cannot choose after {layers} of them")
    first = _FirstLayers(language, layers)
    _with_language_model(model, first).model(**inputs)
    assert first.begun is not None
    return first.begun


def go_on(model: Any, begun: Begun, columns_BM: Tensor) -> Any:
    """The stock model, for a sequence whose start went through the first layers; `columns_BM` are left of that start.

    Negative columns are padding. What follows the start goes through all layers.
    """
    return _with_language_model(model, _LaterLayers(model.model.language_model, begun, columns_BM))


def _with_language_model(model: Any, language: nn.Module) -> Any:
    """A shallow view of the stock model with another language model inside."""
    if hasattr(model, "_hf_hook"):
        raise ValueError("a model spread by device_map cannot choose inside: load it on one device")
    outer, inner = copy.copy(model), copy.copy(model.model)
    inner._modules = {**inner._modules, "language_model": language}
    outer._modules = {**outer._modules, "model": inner}
    return outer


class _StandIn(nn.Module):
    """Stands in for the language model of a shallow view."""

    language: Any

    def get_input_embeddings(self) -> nn.Module:
        embeddings: nn.Module = self.language.embed_tokens
        return embeddings


class _FirstLayers(_StandIn):
    """Stands in for the language model, runs its first layers, and remembers what came out."""

    def __init__(self, language: Any, layers: int) -> None:
        super().__init__()
        self.language, self.layers = language, layers
        self.begun: Begun | None = None

    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        visual_pos_masks: Tensor,
        deepstack_visual_embeds: list[Tensor],
        **_: Any,
    ) -> BaseModelOutputWithPast:
        assert len(deepstack_visual_embeds) <= self.layers, "all DeepStack levels are added before anything is dropped"
        rows, length = inputs_embeds.shape[:2]
        each = self.language.config.num_attention_heads * length * length * inputs_embeds.element_size()
        most = max(1, HELD // each)
        parts = [slice(start, start + most) for start in range(0, rows, most)]
        cells = [int(visual_pos_masks[part].sum()) for part in parts]
        levels = [level.split(cells) for level in deepstack_visual_embeds]
        begun = []
        for number, part in enumerate(parts):
            given = inputs_embeds[part], attention_mask[part], position_ids[:, part], visual_pos_masks[part]
            begun.append(self._begin(*given, [level[number] for level in levels]))
        self.begun = _together(begun)
        return BaseModelOutputWithPast(last_hidden_state=self.begun.hidden_BLD)

    def _begin(self, hidden: Tensor, mask_BL: Tensor, position_ids: Tensor, visual_BL: Tensor, levels: Any) -> Begun:
        """Some of the rows; `levels` are what DeepStack adds to their visual tokens."""
        language, cache = self.language, DynamicCache(config=self.language.config)
        mask = create_causal_mask(language.config, hidden, mask_BL, cache, position_ids[0])
        rotation = language.rotary_emb(hidden, position_ids[1:])
        given = {"attention_mask": mask, "past_key_values": cache, "position_embeddings": rotation}
        for number, layer in enumerate(language.layers[: self.layers]):
            hidden = layer(hidden, position_ids=position_ids[0], **given)
            if number < len(levels):
                hidden = language._deepstack_process(hidden, visual_BL, levels[number])
        held = cache.layers[: self.layers]
        attended_BL = last_attention(language.layers[self.layers], hidden, rotation, mask_BL.bool())
        keys, values = [layer.keys for layer in held], [layer.values for layer in held]
        return Begun(self.layers, hidden, keys, values, mask_BL.bool(), attended_BL)


def _together(parts: list[Begun]) -> Begun:
    """What was begun in parts, as one."""
    if len(parts) == 1:
        return parts[0]
    keys, values = (
        [torch.cat(one) for one in zip(*states, strict=True)]
        for states in ([part.keys for part in parts], [part.values for part in parts])
    )
    rows = [(part.hidden_BLD, part.mask_BL, part.attended_BL) for part in parts if part.attended_BL is not None]
    hidden_BLD, mask_BL, attended_BL = (torch.cat(one) for one in zip(*rows, strict=True))
    return Begun(parts[0].layers, hidden_BLD, keys, values, mask_BL, attended_BL)


def keys_of(layer: Any, hidden_BLD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Keys of a decoder layer for what goes into it, turned, `[B, G, L, d]`."""
    attention = layer.self_attn
    projected = attention.k_proj(layer.input_layernorm(hidden_BLD)).unflatten(-1, (-1, attention.head_dim))
    return turned(attention.k_norm(projected).transpose(1, 2), rotation)


def turned(states_BHTd: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys turned by their positions; where the tables are narrower than a head, its first part is."""
    part, rest = states_BHTd.split([width := rotation[0].shape[-1], states_BHTd.shape[-1] - width], dim=-1)
    return torch.cat([apply_rotary_pos_emb(part, part, *rotation)[0], rest], dim=-1)


@torch.no_grad()
def attention_heads(
    layer: Any, hidden_BTD: Tensor, rotation: tuple[Tensor, Tensor], keys_BGLd: Tensor, mask_BTL: Tensor
) -> Tensor:
    """Attention of some tokens of each row over `keys_BGLd` at a decoder layer, for each head, `[B, h, T, L]` fp32.

    `hidden_BTD` is what goes into the layer at those tokens, `rotation` are their tables, `[B, T, d]`. A few rows of
    the attention matrix: no need for a kernel that shows its weights.
    """
    attention = layer.self_attn
    projected = attention.q_proj(layer.input_layernorm(hidden_BTD))
    count = keys_BGLd.shape[1] * attention.num_key_value_groups
    heads = projected.unflatten(-1, (count, -1))  # with Qwen3.5, a gate behind each
    query = turned(attention.q_norm(heads[..., : attention.head_dim]).transpose(1, 2), rotation)
    key = keys_BGLd.repeat_interleave(attention.num_key_value_groups, dim=1)
    logits_BHTL = (query.float() @ key.float().transpose(-1, -2)) * attention.scaling
    return logits_BHTL.masked_fill(~mask_BTL.unsqueeze(1), -torch.inf).softmax(-1)


def attention_row(
    layer: Any, hidden_BD: Tensor, rotation: tuple[Tensor, Tensor], keys_BGLd: Tensor, mask_BL: Tensor
) -> Tensor:
    """As `attention_heads` for one token of each row, `[B, h, L]`; its tables are `[B, 1, d]`."""
    return attention_heads(layer, hidden_BD.unsqueeze(1), rotation, keys_BGLd, mask_BL.unsqueeze(1)).squeeze(2)


def last_attention(layer: Any, hidden_BLD: Tensor, rotation: tuple[Tensor, Tensor], mask_BL: Tensor) -> Tensor:
    """Attention of each row's last token over its row at a decoder layer, mean over heads, `[B, L]` fp32."""
    rows = torch.arange(mask_BL.shape[0], device=mask_BL.device)
    last_B = (mask_BL * torch.arange(mask_BL.shape[1], device=mask_BL.device)).amax(-1)
    cos, sin = rotation
    turn = cos[rows, last_B].unsqueeze(1), sin[rows, last_B].unsqueeze(1)
    return attention_row(layer, hidden_BLD[rows, last_B], turn, keys_of(layer, hidden_BLD, rotation), mask_BL).mean(1)


class _LaterLayers(_StandIn):
    """Stands in for the language model: goes on where the first layers stopped, and takes what follows through all."""

    def __init__(self, language: Any, begun: Begun, columns_BM: Tensor) -> None:
        super().__init__()
        self.language, self.layers = language, begun.layers
        real_BM, place_BM = columns_BM >= 0, columns_BM.clamp(min=0)
        kept_BL = torch.zeros_like(begun.mask_BL, dtype=torch.long).scatter_add(1, place_BM, real_BM.long()) > 0
        dropped_BE, self.dropped_mask_BE = kept_indices(begun.mask_BL & ~kept_BL)
        self.hidden_BMD = begun.hidden_BLD.gather(1, place_BM.unsqueeze(-1).expand(-1, -1, begun.hidden_BLD.shape[-1]))
        states = list(zip(begun.keys, begun.values, strict=True))
        self.kept = [(_columns(key, place_BM), _columns(value, place_BM)) for key, value in states]
        self.dropped = [(_columns(key, dropped_BE), _columns(value, dropped_BE)) for key, value in states]

    def forward(
        self,
        inputs_embeds: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        visual_pos_masks: Tensor | None = None,
        deepstack_visual_embeds: list[Tensor] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """As the stock's, but where something was dropped nothing is recorded."""
        language = self.language
        cache = DynamicCache(config=language.config) if past_key_values is None else past_key_values
        past, levels = cache.get_seq_length(), deepstack_visual_embeds or []
        recorded = kwargs.get("output_attentions") or kwargs.get("output_hidden_states")
        whole_mask = attention_mask is None or attention_mask.ndim == 2
        if not self.dropped_mask_BE.shape[1] and (past or recorded or not whole_mask):
            stock: BaseModelOutputWithPast = language(
                inputs_embeds=inputs_embeds,
                position_ids=position_ids,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                use_cache=use_cache,
                visual_pos_masks=visual_pos_masks,
                deepstack_visual_embeds=deepstack_visual_embeds,
                **kwargs,
            )
            return stock
        if attention_mask is None:
            attention_mask = position_ids.new_ones(inputs_embeds.shape[0], past + inputs_embeds.shape[1])
        if attention_mask.ndim != 2:
            raise ValueError("a choice inside the language model needs a dynamic cache: leave cache_implementation out")
        mask = create_causal_mask(language.config, inputs_embeds, attention_mask, cache, position_ids[0])
        rotation = language.rotary_emb(inputs_embeds, position_ids[1:])
        times = inputs_embeds.shape[0] // self.hidden_BMD.shape[0]
        begun = []
        if past == 0:  # what was kept goes on, its keys and values into the cache; `times` rows per prompt
            begun.append(self.hidden_BMD.repeat_interleave(times, 0))
            for number, (key, value) in enumerate(self.kept):
                cache.update(key.repeat_interleave(times, 0), value.repeat_interleave(times, 0), number)
        start = sum(part.shape[1] for part in begun)
        if start < inputs_embeds.shape[1]:
            new, turn = inputs_embeds[:, start:], (rotation[0][:, start:], rotation[1][:, start:])
            begun.append(self._first_layers(new, attention_mask, turn, cache, times, visual_pos_masks, levels))
        hidden = torch.cat(begun, dim=1)
        for number, layer in enumerate(language.layers[self.layers :], self.layers):
            hidden = layer(hidden, attention_mask=mask, past_key_values=cache, position_embeddings=rotation)
            if number < len(levels):
                hidden = language._deepstack_process(hidden, visual_pos_masks, levels[number])
        kept = None if use_cache is False else cache
        return BaseModelOutputWithPast(last_hidden_state=language.norm(hidden), past_key_values=kept)

    def _first_layers(
        self,
        hidden: Tensor,
        attention_mask: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: Any,
        times: int,
        visual_BM: Tensor | None,
        levels: list[Tensor],
    ) -> Tensor:
        """New tokens, the last columns, through the first layers, which see the dropped tokens too.

        `visual_BM` and `levels` are of all columns: what DeepStack adds to the new ones is taken out of them.
        """
        dropped = [(key.repeat_interleave(times, 0), value.repeat_interleave(times, 0)) for key, value in self.dropped]
        beside = _Beside(cache, dropped)
        seen = torch.cat([self.dropped_mask_BE.repeat_interleave(times, 0), attention_mask.bool()], dim=1)
        mask = create_causal_mask(self.language.config, hidden, seen, beside)
        if visual_BM is not None:
            start = visual_BM.shape[1] - hidden.shape[1]
            new = visual_BM.nonzero()[:, 1] >= start
            visual_BM, levels = visual_BM[:, start:], [level[new] for level in levels]
        for number, layer in enumerate(self.language.layers[: self.layers]):
            hidden = layer(hidden, attention_mask=mask, past_key_values=beside, position_embeddings=rotation)
            if number < len(levels):
                hidden = self.language._deepstack_process(hidden, visual_BM, levels[number])
        return hidden


class _Beside:
    """A cache whose first layers also hold the dropped tokens, in front of what is in the cache itself."""

    is_compileable = False

    def __init__(self, cache: Any, dropped: list[tuple[Tensor, Tensor]]) -> None:
        self.cache, self.dropped = cache, dropped
        self.more = dropped[0][0].shape[2]

    def update(self, key: Tensor, value: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        key, value = self.cache.update(key, value, layer, *args, **kwargs)
        return torch.cat([self.dropped[layer][0], key], dim=2), torch.cat([self.dropped[layer][1], value], dim=2)

    def get_query_offset(self, layer: int = 0) -> Any:
        return self.more + self.cache.get_seq_length(layer)

    def get_mask_sizes(self, queries: int, layer: int) -> tuple[int, int]:
        length, offset = self.cache.get_mask_sizes(queries, layer)
        return length + self.more, offset


def _columns(states_BGLd: Tensor, place_BM: Tensor) -> Tensor:
    """Keys or values at some columns of each row, `[B, G, M, d]`."""
    index = place_BM[:, None, :, None].expand(-1, states_BGLd.shape[1], -1, states_BGLd.shape[-1])
    return states_BGLd.gather(2, index)


# ---------------------------------------------------------------- where tokens attended


class _Read(_StandIn):
    """Stands in for the language model, and sums up layer by layer where marked tokens attend: one layer at a time."""

    def __init__(self, language: Any, asks_BL: Tensor, layers: int) -> None:
        super().__init__()
        self.language, self.asks_BL, self.layers = language, asks_BL, layers
        self.total_BL = torch.zeros(asks_BL.shape, device=asks_BL.device)

    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        visual_pos_masks: Tensor | None = None,
        deepstack_visual_embeds: Sequence[Tensor] = (),
        **_: Any,
    ) -> MoeModelOutputWithPast:
        language, hidden, mask_BL = self.language, inputs_embeds, attention_mask.bool()
        mask = create_causal_mask(language.config, hidden, attention_mask, None)
        attend = [number for number in attending_layers(language.config) if number < self.layers]
        cos, sin = language.rotary_emb(hidden, position_ids[-3:])  # time, height and width are the last rows
        place_BT, real_BT = kept_indices(self.asks_BL)
        rows_B1 = torch.arange(len(place_BT), device=place_BT.device).unsqueeze(1)
        columns_L = torch.arange(mask_BL.shape[1], device=mask_BL.device)
        seen_BTL = mask_BL.unsqueeze(1) & (columns_L <= place_BT.unsqueeze(-1))
        seen_BTL |= ~real_BT.unsqueeze(-1)  # what fills up a row counts nothing, and must be a number
        share_BT = real_BT / real_BT.sum(1, keepdim=True).clamp(min=1)
        turn = cos[rows_B1, place_BT], sin[rows_B1, place_BT]
        for number, layer in enumerate(language.layers[: self.layers]):
            if number in attend:
                keys = keys_of(layer, hidden, (cos, sin))
                attended_BTL = attention_heads(layer, hidden[rows_B1, place_BT], turn, keys, seen_BTL).mean(1)
                self.total_BL += torch.einsum("btl,bt->bl", attended_BTL, share_BT) / len(attend)
            if number + 1 == self.layers:
                break  # nobody asks what comes out
            sees = mask if number in attend else attention_mask  # a layer that passes a state along reads the padding
            hidden = layer(hidden, attention_mask=sees, position_embeddings=(cos, sin))
            if number < len(deepstack_visual_embeds):
                hidden = language._deepstack_process(hidden, visual_pos_masks, deepstack_visual_embeds[number])
        return MoeModelOutputWithPast(last_hidden_state=hidden)  # experts' models ask for what routed them


@torch.no_grad()
def attended(model: Any, inputs: dict[str, Any], asks_BL: Tensor, layers: int | None = None) -> Tensor:
    """Attention of the marked tokens of each row over that row, mean over tokens, heads and layers, `[B, L]` fp32.

    Runs the stock model over `inputs`, its own, once more; with `layers`, so many of its first layers. Those count that
    attend. Padding may be on either side; a row marks at least one.
    """
    language = model.model.language_model
    read = _Read(language, asks_BL, layers or len(language.layers))
    _with_language_model(model, read).model(**inputs)
    return read.total_BL


@torch.no_grad()
def answer_attention(model: Any, inputs: dict[str, Tensor], answer_ids_T: Tensor) -> list[Tensor]:
    """Attention of the answer's tokens on each image of one conversation, `[H, W]`, mean over heads and layers, peak 1.

    Runs the stock model once more over prompt and answer; without an answer, the last token of the prompt is asked.
    """
    prompt = inputs["input_ids"]
    ids = torch.cat([prompt, answer_ids_T.view(1, -1).to(prompt)], dim=1).to(model.device)
    is_image_BL = ids == model.config.image_token_id
    images = {name: inputs[name].to(model.device) for name in ("pixel_values", "image_grid_thw")}
    # The token before each answer token predicts it: its row says where that came from.
    asks_BL = torch.zeros_like(is_image_BL)
    asks_BL[:, prompt.shape[1] - 1 : max(prompt.shape[1], ids.shape[1] - 1)] = True
    about = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": is_image_BL.int(), **images}
    found_N = attended(model, about, asks_BL)[is_image_BL]
    grids = cells_of(inputs["image_grid_thw"], model.config.vision_config.spatial_merge_size)
    per_image = found_N.split([height * width for height, width in grids])
    return [(values / values.max().clamp(min=1e-12)).view(grid) for values, grid in zip(per_image, grids, strict=True)]
