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
from torch import Tensor

from arr_coc.qwen.batched.forward import (
    GridTables,
    PrefixCache,
    Seen,
    encode_vision,
    grid_tables,
    logits,
    patchify,
    run_prefix,
    run_text,
    text_start,
)
from arr_coc.qwen.turns import Turns
from arr_coc.qwen.vision import Geometry
from arr_coc.timing import Stopwatch, timed

CELL = Geometry().cell  # px on a side, of mini


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


def cut(seen: Seen, image_R: Tensor, cells_RK: Tensor | None) -> Seen:
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

    @torch.no_grad()
    def answer(self, rows: Sequence[Row], cells_per_batch: int = 0) -> list[list[str]]:
        """Answers in the order of rows and questions. Rows with the same size and cell count run together.

        `cells_per_batch` bounds the memory; 0 takes what suits the device.
        """
        cells = cells_per_batch or (65_536 if self.device.type == "cuda" else 2048)
        answers: list[list[str]] = [[] for _ in rows]
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
                seen_R = cut(seen, image_R, self._cells(members))
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

    def _answer_group(self, rows: Sequence[Row], seen: Seen) -> list[list[str]]:
        lead = torch.tensor(self.turns.lead_ids, device=self.device)
        prompts = [self.turns.prompt(text) for row in rows for text in row.questions]
        counts = torch.tensor([len(row.questions) for row in rows], device=self.device)
        row_of = torch.arange(len(rows), device=self.device).repeat_interleave(counts)
        cache = share_cache(run_prefix(self.model, seen, lead, self.turns.end_id), row_of)
        start = text_start(seen.grid, len(lead))
        found = iter(answer_rows(self.model, cache, prompts, start, self.turns.stop_id, self.most_tokens))
        return [[self.turns.decode(next(found)) for _ in row.questions] for row in rows]


# ---------------------------------------------------------------- greedy decoding


def share_cache(cache_U: PrefixCache, prefix_R: Tensor) -> PrefixCache:
    """The keys and values of each row's own prefix."""
    return [(key[prefix_R], value[prefix_R]) for key, value in cache_U]


def answer_rows(
    model: Any,
    cache: PrefixCache,
    prompts: Sequence[Sequence[int]],
    start: int,
    stop_id: int,
    most_tokens: int,
    stopwatch: Stopwatch | None = None,
) -> list[list[int]]:
    """Token ids of each row's answer, without the stop token. `start` is the position of the first prompt token.

    The prompts' own pass is timed as "prefill", the steps after the first token as "decode". `cache` is used up.
    """
    device, dtype = cache[0][0].device, cache[0][0].dtype
    lengths_R = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(lengths_R.max())
    rows, prefix = len(prompts), cache[0][0].shape[2]
    ids_RT = torch.tensor([[*prompt, *[stop_id] * (longest - len(prompt))] for prompt in prompts], device=device)
    columns_T = torch.arange(longest, device=device)
    with timed(stopwatch, "prefill"):
        # Padding stands after the prompt, so that being causal hides it.
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        mask = torch.cat([causal.new_ones(longest, prefix), causal], dim=1).expand(rows, 1, -1, -1)
        hidden_RTD = run_text(model, ids_RT, (start + columns_T).expand(rows, -1), mask, cache, grow=True)
        last_RD = hidden_RTD[torch.arange(rows, device=device), lengths_R - 1]
        token_A = logits(model, last_RD, dtype).argmax(-1)
    with timed(stopwatch, "decode"):
        valid_AL = torch.cat([causal.new_ones(rows, prefix), columns_T < lengths_R[:, None]], dim=1)
        return _go_on(model, cache, token_A, valid_AL, start + lengths_R, stop_id, most_tokens)


def _go_on(
    model: Any, cache: PrefixCache, token_A: Tensor, valid_AL: Tensor, next_A: Tensor, stop_id: int, most_tokens: int
) -> list[list[int]]:
    """The rest of the answers, token by token. Rows that are done leave the batch when they are a quarter of it."""
    dtype = cache[0][0].dtype
    found: list[list[int]] = [[] for _ in range(token_A.shape[0])]
    row_A = torch.arange(token_A.shape[0], device=token_A.device)
    done_A = torch.zeros_like(row_A, dtype=torch.bool)
    for step in range(most_tokens):
        done_A = done_A | (token_A == stop_id)
        done = done_A.tolist()
        for row, token, over in zip(row_A.tolist(), token_A.tolist(), done, strict=True):
            if not over:
                found[row].append(token)
        if all(done) or step + 1 == most_tokens:
            break
        if 4 * sum(done) >= len(done):
            left = (~done_A).nonzero().squeeze(-1)
            row_A, token_A, valid_AL, next_A, done_A = (x[left] for x in (row_A, token_A, valid_AL, next_A, done_A))
            cache[:] = [(key[left], value[left]) for key, value in cache]
        valid_AL = torch.cat([valid_AL, valid_AL.new_ones(valid_AL.shape[0], 1)], dim=1)
        hidden_A1D = run_text(
            model, token_A.unsqueeze(1), (next_A + step).unsqueeze(1), valid_AL[:, None, None], cache, grow=True
        )
        token_A = logits(model, hidden_A1D[:, 0], dtype).argmax(-1)
    return found
