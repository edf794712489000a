"""What the host knows of a request before anything is computed: the compact sequences, padded on the right.

B rows, L full length, M padded length, I images of all rows, N cells of an image, K slots of an image (at least as many
as are kept), V = I * K slots of visual tokens.

How many cells of an image are kept fixes the whole layout; which ones only moves positions, and those are made on the
device. Rows are padded on the right: with causal attention nobody sees the padding, so that no mask is needed. Sizes
are rounded up to a few fixed ones: a recording is made per size, and what is padded is masked or never read.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from arr_coc.qwen.vision import Grid

# Budgets that people ask for are sizes of their own, so that these are not padded at all.
BUDGETS = (16, 32, 64, 96, 128, 200, 256, 400, 512, 768, 1024)
TEXTS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
CAPACITIES = (128, 256, 384, 512, 768, 1024)


class NotFast(Exception):
    """The fast path cannot serve this request; the message says why, and the plain path can."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompts of a request, on the host. `rows` hold token ids without padding."""

    rows: list[Tensor]  # per row [n]
    asked: list[Tensor]  # per row, ids of its question
    grids: list[Grid]  # cells of each image
    sample_of: list[int]  # row of each image


@dataclass(frozen=True, slots=True)
class PaddedSequences:
    """Tensors on the host that describe the compact, padded sequences."""

    ids_BM: Tensor
    visual_BM: Tensor  # slot of each visual token in the flat V, -1 for text
    base_BM: Tensor  # position of text; where an image starts, for its tokens
    lengths_B: Tensor  # tokens of each row
    next_B: Tensor  # position of the first new token of each row

    def places(self, slots: int) -> Tensor:
        """Where the token of each slot stands in the flat sequences, `[V]`; 0 for empty ones."""
        slot_BM = torch.where(self.visual_BM < 0, slots, self.visual_BM)  # text goes where nobody looks
        place_BM = torch.arange(slot_BM.numel()).view_as(slot_BM)
        return torch.zeros(slots + 1, dtype=torch.long).scatter(0, slot_BM.flatten(), place_BM.flatten())[:slots]


def read_prompt(
    input_ids_BL: Tensor, mask_BL: Tensor, question_BL: Tensor, grids: Sequence[Grid], sample_of: Sequence[int]
) -> Prompt:
    """Take the padding off; all tensors are on the host."""
    real = mask_BL.bool()
    rows = [ids[here] for ids, here in zip(input_ids_BL, real, strict=True)]
    asked = [ids[here] for ids, here in zip(input_ids_BL, question_BL.bool(), strict=True)]
    return Prompt(rows, asked, list(grids), list(sample_of))


def plan(
    prompt: Prompt,
    counts_I: Sequence[int],
    starts_I: Sequence[int],
    length: int,
    image_id: int,
    policy: str = "original",
) -> PaddedSequences:
    """Lay out the sequences with `counts_I` tokens left of each image, in rows of `length` places.

    `starts_I` are the slots of each image's first token. Positions are those of the full sequence (`policy`
    "original"), or count what is left ("compact").
    """
    batch = len(prompt.rows)
    ids_BM = torch.zeros(batch, length, dtype=torch.long)
    visual_BM = torch.full((batch, length), -1)
    base_BM = torch.zeros(batch, length, dtype=torch.long)
    lengths_B, next_B = torch.zeros(batch, dtype=torch.long), torch.zeros(batch, dtype=torch.long)
    for row, ids in enumerate(prompt.rows):
        place = position = 0
        for image, start, end in _pieces(prompt, row, image_id):
            count = end - start if image is None else counts_I[image]
            here = slice(place, place + count)
            ids_BM[row, here] = ids[start : start + count]
            if image is None or policy == "compact":
                base_BM[row, here] = torch.arange(position, position + count)
                position += count
            else:
                base_BM[row, here] = position
                position += max(prompt.grids[image])
            if image is not None:
                visual_BM[row, here] = torch.arange(starts_I[image], starts_I[image] + count)
            place += count
        lengths_B[row], next_B[row] = place, position
    return PaddedSequences(ids_BM, visual_BM, base_BM, lengths_B, next_B)


def with_grids(prompt: Prompt, grids: Sequence[Grid], image_id: int) -> Prompt:
    """The prompts as they would be had the images come with these grids of cells."""
    rows = []
    for row, ids in enumerate(prompt.rows):
        pieces = [
            ids[start:end] if image is None else ids[start].expand(grids[image][0] * grids[image][1])
            for image, start, end in _pieces(prompt, row, image_id)
        ]
        rows.append(torch.cat(pieces))
    return replace(prompt, rows=rows, grids=list(grids))


def _pieces(prompt: Prompt, row: int, image_id: int) -> list[tuple[int | None, int, int]]:
    """The row as (image or None, first token, end) in order."""
    ids = prompt.rows[row]
    is_image = (ids == image_id).int()
    bounds = [0, *(torch.nonzero(is_image.diff()).squeeze(-1) + 1).tolist(), len(ids)]
    images = iter([image for image, sample in enumerate(prompt.sample_of) if sample == row])
    pieces: list[tuple[int | None, int, int]] = []
    for start, end in itertools.pairwise(bounds):
        image = next(images, None) if is_image[start] else None
        if image is not None and end - start != prompt.grids[image][0] * prompt.grids[image][1]:
            raise NotFast("images stand next to each other without a mark between them")
        pieces.append((image, start, end))
    if is_image[-1]:
        raise NotFast("a prompt ends with an image")
    return pieces


def padded_length(prompt: Prompt, counts_I: Sequence[int], image_id: int) -> int:
    """Places of a row that hold every prompt with so many tokens left of each image."""
    visual = [0] * len(prompt.rows)
    for sample, count in zip(prompt.sample_of, counts_I, strict=True):
        visual[sample] += count
    text = max(int((ids != image_id).sum()) for ids in prompt.rows)
    return budget_bucket(max(visual)) + text_bucket(text)


def padded_questions(prompt: Prompt) -> tuple[Tensor, Tensor]:
    """Ids of the questions `[B, Q]`, padded with 0, and the mask of real ones."""
    width = text_bucket(max(len(asked) for asked in prompt.asked))
    ids_BQ = torch.zeros(len(prompt.asked), width, dtype=torch.long)
    mask_BQ = torch.zeros(len(prompt.asked), width, dtype=torch.bool)
    for row, asked in enumerate(prompt.asked):
        ids_BQ[row, : len(asked)], mask_BQ[row, : len(asked)] = asked, True
    return ids_BQ, mask_BQ


# ---------------------------------------------------------------- sizes


def round_up(size: int, steps: tuple[int, ...]) -> int:
    """The smallest step that holds `size`; beyond the last step, eighths of powers of two (12.5 % padding at most)."""
    assert size >= 0, size
    for step in steps:
        if size <= step:
            return step
    grain = max(1, 1 << ((size - 1).bit_length() - 4))
    return -(-size // grain) * grain


def budget_bucket(tokens: int) -> int:
    """Windows of one image."""
    return round_up(tokens, BUDGETS)


def text_bucket(tokens: int) -> int:
    """Tokens of one row that are not visual."""
    return round_up(tokens, TEXTS)


def capacity_bucket(tokens: int) -> int:
    """Places of the cache of one row: prompt and answer together. A multiple of 8, as attention kernels like it."""
    return -(-round_up(tokens, CAPACITIES) // 8) * 8
