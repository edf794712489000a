"""Training batches of mini, drawn on the fly by worker processes.

Batch i depends on the seed, on i and on the progress of the run, on nothing else, so the position in the data
is one number. Every batch of images is used twice, once dense and once sparse, with different questions where
there are enough: drawing is the dearest part, and half of the steps are to be sparse.

B images, N cells, K kept cells.
"""

import os
import resource
import shutil
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from arr_coc.config import FirstLook
from arr_coc.qwen.periphery import periphery_grid
from arr_coc_scenes import Question, Scene, draw_scene
from arr_coc_scenes.draft import Draft
from arr_coc_scenes.masks import load_font
from studies.cells import CELL, boxes_cells, fill_evenly
from studies.mini.binding import binding_question
from studies.mini.config import MiniTrainConfig
from studies.mini.letters import letter_sheet
from studies.mini.links import links_of
from studies.mini.listing import list_question
from studies.mini.packing import PackedText, pack_row
from studies.mini.practice import practice_questions
from studies.mini.styles import PLAIN, PRACTICE_FILES, PRACTICE_FONTS, Style, lay_practice, practice_style
from studies.mini.targets import CLASSES, dense_targets
from studies.mini.view_batches import ViewBuilder, prompts, shown_form, shrink
from studies.mini.views import Form, Grid, ShownViews, prefix_of
from studies.turns import Turns

USES = ("dense", "sparse")
MISSED = (0.0, 0.0, 0.5, 1.0)  # shares of the evidence that a row beside a small copy lacks: the copy must help
RATES = (2.0, 2.0, 2.0, 1.9, 1.0, 4.0)  # frames per second that the timestamps of a batch of clips tell
BARE = 0.15  # share of batches of clips without the outer marks
SEEDS_PER_BATCH = 4096  # scenes of batch i have the seeds from i * SEEDS_PER_BATCH on
Batch = dict[str, torch.Tensor]


class World(Protocol):
    """Another world than `arr_coc_scenes`, named in the settings: it draws rows, and words questions."""

    def draw(self, seed: int, size: tuple[int, int], crowd: float, families: tuple[str, ...] | None) -> "Drawn":
        """Scene number `seed` of `size` (width, height) px."""
        ...

    def said(self, question: Question, drawn: "Drawn", rng: np.random.Generator) -> Question:
        """A question about any row, its own or another world's, in this world's words."""
        ...

    def forms(self, kind: str) -> Sequence[Form]:
        """The forms of "several" images, or of "clips"."""
        ...

    def draw_views(self, kind: str, seed: int, form: Form) -> ShownViews:
        """Row number `seed` of several views."""
        ...


def find_world(name: str) -> World | None:
    """The world called "module:name"; None for ""."""
    module, _, attribute = name.partition(":")
    found: World | None = getattr(import_module(module), attribute) if name else None
    return found


class MiniBatches(Dataset[Batch]):
    """`batches[i]` is the i-th batch: images, dense targets, per use the text, and for sparse the cells."""

    def __init__(self, config: MiniTrainConfig, turns: Turns, progress: Any | None = None) -> None:
        """`progress` is a shared number that the loop keeps (runs by the clock); None: by the step."""
        self.config, self.turns, self.progress = config, turns, progress
        self.world = find_world(config.world)
        for font in PRACTICE_FILES.values() if config.style_share else ():
            load_font(font, 16)  # a missing one is named now, not in every second scene

    def __getitem__(self, index: int) -> Batch:
        config = self.config
        rng = np.random.default_rng([config.seed, index])
        first = (config.seed * 1_000_003 + index) * SEEDS_PER_BATCH
        if (
            config.several_share + config.clip_share
            and (way := rng.random()) < config.several_share + config.clip_share
        ):
            return self._views("several" if way < config.several_share else "clips", first, rng)
        progress = index * len(USES) / config.steps if self.progress is None else float(self.progress.value)
        sizes = config.sizes_at(progress)
        shares = np.array([share for _, _, share in sizes])
        width, height, _ = sizes[int(rng.choice(len(shares), p=shares / shares.sum()))]
        grid = (height // CELL, width // CELL)
        images = config.batch_images(grid[0] * grid[1])
        budget = max(1, round(float(rng.choice(config.sparse_shares)) * grid[0] * grid[1]))
        foveated = config.foveated_share > 0 and rng.random() < config.foveated_share
        small = periphery_grid(grid, FirstLook().grid(grid), budget) if foveated else None
        batch = _Builder(self.config, self.turns, images, grid, budget, self.world, small)
        for row in range(images):
            sheet = rng.random() < config.sheet_share(progress, width, height)
            families = config.focus if rng.random() < config.focus_share else None
            style = _style(rng, config) if config.style_share and rng.random() < config.style_share else PLAIN
            size, crowd = (width, height), config.crowd(progress)
            if self.world and rng.random() < config.world_share:
                drawn = self.world.draw(first + row, size, crowd, families)
            else:
                drawn = _scene(first + row, size, crowd, families, sheet, style)
            batch.add(row, drawn, rng, config.list_share(progress))
        return batch.tensors()

    def _views(self, kind: str, first: int, rng: np.random.Generator) -> Batch:
        """A batch of rows of several views; seeds from `first` on."""
        config, world = self.config, self.world
        assert world is not None
        forms = world.forms(kind)
        form = forms[int(rng.integers(len(forms)))]
        if form.frames:
            form = replace(form, fps=float(rng.choice(RATES)), bare=bool(rng.random() < BARE))
        rows = config.batch_images(form.cells)
        budget = max(8, round(float(rng.choice(config.sparse_shares)) * form.cells)) // 2 * 2
        batch = ViewBuilder(form, self.turns, rows, budget, config.text_tokens, config.questions)
        for row in range(rows):
            batch.add(row, world.draw_views(kind, first + row, form), rng)
        return batch.tensors()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A scene with its pixels and, unless it is a sheet of letters, the draft behind it."""

    scene: Scene
    pixels: np.ndarray
    draft: Draft | None


def _style(rng: np.random.Generator, config: MiniTrainConfig) -> Style:
    """A style of practice: other fonts in half of the scenes, labels on the other side in half of them."""
    fonts = PRACTICE_FONTS if rng.random() < 0.5 else ()
    mirrored = bool(rng.random() < 0.5)
    return practice_style(fonts, mirrored, rephrased=config.rephrase_share, layouts=config.practice_layouts)


def _scene(
    seed: int, size: tuple[int, int], crowd: float, families: tuple[str, ...] | None, sheet: bool, style: Style
) -> Drawn:
    """Scene and pixels; the next seed where one fails, for a single scene must not end a run of millions."""
    for attempt in range(5):
        try:
            number = seed + attempt * SEEDS_PER_BATCH // 2
            if sheet:
                scene = letter_sheet(number, size, style)
                return Drawn(scene, draw_scene(scene), None)
            scene, draft = lay_practice(number, size, style, crowd, families)
            return Drawn(scene, draw_scene(scene), draft)
        except Exception as error:
            warnings.warn(f"scene {seed} at {size} was left out: {error!r}", stacklevel=2)
            families, sheet, style = None, False, PLAIN
    raise RuntimeError(f"five scenes after {seed} at {size} failed: see the warnings above")


class _Builder:
    """The arrays of one batch while it fills up."""

    def __init__(
        self,
        config: MiniTrainConfig,
        turns: Turns,
        images: int,
        grid: tuple[int, int],
        budget: int,
        world: World | None = None,
        small: Grid | None = None,
    ) -> None:
        """`small` is the grid of the copy that the sparse use shows first; it is paid for by the budget."""
        height, width = grid
        self.world, self.small = world, small
        self.config, self.turns, self.grid = config, turns, grid
        self.budget = budget = budget - (small[0] * small[1] if small else 0)
        self.copies = np.empty((images, small[0] * CELL, small[1] * CELL, 3), np.uint8) if small else None
        self.images = np.empty((images, height * CELL, width * CELL, 3), np.uint8)
        self.targets = np.empty((images, height * width, CLASSES), np.uint8)
        self.cells = np.empty((images, budget), np.int64)
        self.text = {use: PackedText.empty(images, config.text_tokens, turns.pad_id) for use in USES}

    def add(self, row: int, drawn: Drawn, rng: np.random.Generator, listing: float) -> None:
        self.images[row] = drawn.pixels
        links = links_of(drawn.draft) if drawn.draft else ()
        self.targets[row] = dense_targets(drawn.scene.elements, *self.grid, links)
        order = self._ordered(drawn, rng, listing)
        dense = pack_row(self.text["dense"], row, order[: self.config.questions], self.turns)
        left = [q for q in order if q not in dense] + dense  # new questions first
        searching = self.config.distractor_share > 0 and rng.random() < self.config.distractor_share
        asked, needed = _within_budget(left, self.config.questions, self.budget, self.grid, searching)
        if not asked:
            asked, needed = _within_budget(left, self.config.questions, self.budget, self.grid)
        pack_row(self.text["sparse"], row, asked, self.turns)
        lost: set[int] = set()
        if self.small is not None and self.copies is not None:
            self.copies[row] = shrink(drawn.pixels, self.small)
            missed = float(rng.choice(MISSED))
            lost = {cell for cell in needed if rng.random() < missed}
        self.cells[row] = _fill(needed - lost, self.budget, self.grid, rng, lost)

    def _ordered(self, drawn: Drawn, rng: np.random.Generator, listing: float) -> list[Question]:
        """All questions about a scene: a list and pairs first where the dice say so, the others in any order.

        Further pairs come last: the sparse use of a row takes what the dense one left over.
        """
        config, draft, questions = self.config, drawn.draft, list(drawn.scene.questions)
        if draft and config.practice:
            questions += practice_questions(draft, config.practice, config.practice_most, questions)
        order = [questions[number] for number in rng.permutation(len(questions))]
        everything = list_question(drawn.scene, rng) if rng.random() < listing else None
        first = last = None
        if draft and config.binding_share and rng.random() < config.binding_share:
            first, last = binding_question(draft, rng), binding_question(draft, rng)
        if last == first:
            last = None
        asked = [question for question in (everything, first, *order, last) if question is not None]
        return [self.world.said(question, drawn, rng) for question in asked] if self.world else asked

    def tensors(self) -> Batch:
        batch = {
            "images": torch.from_numpy(self.images),
            "targets": torch.from_numpy(self.targets),
            "cells": torch.from_numpy(self.cells),
        }
        starts = dict.fromkeys(USES, 0)
        if self.small is not None and self.copies is not None:
            batch["small"] = torch.from_numpy(self.copies)
            copied, form = self.small[0] * self.small[1], shown_form(batch)
            whole = np.broadcast_to(np.arange(copied), (len(self.cells), copied))
            batch |= prompts("sparse", self.turns, form, np.concatenate([whole, copied + self.cells], 1))
            starts["sparse"] = prefix_of(self.turns, form).start
        for use, packed in self.text.items():
            batch |= packed.trimmed().tensors(use, starts[use])
        return batch


def _within_budget(
    questions: Sequence[Question], most: int, budget: int, grid: tuple[int, int], searching: bool = False
) -> tuple[list[Question], set[int]]:
    """The first `most` questions whose evidence fits into `budget` cells together, and those cells.

    With `searching` their distractors must fit too, so that the evidence has to be told from them.
    """
    asked: list[Question] = []
    union: set[int] = set()
    for question in questions:
        boxes = (*question.evidence, *question.distractors) if searching else question.evidence
        wider = union | boxes_cells(boxes, *grid)
        if len(wider) <= budget and len(asked) < most:
            asked.append(question)
            union = wider
    return asked, union


def _fill(
    evidence: set[int], budget: int, grid: tuple[int, int], rng: np.random.Generator, lost: set[int]
) -> list[int]:
    """Evidence plus other cells but `lost`, `budget` in all: evenly spread in half of the cases, else at random."""
    if rng.random() < 0.5:
        return fill_evenly(evidence, budget, *grid, lost)
    others = [cell for cell in rng.permutation(grid[0] * grid[1]).tolist() if cell not in evidence | lost]
    return sorted([*evidence, *others[: budget - len(evidence)]])


def batch_stream(batches: MiniBatches, first: int, last: int, pin: bool) -> Generator[Batch, None, None]:
    """Batches `first` to `last` - 1 in order, made by the configured number of worker processes (0: here)."""
    workers = batches.config.workers
    ahead = 2
    if workers:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every tensor in flight is one open file
        frames = 2 if batches.config.clip_share else 1  # per cell
        one = batches.config.cells_per_batch * (frames * CELL * CELL * 3 + CLASSES)
        free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
        if free < workers * one:
            raise ValueError(
                f"/dev/shm has {free >> 20} MB free, {workers} workers need {workers * one >> 20}: "
                f"give --workers {free // one}, or a smaller cells_per_batch"
            )
        if free < 2 * workers * ahead * one:
            ahead = 1
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=range(first, last),
        num_workers=workers,
        prefetch_factor=ahead if workers else None,
        pin_memory=pin,
        multiprocessing_context="fork" if workers else None,
    )
    yield from loader


def moved(batch: Batch, device: torch.device, side: Any | None) -> Batch:
    """`batch` on the device. Copied on the CUDA stream `side`, so that the step before goes on meanwhile."""
    if side is None:
        return {name: value.to(device) for name, value in batch.items()}
    with torch.cuda.stream(side):
        there = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
    now: Any = torch.cuda.current_stream()
    now.wait_stream(side)
    for value in there.values():
        value.record_stream(now)  # its memory belongs to `side`, but `now` reads it
    return there
