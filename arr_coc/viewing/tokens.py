"""Every cell in numbers and words: for a table, and for a microscope.

H W grid of cells, N = H * W, K kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.qwen.answers import WAYS, ImageSelection
from arr_coc.qwen.language import answer_attention
from arr_coc.qwen.processor import text_ids

KEPT_FOR_COVERAGE = "kept: coverage, what relevance left of the budget"
BY_RELEVANCE = ("relevance", "half_even")  # the allocator's strategies that follow the map


def token_rows(selection: ImageSelection) -> list[dict[str, Any]]:
    """One row per cell, in reading order: index, y, x, kept, relevance (None without), each map, covered, and why."""
    height, width = selection.grid
    kept_N, covered_N = selection.mask.flatten().tolist(), selection.covered_mask.flatten().tolist()
    relevance_N = _values(selection.relevance, height * width)
    maps = {name: _values(values, height * width) for name, values in selection.maps.items()}
    reasons = reasons_of(selection)
    return [
        {
            "index": index,
            "y": index // width,
            "x": index % width,
            "kept": kept_N[index],
            "relevance": relevance_N[index],
            **{name: values[index] for name, values in maps.items()},
            "covered": covered_N[index],
            "why": reasons[index],
        }
        for index in range(height * width)
    ]


def _values(map_HW: Tensor | None, cells: int) -> list[Any]:
    return [None] * cells if map_HW is None else map_HW.detach().float().flatten().tolist()


def reasons_of(selection: ImageSelection) -> list[str]:
    """Why each cell was kept or dropped, `[N]` short sentences."""
    kept_N, covered_N = selection.mask.flatten().cpu(), selection.covered_mask.flatten().cpu()
    if selection.relevance is None or bool(kept_N.all()):
        return [f"{'kept' if kept else 'dropped'}: {selection.why}" for kept in kept_N.tolist()]
    if bool((covered_N == kept_N).all()):
        return [KEPT_FOR_COVERAGE if kept else "dropped: not on the even grid" for kept in kept_N.tolist()]
    if selection.strategy not in BY_RELEVANCE:
        return [
            f"kept: {selection.why}" if kept else f"dropped: not chosen by {selection.strategy}"
            for kept in kept_N.tolist()
        ]
    relevance_N = selection.relevance.detach().cpu().float().flatten()
    rank_N = torch.empty(relevance_N.shape[0], dtype=torch.long)
    rank_N[relevance_N.sort(descending=True, stable=True).indices] = torch.arange(1, relevance_N.shape[0] + 1)
    relevant = selection.cells_kept - selection.cells_covered
    spoke_N = selection.spoke or [""] * len(rank_N)
    rows = zip(kept_N.tolist(), covered_N.tolist(), rank_N.tolist(), spoke_N, strict=True)
    return [_reason(*row, relevant) for row in rows]


def _reason(is_kept: bool, covered: bool, rank: int, spoke: str, relevant: int) -> str:
    """Of a cell with its rank by relevance, and the way that spoke for it; `relevant` cells were kept for that."""
    if covered:
        return KEPT_FOR_COVERAGE
    if is_kept:
        gave_way = ", as others beside it gave way" if rank > relevant else ""
        return f"kept: rank {rank} by relevance{gave_way}" + (f"; {WAYS[spoke]} spoke for it" if spoke else "")
    if rank <= relevant:
        return f"dropped: rank {rank} by relevance, beside a more relevant cell"
    return "dropped: below the cut"


def looked_at(
    owner: Any, images: Sequence[Image.Image], question: str, text: str, history: Sequence[tuple[str, str]] = ()
) -> list[Tensor]:
    """Where an answer's tokens attended, `[H, W]` of each image, peak 1: what can be shown where nothing was chosen."""
    said_T = torch.tensor(text_ids(owner.processor.tokenizer, text), dtype=torch.long)
    return answer_attention(owner.model, owner.encode_question(images, question, history), said_T)
