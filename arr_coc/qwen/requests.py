"""What a caller asks for, checked once; and the same request with smaller images in it.

B batch, L full length, M length with fewer placeholders, I images of all samples, P patches, X values of a patch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import Keep, check_keeps
from arr_coc.qwen.encoding import cells_of
from arr_coc.qwen.positions import Compact, compact, samples_of_images, token_types

Box = tuple[float, float, float, float]  # left, top, right, bottom as shares of the image's width and height
ROUNDING = 1e-6  # cells that a box enters by less than this are not touched


@dataclass(frozen=True, slots=True)
class Request:
    """Model inputs as the processor returns them, and what the caller wants of them."""

    input_ids: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor
    attention_mask: Tensor
    keeps: list[Keep]  # one checked dial per sample
    labels: Tensor | None = None
    pixel_values_videos: Tensor | None = None
    video_grid_thw: Tensor | None = None
    question_mask: Tensor | None = None
    original_image: Any = None
    evidence: Sequence[Sequence[Box]] | None = None  # boxes per image, for a selector that is told the answer
    image_numbers: Sequence[int] | None = None  # one per image, for a selector that draws at random

    @classmethod
    def of(
        cls,
        device: torch.device,
        input_ids: Tensor | None,
        pixel_values: Tensor,
        image_grid_thw: Tensor | None,
        attention_mask: Tensor | None,
        keep: Any,
        original_image: Any,
        evidence: Sequence[Sequence[Box]] | None = None,
        image_numbers: Sequence[int] | None = None,
        **tensors: Tensor | None,
    ) -> "Request":
        """Check what must be there and bring it to the model's device."""
        if input_ids is None or image_grid_thw is None:
            raise ValueError("pixel_values need input_ids and image_grid_thw: pass all that the processor returns")
        for name, given in (("evidence", evidence), ("image_numbers", image_numbers)):
            if given is not None and len(given) != image_grid_thw.shape[0]:
                raise ValueError(f"{name} is for {len(given)} images, the inputs have {image_grid_thw.shape[0]}")
        moved = {name: tensor if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
        return cls(
            input_ids.to(device),
            pixel_values.to(device),
            image_grid_thw.to(device),
            torch.ones_like(input_ids, device=device) if attention_mask is None else attention_mask.to(device),
            check_keeps(keep, input_ids.shape[0]),
            original_image=original_image,
            evidence=evidence,
            image_numbers=image_numbers,
            **moved,
        )

    @property
    def keeps_all(self) -> bool:
        """Whether every sample asks for all of its tokens."""
        return all(isinstance(keep, float) and keep == 1.0 for keep in self.keeps)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column is what, and whose each image is."""

    types_BL: Tensor  # 0 text, 1 image, 2 video
    grids: list[tuple[int, int]]  # cells of each image
    sample_of: list[int]  # the sample of each image

    @classmethod
    def of(cls, request: Request, config: Any) -> "Layout":
        types_BL = token_types(request.input_ids, config)
        grids = cells_of(request.image_grid_thw, config.vision_config.spatial_merge_size)
        return cls(types_BL, grids, samples_of_images(types_BL, grids))


def evidence_mask(boxes: Sequence[Box], grid: tuple[int, int]) -> Tensor:
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


def resize(image_3hw: Tensor, grid: tuple[int, int], cell: int) -> Tensor:
    """An image in [0, 1] at the size of `grid` cells of `cell` px: however small, no least size is kept."""
    size = (grid[0] * cell, grid[1] * cell)
    return F.interpolate(image_3hw.unsqueeze(0), size=size, mode="bicubic", antialias=True)[0].clamp(0, 1)


def with_small_images(
    request: Request, types_BL: Tensor, grids: Sequence[tuple[int, int]], rows: Sequence[Tensor], pad_id: int
) -> tuple[Request, Compact]:
    """The request as it would be had the images come with these `grids` of cells and patches.

    `rows` are the patches of each image, `[P, X]`. All of their tokens are asked for. Also returns which columns of the
    caller's sequence are left.
    """
    before_I = request.image_grid_thw.prod(-1).tolist()
    window = rows[0].shape[0] // (grids[0][0] * grids[0][1])
    is_left = [
        torch.arange(patches // window, device=types_BL.device) < height * width
        for patches, (height, width) in zip(before_I, grids, strict=True)
    ]
    keep_BL = torch.ones_like(types_BL, dtype=torch.bool)
    keep_BL[types_BL == 1] = torch.cat(is_left)
    short = compact(
        request.input_ids,
        request.attention_mask,
        torch.zeros_like(request.input_ids).expand(3, -1, -1),  # positions follow from the small images, later
        keep_BL,
        policy="original",
        pad_id=pad_id,
        labels=request.labels,
    )
    side = math.isqrt(window)
    small = replace(
        request,
        input_ids=short.input_ids,
        attention_mask=short.attention_mask,
        labels=short.labels,
        question_mask=None,
        pixel_values=torch.cat([row.to(request.pixel_values) for row in rows]),
        image_grid_thw=request.image_grid_thw.new_tensor([[1, side * h, side * w] for h, w in grids]),
        keeps=[1.0] * len(request.keeps),
        original_image=None,
    )
    return small, short
