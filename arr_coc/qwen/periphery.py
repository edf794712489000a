"""The periphery: small copies of images that stand in the prompt before the windows that were chosen at full size.

B batch, L full length, V length with the small copies put in, I images of all samples, h w grid of a small copy.

    images   <|vision_start|> small copy <|vision_end|> of each image, before the row's first image: positions are those
             that the stock model gives to so many images
    grid     the small copies follow the row's first <|vision_start|>: each of their tokens stands where the cell under
             its centre stands, and all else where it would without them

Either way all small copies of a row come before all of its windows, and the windows stand where they would in the whole
image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from arr_coc.config import FirstLook
from arr_coc.qwen.compact import INSERTED, PADDING
from arr_coc.qwen.family import levels_of
from arr_coc.qwen.request import Layout, Request
from arr_coc.qwen.vision import Grid, under_centres

CONTEXT = FirstLook(least=1, most=64)  # a quarter of an image's cells, 64 at most
LEAST_BUDGET = 8  # tokens of an image below which a small copy would show nothing: all go to windows


def periphery_grid(grid: Grid, small: Grid, budget: int) -> Grid | None:
    """Cells of the small copy of an image of which `budget` tokens are kept; None where there is no room for one.

    It is `small` where that leaves at least half of the budget for windows, else as large as half of the budget allows.
    """
    half = budget // 2
    if budget < LEAST_BUDGET or budget >= grid[0] * grid[1]:
        return None
    if small[0] * small[1] <= half:
        return small
    ratio = (half / (grid[0] * grid[1])) ** 0.5
    height = min(half, max(1, int(grid[0] * ratio)))
    return height, max(1, min(int(grid[1] * ratio), half // height))


def context_grid(setting: str | int, kept: int, grid: Grid) -> Grid | None:
    """Cells of the copy that `kept` windows of an image attend to in the ViT, "always" or where they are few, or None.

    Few windows know little of each other, and a small copy then tells much for little; many do without. Which are few
    depends on what the model learned: `setting` may be their number, "auto" is that of the copy's cells.
    """
    small, cells = CONTEXT.grid(grid), grid[0] * grid[1]
    few = {"always": cells, "auto": small[0] * small[1]}[setting] if isinstance(setting, str) else setting
    return small if kept < cells and kept <= few else None


@dataclass(frozen=True, slots=True)
class Widened:
    """A request with small copies put into its rows, as images of their own."""

    request: Request
    positions_3BV: Tensor
    source_BV: Tensor  # the caller's column that each is, or PADDING, or INSERTED
    order: list[tuple[int, bool]]  # of each image: its number in the caller's request, and whether it is a small copy

    def kept(self, indices: Sequence[Tensor]) -> list[Tensor]:
        """Kept cells of each image: those of the caller's images, and all of the small copies."""
        cells, device = zip(self.order, self.request.layout.cells, strict=True), self.source_BV.device
        return [torch.arange(count, device=device) if small else indices[image] for (image, small), count in cells]

    def features(self, windows: Any, copies: Sequence[tuple[Tensor, ...] | None]) -> Any:
        """The ViT's output for all images, from that of the windows, and tokens and DeepStack levels of the copies."""
        windows.pooler_output = self._level(windows.pooler_output, copies, 0)
        levels = enumerate(levels_of(windows), 1)
        windows.deepstack_features = [self._level(level, copies, number) for number, level in levels] or None
        return windows

    def _level(self, windows: Sequence[Tensor], copies: Sequence[Any], number: int) -> tuple[Tensor, ...]:
        return tuple(copies[image][number] if small else windows[image] for image, small in self.order)


def widen(
    request: Request, positions_3BL: Tensor, grids: Sequence[Grid | None], stock: Any, scheme: str, pad_id: int
) -> Widened:
    """Put the small copies of `grids` cells (None: there is none) into the prompts.

    `positions_3BL` are those of the request as it is; `stock` is the stock model without its head.
    """
    config, layout = stock.config, request.layout
    order: list[tuple[int, bool]] = []
    rows = []
    for row in range(request.input_ids.shape[0]):
        own = [image for image, sample in enumerate(layout.sample_of[: layout.images]) if sample == row]
        shown = [image for image in own if grids[image] is not None]
        order += [*((image, True) for image in shown), *((image, False) for image in own)]
        rows.append(_put_in(request, row, own, grids, config, scheme))
    left = bool(request.attention_mask[:, -1].all())
    ids, source, place = (
        pad_sequence(list(parts), batch_first=True, padding_value=fill, padding_side="left" if left else "right")
        for parts, fill in zip(zip(*rows, strict=True), (pad_id, PADDING, 0), strict=True)
    )
    took = source.clamp(min=0)
    mask = torch.where(source >= 0, request.attention_mask.gather(1, took), (source == INSERTED).long())
    side = config.vision_config.spatial_merge_size
    sizes = [grid if small and (grid := grids[image]) else layout.grids[image] for image, small in order]
    thw = request.image_grid_thw.new_tensor([[1, side * height, side * width] for height, width in sizes])
    order += [(image, False) for clip in layout.clips for image in clip]
    labels = None if request.labels is None else request.labels.gather(1, took).masked_fill(source < 0, -100)
    made = replace(request, input_ids=ids, attention_mask=mask, labels=labels, image_grid_thw=thw, question_mask=None)
    lengths = [len(clip) for clip in layout.clips]
    made = replace(made, layout=Layout.of(ids, thw, config, request.video_grid_thw, lengths))
    if scheme == "images":
        positions, _ = stock.get_rope_index(ids, made.layout.types_BL, thw, request.video_grid_thw, mask)
    else:
        positions = positions_3BL.gather(2, place.expand(3, -1, -1))
    return Widened(made, positions, source, order)


def _put_in(
    request: Request, row: int, own: Sequence[int], grids: Sequence[Grid | None], config: Any, scheme: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of one row with small copies, the caller's column of each, and the column whose place in the grid it has."""
    ids, layout = request.input_ids[row], request.layout
    columns = torch.arange(ids.shape[0], device=ids.device)
    cells = columns[layout.types_BL[row] == 1].split([layout.cells[image] for image in own])
    new_ids, new_place = [ids[:0]], [columns[:0]]
    for image, cells_N in zip(own, cells, strict=True):
        if (small := grids[image]) is None:
            continue
        under = cells_N[under_centres(small, layout.grids[image], 1, ids.device)]
        marks = [config.vision_start_token_id, config.vision_end_token_id] if scheme == "images" else []
        tokens = [*marks[:1], *[config.image_token_id] * under.shape[0], *marks[1:]]
        new_ids.append(ids.new_tensor(tokens))
        new_place.append(under if not marks else torch.cat([under[:1], under, under[:1]]))
    start = int(cells[0][0]) if own else 0
    if scheme == "images" and start and ids[start - 1] == config.vision_start_token_id:
        start -= 1
    put_in = torch.cat(new_ids)
    inserted = torch.full_like(put_in, INSERTED)
    return (
        torch.cat([ids[:start], put_in, ids[start:]]),
        torch.cat([columns[:start], inserted, columns[start:]]),
        torch.cat([columns[:start], *new_place, columns[start:]]),
    )
