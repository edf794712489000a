"""What is asked: the caller's inputs, checked once, whose each image is, and the sequence without the dropped tokens.

B batch, L full length, M compact length, I images of all samples, P patches, X values of a patch. Rows of position_ids:
0 counts the compact sequence (transformers builds masks from it: gaps there would be read as packed sequences), 1 to 3
are M-RoPE's t, h, w.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import Keep, check_keeps
from arr_coc.qwen.family import keys_in
from arr_coc.qwen.vision import Grid

Box = tuple[float, float, float, float]  # left, top, right, bottom as shares of the image's width and height
PADDING, INSERTED = -1, -2  # columns that are not of the caller's sequence: no token at all, or one put in by us
ROUNDING = 1e-6  # cells that a box enters by less than this are not touched


@dataclass(frozen=True, slots=True)
class Hints:
    """What only an experiment can tell a selector: one entry per image of the request."""

    evidence: Sequence[Sequence[Box]] | None = None  # where the answer is, for selector="oracle"
    image_numbers: Sequence[int] | None = None  # a number of each image, for selector="random"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column is what, and whose each image is."""

    types_BL: Tensor  # 0 text, 1 image, 2 video
    grids: list[Grid]  # cells of each image
    sample_of: list[int]  # the sample of each image

    @classmethod
    def of(cls, input_ids: Tensor, image_grid_thw: Tensor, config: Any) -> "Layout":
        """From the placeholders of a batch and its images; `config` is the stock model's."""
        types_BL = token_types(input_ids, config)
        grids = cells_of(image_grid_thw, config.vision_config.spatial_merge_size)
        return cls(types_BL, grids, samples_of_images(types_BL, grids))

    @property
    def cells(self) -> list[int]:
        """Number of cells of each image."""
        return [height * width for height, width in self.grids]

    def columns(self, indices: Sequence[Tensor]) -> Tensor:
        """The columns that are left with these cells of each image: bool `[B, L]`."""
        cells = self.types_BL.new_zeros(sum(self.cells), dtype=torch.bool)
        for part, index in zip(cells.split(self.cells), indices, strict=True):
            part[index] = True
        return torch.ones_like(self.types_BL, dtype=torch.bool).masked_scatter(self.types_BL == 1, cells)


@dataclass(frozen=True, slots=True)
class Request:
    """Model inputs as the processor returns them, and what the caller wants of them."""

    input_ids: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor
    attention_mask: Tensor
    layout: Layout
    keeps: list[Keep]  # one checked dial per sample
    labels: Tensor | None = None
    pixel_values_videos: Tensor | None = None
    video_grid_thw: Tensor | None = None
    question_mask: Tensor | None = None
    original_image: Any = None
    hints: Hints = Hints()
    keeps_all: bool = field(init=False)  # whether every sample asks for all of its tokens

    def __post_init__(self) -> None:
        whole = all(isinstance(keep, float) and keep == 1.0 for keep in self.keeps)
        object.__setattr__(self, "keeps_all", whole)

    @classmethod
    def of(
        cls,
        config: Any,
        device: torch.device,
        input_ids: Tensor | None,
        pixel_values: Tensor,
        image_grid_thw: Tensor | None,
        attention_mask: Tensor | None,
        keep: Any,
        original_image: Any,
        hints: Hints | None = None,
        **tensors: Tensor | None,
    ) -> "Request":
        """Check what must be there and bring it to the model's device; `config` is the stock model's."""
        if input_ids is None or image_grid_thw is None:
            raise ValueError("pixel_values need input_ids and image_grid_thw: pass all that the processor returns")
        hints = hints or Hints()
        for name, given in (("evidence", hints.evidence), ("image_numbers", hints.image_numbers)):
            if given is not None and len(given) != image_grid_thw.shape[0]:
                raise ValueError(f"{name} is for {len(given)} images, the inputs have {image_grid_thw.shape[0]}")
        keeps = check_keeps(keep, input_ids.shape[0])
        moved = {name: tensor if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
        ids, grids = input_ids.to(device), image_grid_thw.to(device)
        return cls(
            ids,
            pixel_values.to(device),
            grids,
            torch.ones_like(ids) if attention_mask is None else attention_mask.to(device),
            Layout.of(ids, grids, config),
            keeps,
            original_image=original_image,
            hints=hints,
            **moved,
        )


def refuse_placeholders(config: Any, input_ids: Tensor | None, cache: Any, videos: Tensor | None) -> None:
    """A prompt that shows what did not come along would be answered without it."""
    if input_ids is None or cache is not None:
        return
    for what, place in (("an image", config.image_token_id), ("a video", config.video_token_id)):
        if (what == "an image" or videos is None) and (input_ids == place).any():
            raise ValueError(f"the prompt shows {what} that is not in the inputs: pass all that the processor returns")


def refuse_positions(position_ids: Any) -> None:
    if position_ids is not None:
        raise ValueError("position_ids with an image: leave them out, they follow from the whole sequence")


def refuse_cache(cache: Any, only_marked: bool = False) -> None:
    """A prompt with images is prepared as a whole; a cache that was shortened cannot be matched with full ids."""
    if cache is None or (only_marked and not hasattr(cache, "arr_coc")):
        return
    if cache.get_seq_length():
        raise ValueError("a new question chooses anew: pass the whole conversation instead of past_key_values")


def cells_of(image_grid_thw: Tensor, merge: int) -> list[Grid]:
    """(H, W) in cells of each image."""
    grids = image_grid_thw.tolist()
    assert all(t == 1 for t, _, _ in grids), "an image has one frame"
    return [(h // merge, w // merge) for _, h, w in grids]


def token_types(input_ids: Tensor, config: Any) -> Tensor:
    """0 for text, 1 for image, 2 for video placeholders, as the processor would have said."""
    return (input_ids == config.image_token_id).int() + 2 * (input_ids == config.video_token_id).int()


def samples_of_images(types_BL: Tensor, grids: Sequence[Grid]) -> list[int]:
    """Which sample each image belongs to, from the placeholders, which must be as many as the cells."""
    room = (types_BL == 1).sum(-1).tolist()
    cells = [height * width for height, width in grids]
    if sum(room) != sum(cells):
        raise ValueError(
            f"{sum(room)} image placeholders in input_ids for {sum(cells)} visual tokens: make both with one processor"
        )
    sample_of, sample = [], 0
    for size in cells:
        while room[sample] == 0:
            sample += 1
        if size > room[sample]:
            raise ValueError("an image's placeholders are split between two rows: check the order of the images")
        sample_of.append(sample)
        room[sample] -= size
    return sample_of


def evidence_mask(boxes: Sequence[Box], grid: Grid) -> Tensor:
    """The cells that any box touches: bool `[H, W]`."""
    mask_HW = torch.zeros(grid, dtype=torch.bool)
    for left, top, right, bottom in boxes:
        if not (0 <= left <= right <= 1 and 0 <= top <= bottom <= 1):
            raise ValueError(
                f"evidence box {(left, top, right, bottom)}: give left, top, right, bottom as shares of the image"
            )
        rows, columns = (
            slice(int(start * cells + ROUNDING), math.ceil(end * cells - ROUNDING))
            for start, end, cells in ((top, bottom, grid[0]), (left, right, grid[1]))
        )
        mask_HW[rows, columns] = True
    return mask_HW


# ---------------------------------------------------------------- the question


@dataclass(frozen=True, slots=True)
class ChatTokens:
    """Ids that mark the turns of a conversation in the chat template."""

    turn_start: int
    turn_end: int
    user: int
    newline: int


def find_question(input_ids: Tensor, attention_mask: Tensor, config: Any, chat: ChatTokens | None) -> Tensor:
    """Mask of the last user turn's text: not the system prompt, not the template, not placeholders. `[B, L]` bool.

    Without chat tokens in sight, the text after the last image.
    """
    names = ("image", "video", "vision_start", "vision_end")
    visual_ids = torch.tensor([getattr(config, f"{name}_token_id") for name in names], device=input_ids.device)
    visual = torch.isin(input_ids, visual_ids)
    place = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    start_B1 = torch.where(visual, place + 1, 0).amax(-1, keepdim=True)
    end_B1 = torch.full_like(start_B1, input_ids.shape[1])
    if chat is not None:
        turn = (input_ids == chat.turn_start) & (input_ids.roll(-1, dims=1) == chat.user)
        has_turn_B1 = turn.any(-1, keepdim=True)
        turn_start_B1 = torch.where(turn, place + 2, 0).amax(-1, keepdim=True)
        newline = (input_ids.gather(1, turn_start_B1.clamp(max=input_ids.shape[1] - 1)) == chat.newline).long()
        start_B1 = torch.where(has_turn_B1, turn_start_B1 + newline, start_B1)
        ends = torch.where((input_ids == chat.turn_end) & (place >= start_B1), place, end_B1)
        end_B1 = torch.where(has_turn_B1, ends.amin(-1, keepdim=True), end_B1)
    return (place >= start_B1) & (place < end_B1) & ~visual & attention_mask.bool()


# ---------------------------------------------------------------- the compact sequence


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
    request: Request, grids: Sequence[Grid], config: Any, pad_id: int, rows: Sequence[Tensor] | None = None
) -> tuple[Request, Compact]:
    """The request as it would be had the images come with these `grids` of cells and patches.

    `rows` are the patches of each image, `[P, X]`; None where they are not needed. All of their tokens are asked for.
    Also returns which columns of the caller's sequence are left.
    """
    left = [torch.arange(height * width, device=request.input_ids.device) for height, width in grids]
    nowhere = torch.zeros_like(request.input_ids).expand(3, -1, -1)  # positions follow from the small images, later
    short = shorten(request, nowhere, left, "original", pad_id)
    side = config.vision_config.spatial_merge_size
    thw = request.image_grid_thw.new_tensor([[1, side * h, side * w] for h, w in grids])
    small = replace(
        request,
        input_ids=short.input_ids,
        attention_mask=short.attention_mask,
        labels=short.labels,
        question_mask=None,
        pixel_values=torch.cat([row.to(request.pixel_values) for row in rows or (request.pixel_values[:0],)]),
        image_grid_thw=thw,
        layout=Layout.of(short.input_ids, thw, config),
        keeps=[1.0] * len(request.keeps),
        original_image=None,
    )
    return small, short


def check_aspect(image: Tensor, grid: Grid) -> None:
    """An original must be the picture that was resized to this grid, give or take the rounding to whole cells."""
    height, width = image.shape[-2:]
    stretch = (height / width) / (grid[0] / grid[1])
    rounding = (1 + 1 / grid[0]) * (1 + 1 / grid[1])
    if not 1 / rounding**2 <= stretch <= rounding**2:
        raise ValueError(
            f"original_image of {width}x{height} px does not have the shape of the {grid[1]}x{grid[0]} cells"
        )


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
