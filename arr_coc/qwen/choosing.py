"""The choice for a whole batch: images grouped by grid, judged, one budget per sample shared over its images.

S samples, I images of all samples, N cells of an image. Images of different grids are grouped, never padded.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from arr_coc.attending import budget_bounds, share_budget
from arr_coc.config import TENSIONS, Keep, tokens_to_keep
from arr_coc.qwen.answers import ImageSelection
from arr_coc.records import NOT_FINITE, STRATEGIES, Allocation, Judgement, Question
from arr_coc.selectors import Selector, Taken, View
from arr_coc.timing import Stopwatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The images of a batch, and what is asked of them."""

    grids: Sequence[tuple[int, int]]  # cells of each image
    pixels: Sequence[Tensor] | None  # per image [3, h, w]; None where the selector does not read them
    tokens: Sequence[Tensor] | None  # per image [N, D]; None where the choice comes before the vision encoder
    question: Question  # one row per sample
    sample_of: Sequence[int]  # the sample of each image
    keeps: Sequence[Keep]  # one checked dial per sample
    glance: Callable[[Tensor, tuple[int, int]], Tensor] | None = None  # images [B, 3, h, w], grid -> [B, X, H, W]
    more: dict[str, Sequence[Tensor]] = field(default_factory=dict)  # other fields of the view -> a tensor per image


@dataclass(frozen=True, slots=True)
class Choice:
    """Kept cells of each image of the batch, in order."""

    indices: list[Tensor]  # per image, increasing
    soft: list[Tensor] | None  # per image, relevance after the tensions of ALL cells, [N]; None when all was kept
    images: list[ImageSelection]
    weights: list[Tensor | None] | None = None  # per image [K, N] where tokens are merged; None: taken as they are
    grids: list[tuple[int, int]] | None = None  # per image, the grid to resize it to; None: as it is


def keep_everything(grids: Sequence[tuple[int, int]], device: torch.device, strategy: str, reason: str) -> Choice:
    indices = [torch.arange(height * width, device=device) for height, width in grids]
    images = [
        ImageSelection(grid, index, None, {}, {}, {}, strategy, reason)
        for grid, index in zip(grids, indices, strict=True)
    ]
    return Choice(indices, None, images)


def keep_weighted(choice: Choice, untouched: Sequence[bool]) -> Choice:
    """The same relevance with every cell kept, to be scaled by it; not scaled at all where an image is `untouched`."""
    if choice.soft is None:
        return choice
    soft = [torch.ones_like(one) if leave else one for one, leave in zip(choice.soft, untouched, strict=True)]
    indices = [torch.arange(one.shape[0], device=one.device) for one in soft]
    reason = "every token was kept, scaled by its relevance"
    images = [
        replace(image, kept=index, strategy="weighted", reason=reason)
        for image, index in zip(choice.images, indices, strict=True)
    ]
    return Choice(indices, soft, images)


def choose(selector: Selector, batch: Candidates, stopwatch: Stopwatch, strict: bool) -> Choice:
    """Choose cells of each image, one budget per sample. If choosing fails, every token is kept and the answer goes on.

    `strict` (training) lets errors through.
    """
    try:
        return _choose(selector, batch, stopwatch)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if strict:
            raise
        reason = f"choosing failed ({type(error).__name__}), so every token was kept"
        logger.warning("%s", reason, exc_info=True)
        return keep_everything(batch.grids, batch.question.tokens_BLD.device, "keep_all", reason)


Group = tuple[tuple[int, int], tuple[int, ...]]  # images that can be judged together: one grid, one size in pixels


def _choose(selector: Selector, batch: Candidates, stopwatch: Stopwatch) -> Choice:
    groups: dict[Group, list[int]] = {}
    for image, grid in enumerate(batch.grids):
        size = () if batch.pixels is None else tuple(batch.pixels[image].shape)
        groups.setdefault((grid, size), []).append(image)
    judgements = {
        key: selector.judge(_view(key[0], members, batch, stopwatch), stopwatch) for key, members in groups.items()
    }
    with stopwatch.part("attending"):
        k_I = _budgets(selector, judgements, groups, batch)
        chosen: dict[int, tuple[ImageSelection, Tensor, Tensor | None, tuple[int, int]]] = {}
        for key, members in groups.items():
            allocation = selector.choose(judgements[key], k_I[members])
            for row, image in enumerate(members):
                kept = allocation.keep_BHW[row].flatten().nonzero().squeeze(-1)
                selection = _selection(key[0], judgements[key], row, kept, allocation.strategy(row))
                chosen[image] = (selection, allocation.soft_BHW[row].flatten(), *_made_of(allocation, row, selection))
    images, soft, weights, grids = map(list, zip(*(chosen[image] for image in range(len(batch.grids))), strict=True))
    merges = any(weight is not None for weight in weights)
    return Choice([one.kept for one in images], soft, images, weights if merges else None, grids)


def _made_of(allocation: Allocation, row: int, selection: ImageSelection) -> tuple[Tensor | None, tuple[int, int]]:
    """What the kept tokens of an image are merged from (None: nothing, as where all are kept), and its new grid."""
    if not isinstance(allocation, Taken):
        return None, selection.grid
    merges = allocation.weights is not None and selection.tokens_kept < selection.tokens_total
    weights = allocation.weights[row] if merges and allocation.weights is not None else None
    return weights, selection.grid if allocation.grids is None else allocation.grids[row]


def _view(grid: tuple[int, int], members: list[int], batch: Candidates, stopwatch: Stopwatch) -> View:
    samples = [batch.sample_of[image] for image in members]
    image_B3hw = None if batch.pixels is None else torch.stack([batch.pixels[image] for image in members])
    glance_BXHW = None
    if batch.glance is not None and image_B3hw is not None:
        with stopwatch.part("glance"):
            glance_BXHW = batch.glance(image_B3hw, grid)
    return View(
        grid=grid,
        question=Question(batch.question.tokens_BLD[samples], batch.question.mask_BL[samples]),
        image_B3hw=image_B3hw,
        visual_BND=None if batch.tokens is None else torch.stack([batch.tokens[image] for image in members]),
        glance_BXHW=glance_BXHW,
        **{name: torch.stack([values[image] for image in members]) for name, values in batch.more.items()},
    )


def _budgets(
    selector: Selector, judgements: dict[Group, Judgement], groups: dict[Group, list[int]], batch: Candidates
) -> Tensor:
    """Number of cells to keep of each image, `[I]`: the sample's budget, shared by relevance."""
    device = batch.question.tokens_BLD.device
    sample_I = torch.tensor(batch.sample_of, device=device)
    cells_I = torch.tensor([height * width for height, width in batch.grids], device=device)
    mass_I = torch.zeros(len(batch.grids), device=device)
    automatic_I = torch.zeros(len(batch.grids), dtype=torch.long, device=device)
    for key, members in groups.items():
        mass_I[members] = judgements[key].mass_B.float().nan_to_num(0, 0, 0)
        if "auto" in batch.keeps:
            automatic_I[members] = selector.automatic_budget(judgements[key])
    automatic_S = torch.zeros(len(batch.keeps), dtype=torch.long, device=device).index_add(0, sample_I, automatic_I)
    fixed_S, low_S, high_S = _limits(selector, batch).to(device).unbind(-1)
    # Several images share one automatic budget: what they ask for together, within the bounds of one image their size.
    k_S = torch.where(fixed_S < 0, automatic_S.clamp(low_S, high_S), fixed_S)
    return share_budget(k_S, mass_I, sample_I, cells_I)


def _limits(selector: Selector, batch: Candidates) -> Tensor:
    """Per sample: the tokens asked for (-1 for "auto"), and the least and most of an automatic budget: `[S, 3]`."""
    cells = [0] * len(batch.keeps)
    for sample, (height, width) in zip(batch.sample_of, batch.grids, strict=True):
        cells[sample] += height * width
    rows = []
    for keep, count in zip(batch.keeps, cells, strict=True):
        wanted = tokens_to_keep(keep, count)
        bounds = budget_bounds(max(1, count), selector.allocator.min_tokens, selector.allocator.max_tokens)
        rows.append((-1 if wanted is None else wanted, *bounds))
    return torch.tensor(rows)


def _selection(
    grid: tuple[int, int], judgement: Judgement, row: int, kept: Tensor, strategy: tuple[str, str]
) -> ImageSelection:
    balance = judgement.balance
    if strategy == STRATEGIES[NOT_FINITE]:
        logger.warning("%s", strategy[1])
    return ImageSelection(
        grid=grid,
        kept=kept,
        relevance=balance.relevance_BHW[row].detach(),
        maps={name: map_BHW[row].detach() for name, map_BHW in judgement.maps.items()},
        weights=dict(zip(judgement.maps, balance.weights_BS[row].tolist(), strict=True)),
        tensions=dict(zip(TENSIONS, balance.tensions_BT[row].tolist(), strict=True)),
        strategy=strategy[0],
        reason=strategy[1],
    )
