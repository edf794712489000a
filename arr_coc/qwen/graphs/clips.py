"""Clips over recordings: chosen as the plain path chooses, with a recorded first look, then seen and answered.

T moments (pairs of frames) of all clips, n of them that go through the ViT together, K slots of each, P patches of a
moment, N cells, V slots of visual tokens, E = 1 + DeepStack levels, D width.

A clip's budget goes where something happens, so one moment keeps all of its cells and most keep few. Moments go through
the ViT in a few groups of about one size, and their tokens stand one after the other: how a budget is shared over time
changes no shape after the ViT.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from arr_coc.qwen import vision
from arr_coc.qwen.first_look import FirstSeen, spread_over
from arr_coc.qwen.graphs.choosing import Laid
from arr_coc.qwen.graphs.copies import read_copies
from arr_coc.qwen.graphs.layout import BUDGETS, NotFast, Prompt, budget_bucket, read_prompt, round_up
from arr_coc.qwen.looking import ALL_ASKED, Looker, keep_everything
from arr_coc.qwen.request import Request, find_question
from arr_coc.timing import Stopwatch

# Sizes of a group, so that few shapes are recorded: moments, and slots of each.
TOGETHER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
SLOTS = tuple(sorted({*BUDGETS, 48}))
GROUPS = 3
APART = 192  # windows that one more pass of the ViT must save


def prompt_of(request: Request, config: Any, chat: Any) -> Prompt:
    """The prompts on the host, with moments in the place of images."""
    layout, ids, mask = request.layout, request.input_ids.cpu(), request.attention_mask.cpu()
    assert not layout.images
    found = find_question(ids, mask, config, chat) if request.question_mask is None else request.question_mask.cpu()
    ids = torch.where(ids == config.video_token_id, config.image_token_id, ids)
    return read_prompt(ids, mask, found, layout.grids, layout.sample_of)


def choose_and_see(stages: Any, looker: Looker, request: Request, stopwatch: Stopwatch) -> Laid:
    """The choice, and the visual tokens of the chosen windows."""
    prompt = prompt_of(request, looker.model.config, looker.chat)
    if request.keeps_all:
        choice = keep_everything(prompt.grids, stages.device, "keep_all", ALL_ASKED)
    else:
        looks = partial(look_first, stages, looker, prompt)
        try:
            with stopwatch.part("select"):
                choice = replace(looker, looks=looks, raises=True).choose(request, request.keeps, stopwatch)
        except NotFast:
            raise
        except Exception as error:  # the plain path chooses then, and counts what fails there
            raise NotFast(f"choosing failed ({type(error).__name__})") from error
    told, indices = request.by_sample(choice.images), choice.indices
    del choice  # and with it the frames
    with stopwatch.part("vision"):
        return Laid(prompt, *see(stages, prompt, request, indices), lambda: lambda: told)


def look_first(stages: Any, looker: Looker, prompt: Prompt, request: Request, pairs: Sequence[Tensor]) -> FirstSeen:
    """Where the language model looks in small copies of all moments."""
    looker, layout = looker.over_clips(), request.layout
    settings = looker.selector.first_look
    assert settings is not None
    grids = [settings.clip_grid(layout.grids[moment], len(clip)) for clip in layout.clips for moment in clip]
    cells = [height * width for height, width in grids]
    slots = cells[0] if len(set(cells)) == 1 else budget_bucket(max(cells))
    alike: dict[tuple[Any, ...], list[int]] = {}
    for moment, (pair, small) in enumerate(zip(pairs, grids, strict=True)):
        alike.setdefault((small, layout.grids[moment], pair.shape), []).append(moment)
    rows_TPx = _copies(pairs, alike, slots, looker.geometry)
    maps, glances = read_copies(stages, looker, prompt, grids, slots, rows_TPx, lambda: None)
    spread: dict[int, Tensor] = {}
    for (_, grid, _), members in alike.items():
        wide = spread_over(torch.stack([maps[moment] for moment in members]), grid)
        spread |= dict(zip(members, wide.flatten(2).unbind(), strict=True))
    return FirstSeen([spread[moment] for moment in range(len(grids))], grids, [], [], glances)


def _copies(
    pairs: Sequence[Tensor], alike: dict[tuple[Any, ...], list[int]], slots: int, geometry: vision.Geometry
) -> Tensor:
    """Patches of small copies, `[T, P, X]`, with room for `slots` cells of each; those of one size are made at once."""
    rows: dict[int, Tensor] = {}
    for (small, *_), members in alike.items():
        made = vision.glance_rows(torch.stack([pairs[moment] for moment in members]), small, geometry)
        made = F.pad(made, (0, 0, 0, slots * geometry.window - made.shape[1]))
        if len(members) == len(pairs):
            return made
        rows |= dict(zip(members, made, strict=True))
    return torch.stack([rows[moment] for moment in range(len(pairs))])


def see(
    stages: Any, prompt: Prompt, request: Request, indices: Sequence[Tensor]
) -> tuple[list[int], list[int], Tensor, Tensor, Tensor]:
    """Visual tokens of the chosen windows, those of a moment after those of the moment before.

    Number of tokens of each moment, the slot of its first, and of all slots: tokens, cells, widths of their grids.
    """
    counts = [index.shape[0] for index in indices]
    padded_TK = pad_sequence(list(indices), batch_first=True)
    made, place_of, before, groups = [], dict[int, int](), 0, in_groups(counts)
    for members, slots in groups:
        features = _see_group(stages, request, members, slots, padded_TK, counts, prompt.grids)
        made.append(features.clone() if len(groups) > 1 else features)  # the next may run the same recording
        place_of |= {moment: before + row * slots for row, moment in enumerate(members)}
        before += features.shape[1]
    spare = budget_bucket(sum(counts)) - sum(counts)
    order = [torch.arange(count) + place_of.get(moment, 0) for moment, count in enumerate(counts)]
    features_EVD = torch.cat(made, dim=1).index_select(1, stages.put(F.pad(torch.cat(order), (0, spare))))
    widths = torch.tensor([width for _, width in prompt.grids]).repeat_interleave(torch.tensor(counts))
    starts = [0, *accumulate(counts)][:-1]
    cells_V, widths_V = F.pad(torch.cat(list(indices)), (0, spare)), stages.put(F.pad(widths, (0, spare), value=1))
    return counts, starts, features_EVD, cells_V, widths_V


def _see_group(
    stages: Any,
    request: Request,
    members: list[int],
    slots: int,
    padded_TK: Tensor,
    counts: Sequence[int],
    grids: Sequence[vision.Grid],
) -> Tensor:
    """What the ViT makes of the kept windows of some moments, `[E, n K, D]`; rows without a moment hold nothing."""
    window, pixels = stages.visual.spatial_merge_size**2, request.pixel_values_videos
    assert pixels is not None
    first_T = [0, *accumulate(height * width * window for height, width in grids)]
    spare = round_up(len(members), TOGETHER) - len(members)
    rows = members + members[:1] * spare
    numbers = stages.put(torch.tensor(rows))
    most = min(slots, padded_TK.shape[1])
    cells_nK = F.pad(padded_TK[numbers, :most], (0, slots - most))
    # One window of a row that holds nothing is real: attention over nothing has no value.
    counts_n1 = stages.put(torch.tensor([counts[moment] for moment in members] + [1] * spare)).unsqueeze(1)
    mask_nK = torch.arange(slots, device=cells_nK.device) < counts_n1
    first_n11 = stages.put(torch.tensor([first_T[moment] for moment in rows])).view(-1, 1, 1)
    rows_nKw = first_n11 + cells_nK.unsqueeze(-1) * window + torch.arange(window, device=cells_nK.device)
    rows_nPx = pixels.index_select(0, rows_nKw.flatten()).view(len(numbers), -1, pixels.shape[1])
    grid_n2 = stages.put(torch.tensor([grids[moment] for moment in rows]))
    whole = not spare and all(counts[moment] == slots for moment in members)
    features: Tensor = stages.see(rows_nPx, cells_nK, grid_n2, None if whole else mask_nK)[0]
    return features


def in_groups(counts_T: Sequence[int]) -> list[tuple[list[int], int]]:
    """Moments that keep something, in a few groups, and slots of each: as little as possible is padded."""
    order = sorted((moment for moment, count in enumerate(counts_T) if count), key=lambda n: -counts_T[n])
    slots = [round_up(counts_T[moment], SLOTS) for moment in order]
    steps = [place for place in range(1, len(order)) if slots[place] < slots[place - 1]]

    def cost(cuts: tuple[int, ...]) -> int:
        parts = pairwise((0, *cuts, len(order)))
        return sum(round_up(end - first, TOGETHER) * slots[first] + APART for first, end in parts)

    best = min((cuts for few in range(GROUPS) for cuts in combinations(steps, few)), key=cost)
    return [(sorted(order[first:end]), slots[first]) for first, end in pairwise((0, *best, len(order)))]
