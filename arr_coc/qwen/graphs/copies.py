"""Small copies over recordings: read first, as `arr_coc.qwen.first_look` does, in prompts of fixed shapes; as what
windows attend to; and in the prompts, before the chosen windows, as `arr_coc.qwen.periphery` puts them.

I images, J images and small copies, K slots of each, V = I * K, P patches of a small copy, C of one that windows attend
to, h w its grid, M maps (of layers and heads), X width of the ViT.

Prompt and question are read in one pass, each time anew: to know an image again its content would have to be read, and
that takes about as long.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.qwen.graphs.choosing import Asked, Chosen, FirstLooks, by_grid, everything, small_rows
from arr_coc.qwen.graphs.layout import Prompt, budget_bucket, padded_length, plan, with_grids
from arr_coc.qwen.looking import Looker
from arr_coc.qwen.periphery import CONTEXT
from arr_coc.qwen.tower import Heard
from arr_coc.qwen.vision import Grid, glance_maps, under_centres

Order = list[tuple[int, bool]]  # of each image that is shown: its number, and whether it is a small copy


def look_first(asked: Asked, meanwhile: Callable[[], None]) -> FirstLooks:
    """Where the language model looks in a small copy of each image, and what the ViT saw in it, if that is read.

    `meanwhile` is called as soon as the device is busy with the copies: the host has time then, and a GPU room.
    """
    settings = asked.looker.selector.first_look
    assert settings is not None
    grids = [settings.grid(grid) for grid in asked.prompt.grids]
    slots = budget_bucket(max(height * width for height, width in grids))
    return read_copies(asked.stages, asked.looker, asked.prompt, grids, slots, _rows(asked, grids, slots), meanwhile)


def read_copies(
    stages: Any,
    looker: Looker,
    prompt: Prompt,
    grids: list[Grid],
    slots: int,
    rows_IPx: Tensor,
    meanwhile: Callable[[], None],
) -> FirstLooks:
    """The same, where the copies are made: their cells, and their patches with room for `slots` cells of each."""
    config, settings = stages.model.config, looker.selector.first_look
    assert settings is not None
    whole, grid_I2, widths = _whole(tuple(grids), slots, stages.device)
    wanted = looker.selector.reads_glance
    features, hidden = stages.see(rows_IPx, whole.cells_IK, grid_I2, whole.mask_IK, hidden=wanted)
    meanwhile()
    # Prompts too are laid out while the device is busy.
    image_id = int(config.image_token_id)
    small = with_grids(prompt, grids, image_id)
    length, starts = padded_length(small, whole.counts_I, image_id), range(0, len(grids) * slots, slots)
    layout = plan(small, whole.counts_I, starts, length, image_id)
    layers = settings.layers(config.text_config.num_hidden_layers)
    looked_VM = stages.read_first(layout, features, whole.cells_IK.flatten(), widths, layers)
    cells = zip(looked_VM.split(slots), grids, strict=True)
    looked = [one[: height * width].t().unflatten(1, (height, width)) for one, (height, width) in cells]
    if hidden is None:
        return looked, []
    geometry, each = looker.geometry, zip(hidden.split(1), grids, prompt.grids, strict=True)
    real = [(one[:, : copy[0] * copy[1] * geometry.window], copy, grid) for one, copy, grid in each]
    return looked, [glance_maps(one, copy, geometry.merge, grid)[0] for one, copy, grid in real]


@lru_cache(maxsize=32)
def _whole(grids: tuple[Grid, ...], slots: int, device: torch.device) -> tuple[Chosen, Tensor, Tensor]:
    """Every cell of the copies in its slot, their grids, and the width of each slot's grid: the same for all pixels.

    Kept on the device, since putting it there anew takes longer than shrinking an image.
    """
    widths = torch.tensor([width for _, width in grids]).repeat_interleave(slots)
    return everything(list(grids), device, slots), torch.tensor(grids).to(device), widths.to(device)


def context_of(asked: Asked, counts_I: list[int]) -> Heard | None:
    """Small copies for the kept windows of each image to attend to; None where no image wants one."""
    stages, looker, prompt = asked.stages, asked.looker, asked.prompt
    wanted = [looker.context_grid(grid, count) for grid, count in zip(prompt.grids, counts_I, strict=True)]
    if not any(wanted):
        return None
    grids = [small or CONTEXT.grid(grid) for small, grid in zip(wanted, prompt.grids, strict=True)]
    slots = budget_bucket(max(height * width for height, width in grids))
    geometry, most = looker.geometry, slots * looker.geometry.window
    patches, counts = [], []
    for small, grid, want in zip(grids, prompt.grids, wanted, strict=True):
        places = under_centres(small, grid, geometry.merge, stages.device)
        patches.append(F.pad(places, (0, most - places.shape[0])))
        counts.append(0 if want is None else places.shape[0])
    mask_IC = torch.arange(most) < torch.tensor(counts).unsqueeze(1)
    return Heard(_rows(asked, grids, slots), torch.stack(patches), stages.put(mask_IC))


def _rows(asked: Asked, grids: list[Grid], slots: int) -> Tensor:
    """Patches of copies of all images at these `grids`, `[I, P, X]`, with room for `slots` cells of each."""
    rows: dict[int, Tensor] = {}
    for members in by_grid(asked.prompt.grids).values():
        made = small_rows(asked, members, grids[members[0]])
        missing = slots * asked.looker.geometry.window - made.shape[1]
        if len(members) == len(grids) and not missing:
            return made
        rows |= dict(zip(members, F.pad(made, (0, 0, 0, missing)), strict=True))
    return torch.stack([rows[image] for image in range(len(rows))])


# ---------------------------------------------------------------- in the prompts


def with_copies(prompt: Prompt, chosen: Chosen, config: Any) -> tuple[Prompt, Chosen, Order]:
    """The prompts with a small copy of each image that has one; kept cells and all of the copies, in slots."""
    order: Order = []
    rows = []
    for row, ids in enumerate(prompt.rows):
        own = [image for image, sample in enumerate(prompt.sample_of) if sample == row]
        copied = [image for image in own if chosen.copies[image]]
        order += [*((image, True) for image in copied), *((image, False) for image in own)]
        rows.append(_put_in(ids, [chosen.copies[image] or (0, 0) for image in copied], config))
    grids = [chosen.copies[image] or (0, 0) if small else prompt.grids[image] for image, small in order]
    areas = [height * width for height, width in grids]
    counts = [area if small else chosen.counts_I[image] for area, (image, small) in zip(areas, order, strict=True)]
    slots = budget_bucket(max(counts))
    device = chosen.cells_IK.device
    mask_JK = torch.arange(slots, device=device) < torch.tensor(counts).to(device, non_blocking=True).unsqueeze(1)
    every_K = torch.arange(slots, device=device)
    windows_IK = F.pad(chosen.cells_IK, (0, slots - chosen.slots))
    cells_JK = torch.stack([every_K if small else windows_IK[image] for image, small in order]).masked_fill(~mask_JK, 0)
    shown = replace(prompt, rows=rows, grids=grids, sample_of=[prompt.sample_of[image] for image, _ in order])
    mask = None if min(counts) == slots else mask_JK
    return shown, replace(chosen, counts_I=counts, slots=slots, cells_IK=cells_JK, mask_IK=mask), order


def _put_in(ids: Tensor, copies: Sequence[Grid], config: Any) -> Tensor:
    """Ids of a row with copies of so many cells before its first image."""
    if not copies:
        return ids
    start = int((ids == config.image_token_id).nonzero()[0])
    if start and ids[start - 1] == config.vision_start_token_id:
        start -= 1
    marks = config.vision_start_token_id, config.vision_end_token_id
    put_in = [[marks[0], *[config.image_token_id] * (height * width), marks[1]] for height, width in copies]
    return torch.cat([ids[:start], *map(ids.new_tensor, put_in), ids[start:]])


def rows_with_copies(asked: Asked, chosen: Chosen, order: Order, windows_IPx: Tensor, slots: int) -> Tensor:
    """Patches of all that is shown, `[J, P, X]`, with room for `slots` cells of each."""
    most, made = slots * asked.looker.geometry.window, []
    for image, small in order:
        grid = chosen.copies[image]
        if small and grid is not None:
            rows_Px = small_rows(asked, [image], grid)[0].to(windows_IPx.dtype)
        else:
            rows_Px = windows_IPx[image]
        made.append(F.pad(rows_Px, (0, 0, 0, most - rows_Px.shape[0])))
    return torch.stack(made)


def heard_with_copies(heard: Heard, order: Order) -> Heard:
    """What windows attend to, in the order in which they are shown; small copies attend to nothing but themselves."""
    rows, patches, mask_IC = (torch.stack([one[image] for image, _ in order]) for one in heard)
    windows_J1 = torch.tensor([[not small] for _, small in order]).to(mask_IC.device, non_blocking=True)
    return Heard(rows, patches, mask_IC & windows_J1)
