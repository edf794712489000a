"""Which cells of the images of a request are kept: groups of equal grids are judged, budgets set, cells chosen.

B rows, I images, N cells, K slots of an image, G images of one grid, E = 1 + DeepStack levels, D width.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from arr_coc.config import Keep
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.glance import glance_grid, glance_rows
from arr_coc.qwen.graphs import selecting
from arr_coc.qwen.graphs.buckets import budget_bucket, text_bucket
from arr_coc.qwen.graphs.layout import Grid, Prompt, padded_questions
from arr_coc.qwen.graphs.recording import Tensors
from arr_coc.qwen.graphs.stages import Stages
from arr_coc.qwen.preparing import Preparer
from arr_coc.records import WHOLE_BUDGET, Question
from arr_coc.selectors import View
from arr_coc.timing import Stopwatch


@dataclass(frozen=True, slots=True)
class Group:
    """Images of one grid, and what was thought of them; None where nothing had to be chosen."""

    members: list[int]
    judged: Tensors | None = None
    strategy_G: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The kept cells of all images, in slots."""

    counts_I: list[int]
    slots: int
    cells_IK: Tensor  # flat, increasing, 0 in empty slots
    mask_IK: Tensor | None  # None where every slot is real
    groups: dict[Grid, Group]

    def strategies(self) -> dict[Grid, list[int]]:
        """What was done with each image of a group; reads from the device."""
        return {
            grid: [WHOLE_BUDGET] * len(group.members) if group.strategy_G is None else group.strategy_G.tolist()
            for grid, group in self.groups.items()
        }

    def explain(self, prompt: Prompt, strategies: dict[Grid, list[int]]) -> list[list[ImageSelection]]:
        """Per row and image, in tensors of their own."""
        made: dict[int, ImageSelection] = {}
        for grid, group in self.groups.items():
            judgement = None if group.judged is None else selecting.as_judgement(group.judged)
            for row, image in enumerate(group.members):
                kept = self.cells_IK[image, : self.counts_I[image]]
                made[image] = selecting.selection_of(grid, kept, judgement, row, strategies[grid][row])
        images: list[list[ImageSelection]] = [[] for _ in prompt.rows]
        for image, sample in enumerate(prompt.sample_of):
            images[sample].append(made[image])
        return images


def by_grid(grids: list[Grid]) -> dict[Grid, list[int]]:
    """Numbers of the images of each grid."""
    groups: dict[Grid, list[int]] = {}
    for image, grid in enumerate(grids):
        groups.setdefault(grid, []).append(image)
    return groups


def everything(stages: Stages, prompt: Prompt) -> Chosen:
    """All cells of all images, in as many slots as the largest has cells."""
    counts = [height * width for height, width in prompt.grids]
    slots = max(counts)
    place_IK = torch.arange(slots).expand(len(counts), -1)
    mask_IK = place_IK < torch.tensor(counts).unsqueeze(1)
    cells_IK = stages.put(place_IK.masked_fill(~mask_IK, 0))
    groups = {grid: Group(members) for grid, members in by_grid(prompt.grids).items()}
    return Chosen(counts, slots, cells_IK, None if min(counts) == slots else stages.put(mask_IK), groups)


def decide(
    stages: Stages, settings: Preparer, prompt: Prompt, keeps: list[Keep], pixels: Tensor, features: Tensor | None
) -> Chosen:
    """Choose cells of all images. The host reads nothing back unless a budget depends on a map.

    `pixels` are the patch rows of all images; `features` `[E, I * N, D]` what the ViT made of them, for selectors that
    read its tokens.
    """
    reads_tokens = settings.selector.reads_tokens
    pooled = None if reads_tokens else _pool(stages, settings, pixels)
    questions = padded_questions(prompt, text_bucket(max(len(asked) for asked in prompt.asked)))
    counts = selecting.known_budgets(prompt, keeps)
    slots = None if counts is None else budget_bucket(max(counts))
    groups = by_grid(prompt.grids)
    judged: dict[Grid, Tensors] = {}
    for grid, members in groups.items():
        samples = [prompt.sample_of[image] for image in members]
        question, asked = (stages.put(one[samples]) for one in questions)
        if pooled is None:
            assert features is not None
            tokens = features[0].view(len(prompt.grids), -1, features.shape[-1])
            judged[grid] = _judge_tokens(stages, settings, grid, members, tokens, question, asked)
            continue
        given = {"canvas": selecting.canvases(pooled, prompt.grids, members), "question": question, "asked": asked}
        if settings.selector.reads_glance:
            given["glance"] = _glance(stages, settings, prompt, grid, members, pixels)
        if counts is not None:
            given["k"] = stages.put(torch.tensor([counts[image] for image in members]))
        judged[grid] = stages.judge(settings.selector, grid, given, slots)
    if counts is None:
        order = [image for members in groups.values() for image in members]
        back_I = stages.put(torch.tensor(order).argsort())
        mass, automatic = (torch.cat([one[name] for one in judged.values()])[back_I] for name in ("mass", "automatic"))
        counts = selecting.read_budgets(settings.selector, prompt, keeps, mass, automatic)
    return _take(stages, settings, counts, groups, judged)


def _take(
    stages: Stages, settings: Preparer, counts: list[int], groups: dict[Grid, list[int]], judged: dict[Grid, Tensors]
) -> Chosen:
    """The cells that the budgets buy; they are chosen already where the budgets were known before."""
    slots = budget_bucket(max(counts))
    cells: dict[int, Tensor] = {}
    masks: dict[int, Tensor] = {}
    explained: dict[Grid, Group] = {}
    for grid, members in groups.items():
        taken = judged[grid]
        if "cells" not in taken:
            k_G = stages.put(torch.tensor([counts[image] for image in members]))
            taken = stages.choose(settings.selector, grid, taken, k_G, slots)
        explained[grid] = Group(members, judged[grid], taken["strategy"])
        cells |= dict(zip(members, taken["cells"], strict=True))
        masks |= dict(zip(members, taken["mask"], strict=True))
    images = range(len(counts))
    mask_IK = None if min(counts) == slots else torch.stack([masks[image] for image in images])
    return Chosen(counts, slots, torch.stack([cells[image] for image in images]), mask_IK, explained)


@lru_cache(maxsize=16)
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def _scale(stages: Stages, settings: Preparer) -> tuple[Tensor, Tensor]:
    """Mean and spread that pixels were normalised with."""
    return _on_device(settings.image_mean, stages.device), _on_device(settings.image_std, stages.device)


def _pool(stages: Stages, settings: Preparer, pixels: Tensor) -> Tensor:
    return selecting.pool_patches(pixels, *_scale(stages, settings), stages.model.config.vision_config)


def _glance(
    stages: Stages, settings: Preparer, prompt: Prompt, grid: Grid, members: list[int], pixels: Tensor
) -> Tensor:
    """What the ViT makes of small copies of images of one grid."""
    vision = stages.model.config.vision_config
    cell = vision.patch_size * vision.spatial_merge_size
    mean, std = _scale(stages, settings)
    rows = pixels.split([height * width * vision.spatial_merge_size**2 for height, width in prompt.grids])
    small = glance_grid(grid, cell)
    size = (small[0] * cell, small[1] * cell)
    shrunk = [selecting.shrink_patches(rows[image], grid, size, mean, std, vision) for image in members]
    return stages.glance(glance_rows(torch.cat(shrunk), small, mean, std, vision), grid)


def _judge_tokens(
    stages: Stages,
    settings: Preparer,
    grid: Grid,
    members: list[int],
    tokens_IND: Tensor,
    question_GQ: Tensor,
    asked_GQ: Tensor,
) -> Tensors:
    """A selector that reads the ViT's tokens, run as it is."""
    words = stages.model.get_input_embeddings()(question_GQ)
    visual_GND = torch.stack([tokens_IND[image, : grid[0] * grid[1]] for image in members])
    view = View(grid=grid, question=Question.of(words, asked_GQ), visual_BND=visual_GND, image_B3hw=None)
    judgement = settings.selector.judge(view, Stopwatch())
    return selecting.as_tensors(judgement) | {"automatic": settings.selector.automatic_budget(judgement)}
