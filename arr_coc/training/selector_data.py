"""Batches for training a selector: images of one grid, with one or several questions each.

Batch i depends on the seed and on i alone, so the position in the data is one number, and a run that stopped goes on
with the very batch that was next.

B images, R questions (rows) about them, L tokens of a question, H W grid of cells.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from arr_coc.config import CELL
from arr_coc.qwen.turns import Turns
from arr_coc.scenes import make_scene
from arr_coc.training.box_targets import cell_targets
from arr_coc.training.examples import Example, Examples, readable_example, scene_examples
from arr_coc.training.selector_config import SelectorTrainConfig

Encode = Callable[[str], Sequence[int]]
SEEDS_PER_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Group:
    """Images of one grid with their questions."""

    images_Bhw3: Tensor  # uint8, whole cells
    image_R: Tensor  # the image of each row
    ids_RL: Tensor
    mask_RL: Tensor  # True where there is a token
    targets_RHW: Tensor  # 1 where the answer is
    known_R: Tensor  # False where nobody said where the answer is
    weight_R: Tensor
    standout_BHW: Tensor  # 1 where any question of the image finds its answer
    examples: tuple[Example, ...]  # one per row, without their pixels

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W)"""
        return self.targets_RHW.shape[1], self.targets_RHW.shape[2]

    def to(self, device: torch.device) -> "Group":
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return Group(**{k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in moved.items()})

    def pin_memory(self) -> "Group":
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return Group(**{k: v.pin_memory() if isinstance(v, Tensor) else v for k, v in moved.items()})


NO_PIXELS = np.empty((0, 0, 3), np.uint8)


def make_group(
    images: Sequence[np.ndarray], asked: Sequence[tuple[int, Example]], encode: Encode, hard_weight: float
) -> Group:
    """A group from images of one size and (number of the image, example) pairs; boxes are in the images' pixels."""
    high, wide = images[0].shape[:2]
    grid = (high // CELL, wide // CELL)
    tokens = [list(encode(example.question)) for _, example in asked]
    longest = max(1, *(len(row) for row in tokens))
    ids, mask = np.zeros((len(asked), longest), np.int64), np.zeros((len(asked), longest), bool)
    targets, standout = torch.zeros(len(asked), *grid), torch.zeros(len(images), *grid)
    for row, (number, example) in enumerate(asked):
        ids[row, : len(tokens[row])], mask[row, : len(tokens[row])] = tokens[row], True
        targets[row] = cell_targets(example.boxes or (), (wide, high), grid)
        standout[number] = torch.maximum(standout[number], targets[row])
    return Group(
        torch.from_numpy(np.stack(images)),
        torch.tensor([number for number, _ in asked]),
        torch.from_numpy(ids),
        torch.from_numpy(mask),
        targets,
        torch.tensor([example.boxes is not None for _, example in asked]),
        torch.tensor([hard_weight if example.hard else 1.0 for _, example in asked]),
        standout,
        tuple(replace(example, image=NO_PIXELS) for _, example in asked),
    )


class SceneBatches(Dataset[list[Group]]):
    """`batches[i]`: one group of drawn scenes of one size."""

    def __init__(self, config: SelectorTrainConfig, encode: Encode) -> None:
        self.config, self.encode = config, encode

    def __getitem__(self, index: int) -> list[Group]:
        config = self.config
        rng = np.random.default_rng([config.seed, index, 1])
        shares = np.array([share for _, _, share in config.sizes])
        width, height, _ = config.sizes[int(rng.choice(len(shares), p=shares / shares.sum()))]
        first = (config.seed * 1_000_003 + index) * SEEDS_PER_BATCH
        images: list[np.ndarray] = []
        asked: list[tuple[int, Example]] = []
        rows = config.rows_of((height // CELL, width // CELL))
        for number in range(SEEDS_PER_BATCH):
            hard = "hard" if rng.random() < config.hard_share else "plain"
            examples = scene_examples(make_scene(first + number, "train", (width, height), hard))
            chosen = rng.permutation(len(examples))[: min(config.questions, rows - len(asked))].tolist()
            images.append(examples[0].image)
            asked += [(number, examples[one]) for one in chosen]
            if len(asked) >= rows:
                break
        return [make_group(images, asked, self.encode, config.hard_weight)]


class FileBatches(Dataset[list[Group]]):
    """`batches[i]`: the examples of a shuffled round over `examples`, grouped by grid, never padded."""

    def __init__(self, config: SelectorTrainConfig, encode: Encode, examples: Examples) -> None:
        self.config, self.encode, self.examples = config, encode, examples

    def __getitem__(self, index: int) -> list[Group]:
        config, total = self.config, len(self.examples)
        groups: dict[tuple[int, ...], list[Example]] = {}
        for place in range(index * config.examples, (index + 1) * config.examples):
            order = np.random.default_rng([config.seed, place // total, 2]).permutation(total)
            example, _ = readable_example(self.examples, int(order[place % total]))
            example = whole_cells(example, config.longest_side)
            groups.setdefault(example.image.shape, []).append(example)
        return [
            make_group([e.image for e in members], list(enumerate(members)), self.encode, config.hard_weight)
            for members in groups.values()
        ]


def whole_cells(example: Example, longest_side: int) -> Example:
    """The example with its image shrunk to at most `longest_side` px and stretched to whole cells; boxes follow."""
    high, wide = example.image.shape[:2]
    scale = min(1.0, longest_side / max(high, wide))
    size = [max(CELL, round(side * scale / CELL) * CELL) for side in (wide, high)]
    if (wide, high) == tuple(size):
        return example
    image = np.asarray(Image.fromarray(example.image).resize((size[0], size[1]), Image.Resampling.BICUBIC))
    across, down = size[0] / wide, size[1] / high
    boxes = example.boxes and tuple((x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in example.boxes)
    return replace(example, image=image, boxes=boxes)


def make_encoder(tokenizer: Any) -> Encode:
    """A question's token ids, as the processor would make them; questions seen before come from a cache."""
    return Turns(tokenizer).question


@dataclass(frozen=True, slots=True)
class Every:
    """Batch numbers of one of `of` processes, from `first` to `last`: it takes every `of`-th."""

    first: int
    last: int
    of: int
    mine: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first + self.mine, self.last, self.of))

    def __len__(self) -> int:
        return len(range(self.first + self.mine, self.last, self.of))


def stream_batches(
    batches: Dataset[list[Group]], numbers: Every, workers: int, pin: bool
) -> Generator[list[Group], None, None]:
    """The batches of `numbers` in order, made by so many worker processes (0: here)."""
    loader: DataLoader[list[Group]] = DataLoader(
        batches,
        batch_size=None,
        sampler=numbers,  # type: ignore[arg-type]
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        pin_memory=pin,
        multiprocessing_context="fork" if workers else None,
    )
    yield from loader
