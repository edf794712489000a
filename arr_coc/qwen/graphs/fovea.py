"""Small copies in the prompts, over recordings: before the chosen windows, as `arr_coc.qwen.periphery` puts them.

I images, J images and small copies, K slots of each, C patches of a copy that windows attend to, P patches.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.qwen.graphs.choosing import Asked, Chosen, small_rows
from arr_coc.qwen.graphs.forward import Heard
from arr_coc.qwen.graphs.layout import Prompt, budget_bucket
from arr_coc.qwen.vision import Grid

Order = list[tuple[int, bool]]  # of each image that is shown: its number, and whether it is a small copy


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
