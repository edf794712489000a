"""Several views in one row through the stock model's modules: images side by side, or the pairs of frames of a clip.

All views of a row run through the ViT as one sequence in which a patch sees its own view alone, which is what the stock
model does view by view. So chosen cells may fall on the views as they like: one number of cells per row is enough.

B batch, T frames, N cells of all views, K kept cells, P patches (4 per cell), S tokens of the prefix, D hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from studies.answering import patchify
from studies.batched import kernels as plain_kernels
from studies.batched.forward import GridTables, PrefixCache, Seen, encode_vision, grid_tables, run_words
from studies.mini.views import Grid


@dataclass(frozen=True, slots=True)
class ViewTables:
    """Tables of the cells of several views, one after another."""

    cells: GridTables
    view_N: Tensor  # the view of each cell


def view_tables(model: Any, grids: Sequence[Grid], device: torch.device | str) -> ViewTables:
    """Tables of views of some grids."""
    each = [grid_tables(model, *grid, device) for grid in grids]
    joined = [torch.cat([getattr(one, name) for one in each]) for name in ("taps_P4", "weights_P4", "cos_Nf", "sin_Nf")]
    counts = torch.tensor([height * width for height, width in grids], device=device)
    view_N = torch.arange(len(grids), device=device).repeat_interleave(counts)
    return ViewTables(GridTables(len(view_N), 1, *joined), view_N)


def image_patches(images: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Patches [B, N, 4, 768] of images [B, H, W, 3] of any sizes, uint8."""
    return torch.cat([patchify(images_BHWC, dtype) for images_BHWC in images], dim=1)


def clip_patches(frames_BTHWC: Tensor, dtype: torch.dtype) -> Tensor:
    """Patches [B, N, 4, 1536] (channel, frame, row, column) of clips of an even number of frames, uint8."""
    batch, frames = frames_BTHWC.shape[:2]
    flat = patchify(frames_BTHWC.flatten(0, 1), dtype)
    pairs = flat.view(batch, frames // 2, 2, flat.shape[1], 4, 3, -1).permute(0, 1, 3, 4, 5, 2, 6)
    return pairs.reshape(batch, frames // 2 * flat.shape[1], 4, -1)


def encode_views(
    model: Any, patches_BN4p: Tensor, tables: ViewTables, cells_BK: Tensor | None = None, kernels: Any = plain_kernels
) -> Seen:
    """Run the vision tower over all views, or over the kept cells of each row."""
    view_BK = tables.view_N[None] if cells_BK is None else tables.view_N[cells_BK]
    view_BP = view_BK.repeat_interleave(4, dim=1)
    mask = (view_BP[:, :, None] == view_BP[:, None, :])[:, None]
    return encode_vision(model, patches_BN4p, tables.cells, cells_BK, kernels, mask=mask)


def run_views(
    model: Any, seen: Seen, prompt_4BS: Tensor, slots_BK: Tensor, kernels: Any = plain_kernels
) -> PrefixCache:
    """Run prefixes whose visual tokens stand at `slots_BK`; `prompt_4BS`: ids and places, of all rows or of each."""
    batch, _, width = seen.merged_BKD.shape
    prompt_4BS = prompt_4BS.expand(-1, batch, -1)
    words_BSD = model.model.language_model.embed_tokens(prompt_4BS[0])
    index_BKD = slots_BK.expand(batch, -1)[..., None].expand(-1, -1, width)
    x = words_BSD.scatter(1, index_BKD, seen.merged_BKD.to(words_BSD.dtype))
    levels = [torch.zeros_like(x).scatter(1, index_BKD, level.to(x.dtype)) for level in seen.deepstack_BKD]
    return run_words(model, x, prompt_4BS[1:], levels, seen.merged_BKD.dtype, kernels)
