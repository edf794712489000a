"""Clips over recordings: chosen as the plain path chooses, with a recorded first look, then seen and answered.

T moments (pairs of frames) of all clips, n of them that go through the ViT together, K slots of each, P patches of a
moment, N cells, V slots of visual tokens, E = 1 + DeepStack levels, D width.

A clip's budget goes where something happens, so one moment keeps all of its cells and most keep few. Moments go through
the ViT in two groups of about one size, and their tokens stand one after the other: how a budget is shared over time
changes no shape after the ViT.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from arr_coc.qwen import vision
from arr_coc.qwen.first_look import FirstSeen, spread_over
from arr_coc.qwen.graphs.choosing import Explain, Shown
from arr_coc.qwen.graphs.copies import read_copies
from arr_coc.qwen.graphs.layout import NotFast, Prompt, budget_bucket, read_prompt, round_up
from arr_coc.qwen.looking import ALL_ASKED, Choice, Looker, by_sample, keep_everything
from arr_coc.qwen.request import Request, find_question
from arr_coc.timing import Stopwatch

TOGETHER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)  # moments of a group, so that few shapes are recorded
APART = 256  # windows that a second pass of the ViT must save


def prompt_of(request: Request, config: Any, chat: Any) -> Prompt:
    """The prompts on the host, with moments in the place of images."""
    layout, ids, mask = request.layout, request.input_ids.cpu(), request.attention_mask.cpu()
    if layout.images:
        raise NotFast("it does not know clips among images")
    found = find_question(ids, mask, config, chat) if request.question_mask is None else request.question_mask.cpu()
    ids = torch.where(ids == config.video_token_id, config.image_token_id, ids)
    return read_prompt(ids, mask, found, layout.grids, layout.sample_of)


def choose_and_see(stages: Any, looker: Looker, request: Request, stopwatch: Stopwatch) -> Shown:
    """The choice, and the visual tokens of the chosen windows."""
    prompt = prompt_of(request, looker.model.config, looker.chat)
    if request.keeps_all:
        choice = keep_everything(prompt.grids, stages.device, "keep_all", ALL_ASKED)
    else:
        with stopwatch.part("select"):
            looks = partial(look_first, stages, looker, prompt)
            choice = replace(looker, looks=looks).choose(request, request.keeps, stopwatch)
    if any(image.is_fallback for image in choice.images):
        raise NotFast(choice.images[0].reason)
    with stopwatch.part("vision"):
        return see(stages, prompt, request, choice)


def look_first(stages: Any, looker: Looker, prompt: Prompt, request: Request, pairs: Sequence[Tensor]) -> FirstSeen:
    """Where the language model looks in small copies of all moments."""
    settings, layout = looker.over_clips().selector.first_look, request.layout
    assert settings is not None
    grids = [settings.clip_grid(layout.grids[moment], len(clip)) for clip in layout.clips for moment in clip]
    cells = [height * width for height, width in grids]
    slots = cells[0] if len(set(cells)) == 1 else budget_bucket(max(cells))
    rows_TPx = _copies(pairs, grids, slots, looker.geometry)
    maps = read_copies(stages, prompt, settings, grids, slots, rows_TPx, lambda: None)
    spread = [spread_over(one.unsqueeze(0), grid).flatten() for one, grid in zip(maps, layout.grids, strict=True)]
    return FirstSeen(spread, grids, [], [])


def _copies(pairs: Sequence[Tensor], grids: Sequence[vision.Grid], slots: int, geometry: vision.Geometry) -> Tensor:
    """Patches of small copies, `[T, P, X]`, with room for `slots` cells of each; those of one size are made at once."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for moment, (pair, grid) in enumerate(zip(pairs, grids, strict=True)):
        alike.setdefault((grid, pair.shape), []).append(moment)
    rows: dict[int, Tensor] = {}
    for (grid, _), members in alike.items():
        made = vision.glance_rows(torch.stack([pairs[moment] for moment in members]), grid, geometry)
        rows |= dict(zip(members, made, strict=True))
    padded = pad_sequence([rows[moment] for moment in range(len(pairs))], batch_first=True)
    return F.pad(padded, (0, 0, 0, slots * geometry.window - padded.shape[1]))


def see(stages: Any, prompt: Prompt, request: Request, choice: Choice) -> Shown:
    """Visual tokens of the chosen windows, those of one moment after those of the moment before."""
    merge = stages.visual.spatial_merge_size
    counts = [index.shape[0] for index in choice.indices]
    starts = [sum(counts[:moment]) for moment in range(len(counts))]
    padded_TK = pad_sequence(choice.indices, batch_first=True)
    patches = [height * width * merge**2 for height, width in prompt.grids]
    first_T = [sum(patches[:moment]) for moment in range(len(patches))]
    made, place_of, before = [], {}, 0
    for members, slots in in_groups(counts):
        features = _see_group(stages, request, members, slots, padded_TK, counts, first_T, prompt.grids)
        made.append(features)
        for row, moment in enumerate(members):
            place_of[moment] = before + row * slots
        before += features.shape[1]
    total = budget_bucket(sum(counts))
    order_V = torch.zeros(total, dtype=torch.long)
    order_V[: sum(counts)] = torch.cat(
        [torch.arange(count) + place_of.get(moment, 0) for moment, count in enumerate(counts)]
    )
    features_EVD = torch.cat(made, dim=1).index_select(1, stages.put(order_V))
    widths = torch.tensor([width for _, width in prompt.grids]).repeat_interleave(torch.tensor(counts))
    spare = total - sum(counts)
    cells_V = F.pad(torch.cat(choice.indices), (0, spare))
    widths_V = stages.put(F.pad(widths, (0, spare), value=1))

    def checked() -> Explain:
        return partial(by_sample, request, choice)

    return Shown(prompt, counts, starts, features_EVD, cells_V, widths_V, checked)


def _see_group(
    stages: Any,
    request: Request,
    members: list[int],
    slots: int,
    padded_TK: Tensor,
    counts: Sequence[int],
    first_T: Sequence[int],
    grids: Sequence[vision.Grid],
) -> Tensor:
    """What the ViT makes of the kept windows of some moments, `[E, n K, D]`; rows without a moment hold nothing."""
    window, pixels = stages.visual.spatial_merge_size**2, request.pixel_values_videos
    assert pixels is not None
    spare = round_up(len(members), TOGETHER) - len(members)
    numbers = stages.put(torch.tensor(members + [members[0]] * spare))
    most = min(slots, padded_TK.shape[1])
    cells_nK = F.pad(padded_TK[numbers, :most], (0, slots - most))
    # One window of a row that holds nothing is real: attention over nothing has no value.
    counts_n1 = stages.put(torch.tensor([counts[moment] for moment in members] + [1] * spare)).unsqueeze(1)
    mask_nK = torch.arange(slots, device=cells_nK.device) < counts_n1
    first_n11 = stages.put(torch.tensor([first_T[moment] for moment in members] + [0] * spare)).view(-1, 1, 1)
    rows_nKw = first_n11 + cells_nK.unsqueeze(-1) * window + torch.arange(window, device=cells_nK.device)
    rows_nPx = pixels.index_select(0, rows_nKw.flatten()).view(len(numbers), -1, pixels.shape[1])
    grid_n2 = stages.put(torch.tensor([grids[moment] for moment in members] + [grids[members[0]]] * spare))
    whole = not spare and all(counts[moment] == slots for moment in members)
    features: Tensor = stages.see(rows_nPx, cells_nK, grid_n2, None if whole else mask_nK)
    return features.clone()  # the next group may run the same recording


def in_groups(counts_T: Sequence[int]) -> list[tuple[list[int], int]]:
    """Moments that keep something, in one group or two, and slots of each: as little as possible is padded."""
    order = sorted((moment for moment, count in enumerate(counts_T) if count), key=lambda n: -counts_T[n])

    def sized(members: list[int]) -> tuple[list[int], int]:
        return sorted(members), budget_bucket(counts_T[members[0]])

    def cost(split: int) -> int:
        groups = [group for group in (order[:split], order[split:]) if group]
        sizes = [round_up(len(group), TOGETHER) * sized(group)[1] for group in groups]
        return sum(sizes) + APART * (len(groups) - 1)

    best = min(range(len(order)), key=cost)
    return [sized(group) for group in (order[:best], order[best:]) if group]
