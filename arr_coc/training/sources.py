"""Where a run's batches come from: drawn scenes, or files, of which some examples are held back to watch with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch.utils.data import Dataset

from arr_coc.data.examples import Example, Examples
from arr_coc.data.files import FileExamples
from arr_coc.data.sources import read_source
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.data import (
    FileBatches,
    Group,
    SceneBatches,
    fits,
    held_scenes,
    make_encoder,
    pixel_limits,
)

HELD_SHARE, HELD_MOST = 0.1, 300  # of a dataset's examples, held back to watch the training with
LIST = "left-out.txt"
SAID = 20  # broken rows are said up to here; all are in the file


class Part(Dataset[Example]):
    """Some examples of a dataset, by their numbers."""

    def __init__(self, examples: Examples, numbers: Sequence[int]) -> None:
        self.examples, self.numbers = examples, numbers
        self.broken: list[str] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Example:
        return self.examples[self.numbers[index]]


@dataclass(frozen=True, slots=True)
class Data:
    """What a run learns from."""

    batches: Dataset[list[Group]]
    held: list[Group]  # held back to watch with
    broken: tuple[str, ...] = ()  # one line per row that was left out
    most_unreadable: float = 0.0  # images that may turn out not to decode before the run stops


def make_data(config: SelectorTrainConfig, owner: ARRCOCQwen, say: Callable[[str], None]) -> Data:
    """Batches to learn from, and groups to watch with."""
    encode, limits = make_encoder(owner.processor.tokenizer), pixel_limits(owner.processor)
    if config.data == "scenes":
        for width, height, _ in config.sizes:
            if config.needs_answers and not fits((height, width), limits):
                raise ValueError(f"sizes: the model's processor would resize {width}x{height} px; leave that size out")
        return Data(SceneBatches(config, encode), held_scenes(config, encode))
    examples = read_source(
        config.data,
        max_broken=float(config.max_broken),
        detections=Path(config.pseudo_boxes) if config.pseudo_boxes else None,
    )
    assert isinstance(examples, FileExamples)
    numbers = _usable(config, examples, say)
    cut = len(numbers) - min(HELD_MOST, int(len(numbers) * HELD_SHARE))
    held = Part(examples, numbers[cut:][: config.evaluate_questions])
    watched = FileBatches(replace(config, examples=max(1, len(held))), encode, held, limits)[0] if held else []
    most = config.max_broken * len(examples)
    batches = FileBatches(config, encode, Part(examples, numbers[:cut]), limits)
    return Data(batches, watched, tuple(examples.broken), most)


def _usable(config: SelectorTrainConfig, examples: FileExamples, say: Callable[[str], None]) -> list[int]:
    """Numbers of the examples that have what this stage learns from."""
    if config.needs_answers:
        what, instead = "answers", "use stage 1 with target='boxes'"
        numbers = [number for number, row in enumerate(examples.rows) if row.answer]
    else:
        what, instead = "boxes", "use target='attention', or give pseudo_boxes"
        numbers = [number for number, row in enumerate(examples.rows) if row.boxes is not None]
    if not numbers:
        raise ValueError(f"the examples of {config.data} have no {what}: {instead}")
    if len(numbers) < len(examples):
        say(f"{len(examples) - len(numbers)} examples without {what} were left out, {len(numbers)} are left")
    return numbers


class LeftOut:
    """Rows and images that a run does without: each is told once, and too many images end it."""

    def __init__(self, data: Data, max_broken: float, tell: Callable[..., None]) -> None:
        self.data, self.max_broken, self.tell = data, max_broken, tell
        self.images: dict[str, None] = {}

    def list_rows(self, out: Path) -> None:
        """Rows that were broken: some are said, all are in a file."""
        broken = self.data.broken
        if broken:
            (out / LIST).write_text("".join(f"{line}\n" for line in broken))
            for line in broken[:SAID]:
                self.tell(f"left out: {line}")
            self.tell(f"{len(broken)} broken rows were left out, see {LIST}", broken=len(broken))

    def note(self, group: Group) -> None:
        """Images that turned out not to decode on the way to a group."""
        for line in group.passed:
            if line not in self.images:
                self.images[line] = None
                self.tell(f"left out: {line}", unreadable=line)
        if len(self.images) > self.data.most_unreadable:
            raise ValueError(
                f"{len(self.images)} images do not decode, over max_broken={self.max_broken}: first "
                f"{next(iter(self.images))}; copy them again, or allow more"
            )
