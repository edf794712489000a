"""The choice for a whole batch: images grouped by grid, judged, one budget per sample shared over its images.

S samples, I images of all samples, N cells of an image. Images of different grids are grouped, never padded.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from arr_coc.attending import budget_bounds, share_budget
from arr_coc.config import TENSIONS, Keep, tokens_to_keep
from arr_coc.qwen.answers import ImageSelection
from arr_coc.records import Judgement, Question
from arr_coc.selectors import Selector, View
from arr_coc.timing import Stopwatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """Kept cells of each image of the batch, in order."""

    indices: list[Tensor]  # per image, increasing
    soft: list[Tensor] | None  # per image, relevance after the tensions of ALL cells, [N]; None when all was kept
    images: list[ImageSelection]


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


def choose(
    selector: Selector,
    grids: Sequence[tuple[int, int]],
    pixels: Sequence[Tensor] | None,
    tokens: Sequence[Tensor] | None,
    question: Question,
    sample_of: Sequence[int],
    keeps: Sequence[Keep],
    stopwatch: Stopwatch,
    strict: bool,
) -> Choice:
    """Choose cells of each image, one budget per sample. If choosing fails, every token is kept and the answer goes on.

    `question` has one row per sample. `strict` (training) lets errors through.
    """
    device = question.tokens_BLD.device
    if all(tokens_to_keep(keep, 1 << 30) == 1 << 30 for keep in keeps):
        return keep_everything(grids, device, "keep_all", "all tokens were asked for")
    try:
        return _choose(selector, grids, pixels, tokens, question, sample_of, keeps, stopwatch)
    except (ValueError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if strict:
            raise
        reason = f"choosing failed ({type(error).__name__}), so every token was kept"
        logger.warning("%s", reason, exc_info=True)
        return keep_everything(grids, device, "keep_all", reason)


def _choose(
    selector: Selector,
    grids: Sequence[tuple[int, int]],
    pixels: Sequence[Tensor] | None,
    tokens: Sequence[Tensor] | None,
    question: Question,
    sample_of: Sequence[int],
    keeps: Sequence[Keep],
    stopwatch: Stopwatch,
) -> Choice:
    groups: dict[tuple[tuple[int, int], tuple[int, ...]], list[int]] = {}
    for image, grid in enumerate(grids):
        size = () if pixels is None else tuple(pixels[image].shape)
        groups.setdefault((grid, size), []).append(image)
    judgements = {
        key: selector.judge(_view(key[0], members, pixels, tokens, question, sample_of), stopwatch)
        for key, members in groups.items()
    }
    with stopwatch.part("attending"):
        k_I = _budgets(selector, judgements, groups, grids, sample_of, keeps)
        images: list[ImageSelection | None] = [None] * len(grids)
        soft: list[Tensor | None] = [None] * len(grids)
        for key, members in groups.items():
            allocation = selector.choose(judgements[key], k_I[members])
            for row, image in enumerate(members):
                strategy = allocation.strategy(row)
                kept = allocation.keep_BHW[row].flatten().nonzero().squeeze(-1)
                images[image] = _selection(key[0], judgements[key], row, kept, strategy)
                soft[image] = allocation.soft_BHW[row].flatten()
    done = [one for one in images if one is not None]
    return Choice([one.kept for one in done], [one for one in soft if one is not None], done)


def _view(
    grid: tuple[int, int],
    members: list[int],
    pixels: Sequence[Tensor] | None,
    tokens: Sequence[Tensor] | None,
    question: Question,
    sample_of: Sequence[int],
) -> View:
    samples = [sample_of[image] for image in members]
    return View(
        grid=grid,
        question=Question(question.tokens_BLD[samples], question.mask_BL[samples]),
        image_B3hw=None if pixels is None else torch.stack([pixels[image] for image in members]),
        visual_BND=None if tokens is None else torch.stack([tokens[image] for image in members]),
    )


def _budgets(
    selector: Selector,
    judgements: dict[tuple[tuple[int, int], tuple[int, ...]], Judgement],
    groups: dict[tuple[tuple[int, int], tuple[int, ...]], list[int]],
    grids: Sequence[tuple[int, int]],
    sample_of: Sequence[int],
    keeps: Sequence[Keep],
) -> Tensor:
    """Number of cells to keep of each image, `[I]`: the sample's budget, shared by relevance."""
    device = next(iter(judgements.values())).mass_B.device
    sample_I = torch.tensor(sample_of, device=device)
    cells_I = torch.tensor([height * width for height, width in grids], device=device)
    mass_I = torch.zeros(len(grids), device=device)
    automatic_I = torch.zeros(len(grids), dtype=torch.long, device=device)
    for key, members in groups.items():
        mass_I[members] = judgements[key].mass_B.float().nan_to_num(0, 0, 0)
        if "auto" in keeps:
            automatic_I[members] = selector.automatic_budget(judgements[key])
    automatic_S = torch.zeros(len(keeps), dtype=torch.long, device=device).index_add(0, sample_I, automatic_I)
    fixed_S, low_S, high_S = _limits(selector, grids, sample_of, keeps, device)
    # Several images share one automatic budget: what they ask for together, within the bounds of one image their size.
    k_S = torch.where(fixed_S < 0, automatic_S.clamp(low_S, high_S), fixed_S)
    return share_budget(k_S, mass_I, sample_I, cells_I)


def _limits(
    selector: Selector,
    grids: Sequence[tuple[int, int]],
    sample_of: Sequence[int],
    keeps: Sequence[Keep],
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Per sample: the number of tokens asked for (-1 for "auto"), and the bounds of an automatic one. Each `[S]`."""
    cells = [0] * len(keeps)
    for sample, (height, width) in zip(sample_of, grids, strict=True):
        cells[sample] += height * width
    wanted = [tokens_to_keep(keep, count) for keep, count in zip(keeps, cells, strict=True)]
    least, most = selector.allocator.min_tokens, selector.allocator.max_tokens
    bounds = [budget_bounds(max(1, count), least, most) for count in cells]
    rows = [(-1 if k is None else k, low, high) for k, (low, high) in zip(wanted, bounds, strict=True)]
    fixed_S, low_S, high_S = torch.tensor(rows, device=device).unbind(-1)
    return fixed_S, low_S, high_S


def _selection(
    grid: tuple[int, int], judgement: Judgement, row: int, kept: Tensor, strategy: tuple[str, str]
) -> ImageSelection:
    balance = judgement.balance
    if "not finite" in strategy[1]:
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
