"""A batched forward over the modules of a stock `Qwen3VLForConditionalGeneration`, for images of one grid.

The stock model runs vision attention image by image; here a batch of equal grids is one call. The result
is the same (tests/test_mini_forward.py), dense and sparse. The sequence is always: lead, image, end mark
(together the prefix, shared by all questions), then any number of independent question turns, each of
which sees the prefix and itself only, at the positions it would have alone. So one pass trains or answers
many questions per image, and every one is exactly the single-turn case.

B batch, N cells of the grid, K kept cells, P patches (4 K), D hidden, H heads, d size of a head,
f = d / 2, S prefix tokens (lead + K + 1), T text tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from arr_coc.qwen import batched
from arr_coc.timing import Stopwatch
from studies.batched import kernels as plain_kernels
from studies.batched.kernels import merger_weights, text_weights, vision_weights

PrefixCache = list[tuple[Tensor, Tensor]]  # per decoder layer: key and value, [B, H, S, d]


@dataclass(frozen=True, slots=True)
class GridTables:
    """What depends on the grid of cells alone; patches are in the model's order, 4 per cell."""

    height: int  # cells
    width: int  # cells
    taps_P4: Tensor  # indices into the learned position table
    weights_P4: Tensor  # bilinear weights of those taps
    cos_Nf: Tensor  # rotary tables, the 4 patches of a cell side by side: [N, 4 f]
    sin_Nf: Tensor


@dataclass(frozen=True, slots=True)
class Seen:
    """What the vision tower hands to the language model."""

    merged_BKD: Tensor
    deepstack_BKD: list[Tensor]
    cells_BK: Tensor | None  # kept cells in increasing order; None: all
    grid: tuple[int, int]  # cells: height, width


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: its tokens without the stop token, and how likely the best two were at each step, the last too."""

    ids: list[int]
    best_T2: list[list[float]]


def grid_tables(model: Any, height: int, width: int, device: torch.device | str) -> GridTables:
    """Tables for a grid of `height` x `width` cells."""
    visual, merge = model.model.visual, model.model.visual.spatial_merge_size
    grid = torch.tensor([[1, height * merge, width * merge]], device=device)
    taps, weights = get_vision_interpolation_indices_and_weights(
        grid, visual.num_grid_per_side, mode="bilinear", align_corners=True, spatial_merge_size=merge
    )
    positions = get_vision_position_ids(grid, merge)
    cos, sin = visual.rotary_pos_emb(positions, positions)
    half = cos.shape[-1] // 2
    cos, sin = (y[:, :half].reshape(height * width, -1) for y in (cos, sin))
    return GridTables(height, width, taps, weights, cos, sin)


def encode_vision(
    model: Any,
    patches_BN4p: Tensor,
    tables: GridTables,
    cells_BK: Tensor | None = None,
    kernels: Any = plain_kernels,
    context: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None,
) -> Seen:
    """Run the vision tower over all cells, or over `cells_BK` alone (they attend to each other only).

    Patches hold one frame, or two of a clip. `mask`, `[B or 1, 1, P, P]`: which patches see each other; None: all.
    `context` are the cells of a small copy, `[B, C, 4, p]`, and the patch of the grid where each of its patches stands,
    `[4 C]`: the kept cells attend to them as well, and they are not handed on.
    """
    visual = model.model.visual
    dtype = patches_BN4p.dtype
    batch, cells, window = patches_BN4p.shape[:3]
    table = (visual.pos_embed(tables.taps_P4) * tables.weights_P4[:, :, None]).sum(1)
    table_NX = table.view(cells, -1).to(visual.pos_embed.weight.dtype)
    if cells_BK is None:
        rows = patches_BN4p
        place = table_NX.expand(batch, -1, -1)
        cos, sin = tables.cos_Nf.expand(batch, -1, -1), tables.sin_Nf.expand(batch, -1, -1)
    else:
        rows = patches_BN4p[torch.arange(batch, device=cells_BK.device)[:, None], cells_BK]
        place = F.embedding(cells_BK, table_NX)
        cos, sin = tables.cos_Nf[cells_BK], tables.sin_Nf[cells_BK]
    kept = rows.shape[1]
    if context is not None:
        rows = torch.cat([rows, context[0].to(dtype)], dim=1)
        heard = [_at_patches(table, context[1], batch) for table in (table_NX, tables.cos_Nf, tables.sin_Nf)]
        place, cos, sin = (torch.cat(both, dim=1) for both in zip((place, cos, sin), heard, strict=True))
    patches = rows.shape[1] * window
    conv = visual.patch_embed.proj
    two_frames = rows.shape[-1] == conv.weight[0].numel()
    weight = (conv.weight if two_frames else conv.weight.sum(2)).flatten(1)  # one frame stands for two alike
    x = F.linear(rows.reshape(batch * patches, -1), weight.to(dtype), conv.bias.to(dtype))
    x = x.to(place.dtype) + place.reshape(batch * patches, -1)
    cos, sin = cos.reshape(batch * patches, -1), sin.reshape(batch * patches, -1)
    deepstack = []
    for number, block in enumerate(visual.blocks):
        first, rest = vision_weights(block)
        qkv = kernels.vision_qkv(x, cos, sin, first, dtype)
        query, key, value = (y.view(batch, patches, *y.shape[1:]).transpose(1, 2) for y in qkv)
        attended = F.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).reshape(x.shape)
        x = kernels.vision_rest(x, attended, rest, dtype)
        if number in visual.deepstack_visual_indexes:
            level = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(number)]
            merged = kernels.merge(_windows(x, batch, kept, window), merger_weights(level), dtype)
            deepstack.append(merged.view(batch, kept, -1))
    merged = kernels.merge(_windows(x, batch, kept, window), merger_weights(visual.merger), dtype)
    return Seen(merged.view(batch, kept, -1), deepstack, cells_BK, (tables.height, tables.width))


def _at_patches(table_Nx: Tensor, places_P: Tensor, batch: int) -> Tensor:
    """Rows of a table of cells, the 4 patches of a cell side by side, for cells of other patches: `[B, C, 4 x]`."""
    patches = table_Nx.unflatten(1, (4, -1)).flatten(0, 1)[places_P]
    return patches.view(-1, table_Nx.shape[1]).expand(batch, -1, -1)


def _windows(x: Tensor, batch: int, kept: int, window: int) -> Tensor:
    """The patches of the first `kept` cells of each image, cell by cell."""
    return x.view(batch, -1, window, x.shape[-1])[:, :kept].reshape(batch * kept, window, -1)


def prefix_positions(seen: Seen, lead: int) -> Tensor:
    """(t, h, w) of the prefix, [3, B or 1, S]: kept cells stand where they stood in the full image."""
    height, width = seen.grid
    device = seen.merged_BKD.device
    cells = torch.arange(height * width, device=device)[None] if seen.cells_BK is None else seen.cells_BK
    place = torch.stack([torch.zeros_like(cells), cells // width, cells % width]) + lead
    opening = torch.arange(lead, device=device).expand(3, cells.shape[0], -1)
    closing = torch.full((3, cells.shape[0], 1), lead + max(height, width), device=device)
    return torch.cat([opening, place, closing], dim=2)


def text_start(grid: tuple[int, int], lead: int) -> int:
    """The position of the first text token after the prefix."""
    return lead + max(grid) + 1


def rotary_tables(model: Any, positions_3BL: Tensor) -> tuple[Tensor, Tensor]:
    """Half-head M-RoPE tables [B, L, f] in float32."""
    rotary = model.model.language_model.rotary_emb
    like = torch.zeros(1, device=positions_3BL.device)  # says dtype and device
    cos, sin = rotary(like, positions_3BL)
    half = cos.shape[-1] // 2
    return cos[..., :half].contiguous(), sin[..., :half].contiguous()


def run_prefix(model: Any, seen: Seen, lead_ids: Tensor, end_id: int, kernels: Any = plain_kernels) -> PrefixCache:
    """Run lead, image and end mark through the decoder; the keys and values are all that the text needs.

    `lead_ids` are the tokens before the image.
    """
    batch, lead = seen.merged_BKD.shape[0], len(lead_ids)
    ids = torch.cat([lead_ids, lead_ids.new_tensor([end_id])])
    words = model.model.language_model.embed_tokens(ids).expand(batch, -1, -1)
    x = torch.cat([words[:, :lead], seen.merged_BKD.to(words.dtype), words[:, lead:]], dim=1)
    levels = [F.pad(level.to(x.dtype), (0, 0, lead, 1)) for level in seen.deepstack_BKD]
    return run_words(model, x, prefix_positions(seen, lead), levels, seen.merged_BKD.dtype, kernels)


def run_words(
    model: Any,
    x: Tensor,
    positions_3BS: Tensor,
    levels_BSD: Sequence[Tensor],
    dtype: torch.dtype,
    kernels: Any = plain_kernels,
) -> PrefixCache:
    """Run embedded words and visual tokens `[B, S, D]` of a prefix; DeepStack level i is added after layer i."""
    language = model.model.language_model
    batch, length = x.shape[:2]
    tables = rotary_tables(model, positions_3BS)
    cos, sin = (y.expand(batch, -1, -1).reshape(batch * length, -1) for y in tables)
    cache: PrefixCache = []
    for number, layer in enumerate(language.layers):
        first, rest = text_weights(layer)
        flat = x.reshape(batch * length, -1)
        qkv = kernels.text_qkv(flat, cos, sin, first, dtype)
        query, key, value = (y.view(batch, length, *y.shape[1:]).transpose(1, 2) for y in qkv)
        cache.append((key, value))
        if number + 1 == len(language.layers):
            break  # nobody reads the prefix's last hidden states
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = kernels.text_rest(flat, attended.transpose(1, 2).reshape(flat.shape[0], -1), rest, dtype)
        x = x.view(batch, length, -1)
        if number < len(levels_BSD):
            x = x + levels_BSD[number]
    return cache


def run_text(
    model: Any,
    ids_BT: Tensor,
    positions_BT: Tensor,
    mask_B1TL: Tensor,
    cache: PrefixCache,
    kernels: Any = plain_kernels,
    grow: bool = False,
) -> Tensor:
    """Hidden states [B, T, D] of the text after the last layer, before the final norm (see `logits`).

    `grow` appends the text's keys and values to `cache`, so that a next call can go on from here.
    """
    language = model.model.language_model
    batch, length = ids_BT.shape
    dtype = cache[0][0].dtype
    x = language.embed_tokens(ids_BT).view(batch * length, -1)
    tables = rotary_tables(model, positions_BT.expand(3, -1, -1))
    cos, sin = (y.view(batch * length, -1) for y in tables)
    for number, layer in enumerate(language.layers):
        first, rest = text_weights(layer)
        qkv = kernels.text_qkv(x, cos, sin, first, dtype)
        query, key, value = (y.view(batch, length, *y.shape[1:]).transpose(1, 2) for y in qkv)
        key = torch.cat([cache[number][0], key], dim=2)
        value = torch.cat([cache[number][1], value], dim=2)
        if grow:
            cache[number] = (key, value)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_B1TL)
        x = kernels.text_rest(x, attended.transpose(1, 2).reshape(batch * length, -1), rest, dtype)
    return x.view(batch, length, -1)


def logits(model: Any, hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Scores over the vocabulary in float32, for hidden states of any shape [..., D]."""
    language = model.model.language_model
    weight = model.lm_head.weight
    return F.linear(language.norm(hidden).to(dtype), weight.to(dtype)).float()


# ---------------------------------------------------------------- greedy decoding


def read_last(
    model: Any, ids_BT: Tensor, positions_BT: Tensor, mask_B1TL: Tensor, last_B: Tensor, cache: PrefixCache
) -> Tensor:
    """Logits after each row's token number `last_B`."""
    hidden_BTD = run_text(model, ids_BT, positions_BT, mask_B1TL, cache, grow=True)
    rows_B = torch.arange(len(last_B), device=last_B.device)
    return logits(model, hidden_BTD[rows_B, last_B], cache[0][0].dtype)


def answer_rows(
    model: Any, cache: PrefixCache, prompts: Sequence[Sequence[int]], start: int, stop_id: int, most_tokens: int
) -> list[Said]:
    """The likeliest answer of each row, as `arr_coc.qwen.batched` finds it, and how sure each step was."""
    best_RT2 = torch.zeros(len(prompts), most_tokens, 2)

    def watch(step: int, row_A: Tensor, logits_AV: Tensor) -> None:
        best_RT2[row_A.cpu(), step] = logits_AV.softmax(-1).topk(2).values.cpu()

    read, timed = partial(read_last, model), Stopwatch(cache[0][0].device)
    found = batched.answer_rows(read, cache, prompts, start, stop_id, most_tokens, timed, watch)
    # One more step than tokens: the stop token's, unless the answer was cut short.
    return [Said(ids, best_T2[: len(ids) + 1]) for ids, best_T2 in zip(found, best_RT2.tolist(), strict=True)]
