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
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from arr_coc.config import CELL
from arr_coc.data.examples import Example, Examples, readable_example, scene_examples
from arr_coc.images.reader import MOST_ASPECT
from arr_coc.qwen.turns import Turns
from arr_coc.scenes import make_scene
from arr_coc.training.box_targets import cell_targets
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.voids import draw_void

Encode = Callable[[str], Sequence[int]]
SEEDS_PER_BATCH = 4096
TO_READ = ("lookup", "chart")  # families whose evidence is found by reading


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
    passed: tuple[str, ...] = ()  # what did not decode on the way to these examples

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W)"""
        return self.targets_RHW.shape[1], self.targets_RHW.shape[2]

    def rows(self, part: Tensor) -> "Group":
        """The same images with some of the questions, by number."""
        image, numbers = part.to(self.image_R.device), part.tolist()
        names = ("image_R", "ids_RL", "mask_RL", "targets_RHW", "known_R", "weight_R")
        cut = {name: getattr(self, name)[image] for name in names}
        return replace(self, **cut, examples=tuple(self.examples[number] for number in numbers))

    def to(self, device: torch.device) -> "Group":
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Group":
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Group":
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        changed: dict[str, Any] = {name: change(v) if isinstance(v, Tensor) else v for name, v in values}
        return Group(**changed)


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
            to_read = TO_READ if config.reading_share and rng.random() < config.reading_share else None
            examples = scene_examples(make_scene(first + number, "train", (width, height), hard, families=to_read))
            if rng.random() < config.void_share:
                nothing = draw_void(rng, width, height)
                examples = [replace(example, image=nothing, boxes=(), hard=False) for example in examples]
            chosen = rng.permutation(len(examples))[: min(config.questions, rows - len(asked))].tolist()
            images.append(examples[0].image)
            asked += [(number, examples[one]) for one in chosen]
            if len(asked) >= rows:
                break
        return [make_group(images, asked, self.encode, config.weight_of_hard)]


class FileBatches(Dataset[list[Group]]):
    """`batches[i]`: the examples of a shuffled round over `examples`, grouped by grid, never padded."""

    def __init__(
        self, config: SelectorTrainConfig, encode: Encode, examples: Examples, limits: tuple[int, int]
    ) -> None:
        self.config, self.encode, self.examples, self.limits = config, encode, examples, limits

    def __getitem__(self, index: int) -> list[Group]:
        config, total = self.config, len(self.examples)
        places = range(index * config.examples, (index + 1) * config.examples)
        orders = {
            number: np.random.default_rng([config.seed, number, 2]).permutation(total)
            for number in {place // total for place in places}
        }
        groups: dict[tuple[int, ...], list[Example]] = {}
        passed: list[str] = []
        for place in places:
            example, unreadable = readable_example(self.examples, int(orders[place // total][place % total]))
            passed += unreadable
            example = whole_cells(example, config.longest_side, self.limits)
            groups.setdefault(example.image.shape, []).append(example)
        made = [
            make_group([e.image for e in members], list(enumerate(members)), self.encode, config.weight_of_hard)
            for members in groups.values()
        ]
        return [replace(made[0], passed=tuple(passed)), *made[1:]]


def pixel_limits(processor: Any) -> tuple[int, int]:
    """Least and most pixels of an image that the processor leaves at its size."""
    size = processor.image_processor.size
    return int(size["shortest_edge"]), int(size["longest_edge"])


def fits(size: tuple[int, int], limits: tuple[int, int]) -> bool:
    """Whether the processor leaves an image of (height, width) px as it is."""
    kept: tuple[int, int] = smart_resize(*size, CELL, min_pixels=limits[0], max_pixels=limits[1])
    return kept == size


def whole_cells(example: Example, longest_side: int, limits: tuple[int, int]) -> Example:
    """The example with its image shrunk to at most `longest_side` px and resized to whole cells; boxes follow.

    The size is one that the processor leaves as it is, so that cells here are the model's cells.
    """
    high, wide = example.image.shape[:2]
    scale = min(1.0, longest_side / max(high, wide))
    least = -(-round(max(high, wide) * scale) // MOST_ASPECT)  # a very long image must not get longer by rounding
    shrunk = [max(least, round(side * scale)) for side in (high, wide)]
    new_high, new_wide = smart_resize(*shrunk, CELL, min_pixels=limits[0], max_pixels=limits[1])
    if (wide, high) == (new_wide, new_high):
        return example
    image = np.asarray(Image.fromarray(example.image).resize((new_wide, new_high), Image.Resampling.BICUBIC))
    across, down = new_wide / wide, new_high / high
    boxes = example.boxes
    if boxes is not None:
        boxes = tuple((x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in boxes)
    return replace(example, image=image, boxes=boxes)


def held_scenes(config: SelectorTrainConfig, encode: Encode) -> list[Group]:
    """Scenes of `val` at 512 px to watch the training with, in groups of 16."""
    scenes = [make_scene(seed, "val", (512, 512)) for seed in range(-(-config.evaluate_questions // 6))]
    groups = []
    for start in range(0, len(scenes), 16):
        drawn = [scene_examples(scene)[:6] for scene in scenes[start : start + 16]]
        asked = [(number, example) for number, examples in enumerate(drawn) for example in examples]
        groups.append(make_group([examples[0].image for examples in drawn], asked, encode, 1.0))
    return groups


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
        sampler=numbers,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        pin_memory=pin,
        multiprocessing_context="fork" if workers else None,
    )
    yield from loader
