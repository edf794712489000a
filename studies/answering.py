"""Greedy answers to many questions at once, over prefixes that several of them may share.

B images, U prefixes (an image and its kept cells), R rows (a question each, or in `Row` an image with its questions), K
kept cells, T prompt tokens, L all tokens so far, A rows that are not done.

Chosen cells come two ways: sparse (only they enter the ViT), or dense (the ViT sees all cells, and the chosen tokens,
merged and DeepStack, go on). Dense rows about one image are encoded once, however many there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.qwen.batched import share_cache
from arr_coc.qwen.vision import Geometry, cut
from studies.batched.forward import (
    GridTables,
    Seen,
    answer_rows,
    encode_vision,
    grid_tables,
    run_prefix,
    text_start,
)
from studies.cells import CELL
from studies.turns import Turns


def patchify(images_BHWC: Tensor, dtype: torch.dtype, geometry: Geometry | None = None) -> Tensor:
    """uint8 images to normalised patches [B, N, 4, 768] (channel, row, column), values in [-1, 1] as mini takes them.

    One frame only: the model sees every image as two equal frames, and `encode_vision` adds up their weights.
    """
    geometry = geometry or Geometry()
    _, high, wide, _ = images_BHWC.shape
    if high % geometry.cell or wide % geometry.cell:
        raise ValueError(f"an image of {wide}x{high} px is no multiple of {geometry.cell} px: resize it first")
    return cut(images_BHWC.permute(0, 3, 1, 2), geometry).to(dtype).mul_(1 / 127.5).sub_(1.0)


def turn_mask(turns_BT: Tensor, prefix: int) -> Tensor:
    """Who sees whom, [B, 1, T, prefix + T]: the whole prefix, and what came before in the same turn.

    `turns_BT` numbers the turn of every token. Padding has a turn of its own, so no row is empty.
    """
    batch, length = turns_BT.shape
    same = turns_BT[:, :, None] == turns_BT[:, None, :]
    within = same & torch.ones(length, length, dtype=torch.bool, device=same.device).tril()
    return F.pad(within, (prefix, 0), value=True).view(batch, 1, length, prefix + length)


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer, and how likely the best two tokens were at each of its steps, the end included."""

    text: str
    best_T2: list[list[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One image, the questions to ask about it, and the cells that may be seen (None: all)."""

    image: np.ndarray  # uint8 [H, W, 3]
    questions: tuple[str, ...]
    cells: tuple[int, ...] | None = None
    encoding: str = "sparse"  # of chosen cells: "sparse" or "dense"

    @property
    def dense(self) -> bool:
        """Whether the ViT sees every cell of the image."""
        return self.cells is None or self.encoding == "dense"

    @property
    def kept(self) -> int:
        """Number of visual tokens that the language model sees."""
        return count_cells(self.image) if self.cells is None else len(self.cells)


def count_cells(image: np.ndarray) -> int:
    """Cells of an image `[H, W, 3]`."""
    return int(image.shape[0] // CELL * (image.shape[1] // CELL))


def _cost(row: Row) -> int:
    """What a row takes of the memory, in cells that are encoded: all pixels are held until the kept ones are taken."""
    return max(row.kept, count_cells(row.image) // 8)


def alike(rows: Sequence[Row], numbers: Sequence[int], cells: int) -> Iterator[list[int]]:
    """Numbers of rows that can run together, at most so many cells' worth (or one row) at a time."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number in numbers:
        row = rows[number]
        key = (*row.image.shape, row.kept, len(row.questions), row.cells is None)
        groups.setdefault(key, []).append(number)
    for members in groups.values():
        size = max(1, cells // _cost(rows[members[0]]))
        yield from (members[start : start + size] for start in range(0, len(members), size))


def by_image(rows: Sequence[Row], numbers: Sequence[int], cells: int) -> Iterator[list[list[int]]]:
    """Numbers of rows, a list per image; images of one size, with at most so many cells (or one image) at a time."""
    sizes: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for number in numbers:
        image = rows[number].image
        sizes.setdefault(image.shape, {}).setdefault(id(image), []).append(number)
    for images in sizes.values():
        members = list(images.values())
        size = max(1, cells // count_cells(rows[members[0][0]].image))
        yield from (members[start : start + size] for start in range(0, len(members), size))


def cut_rows(seen: Seen, image_R: Tensor, cells_RK: Tensor | None) -> Seen:
    """One row per entry of `image_R`, from all tokens of some images: its cells (None: all), on every level."""
    taken = (image_R,) if cells_RK is None else (image_R[:, None], cells_RK)
    return Seen(seen.merged_BKD[taken], [level[taken] for level in seen.deepstack_BKD], cells_RK, seen.grid)


class Answerer:
    """Answers rows with a model on one device; keeps the tables of the grids that it has met."""

    def __init__(self, model: Any, tokenizer: Any, dtype: torch.dtype = torch.float32, most_tokens: int = 96) -> None:
        self.model, self.dtype, self.most_tokens = model, dtype, most_tokens
        self.turns = Turns(tokenizer)
        self.device = model.lm_head.weight.device
        self._tables: dict[tuple[int, int], GridTables] = {}

    def tables(self, height: int, width: int) -> GridTables:
        """Tables for a grid of `height` x `width` cells."""
        if (height, width) not in self._tables:
            self._tables[height, width] = grid_tables(self.model, height, width, self.device)
        return self._tables[height, width]

    def answer(self, rows: Sequence[Row], cells_per_batch: int = 0) -> list[list[str]]:
        """As `speak`, the texts alone."""
        return [[one.text for one in said] for said in self.speak(rows, cells_per_batch)]

    @torch.no_grad()
    def speak(self, rows: Sequence[Row], cells_per_batch: int = 0) -> list[list[Spoken]]:
        """Answers in the order of rows and questions. Rows with the same size and cell count run together.

        `cells_per_batch` bounds the memory; 0 takes what suits the device.
        """
        cells = cells_per_batch or (65_536 if self.device.type == "cuda" else 2048)
        answers: list[list[Spoken]] = [[] for _ in rows]
        sparse = [number for number, row in enumerate(rows) if not row.dense]
        for part in alike(rows, sparse, cells):
            members = [rows[number] for number in part]
            images = {id(row.image): row.image for row in members}  # questions about one image share its pixels
            places = {key: place for place, key in enumerate(images)}
            image_R = torch.tensor([places[id(row.image)] for row in members], device=self.device)
            seen = self._encode(list(images.values()), image_R, self._cells(members))
            for number, texts in zip(part, self._answer_group(members, seen), strict=True):
                answers[number] = texts
        dense = [number for number, row in enumerate(rows) if row.dense]
        for members_of in by_image(rows, dense, cells):
            every = torch.arange(len(members_of), device=self.device)
            seen = self._encode([rows[numbers[0]].image for numbers in members_of], every, None)
            image_of = {number: place for place, numbers in enumerate(members_of) for number in numbers}
            for part in alike(rows, list(image_of), cells):
                members = [rows[number] for number in part]
                image_R = torch.tensor([image_of[number] for number in part], device=self.device)
                seen_R = cut_rows(seen, image_R, self._cells(members))
                for number, texts in zip(part, self._answer_group(members, seen_R), strict=True):
                    answers[number] = texts
        return answers

    def _cells(self, rows: Sequence[Row]) -> Tensor | None:
        """The cells of some rows, `[R, K]`; None where they see all."""
        if rows[0].cells is None:
            return None
        return torch.tensor([row.cells for row in rows], device=self.device)

    def _encode(self, images: Sequence[np.ndarray], image_R: Tensor, cells_RK: Tensor | None) -> Seen:
        """What the ViT makes of the images that rows are about: of all cells, or of each row's own."""
        images_BHWC = torch.from_numpy(np.stack(images)).to(self.device)
        tables = self.tables(images_BHWC.shape[1] // CELL, images_BHWC.shape[2] // CELL)
        patches_RN4p = patchify(images_BHWC[image_R], self.dtype)
        return encode_vision(self.model, patches_RN4p, tables, cells_RK)

    def _answer_group(self, rows: Sequence[Row], seen: Seen) -> list[list[Spoken]]:
        lead = torch.tensor(self.turns.lead_ids, device=self.device)
        prompts = [self.turns.prompt(text) for row in rows for text in row.questions]
        counts = torch.tensor([len(row.questions) for row in rows], device=self.device)
        row_of = torch.arange(len(rows), device=self.device).repeat_interleave(counts)
        cache = share_cache(run_prefix(self.model, seen, lead, self.turns.end_id), row_of)
        start = text_start(seen.grid, len(lead))
        found = answer_rows(self.model, cache, prompts, start, self.turns.stop_id, self.most_tokens)
        spoken = iter([Spoken(self.turns.decode(said.ids), said.best_T2) for said in found])
        return [[next(spoken) for _ in row.questions] for row in rows]
