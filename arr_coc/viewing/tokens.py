"""Every cell in numbers and words: for a table, and for a microscope.

H W grid of cells, N = H * W, K kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.attending import CAUTION, RULED_OUT, even_rank
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.language import answer_attention
from arr_coc.qwen.processor import text_ids

BY_RELEVANCE = ("relevance", "half_even")  # the allocator's strategies that follow the map


def token_rows(selection: ImageSelection) -> list[dict[str, Any]]:
    """One row per cell, in reading order: index, y, x, kept, relevance (None without), each map, and why."""
    height, width = selection.grid
    kept_N = selection.mask.flatten().tolist()
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
            "why": reasons[index],
        }
        for index in range(height * width)
    ]


def _values(map_HW: Tensor | None, cells: int) -> list[Any]:
    return [None] * cells if map_HW is None else map_HW.detach().float().flatten().tolist()


def reasons_of(selection: ImageSelection) -> list[str]:
    """Why each cell was kept or dropped, `[N]` short sentences."""
    kept_N = selection.mask.flatten().cpu()
    if selection.relevance is None or bool(kept_N.all()):
        return [f"{'kept' if kept else 'dropped'}: {selection.reason}" for kept in kept_N.tolist()]
    if selection.strategy == "even_grid":
        return ["kept: coverage" if kept else "dropped: not on the even grid" for kept in kept_N.tolist()]
    if selection.strategy not in BY_RELEVANCE:
        return [
            f"kept: {selection.reason}" if kept else f"dropped: not chosen by {selection.strategy}"
            for kept in kept_N.tolist()
        ]
    return _by_relevance(selection, kept_N)


def _by_relevance(selection: ImageSelection, kept_N: Tensor) -> list[str]:
    """As the allocator chose: a share of the budget on even coverage, the rest by relevance."""
    assert selection.relevance is not None
    relevance_N = selection.relevance.detach().cpu().float().flatten()
    kept = int(kept_N.sum())
    rank_N = torch.empty(relevance_N.shape[0], dtype=torch.long)
    rank_N[relevance_N.sort(descending=True, stable=True).indices] = torch.arange(1, relevance_N.shape[0] + 1)
    explore = selection.tensions.get("explore", 0.0)
    share = max(explore, CAUTION) if selection.strategy == "half_even" else explore
    covered_N = even_rank(*selection.grid, torch.device("cpu")).flatten() < round(share * kept)
    rows = zip(kept_N.tolist(), rank_N.tolist(), covered_N.tolist(), relevance_N.tolist(), strict=True)
    return [_reason(*row, kept) for row in rows]


def _reason(is_kept: bool, rank: int, covered: bool, relevance: float, kept: int) -> str:
    if is_kept and rank <= kept and relevance >= RULED_OUT:
        return f"kept: rank {rank} of {kept} by relevance"
    if is_kept and (covered or relevance < RULED_OUT):
        return "kept: coverage"
    if is_kept:
        return f"kept: rank {rank} by relevance, as others beside it gave way"
    if rank <= kept and relevance >= RULED_OUT:
        return f"dropped: rank {rank} by relevance, beside a more relevant cell or for coverage"
    return "dropped: below the cut"


def looked_at(
    owner: Any, images: Sequence[Image.Image], question: str, text: str, history: Sequence[tuple[str, str]] = ()
) -> list[Tensor]:
    """Where an answer's tokens attended, `[H, W]` of each image, peak 1: what can be shown where nothing was chosen."""
    said_T = torch.tensor(text_ids(owner.processor.tokenizer, text), dtype=torch.long)
    return answer_attention(owner.model, owner.encode_question(images, question, history), said_T)
