"""Texture, sight, knowing, balancing, attending for images of one grid, without reading anything back to the host.

G images of one grid, H W grid of cells, N = H * W, C cells of all images, K slots, Q question tokens.

Pixels are pooled to the finest level of the pyramid first, a bounded number of cells at a time and straight from the
patch rows, so that memory does not grow with the image.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import budget_bounds, even_rank, share_budget
from arr_coc.channels import Canvas, position_grid
from arr_coc.config import FINE, TENSIONS, Keep, tokens_to_keep
from arr_coc.knowing import place_waves
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.graphs.layout import Grid, Prompt
from arr_coc.qwen.graphs.recording import Tensors
from arr_coc.records import STRATEGIES, Balance, Judgement, Question
from arr_coc.selectors import Selector
from arr_coc.texture import LUMA, pyramid_of

CHUNK = 1536  # cells pooled at a time: 19 MB of pixels in fp32, and 25 MB for their luma
MAP = "map "  # what the names of maps begin with among the tensors of a judgement


@lru_cache(maxsize=8)
def _luma(device: torch.device) -> Tensor:
    return torch.tensor(LUMA, device=device).view(1, 3, 1, 1)


def pool_patches(rows_Rx: Tensor, mean_3: Tensor, std_3: Tensor, vision_config: Any) -> Tensor:
    """Fine samples of each cell, `[C, 5, 4, 4]` in fp32: means of red, green, blue, luma and squared luma.

    `rows_Rx` are normalised patch rows, the four of a cell next to each other.
    """
    merge, patch, frames = vision_config.spatial_merge_size, vision_config.patch_size, vision_config.temporal_patch_size
    samples, window = FINE // merge, merge * merge
    mean, std = mean_3.view(1, 3, 1, 1), std_3.view(1, 3, 1, 1)
    weights = _luma(rows_Rx.device)
    pooled = []
    for rows in rows_Rx.split(CHUNK * window):
        pixels = (rows.view(-1, 3, frames, patch, patch)[:, :, 0].float() * std).add_(mean).clamp_(0, 1)
        luma = (pixels * weights).sum(1, keepdim=True)
        means = [F.avg_pool2d(pixels, patch // samples), F.avg_pool2d(luma, patch // samples)]
        means.append(F.avg_pool2d(luma.square_(), patch // samples))
        # [cell, window row, window column, channel, sample row, sample column]
        parts = torch.cat(means, dim=1).view(-1, merge, merge, 5, samples, samples).permute(0, 3, 1, 4, 2, 5)
        pooled.append(parts.reshape(-1, 5, FINE, FINE))
    return torch.cat(pooled)


def canvases(pooled_C544: Tensor, grids: Sequence[Grid], members: Sequence[int]) -> Tensor:
    """The pooled images of one group, `[G, 5, 4 H, 4 W]`; `grids` are those of all images, in their order."""
    height, width = grids[members[0]]
    per_image = pooled_C544.split([high * wide for high, wide in grids])
    cells = torch.stack([per_image[image] for image in members]).view(-1, height, width, 5, FINE, FINE)
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(-1, 5, height * FINE, width * FINE)


def shrink_patches(
    rows_Px: Tensor, grid: Grid, size: tuple[int, int], mean_3: Tensor, std_3: Tensor, vision_config: Any
) -> Tensor:
    """An image `[1, 3, h, w]` in [0, 1] of `size` px, by area, from its patch rows; one channel at a time."""
    merge, patch, frames = vision_config.spatial_merge_size, vision_config.patch_size, vision_config.temporal_patch_size
    height, width = grid
    blocks = rows_Px.view(height, width, merge, merge, 3, frames, patch, patch)[:, :, :, :, :, 0]
    channels = []
    for channel in range(3):
        whole = blocks[:, :, :, :, channel].permute(0, 2, 4, 1, 3, 5).float()
        whole = whole.reshape(1, 1, height * merge * patch, width * merge * patch)
        whole = (whole * std_3[channel]).add_(mean_3[channel]).clamp_(0, 1)
        channels.append(F.interpolate(whole, size=size, mode="area"))
    return torch.cat(channels, dim=1)


def tables_of(grid: Grid, device: torch.device) -> list[Tensor]:
    """Tables that the parts make once and keep for a while: a recording that reads them must keep them as well."""
    height, width = grid
    levels = [position_grid(height * fine, width * fine, device, torch.float32) for fine in (FINE, FINE // 2, 1)]
    return [even_rank(height, width, device), place_waves(height, width, device), *levels]


def judge_canvas(selector: Any, word_table: Tensor, tensors: Tensors) -> Judgement:
    """What the ARR-COC layer thinks of pooled images."""
    layer = selector.layer
    pooled = tensors["canvas"]
    canvas = Canvas.of(pooled[:, :3], pooled[:, 3:4], pooled[:, 4:5])
    question = Question(F.embedding(tensors["question"], word_table).float(), tensors["asked"])
    pyramid = pyramid_of(canvas, layer.texture_channels)
    pyramid = replace(pyramid, seen_BGHW=layer.sight(pyramid, tensors.get("glance")))
    judgement: Judgement = layer.weigh(pyramid, question)
    return judgement


def as_tensors(judgement: Judgement) -> Tensors:
    """A judgement as tensors by name, which a recording can give."""
    balance = judgement.balance
    return {
        "relevance": balance.relevance_BHW,
        "weights": balance.weights_BS,
        "tensions": balance.tensions_BT,
        "mass": judgement.mass_B,
        **{MAP + name: map_BHW for name, map_BHW in judgement.maps.items()},
    }


def as_judgement(tensors: Tensors) -> Judgement:
    maps = {name.removeprefix(MAP): tensor for name, tensor in tensors.items() if name.startswith(MAP)}
    return Judgement(maps, Balance(tensors["relevance"], tensors["weights"], tensors["tensions"]), tensors["mass"])


def choose_padded(selector: Selector, judgement: Judgement, k_G: Tensor, slots: int) -> Tensors:
    """Exactly k cells of each image in `slots` places: flat indices, increasing, 0 beyond; their mask; the strategies.

    `k_G` is at most the cells of the image and at most `slots`. Where scores are not finite, the strategy says so.
    """
    allocation = selector.choose(judgement, k_G)
    keep_GN = allocation.keep_BHW.flatten(1).to(torch.uint8)
    order_GN = keep_GN.sort(dim=-1, descending=True, stable=True).indices
    order_GK = F.pad(order_GN, (0, max(0, slots - order_GN.shape[1])))[:, :slots]
    mask_GK = torch.arange(slots, device=k_G.device) < k_G.unsqueeze(1)
    return {"cells": order_GK.masked_fill(~mask_GK, 0), "mask": mask_GK, "strategy": allocation.strategy_B}


def choose_fixed(selector: Selector, judgement: Judgement, k: int) -> Tensor:
    """The `k` cells kept of each image, flat indices `[G, k]`, increasing, without a host read."""
    relevance_GHW = judgement.balance.relevance_BHW
    k_G = torch.full((relevance_GHW.shape[0],), k, device=relevance_GHW.device)
    return choose_padded(selector, judgement, k_G, k)["cells"]


def known_budgets(prompt: Prompt, keeps: Sequence[Keep]) -> list[int] | None:
    """Cells to keep of each image where the dials alone say so; None where a map must be read for it."""
    alone = len(set(prompt.sample_of)) == len(prompt.sample_of)
    if not alone or any(keeps[sample] == "auto" for sample in prompt.sample_of):
        return None
    wanted = [
        tokens_to_keep(keeps[sample], h * w) for sample, (h, w) in zip(prompt.sample_of, prompt.grids, strict=True)
    ]
    return [count for count in wanted if count is not None]


def read_budgets(
    selector: Selector, prompt: Prompt, keeps: Sequence[Keep], mass_I: Tensor, automatic_I: Tensor
) -> list[int]:
    """Cells to keep of each image where maps decide: the row's budget, shared by relevance. The one host read."""
    mass_I, automatic_I = torch.stack([mass_I.double(), automatic_I.double()]).cpu().unbind()
    mass_I, automatic_I = mass_I.float().nan_to_num(0, 0, 0), automatic_I.long()
    sample_I = torch.tensor(prompt.sample_of)
    cells_I = torch.tensor([height * width for height, width in prompt.grids])
    budgets = []
    for sample, keep in enumerate(keeps):
        cells = int(cells_I[sample_I == sample].sum())
        wanted = tokens_to_keep(keep, cells)
        if wanted is None:
            low, high = budget_bounds(max(1, cells), selector.allocator.min_tokens, selector.allocator.max_tokens)
            wanted = min(max(int(automatic_I[sample_I == sample].sum()), low), high)
        budgets.append(wanted)
    return [int(k) for k in share_budget(torch.tensor(budgets), mass_I, sample_I, cells_I)]


def selection_of(grid: Grid, kept_K: Tensor, judgement: Judgement | None, row: int, strategy: int) -> ImageSelection:
    """The explanation of one image, in tensors of its own."""
    name, reason = STRATEGIES[strategy]
    if judgement is None:
        return ImageSelection(grid, kept_K.clone(), None, {}, {}, {}, name, reason)
    balance = judgement.balance
    return ImageSelection(
        grid=grid,
        kept=kept_K.clone(),
        relevance=balance.relevance_BHW[row].clone(),
        maps={name: map_BHW[row].clone() for name, map_BHW in judgement.maps.items()},
        weights=dict(zip(judgement.maps, balance.weights_BS[row].tolist(), strict=True)),
        tensions=dict(zip(TENSIONS, balance.tensions_BT[row].tolist(), strict=True)),
        strategy=name,
        reason=reason,
    )
