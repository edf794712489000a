"""The choice for a whole batch: images grouped by grid, judged, one budget per sample shared over its images.

S samples, I images of all samples, N cells of an image. Images of different grids are grouped, never padded.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arr_coc.attending import share_budget
from arr_coc.balancing import TENSIONS
from arr_coc.config import Keep, tokens_to_keep
from arr_coc.knowing import Question
from arr_coc.layer import Judgement
from arr_coc.qwen.answers import ImageSelection
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


def choose(
    selector: Selector,
    grids: Sequence[tuple[int, int]],
    pixels: Sequence[Tensor],
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
    pixels: Sequence[Tensor],
    tokens: Sequence[Tensor] | None,
    question: Question,
    sample_of: Sequence[int],
    keeps: Sequence[Keep],
    stopwatch: Stopwatch,
) -> Choice:
    groups: dict[tuple[tuple[int, int], tuple[int, ...]], list[int]] = {}
    for image, grid in enumerate(grids):
        groups.setdefault((grid, tuple(pixels[image].shape)), []).append(image)
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
    pixels: Sequence[Tensor],
    tokens: Sequence[Tensor] | None,
    question: Question,
    sample_of: Sequence[int],
) -> View:
    samples = [sample_of[image] for image in members]
    return View(
        grid=grid,
        question=Question(question.tokens_BLD[samples], question.mask_BL[samples]),
        image_B3hw=torch.stack([pixels[image] for image in members]),
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
    device = next(iter(judgements.values())).balance.relevance_BHW.device
    sample_I = torch.tensor(sample_of, device=device)
    cells_I = torch.tensor([height * width for height, width in grids], device=device)
    mass_I = torch.zeros(len(grids), device=device)
    automatic_I = torch.zeros(len(grids), dtype=torch.long, device=device)
    any_auto = "auto" in keeps
    for key, members in groups.items():
        mass_I[members] = judgements[key].balance.relevance_BHW.detach().flatten(1).sum(-1).float().nan_to_num(0, 0, 0)
        if any_auto:
            automatic_I[members] = selector.automatic_budget(judgements[key])
    cells_S = torch.zeros(len(keeps), dtype=torch.long, device=device).index_add(0, sample_I, cells_I)
    automatic_S = torch.zeros(len(keeps), dtype=torch.long, device=device).index_add(0, sample_I, automatic_I)
    wanted = [tokens_to_keep(keep, cells) for keep, cells in zip(keeps, cells_S.tolist(), strict=True)]
    fixed_S = torch.tensor([-1 if k is None else k for k in wanted], device=device)
    return share_budget(torch.where(fixed_S < 0, automatic_S, fixed_S), mass_I, sample_I, cells_I)


def _selection(
    grid: tuple[int, int], judgement: Judgement, row: int, kept: Tensor, strategy: tuple[str, str]
) -> ImageSelection:
    balance = judgement.balance
    if strategy[0] == "keep_all":
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
