"""Batches for training a selector, from drawn scenes or from files: lists of groups of one grid each.

Batch i depends on the seed and on i alone, so the position in the data is one number, and a run that stopped goes on
with the very batch that was next. Of files, some images are held back to watch the training with.
"""

import ctypes
import math
import os
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, Subset

from arr_coc.data.examples import Example, Examples, FileExamples, FileRow, readable_example, scene_examples
from arr_coc.files import write_whole
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.processor import cut_tokens
from arr_coc.qwen.sizes import ImageSizes
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.groups import CELL, Encode, GridGroup, make_group, whole_cells
from arr_coc_scenes import make_scene
from arr_coc_scenes.voids import draw_void

SEEDS_PER_BATCH = 4096
TO_READ = ("lookup", "chart")  # families whose evidence is found by reading
HELD_SHARE, HELD_MOST = 0.1, 300  # of a dataset's examples, held back to watch the training with
HELD_BYTES = 2**29  # of their images, which stay in memory
END = 4096  # bytes of a file by which its copies are known, beside its length
LIST = "left-out.txt"
Draw = Callable[[int, tuple[int, int], bool, tuple[str, ...] | None], list[Example]]
PARENT_DIES = 1  # Linux: which signal a process gets when the one that started it dies
SAID = 20  # broken rows are said up to here; all are in the file


@dataclass(frozen=True, slots=True)
class Data:
    """What a run learns from."""

    batches: Dataset[list[GridGroup]]
    held: list[GridGroup]  # held back to watch with
    broken: tuple[str, ...] = ()  # one line per row that was left out
    most_unreadable: float = 0.0  # images that may turn out not to decode before the run stops


def draw_examples(seed: int, size: tuple[int, int], hard: bool, families: tuple[str, ...] | None) -> list[Example]:
    """The questions of one drawn scene of (width, height) px; `families`: only these are asked, None: all."""
    return scene_examples(make_scene(seed, "train", size, "hard" if hard else "plain", families=families))


def make_data(
    config: SelectorTrainConfig,
    owner: ARRCOCQwen,
    say: Callable[[str], None],
    draw: Draw = draw_examples,
    examples: FileExamples | None = None,
) -> Data:
    """Batches to learn from, and groups to watch with; `draw` makes what "scenes" are, `examples` are those of files.

    Without `examples` the files are read here.
    """
    encode, sizes = make_encoder(owner.processor.tokenizer), ImageSizes.of(owner.processor)
    if config.data == "scenes":
        is_read = config.needs_answers or config.target == "attention"  # by the model whole, as its processor says
        for width, height, _ in config.sizes:
            if is_read and sizes.nearest(height, width) != (height, width):
                raise ValueError(f"sizes: the model's processor would resize {width}x{height} px; leave that size out")
        return Data(SceneBatches(config, encode, sizes.cell, draw), held_scenes(config, encode, sizes.cell))
    examples = config.read_files() if examples is None else examples
    assert examples is not None
    learned, held_back = split_by_image(_usable(config, examples, say), examples.rows)
    if not held_back:
        say("too few images to hold one back: the training is not watched")
    held = _few_enough(held_back[: config.evaluate_questions], examples.rows, sizes)
    watching = replace(config, examples=max(1, len(held)))
    watched = FileBatches(watching, encode, examples, held, sizes)[0] if held else []
    most = config.max_broken * len(examples)
    return Data(FileBatches(config, encode, examples, learned, sizes), watched, tuple(examples.broken), most)


def _few_enough(numbers: Sequence[int], rows: Sequence[FileRow], sizes: ImageSizes) -> list[int]:
    """As many of the numbered rows as may lie in memory all through a run."""
    kept, held = list[int](), 0
    for number in numbers:
        width, height = rows[number].image.size
        held += 3 * math.prod(sizes.nearest(height, width))
        if held > HELD_BYTES:
            break
        kept.append(number)
    return kept


def split_by_image(numbers: Sequence[int], rows: Sequence[FileRow]) -> tuple[list[int], list[int]]:
    """(rows to learn from, rows to watch with) of those numbered: all questions about an image are on one side.

    So are its copies under other names, as where every question has a file of its own. About a tenth is held back, of
    the images that come last, and always less than all images.
    """
    images: dict[Hashable, list[int]] = {}
    shared = {path: _shared(path) for path in {rows[number].image.path for number in numbers}}
    for number in numbers:
        images.setdefault(shared[rows[number].image.path], []).append(number)
    most = min(HELD_MOST, int(len(numbers) * HELD_SHARE))
    several, held = list(images.values()), list[int]()
    while len(several) > 1 and len(held) < most:
        held = [*several.pop(), *held]
    return sorted(number for image in several for number in image), held


def _shared(path: Path) -> Hashable:
    """What a file shares with its copies: its length and its end. Others that do so by chance only stay together."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - END))
            return length, zlib.crc32(file.read())
    except OSError:  # gone since it was listed: it will not be read either
        return path


def _usable(config: SelectorTrainConfig, examples: FileExamples, say: Callable[[str], None]) -> list[int]:
    """Numbers of the examples that have what this stage learns from."""
    what, instead = "boxes", "leave target at auto, or give pseudo_boxes"
    if config.needs_answers:
        what, instead = "answers", "use stage 1, which learns from questions alone"
    elif not config.needs_boxes:
        what, instead = "questions", "where people looked is for arr-coc eval --score evidence"
    has = [
        bool(row.question)
        and (bool(row.answer) or not config.needs_answers)
        and (row.boxes is not None or not config.needs_boxes)
        for row in examples.rows
    ]
    numbers = [number for number, there in enumerate(has) if there]
    if not numbers:
        raise ValueError(f"the examples of {config.data} have no {what}: {instead}")
    if len(numbers) < len(examples):
        say(f"{len(examples) - len(numbers)} examples without {what} were left out, {len(numbers)} are left")
    return numbers


# ---------------------------------------------------------------- batches


def make_encoder(tokenizer: Any) -> Encode:
    """A question's token ids, as the processor would make them; questions seen before come from a cache."""
    # `backend_tokenizer.encode` is an order of magnitude faster than the tokenizer's own call.
    backend, names = tokenizer.backend_tokenizer, [token.content for token in tokenizer.added_tokens_decoder.values()]

    @lru_cache(maxsize=65536)
    def encode(text: str) -> tuple[int, ...]:
        parts = cut_tokens(text, names)
        return tuple(index for part in parts for index in backend.encode(part, add_special_tokens=False).ids)

    return encode


class SceneBatches(Dataset[list[GridGroup]]):
    """`batches[i]`: one group of drawn scenes of one size."""

    def __init__(
        self, config: SelectorTrainConfig, encode: Encode, cell: int = CELL, draw: Draw = draw_examples
    ) -> None:
        self.config, self.encode, self.cell, self.draw = config, encode, cell, draw

    def __getitem__(self, index: int) -> list[GridGroup]:
        config = self.config
        rng = np.random.default_rng([config.seed, index, 1])
        shares = np.array([share for _, _, share in config.sizes])
        width, height, _ = config.sizes[int(rng.choice(len(shares), p=shares / shares.sum()))]
        first = (config.seed * 1_000_003 + index) * SEEDS_PER_BATCH
        images: list[np.ndarray] = []
        asked: list[tuple[int, Example]] = []
        rows = config.rows_of((height // self.cell, width // self.cell))
        for number in range(SEEDS_PER_BATCH):
            hard = rng.random() < config.hard_share
            to_read = TO_READ if config.reading_share and rng.random() < config.reading_share else None
            examples = self.draw(first + number, (width, height), hard, to_read)
            if rng.random() < config.void_share:
                nothing = draw_void(rng, width, height)
                examples = [replace(example, image=nothing, boxes=(), hard=False) for example in examples]
            drawn = rng.permutation(len(examples))[: min(config.questions, rows - len(asked))].tolist()
            images.append(examples[0].image)
            asked += [(number, examples[one]) for one in drawn]
            if len(asked) >= rows:
                break
        return [make_group(images, asked, self.encode, config.weight_of_hard, self.cell)]


class FileBatches(Dataset[list[GridGroup]]):
    """`batches[i]`: some of the rows numbered `numbers`, of few grids, in groups of one grid each, never padded.

    A round shows every row once. Its rows are shuffled, put together by grid, cut into batches, and these shuffled: so
    a batch has one grid, or two where one ends, however many there are in the files.
    """

    def __init__(
        self,
        config: SelectorTrainConfig,
        encode: Encode,
        examples: FileExamples,
        numbers: Sequence[int],
        sizes: ImageSizes,
    ) -> None:
        self.config, self.encode, self.sizes = config, encode, sizes
        self.examples: Examples = Subset(examples, numbers)  # type: ignore[arg-type]
        shapes = [examples.rows[number].image.size for number in numbers]
        self.shapes = [sizes.settled(height, width) for width, height in shapes]
        self.per_round = -(-len(numbers) // config.examples)

    @lru_cache(maxsize=4)  # noqa: B019  (lives as long as the run)
    def _round(self, number: int) -> list[np.ndarray]:
        """The batches of a round: places among the numbers."""
        rng = np.random.default_rng([self.config.seed, number, 2])
        order = rng.permutation(len(self.shapes))
        shapes = sorted(set(self.shapes))
        turn = dict(zip(shapes, rng.permutation(len(shapes)).tolist(), strict=True))
        order = order[np.argsort([turn[self.shapes[place]] for place in order], kind="stable")]
        batches = np.array_split(order, range(self.config.examples, len(order), self.config.examples))
        return [batches[one] for one in rng.permutation(len(batches))]

    def __getitem__(self, index: int) -> list[GridGroup]:
        groups: dict[tuple[int, ...], list[Example]] = {}
        passed: list[str] = []
        for place in self._round(index // self.per_round)[index % self.per_round].tolist():
            example, unreadable = readable_example(self.examples, place)
            passed += unreadable
            example = whole_cells(example, self.sizes)
            groups.setdefault(example.image.shape, []).append(example)
        made = [self._group(part) for members in groups.values() for part in self._parts(members)]
        return [replace(made[0], passed=tuple(passed)), *made[1:]]

    def _parts(self, members: list[Example]) -> list[list[Example]]:
        """Examples of one grid, as many at a time as there is room for."""
        high, wide = members[0].image.shape[:2]
        most = self.config.rows_of((high // self.sizes.cell, wide // self.sizes.cell))
        return [members[start : start + most] for start in range(0, len(members), most)]

    def _group(self, members: list[Example]) -> GridGroup:
        asked, weight = list(enumerate(members)), self.config.weight_of_hard
        return make_group([one.image for one in members], asked, self.encode, weight, self.sizes.cell)


def held_scenes(config: SelectorTrainConfig, encode: Encode, cell: int = CELL) -> list[GridGroup]:
    """Scenes of `val` at 512 px to watch the training with, in groups of 16."""
    scenes = [make_scene(seed, "val", (512, 512)) for seed in range(-(-config.evaluate_questions // 6))]
    groups = []
    for start in range(0, len(scenes), 16):
        drawn = [scene_examples(scene)[:6] for scene in scenes[start : start + 16]]
        asked = [(number, example) for number, examples in enumerate(drawn) for example in examples]
        groups.append(make_group([examples[0].image for examples in drawn], asked, encode, 1.0, cell))
    return groups


def stream_batches(
    batches: Dataset[list[GridGroup]], numbers: range, workers: int, pin: bool
) -> Generator[list[GridGroup], None, None]:
    """The batches of `numbers` in order, made by so many worker processes (0: here)."""
    loader: DataLoader[list[GridGroup] | ValueError] = DataLoader(
        Guarded(batches),
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        pin_memory=pin,
        multiprocessing_context="fork" if workers else None,
        worker_init_fn=_leave_ending_to_the_run,
    )
    listens = workers and hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD) if listens else None
    made = iter(loader)
    if listens:
        # torch would raise at once where a worker dies, in the middle of a step as well, and half of one must not be
        # saved: without its handler a batch that does not come says so.
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
    try:
        for batch in made:
            if isinstance(batch, ValueError):
                raise batch
            yield batch
    finally:
        # What was raised may hold the iterator until the process ends, and is then waited for by its workers: they do
        # not listen to what would end them.
        if workers:
            made._shutdown_workers()  # type: ignore[attr-defined]


class Guarded(Dataset[list[GridGroup] | ValueError]):
    """Batches, or why there is none: an error that a worker raises arrives with its whole traceback as its message."""

    def __init__(self, batches: Dataset[list[GridGroup]]) -> None:
        self.batches = batches

    def __getitem__(self, index: int) -> list[GridGroup] | ValueError:
        try:
            return self.batches[index]
        except ValueError as why:
            return why


def _leave_ending_to_the_run(worker: int) -> None:
    """A signal to all processes of a run at once is for the main one: it saves, and then ends its workers.

    Where the main one is killed it ends nobody: Linux then ends its workers at once, elsewhere they find out later.
    """
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGKILL)
        if os.getppid() == 1:  # it died before we asked
            os._exit(1)


# ---------------------------------------------------------------- what a run does without


class LeftOut:
    """Rows and images that a run does without: each is told once, and too many images end it."""

    def __init__(self, data: Data, max_broken: float, tell: Callable[..., None]) -> None:
        self.data, self.max_broken, self.tell = data, max_broken, tell
        self.images: dict[str, None] = {}

    def list_rows(self, out: Path) -> None:
        """Rows that were broken: some are said, all are in a file."""
        broken = self.data.broken
        if broken:
            write_whole(out / LIST, "".join(f"{line}\n" for line in broken))
            for line in broken[:SAID]:
                self.tell(f"left out: {line}")
            self.tell(f"{len(broken)} broken rows were left out, see {LIST}", broken=len(broken))

    def note(self, group: GridGroup) -> None:
        """Images that turned out not to decode on the way to a group."""
        for line in group.passed:
            if line not in self.images:
                self.images[line] = None
                self.tell(f"left out: {line}", unreadable=line)
        if len(self.images) > self.data.most_unreadable:
            raise ValueError(
                f"{len(self.images)} rows have images that do not decode, over max_broken={self.max_broken}: first "
                f"{next(iter(self.images))}; copy them again, or allow more"
            )
