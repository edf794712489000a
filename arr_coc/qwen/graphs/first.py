"""Small copies over recordings: read first, as `arr_coc.qwen.first_look` does, in prompts of fixed shapes; and as what
windows attend to.

I images, K slots of an image, V = I * K, P patches of a small copy, h w its grid, M maps (of layers and heads), X width
of the ViT.

Prompt and question are read in one pass, each time anew: to know an image again its content would have to be read, and
that takes about as long.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.qwen.graphs.choosing import Asked, Chosen, FirstLooks, by_grid, everything, small_rows
from arr_coc.qwen.graphs.forward import Heard
from arr_coc.qwen.graphs.layout import budget_bucket, padded_length, plan, with_grids
from arr_coc.qwen.periphery import CONTEXT
from arr_coc.qwen.vision import Grid, glance_maps, under_centres


def look_first(asked: Asked, meanwhile: Callable[[], None]) -> FirstLooks:
    """Where the language model looks in a small copy of each image, and what the ViT saw in it, if that is read.

    `meanwhile` is called as soon as the device is busy with the copies: the host has time then, and a GPU room.
    """
    stages, prompt = asked.stages, asked.prompt
    settings, config = asked.looker.selector.first_look, asked.looker.model.config
    assert settings is not None
    grids = [settings.grid(grid) for grid in prompt.grids]
    slots = budget_bucket(max(height * width for height, width in grids))
    rows_IPx = _rows(asked, grids, slots)  # at once: until then the device has nothing to do
    whole, grid_I2, widths = _whole(tuple(grids), slots, stages.device)
    seen = (rows_IPx, whole.cells_IK, grid_I2, whole.mask_IK)
    hidden = None
    if asked.looker.selector.reads_glance:
        made = stages.glimpse(*seen)
        features, hidden = made["features"], made["hidden"]
    else:
        features = stages.see(*seen)
    meanwhile()
    # Prompts too are laid out while the device is busy.
    image_id = int(config.image_token_id)
    small = with_grids(prompt, grids, image_id)
    layout = plan(small, whole.counts_I, slots, padded_length(small, whole.counts_I, image_id), image_id)
    layers = settings.layers(config.text_config.num_hidden_layers)
    looked_VM = stages.read_first(layout, features, whole.cells_IK.flatten(), widths, layers)
    cells = zip(looked_VM.split(slots), grids, strict=True)
    looked = [one[: height * width].t().unflatten(1, (height, width)) for one, (height, width) in cells]
    if hidden is None:
        return looked, []
    geometry, glances = asked.looker.geometry, []
    for image, (small_grid, grid) in enumerate(zip(grids, prompt.grids, strict=True)):
        patches = small_grid[0] * small_grid[1] * geometry.window
        glances.append(glance_maps(hidden[image : image + 1, :patches], small_grid, geometry.merge, grid)[0])
    return looked, glances


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
