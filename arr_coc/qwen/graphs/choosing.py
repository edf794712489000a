"""Which cells are kept, over recordings: as `arr_coc.qwen.looking` chooses, without reading anything back to the host.

B rows, I images, G images of one grid, H W grid of cells, N = H * W, C cells of all images, K slots of an image, Q
question tokens, R patch rows of all images, E = 1 + DeepStack levels, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import coverage, even_rank, known_budgets
from arr_coc.config import FINE, GLANCE, Keep
from arr_coc.knowing import place_waves
from arr_coc.qwen.answers import ImageSelection, thoughts
from arr_coc.qwen.first_look import spread_over
from arr_coc.qwen.graphs.layout import Prompt, budget_bucket, padded_questions
from arr_coc.qwen.graphs.recording import Tensors
from arr_coc.qwen.looking import Looker, explain
from arr_coc.qwen.vision import Geometry, Grid, glance_rows, unpatchify
from arr_coc.records import STRATEGIES, WHOLE_BUDGET, Balance, Judgement, QuestionTokens
from arr_coc.selectors import Selector, View
from arr_coc.texture import LUMA, Canvas, position_grid, pyramid_of
from arr_coc.timing import Stopwatch

CHUNK = 1536  # cells looked at together: 19 MB of pixels in fp32, and 25 MB for their luma
MAP = "map "  # what the names of maps begin with among the tensors of a judgement
SEEN = "seen "  # and those of what was seen in the textures
Explain = Callable[[], list[list[ImageSelection]]]  # per row, per image
FirstLooks = tuple[list[Tensor], list[Tensor]]  # of each image, maps [M, h, w] and a glance [X, H, W]; none: not read
LookFirst = Callable[[Callable[[], None]], FirstLooks]


@lru_cache(maxsize=8)
def _luma(device: torch.device) -> Tensor:
    return torch.tensor(LUMA, device=device).view(3, 1, 1)


@dataclass(frozen=True, slots=True)
class Pixels:
    """What there is to look at, pooled and shrunk in bounded parts, so that memory stays flat.

    `ask` holds the images, and they are read; `generate` has only their patch rows, and images are made of those.
    """

    rows_Rx: Tensor
    images: list[Tensor] | None = None  # uint8 [3, h, w] of whole cells

    def canvases(self, grids: Sequence[Grid], geometry: Geometry) -> list[Tensor]:
        """Each image pooled to the finest level of its pyramid, `[5, 4 H, 4 W]` in fp32.

        Means of red, green, blue, luma and squared luma.
        """
        size, weights = geometry.cell // FINE, _luma(self.rows_Rx.device)
        canvases = []
        for image in range(len(grids)):
            pooled = []
            for pixels in self._strips(image, grids, geometry):
                luma = (pixels * weights).sum(0, keepdim=True)
                means = [F.avg_pool2d(pixels, size), F.avg_pool2d(luma, size)]
                pooled.append(torch.cat([*means, F.avg_pool2d(luma.square_(), size)]))
            canvases.append(torch.cat(pooled, dim=1))
        return canvases

    def shrunk(
        self, grids: Sequence[Grid], members: Sequence[int], size: tuple[int, int], geometry: Geometry
    ) -> Tensor:
        """Images of one grid at `size` px, by area: `[G, 3, h, w]` in [0, 1]; of a large one, a channel at a time.

        On a GPU it is the number of launches that costs: small ones are shrunk as they are.
        """
        small = []
        for image in members:
            together = 3 if grids[image][0] * grids[image][1] <= CHUNK else 1
            for first in range(0, 3, together):
                (whole,) = self._strips(image, grids, geometry, slice(first, first + together), grids[image][0])
                small.append(F.interpolate(whole.unsqueeze(0), size=size, mode="area"))
        return torch.cat(small, dim=1).view(len(members), 3, *size)

    def _strips(
        self,
        image: int,
        grids: Sequence[Grid],
        geometry: Geometry,
        channels: slice = slice(None),
        rows: int | None = None,
    ) -> Iterator[Tensor]:
        """An image in [0, 1] as `[3, h, w]`, so many rows of cells at a time, or a bounded number of cells."""
        width = grids[image][1]
        rows = rows or max(1, CHUNK // width)
        if self.images is not None:
            for strip in self.images[image][channels].split(rows * geometry.cell, dim=1):
                yield strip.float() / 255
            return
        patches = self.rows_Rx.split([high * wide * geometry.window for high, wide in grids])[image]
        for part in patches.split(rows * width * geometry.window):
            yield unpatchify(part, (part.shape[0] // (width * geometry.window), width), geometry, channels)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it is looked at: who looks, at what, and what runs the recordings."""

    stages: Any
    looker: Looker
    prompt: Prompt
    pixels: Pixels


@dataclass(frozen=True, slots=True)
class OneGrid:
    """Images of one grid, and what was thought of them; None where nothing had to be chosen."""

    members: list[int]
    judged: Tensors | None = None
    strategy_G: Tensor | None = None
    covered_GK: Tensor | None = None  # which of the kept cells were kept for even coverage


@dataclass(frozen=True, slots=True)
class Chosen:
    """The kept cells of all images, in slots."""

    counts_I: list[int]
    slots: int
    cells_IK: Tensor  # flat, increasing, 0 in empty slots
    mask_IK: Tensor | None  # None where every slot is real
    groups: dict[Grid, OneGrid]
    copies: list[Grid | None]  # cells of each image's small copy in the prompt; None where there is none

    def strategies(self) -> dict[Grid, list[int]]:
        """What was done with each image of a group; reads from the device."""
        return {
            grid: [WHOLE_BUDGET] * len(group.members) if group.strategy_G is None else group.strategy_G.tolist()
            for grid, group in self.groups.items()
        }

    def explain(self, prompt: Prompt, strategies: dict[Grid, list[int]]) -> list[list[ImageSelection]]:
        """Per row and image, in tensors of their own."""
        made, cells_IK = dict[int, ImageSelection](), self.cells_IK.clone()
        for grid, group in self.groups.items():
            covered_GK = None if group.covered_GK is None else group.covered_GK.clone()
            thought = None if group.judged is None else thoughts(as_judgement(group.judged))
            for row, image in enumerate(group.members):
                count = self.counts_I[image]
                covered = None if covered_GK is None else covered_GK[row, :count]
                strategy = STRATEGIES[strategies[grid][row]]
                kept = cells_IK[image, :count]
                made[image] = explain(grid, kept, covered, None if thought is None else thought[row], strategy)
                made[image] = replace(made[image], periphery=self.copies[image])
        images: list[list[ImageSelection]] = [[] for _ in prompt.rows]
        for image, sample in enumerate(prompt.sample_of):
            images[sample].append(made[image])
        return images


@dataclass(frozen=True, slots=True)
class Laid:
    """What the language model is shown: prompts, and the visual tokens that are left of each image, in slots."""

    prompt: Prompt
    counts_I: list[int]
    starts_I: Sequence[int]  # slot of the first token of each image
    features_EVD: Tensor
    cells_V: Tensor
    widths_V: Tensor
    checked: Callable[[], Explain]  # raises NotFast where the choice cannot be trusted


def by_grid(grids: list[Grid]) -> dict[Grid, list[int]]:
    """Numbers of the images of each grid."""
    groups: dict[Grid, list[int]] = {}
    for image, grid in enumerate(grids):
        groups.setdefault(grid, []).append(image)
    return groups


def everything(grids: list[Grid], device: torch.device, slots: int = 0) -> Chosen:
    """All cells of all images, in as many slots as the largest has cells, or in more."""
    counts = [height * width for height, width in grids]
    slots = max(slots, *counts)
    place_IK = torch.arange(slots).expand(len(counts), -1)
    mask_IK = place_IK < torch.tensor(counts).unsqueeze(1)
    cells_IK = place_IK.masked_fill(~mask_IK, 0).to(device, non_blocking=True)
    groups = {grid: OneGrid(members) for grid, members in by_grid(grids).items()}
    mask = None if min(counts) == slots else mask_IK.to(device)
    return Chosen(counts, slots, cells_IK, mask, groups, [None] * len(counts))


def choose(
    asked: Asked,
    keeps: list[Keep],
    features: Tensor | None,
    look_first: LookFirst | None = None,
    foveated: bool = False,
) -> Chosen:
    """Choose cells of all images. The host reads nothing back unless a budget depends on a map.

    `features` `[E, I * N, D]` is what the ViT made of all images, for selectors that read its tokens; `look_first`
    gives the maps of a first look and calls what can be done meanwhile. `foveated` leaves room for a small copy of each
    image in its budget.
    """
    stages, looker, prompt = asked.stages, asked.looker, asked.prompt
    cells = [height * width for height, width in prompt.grids]
    copies: list[Grid | None] = [None] * len(cells)

    def windows(budgets: list[int]) -> list[int]:
        for image, (grid, budget) in enumerate(zip(prompt.grids, list(budgets), strict=True)):
            [copies[image]], [budgets[image]] = looker.beside(grid, [budget])
        return budgets

    counts = known_budgets(keeps, prompt.sample_of, cells)
    if counts is not None and foveated:
        counts = windows(counts)
    groups = by_grid(prompt.grids)
    if looker.selector.reads_tokens:
        assert features is not None
        judged = {grid: _judge_tokens(asked, grid, groups[grid], features) for grid in groups}
    else:
        judged = _judge_pixels(asked, counts, look_first)
    if counts is None:
        order = [image for members in groups.values() for image in members]
        back_I = stages.put(torch.tensor(order).argsort())
        both = [torch.cat([one[name] for one in judged.values()])[back_I].double() for name in ("mass", "automatic")]
        mass_I, automatic_I = torch.stack(both).cpu().unbind()  # the one host read
        budget = looker.selector.allocator.shared_budgets
        counts = budget(keeps, prompt.sample_of, cells, mass_I.float(), automatic_I.long()).tolist()
        counts = windows(counts) if foveated else counts
    return _take(stages, looker.selector, counts, copies, groups, judged)


def _judge_pixels(asked: Asked, counts: list[int] | None, look_first: LookFirst | None) -> dict[Grid, Tensors]:
    """The judgement of each group by its textures; where the budgets are known, the choice comes with it."""
    stages, looker, prompt = asked.stages, asked.looker, asked.prompt
    groups = by_grid(prompt.grids)
    seen: dict[Grid, Tensors] = {}
    stages.join()

    def see_textures() -> None:
        canvases = asked.pixels.canvases(prompt.grids, looker.geometry)
        for grid, members in groups.items():
            pooled = torch.stack([canvases[image] for image in members])
            seen[grid] = stages.textures(looker.selector, grid, pooled)

    looked: list[Tensor] = []
    glances: list[Tensor] = []
    if look_first is None:
        see_textures()
    else:
        looked, glances = look_first(see_textures)
    slots = None if counts is None else budget_bucket(max(counts))
    judged: dict[Grid, Tensors] = {}
    for grid, members in groups.items():
        question, real = _questions(asked, members)
        given = seen[grid] | {"question": question, "asked": real}
        if glances:
            given["glance"] = torch.stack([glances[image] for image in members])
        elif looker.selector.reads_glance:
            rows = small_rows(asked, members, GLANCE.grid(grid))
            given["glance"] = stages.glance(rows, grid)
        if looked:
            given["looked"] = torch.stack([looked[image] for image in members])
        if counts is not None:
            given["k"] = stages.put(torch.tensor([counts[image] for image in members]))
        stages.join()
        judged[grid] = stages.judge(looker.selector, grid, given, slots)
    return judged


def _judge_tokens(asked: Asked, grid: Grid, members: list[int], features: Tensor) -> Tensors:
    """A selector that reads the ViT's tokens, run as it is."""
    looker = asked.looker
    tokens_IND = features[0].view(len(asked.prompt.grids), -1, features.shape[-1])
    visual_GND = torch.stack([tokens_IND[image, : grid[0] * grid[1]] for image in members])
    question = looker.question(*_questions(asked, members))
    judgement = looker.judge(grid, question, Stopwatch(), visual_BND=visual_GND)
    return as_tensors(judgement) | {"automatic": looker.selector.automatic_budget(judgement)}


def _questions(asked: Asked, members: list[int]) -> tuple[Tensor, Tensor]:
    """Ids of the question of each image's row, padded, and the mask of real ones: `[G, Q]`."""
    samples = [asked.prompt.sample_of[image] for image in members]
    ids_GQ, mask_GQ = (asked.stages.put(one[samples]) for one in padded_questions(asked.prompt))
    return ids_GQ, mask_GQ


def _take(
    stages: Any,
    selector: Selector,
    counts: list[int],
    copies: list[Grid | None],
    groups: dict[Grid, list[int]],
    judged: dict[Grid, Tensors],
) -> Chosen:
    """The cells that the budgets buy; they are chosen already where the budgets were known before."""
    slots = budget_bucket(max(counts))
    cells: dict[int, Tensor] = {}
    masks: dict[int, Tensor] = {}
    explained: dict[Grid, OneGrid] = {}
    for grid, members in groups.items():
        taken = judged[grid]
        if "cells" not in taken:
            k_G = stages.put(torch.tensor([counts[image] for image in members]))
            taken = stages.choose(selector, grid, taken, k_G, slots)
        explained[grid] = OneGrid(members, judged[grid], taken["strategy"], taken["covered"])
        cells |= dict(zip(members, taken["cells"], strict=True))
        masks |= dict(zip(members, taken["mask"], strict=True))
    images = range(len(counts))
    mask_IK = None if min(counts) == slots else torch.stack([masks[image] for image in images])
    return Chosen(counts, slots, torch.stack([cells[image] for image in images]), mask_IK, explained, copies)


def small_rows(asked: Asked, members: list[int], small: Grid) -> Tensor:
    """Patch rows of copies, of `small` cells, of images of one grid: `[G, P, X]`."""
    geometry = asked.looker.geometry
    size = (small[0] * geometry.cell, small[1] * geometry.cell)
    return glance_rows(asked.pixels.shrunk(asked.prompt.grids, members, size, geometry), small, geometry)


# ---------------------------------------------------------------- what is recorded


def tables_of(grid: Grid, device: torch.device) -> list[Tensor]:
    """Tables that the parts make once and keep for a while: a recording that reads them must keep them as well."""
    height, width = grid
    levels = [position_grid(height * fine, width * fine, device, torch.float32) for fine in (FINE, FINE // 2, 1)]
    orders = [even_rank(height, width, device), coverage(height, width, device)]
    return [*orders, place_waves(height, width, device), *levels]


def see_canvas(selector: Any, tensors: Tensors) -> Tensors:
    """What a selector that judges by textures sees in pooled images before it knows the question."""
    pooled = tensors["canvas"]
    canvas = Canvas.of(pooled[:, :3], pooled[:, 3:4], pooled[:, 4:5])
    seen: Tensors = selector.seen(pyramid_of(canvas, selector.channels))
    return {SEEN + name: tensor for name, tensor in seen.items()}


def judge_seen(selector: Any, word_table: Tensor, grid: Grid, tensors: Tensors) -> Judgement:
    """What it thinks of them, from what it has seen."""
    looked = tensors.get("looked")
    question = QuestionTokens(F.embedding(tensors["question"], word_table).float(), tensors["asked"])
    view = View(grid, question, None, None, tensors.get("glance"))
    if looked is not None:
        looked_GMN = spread_over(looked, grid).flatten(2)
        view = replace(view, attended_BN=looked_GMN.mean(1), looked_BMN=looked_GMN)
    seen = {name.removeprefix(SEEN): tensor for name, tensor in tensors.items() if name.startswith(SEEN)}
    judgement: Judgement = selector.judge_seen(seen, view)
    if judgement.balance.relevance_BHW.shape != (tensors["question"].shape[0], *grid):
        raise ValueError(f"a map of shape {tuple(judgement.balance.relevance_BHW.shape)} for a grid of {grid}")
    return judgement


def as_tensors(judgement: Judgement) -> Tensors:
    """A judgement as tensors by name, which a recording can give."""
    balance = judgement.balance
    return {
        "relevance": balance.relevance_BHW,
        "weights": balance.weights_BS,
        "tensions": balance.tensions_BT,
        "mass": judgement.mass_B,
        **({} if judgement.rest_BHW is None else {"rest": judgement.rest_BHW}),
        **{MAP + name: map_BHW for name, map_BHW in judgement.maps.items()},
    }


def as_judgement(tensors: Tensors) -> Judgement:
    maps = {name.removeprefix(MAP): tensor for name, tensor in tensors.items() if name.startswith(MAP)}
    balance = Balance(tensors["relevance"], tensors["weights"], tensors["tensions"])
    return Judgement(maps, balance, tensors["mass"], rest_BHW=tensors.get("rest"))


def choose_padded(selector: Selector, judgement: Judgement, k_G: Tensor, slots: int) -> Tensors:
    """Exactly k cells of each image in `slots` places: flat indices, increasing, 0 beyond; masks; the strategies.

    `k_G` is at most the cells of the image and at most `slots`. Where scores are not finite, the strategy says so.
    """
    allocation = selector.choose(judgement, k_G)
    keep_GN = allocation.keep_BHW.flatten(1).to(torch.uint8)
    order_GN = keep_GN.sort(dim=-1, descending=True, stable=True).indices
    order_GK = F.pad(order_GN, (0, max(0, slots - order_GN.shape[1])))[:, :slots]
    mask_GK = torch.arange(slots, device=k_G.device) < k_G.unsqueeze(1)
    cells_GK = order_GK.masked_fill(~mask_GK, 0)
    covered_GK = allocation.covered_BHW.flatten(1).gather(1, cells_GK) & mask_GK
    return {"cells": cells_GK, "mask": mask_GK, "covered": covered_GK, "strategy": allocation.strategy_B}
