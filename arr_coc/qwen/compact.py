"""The sequence without the dropped tokens, and how to go on from it.

B batch, L full length, M compact length, P patches, X values of a patch, T new tokens. Rows of position_ids: 0 counts
the compact sequence (transformers builds masks from it: gaps there would be read as packed sequences), 1 to 3 are
M-RoPE's t, h, w.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.qwen.family import keys_in
from arr_coc.qwen.request import Layout, Request
from arr_coc.qwen.vision import Grid

PADDING, INSERTED = -1, -2  # columns that are not of the caller's sequence: no token at all, or one put in by us


@dataclass(frozen=True, slots=True)
class Compact:
    """A batch without the dropped columns, padded again to its longest row."""

    input_ids: Tensor  # [B, M]
    attention_mask: Tensor  # [B, M]
    position_ids: Tensor  # [4, B, M]
    labels: Tensor | None  # [B, M]
    columns: Tensor  # [B, M] column of the full sequence that each came from, or PADDING, or INSERTED
    rope_deltas: Tensor  # [B, 1] add to a text position to go on counting where the full run would
    dropped: int  # columns of the batch that are gone
    length: int  # L, columns of the caller's sequence

    def told_in(self, source_BL: Tensor, length: int) -> "Compact":
        """The same, with columns told in a sequence that its full one was made from: `source_BL` says where from."""
        found = source_BL.gather(1, self.columns.clamp(min=0))
        return replace(self, columns=torch.where(self.columns < 0, self.columns, found), length=length)

    def spread(self, rows_BMX: Tensor) -> Tensor:
        """What was computed for these columns, for each of the caller's, `[B, L, X]`; a dropped one has its last kept.

        With nothing dropped it is what it was.
        """
        if not self.dropped and self.input_ids.shape[1] == self.length:
            return rows_BMX
        batch, here = self.columns.shape
        target_BM = torch.where(self.columns < 0, self.length, self.columns)
        place_BM = torch.arange(here, device=target_BM.device).expand(batch, -1)
        place_BL = target_BM.new_zeros(batch, self.length + 1).scatter(1, target_BM, place_BM)[:, :-1].cummax(1).values
        return rows_BMX.gather(1, place_BL.unsqueeze(-1).expand(-1, -1, rows_BMX.shape[-1]))


def shorten(
    request: Request, positions_3BL: Tensor, indices: Sequence[Tensor] | None, policy: str, pad_id: int
) -> Compact:
    """The sequence of a request with these cells of each image left; None: with all.

    Rows are padded on the side on which they were padded before. With nothing to drop the layout is left exactly as it
    was.
    """
    input_ids, attention_mask, labels = request.input_ids, request.attention_mask, request.labels
    whole_BL = torch.ones_like(input_ids, dtype=torch.bool)
    keep_BL = whole_BL if indices is None else request.layout.columns(indices)
    real_BL = keep_BL & attention_mask.bool()
    dropped = int((~keep_BL).sum())
    if dropped:
        most = int(real_BL.sum(-1).max())
        left = bool(attention_mask[:, -1].all())
        order = real_BL.to(torch.uint8).sort(dim=-1, descending=not left, stable=True).indices
        columns = order[:, -most:] if left else order[:, :most]
    else:
        columns = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    mask = real_BL.gather(1, columns)
    text_BM = (mask.long().cumsum(-1) - 1).masked_fill(~mask, 0)
    positions = positions_3BL.gather(2, columns.expand(3, -1, -1)).masked_fill(~mask, 0)
    if policy == "compact":  # but a row that asks for all of its tokens is left as it was
        whole_B = torch.tensor([keep == 1.0 for keep in request.keeps], device=mask.device)
        positions = torch.where(whole_B[:, None], positions, text_BM)
    return Compact(
        input_ids=torch.where(mask, input_ids.gather(1, columns), pad_id) if dropped else input_ids,
        attention_mask=mask.to(attention_mask.dtype),
        position_ids=torch.cat([text_BM.unsqueeze(0), positions]),
        labels=None if labels is None else labels.gather(1, columns).masked_fill(~mask, -100),
        columns=columns.masked_fill(~mask, PADDING),
        rope_deltas=positions.amax(dim=(0, 2)).unsqueeze(-1) + 1 - mask.sum(-1, keepdim=True),
        dropped=dropped,
        length=input_ids.shape[1],
    )


def with_small_images(
    request: Request, grids: Sequence[Grid], config: Any, pad_id: int, rows: Sequence[Tensor] = ()
) -> tuple[Request, Compact]:
    """The request as it would be had the images come with these `grids` of cells and patches.

    `rows` are the patches of each image, `[P, X]`; none where they are not needed. All of their tokens are asked for.
    Also returns which columns of the caller's sequence are left.
    """
    left = [torch.arange(height * width, device=request.input_ids.device) for height, width in grids]
    nowhere = torch.zeros_like(request.input_ids).expand(3, -1, -1)  # positions follow from the small images, later
    short = shorten(request, nowhere, left, "original", pad_id)
    side, images = config.vision_config.spatial_merge_size, request.layout.images
    none = request.pixel_values[:0]
    thw = request.image_grid_thw.new_tensor([[1, side * h, side * w] for h, w in grids]).view(-1, 3)
    video_thw = thw[images:] if request.layout.clips else None
    small = replace(
        request,
        input_ids=short.input_ids,
        attention_mask=short.attention_mask,
        labels=short.labels,
        question_mask=None,
        pixel_values=torch.cat([none, *(row.to(none) for row in rows[:images])]),
        image_grid_thw=thw[:images],
        pixel_values_videos=torch.cat([none, *(row.to(none) for row in rows[images:])])
        if request.layout.clips
        else None,
        video_grid_thw=video_thw,
        layout=Layout.of(
            short.input_ids, thw[:images], config, video_thw, [len(clip) for clip in request.layout.clips]
        ),
        keeps=[1.0] * len(request.keeps),
        original_image=None,
    )
    return small, short


# ---------------------------------------------------------------- going on from a cache


@dataclass(frozen=True, slots=True)
class Continuation:
    """How to go on counting after a cached prompt. Kept on the request's own cache, never on the shared model."""

    rope_deltas: Tensor  # [B, 1]
    padded: bool  # whether rows of the prompt are padded, so that a mask is needed

    def positions(self, attention_mask: Tensor | None, past: int, new_ids: Tensor) -> Tensor:
        """Positions of tokens that follow the prompt, `[4, B, T]`: as if nothing had been dropped."""
        steps = new_ids.shape[1]
        if attention_mask is None:
            if self.padded:
                raise ValueError("the cached prompts are padded: pass output.arr_coc.attention_mask, extended")
            text_BT = torch.arange(past, past + steps, device=new_ids.device).expand(new_ids.shape[0], -1)
        else:
            if attention_mask.shape[1] != past + steps:
                raise ValueError(
                    f"attention_mask covers {attention_mask.shape[1]} tokens, the cache holds {past}, {steps} are new: "
                    "extend the compact mask of the first call (output.arr_coc.attention_mask)"
                )
            text_BT = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -steps:]
        return torch.cat([text_BT.unsqueeze(0), (text_BT + self.rope_deltas).expand(3, -1, -1)])


def mark(cache: Any, short: Compact) -> None:
    """Note on a cache how its prompt was shortened; rows are repeated where it holds several per prompt."""
    deltas = short.rope_deltas
    keys = keys_in(cache) if getattr(cache, "layers", None) else None
    rows = deltas.shape[0] if keys is None else keys.shape[0]
    padded = bool((short.attention_mask == 0).any())
    cache.arr_coc = Continuation(deltas.repeat_interleave(rows // deltas.shape[0], dim=0), padded)


def shift_lengths(kwargs: dict[str, Any], shift: int) -> None:
    """Callers count max_length and min_length on their own, full prompt: count them on the compact one."""
    config = copy.deepcopy(kwargs.get("generation_config"))
    for name in ("max_length", "min_length"):
        if kwargs.get(name) is not None:
            kwargs[name] = max(0, kwargs[name] + shift)
        if getattr(config, name, None):
            setattr(config, name, max(0, getattr(config, name) + shift))
    if config is not None:
        kwargs["generation_config"] = config
