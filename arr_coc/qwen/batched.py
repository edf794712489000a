"""Many questions about images of one grid in one pass, for evaluation: the recorded path's own forward, unrecorded.

B images, K kept cells, P patches, X values of a patch or width of the ViT, D hidden, S prefix tokens (lead + K + 1),
V = B * K, E = 1 + DeepStack levels, R rows (a question each), A rows that are not done, T text tokens, L all tokens so
far, Q question tokens, H W grid of cells, N = H * W, M attention maps (of layers and heads).

The sequence is always: lead, image, end mark (together the prefix, shared by all questions about a choice), then the
question's turn, which sees the prefix and itself, at the positions it would have alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import FirstLook
from arr_coc.qwen import tower, vision
from arr_coc.qwen.first_look import spread_over
from arr_coc.qwen.graphs import forward
from arr_coc.qwen.processor import Conversation, encode_one
from arr_coc.qwen.vision import Geometry, Grid
from arr_coc.timing import Stopwatch

Cache = list[tuple[Tensor, Tensor]]  # per decoder layer: key and value, [B, heads, S, d]
Read = Callable[[Tensor, Tensor, Tensor, Tensor, Cache], Tensor]  # ids, positions, mask, last tokens -> logits
Watch = Callable[[int, Tensor, Tensor], None]  # step, rows that are not done, logits


@dataclass(frozen=True, slots=True)
class Seen:
    """What the vision tower hands to the language model."""

    merged_BKD: Tensor
    deepstack_BKD: list[Tensor]
    cells_BK: Tensor | None  # kept cells in increasing order; None: all
    grid: Grid


def encode_vision(
    model: Any,
    rows_BPX: Tensor,
    grid: Grid,
    cells_BK: Tensor | None = None,
    context: tuple[Tensor, Tensor] | None = None,
) -> Seen:
    """Run the vision tower over the patches of all cells, or of `cells_BK` alone (they attend to each other only).

    `context` are the patches of a small copy, `[B, C, X]`, and the patch of the grid where each of them stands, `[C]`:
    the kept cells attend to them as well, and they are not handed on.
    """
    visual, batch, device = model.model.visual, rows_BPX.shape[0], rows_BPX.device
    if cells_BK is None:
        places_BK = torch.arange(grid[0] * grid[1], device=device).expand(batch, -1)
    else:
        places_BK, patches_BP = cells_BK, tower.patches_of(cells_BK, visual.spatial_merge_size**2)
        rows_BPX = rows_BPX.gather(1, patches_BP.unsqueeze(-1).expand(-1, -1, rows_BPX.shape[-1]))
    heard = None
    if context is not None:
        stands_BC = context[1].expand(batch, -1)
        heard = tower.Heard(context[0], stands_BC, torch.ones_like(stands_BC, dtype=torch.bool))
    grid_B2 = torch.tensor([grid] * batch, device=device)
    levels_EBKD = tower.see(visual, rows_BPX, places_BK, grid_B2, heard=heard)[0].unflatten(1, (batch, -1))
    return Seen(levels_EBKD[0], list(levels_EBKD[1:]), cells_BK, grid)


def text_start(grid: Grid, lead: int) -> int:
    """The position of the first text token after the prefix."""
    return lead + max(grid) + 1


def run_prefix(model: Any, seen: Seen, lead_ids: Tensor, end_id: int) -> Cache:
    """Run lead, image and end mark through the decoder; the keys and values are all that the text needs."""
    (batch, kept), lead, device = seen.merged_BKD.shape[:2], len(lead_ids), lead_ids.device
    ids_S = torch.cat([lead_ids, lead_ids.new_zeros(kept), lead_ids.new_tensor([end_id])])
    slots_BK = torch.arange(batch * kept, device=device).view(batch, kept)
    visual_BS = F.pad(slots_BK, (lead, 1), value=-1)
    base_S = torch.cat([torch.arange(lead, device=device), lead_ids.new_full((kept,), lead)])
    base_S = F.pad(base_S, (0, 1), value=lead + max(seen.grid))
    cells_V = slots_BK.flatten() % kept if seen.cells_BK is None else seen.cells_BK.flatten()
    width_V = torch.full_like(cells_V, seen.grid[1])
    positions_3BS = forward.places_of(base_S.expand(batch, -1), visual_BS, cells_V, width_V, "original")
    features_EVD = torch.stack([seen.merged_BKD, *seen.deepstack_BKD]).flatten(1, 2)
    x = forward.embed_prompt(model.model.language_model, ids_S.expand(batch, -1), visual_BS, features_EVD)
    cache: Cache = []
    _decode(model, x, positions_3BS, cache, None, (visual_BS, features_EVD))
    return cache


def run_text(model: Any, ids_BT: Tensor, positions_BT: Tensor, mask_B1TL: Tensor, cache: Cache) -> Tensor:
    """Hidden states `[B, T, D]` of the text after the last layer; its keys and values are appended to `cache`."""
    x = model.model.language_model.embed_tokens(ids_BT)
    return _decode(model, x, positions_BT.expand(3, -1, -1), cache, mask_B1TL)


def _decode(
    model: Any,
    x_BTD: Tensor,
    positions_3BT: Tensor,
    cache: Cache,
    mask_B1TL: Tensor | None,
    visual: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Through all layers after what is in `cache`; without a mask, causal. `visual` are slots and their features."""
    language = model.model.language_model
    axis_f = torch.tensor(forward.axis_of_frequency(language.rotary_emb), device=x_BTD.device)
    tables = forward.text_rotary(language.rotary_emb, axis_f, positions_3BT, x_BTD.dtype, (1,))
    begins = not cache
    for number, layer in enumerate(language.layers):
        query, key, value = forward.project(layer.self_attn, forward.norm(layer.input_layernorm, x_BTD), tables)
        if begins:
            cache.append((key, value))
        else:
            before = cache[number]
            cache[number] = key, value = torch.cat([before[0], key], dim=2), torch.cat([before[1], value], dim=2)
        how: dict[str, Any] = {"attn_mask": mask_B1TL, "is_causal": mask_B1TL is None, "enable_gqa": True}
        x_BTD = forward.finish(layer, x_BTD, F.scaled_dot_product_attention(query, key, value, **how))
        if visual is not None:
            x_BTD = forward.add_level(x_BTD, number, *visual)
    return x_BTD


# ---------------------------------------------------------------- a first look at many images


@dataclass(frozen=True, slots=True)
class Frame:
    """What the template puts around one image and one question."""

    lead: tuple[int, ...]  # ids before the image
    after: tuple[int, ...]  # between image and question
    tail: tuple[int, ...]  # from the question to the answer

    @classmethod
    def of(cls, processor: Any, image_id: int) -> "Frame":
        conversation = Conversation([None], "?")  # type: ignore[list-item]
        ids, asked = encode_one(processor, conversation, (iter([1]), iter(())))
        image, first, last = ids.index(image_id), asked.index(1), len(asked) - asked[::-1].index(1)
        return cls(tuple(ids[:image]), tuple(ids[image + 1 : first]), tuple(ids[last:]))

    def prompts(self, ids_RQ: Tensor, mask_RQ: Tensor, cells: int) -> tuple[Tensor, Tensor]:
        """Ids of whole prompts `[R, L]`, padded on the right, 0 where the image stands; and their lengths `[R]`.

        Questions are padded on the right too.
        """
        (rows, longest), count_R1 = ids_RQ.shape, mask_RQ.sum(-1, keepdim=True)
        lead, after, tail = (ids_RQ.new_tensor(part) for part in (self.lead, self.after, self.tail))
        place_T = torch.arange(longest + len(tail), device=ids_RQ.device)
        own_RT = F.pad(ids_RQ, (0, len(tail)))
        behind_RT = tail[(place_T - count_R1).clamp(0, len(tail) - 1)]
        turn_RT = torch.where(place_T < count_R1, own_RT, behind_RT)
        begin = torch.cat([lead, lead.new_zeros(cells), after]).expand(rows, -1)
        return torch.cat([begin, turn_RT], dim=1), begin.shape[1] + count_R1.squeeze(1) + len(tail)


@torch.no_grad()
def look_first(
    model: Any,
    frame: Frame,
    image_B3hw: Tensor,
    grid: Grid,
    geometry: Geometry,
    settings: FirstLook,
    question: tuple[Tensor, Tensor],
    image_R: Tensor,
) -> tuple[Tensor, Tensor]:
    """Where the language model looks in small copies, `[R, M, N]`, and what the ViT saw in them, `[B, X, H, W]`: fp32.

    As `arr_coc.qwen.first_look` does for any conversation, here for single questions about single images in [0, 1] of
    one grid; `question` are ids and mask, `image_R` the image of each row. Each row is read whole, in one pass.
    """
    small, device, language = settings.grid(grid), image_B3hw.device, model.model.language_model
    cells, images = small[0] * small[1], image_B3hw.shape[0]
    rows_BPX = vision.glance_rows(image_B3hw, small, geometry)
    places_BK = torch.arange(cells, device=device).expand(images, -1)
    features_EVD, hidden_BPX = tower.see(
        model.model.visual, rows_BPX, places_BK, torch.tensor([small] * images, device=device)
    )
    ids_RL, lengths_R = frame.prompts(*question, cells)
    lead, length = len(frame.lead), ids_RL.shape[1]
    slots_RK = image_R.unsqueeze(1) * cells + torch.arange(cells, device=device)
    visual_RL = F.pad(slots_RK, (lead, length - lead - cells), value=-1)
    place_L = torch.arange(length, device=device)
    base_L = torch.where(place_L < lead + cells, place_L.clamp(max=lead), place_L - cells + max(small))
    cells_V = places_BK.flatten()
    positions_3RL = forward.places_of(
        base_L.expand_as(ids_RL), visual_RL, cells_V, torch.full_like(cells_V, small[1]), "original"
    )
    axis_f = torch.tensor(forward.axis_of_frequency(language.rotary_emb), device=device)
    layers = settings.layers(len(language.layers))
    looked_RML = forward.read_first(model, layers, axis_f, ids_RL, visual_RL, positions_3RL, lengths_R, features_EVD)
    looked_RMhw = looked_RML[..., lead : lead + cells].unflatten(-1, small)
    glance_BXHW = vision.glance_maps(hidden_BPX, small, geometry.merge, grid)
    return spread_over(looked_RMhw, grid).flatten(2), glance_BXHW


# ---------------------------------------------------------------- greedy decoding


def share_cache(cache_U: Cache, prefix_R: Tensor) -> Cache:
    """The keys and values of each row's own prefix."""
    return [(key[prefix_R], value[prefix_R]) for key, value in cache_U]


def read_last(
    model: Any, ids_BT: Tensor, positions_BT: Tensor, mask_B1TL: Tensor, last_B: Tensor, cache: Cache
) -> Tensor:
    """Logits after each row's token number `last_B`."""
    hidden_BTD = run_text(model, ids_BT, positions_BT, mask_B1TL, cache)
    return forward.logits_of(model, hidden_BTD[torch.arange(len(last_B), device=last_B.device), last_B])


def answer_rows(
    read: Read,
    cache: Cache,
    prompts: Sequence[Sequence[int]],
    start: int,
    stop_id: int,
    most_tokens: int,
    stopwatch: Stopwatch,
    watch: Watch = lambda step, row_A, logits_AV: None,
) -> list[list[int]]:
    """The likeliest answer of each row without the stop token. `start` is the position of the first prompt token.

    `read` is `read_last` of a model, or another that reads on from a cache and appends to it; `watch` sees the logits
    of every step. The prompts' own pass is timed as "prefill", the steps after the first token as "decode". `cache` is
    used up.
    """
    device, rows, prefix = cache[0][0].device, len(prompts), cache[0][0].shape[2]
    lengths_R = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(lengths_R.max())
    ids_RT = torch.tensor([[*prompt, *[stop_id] * (longest - len(prompt))] for prompt in prompts], device=device)
    columns_T = torch.arange(longest, device=device)
    with stopwatch.part("prefill"):
        # Padding stands after the prompt, so that being causal hides it.
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        mask = F.pad(causal, (prefix, 0), value=True).expand(rows, 1, -1, -1)
        logits_AV = read(ids_RT, (start + columns_T).expand(rows, -1), mask, lengths_R - 1, cache)
    with stopwatch.part("decode"):
        valid_AL = F.pad(columns_T < lengths_R[:, None], (prefix, 0), value=True)
        return _go_on(read, cache, logits_AV, valid_AL, start + lengths_R, stop_id, most_tokens, watch)


def _go_on(
    read: Read,
    cache: Cache,
    logits_AV: Tensor,
    valid_AL: Tensor,
    next_A: Tensor,
    stop_id: int,
    most_tokens: int,
    watch: Watch,
) -> list[list[int]]:
    """The rest of the answers, token by token. Rows that are done leave the batch when they are a quarter of it."""
    found: list[list[int]] = [[] for _ in range(logits_AV.shape[0])]
    row_A = torch.arange(len(found), device=logits_AV.device)
    done_A = torch.zeros_like(row_A, dtype=torch.bool)
    for step in range(most_tokens):
        watch(step, row_A, logits_AV)
        token_A = logits_AV.argmax(-1)
        done_A = done_A | (token_A == stop_id)
        done = done_A.tolist()
        for row, token, over in zip(row_A.tolist(), token_A.tolist(), done, strict=True):
            if not over:
                found[row].append(token)
        if all(done) or step + 1 == most_tokens:
            break
        if 4 * sum(done) >= len(done):
            left = (~done_A).nonzero().squeeze(-1)
            row_A, token_A, valid_AL, next_A, done_A = (x[left] for x in (row_A, token_A, valid_AL, next_A, done_A))
            cache[:] = [(key[left], value[left]) for key, value in cache]
        valid_AL = F.pad(valid_AL, (0, 1), value=True)
        given = token_A[:, None], (next_A + step)[:, None], valid_AL[:, None, None], torch.zeros_like(token_A)
        logits_AV = read(*given, cache)
    return found
