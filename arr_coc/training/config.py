"""Settings of `arr-coc train selector`: one frozen dataclass, read from JSON, checked once."""

import dataclasses
import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from arr_coc.config import CHANNEL_SETS, POOLINGS, SIGHTS

if TYPE_CHECKING:
    from arr_coc.data.examples import FileExamples

CELL = 32  # px: drawn scenes are whole cells of the Qwen3-VL of today
MOST_CELLS = 262_144  # of a batch: 1,024 questions at 512 px
STRATEGIES = ("score", "straight_through", "gumbel", "reinforce")
CHOICES: dict[str, tuple[Any, ...]] = {
    "stage": (1, 2, 3),
    "strategy": STRATEGIES,
    "adapt": ("none", "lora", "last4", "all"),
    "target": ("auto", "boxes", "attention"),
    "texture_channels": tuple(CHANNEL_SETS),
    "sight": SIGHTS,
    "pooling": POOLINGS,
    "encoding": ("dense", "sparse"),
    "precision": ("auto", "bfloat16", "float32"),
}
_AT_LEAST_ONE = ("questions", "examples", "accumulate", "lora_rank", "sight_channels", "glance_channels")
LEAST = {**dict.fromkeys(_AT_LEAST_ONE, 1), "workers": -1}  # least values of numbers; 0 for all others
READABLE = 160  # least side of a scene, px, in which every table and chart has room: at 128 px one in 25 has none


@dataclass(frozen=True, slots=True)
class SelectorTrainConfig:
    """Everything that decides a run. The defaults train ARR-COC for mini on one large GPU."""

    stage: int = 1  # 1: maps from boxes, the model frozen; 2: answers end to end; 3: as 1, hard variants weigh double
    model: str = "mini"  # "mini", a folder, an identifier, or "shape:qwen3-vl-2b" for random weights at a real shape
    data: str = "scenes"  # what to learn from, see `data/sources.py`: "scenes", "coco:...", "vqa:...", "jsonl:..."
    pseudo_boxes: str = ""  # a detector's output file (COCO results) that gives boxes to data without
    max_broken: float = 0.01  # share of broken rows of `data` that are skipped; more than that stops the run
    target: str = "auto"  # what maps learn from: boxes, the model's own "attention"; auto: that where none are known
    seed: int = 0
    steps: int = 4000
    seconds: float = 0.0  # wall-clock budget of training, 0: none. The learning rate then follows the clock

    texture_channels: int = 13  # the registered set of textures, by its size
    sight: str = "glance"
    sight_channels: int = 32
    glance_channels: int = 96
    pooling: str = "mean"

    sizes: tuple[tuple[int, int, float], ...] = (
        (512, 512, 0.56),
        (384, 384, 0.08),
        (256, 256, 0.06),
        (640, 480, 0.06),
        (480, 640, 0.04),
        (768, 768, 0.06),
        (1024, 768, 0.04),
        (1024, 1024, 0.10),
    )
    """(width, height, share) of scenes in px."""
    cells_per_batch: int = 0  # of all questions of a pass, what bounds the memory; 0: what fits, 262,144 at most
    questions: int = 6  # questions per scene at most
    examples: int = 16  # examples per batch, where the data come from files
    min_pixels: int = 0  # of an image from a file, which is resized to whole cells within both; 0: as the processor
    max_pixels: int = 0  # does. What is given here holds for the trained model as well
    hard_share: float = 0.25  # share of scenes that are hard variants
    void_share: float = 0.0  # share of scenes for which an image without structure is asked the same: nothing is there
    reading_share: float = 0.0  # share of scenes that are tables, receipts and charts: the row must be read to be found
    hidden_share: float = 0.1  # share of questions that are hidden: what is there and what stands out must do
    noisy_share: float = 0.15  # share of questions whose participatory map is blurred with another's before balancing
    light_share: float = 0.25  # share of batches without the language model's look, where the sight has one
    hard_weight: float = 2.0  # stage 3: weight of a question about a hard variant. In the other stages all weigh alike
    accumulate: int = 1  # batches per optimizer step and process

    learning_rate: float = 1.5e-3
    policy_rate: float = 0.3  # of that for the policy: faster, it would drop maps that have not learned yet
    final_rate: float = 0.01  # learning rate at the end, as a share of the peak
    warmup_steps: int = 100  # or a tenth of the run, if that is less
    weight_decay: float = 0.01
    clip: float = 1.0

    bce: float = 1.0
    positive_weight: float = 8.0  # how much a cell with evidence weighs against one without
    mse: float = 0.0
    iou: float = 0.5
    participatory: float = 0.2  # weight of the participatory map's own loss beside that of the whole relevance
    information: float = 0.2  # weight of the information map's loss: it learns what any question could be about
    perspectival: float = 0.2  # likewise of the perspectival map's
    order: float = 0.0  # weight of the order of cells with evidence, after the model's attention; 0: no pass for that
    order_share: float = 1.0  # share of batches that learn this order: its pass costs three times all the rest
    budget: float = 0.5
    too_few: float = 4.0  # how much more a budget that misses evidence costs than one that is too large

    strategy: str = "score"  # stage 2: how the answer's gradient passes the choice
    adapt: str = "lora"  # stage 2: what of the model learns
    lora_rank: int = 16
    base_rate: float = 2e-4  # learning rate of the model's own weights
    answer: float = 1.0  # stage 2: weight of the answer's cross-entropy
    keeps: tuple[float, float] = (0.06, 0.5)  # stage 2: fractions KEPT are drawn from this, evenly in their logarithm
    encoding: str = "sparse"
    checkpointing: bool = False  # recompute activations in the backward pass: slower, and a fraction of the memory

    precision: str = "auto"  # of the model: auto (bfloat16 on a GPU that has it, float32 on the CPU), bfloat16, float32
    workers: int = -1  # processes that make batches; -1: as many as there are cores and memory for
    log_every: float = 5.0
    evaluate_every: float = 120.0
    evaluate_questions: int = 300
    checkpoint_every: float = 120.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_kind(field.name, getattr(self, field.name), field.default)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(map(str, allowed))}")
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, int | float) and not (math.isfinite(value) and value >= LEAST.get(name, 0)):
                raise ValueError(f"{name}={value}: expected {LEAST.get(name, 0)} or more")
        shares = sum(size[2] for size in self.sizes) if all(is_size(size) for size in self.sizes) else 0
        if not (math.isfinite(shares) and shares > 0):
            raise ValueError(f"sizes: each is [width, height, share], px in multiples of {CELL}, one share above 0")
        if self.steps < 1 and self.seconds <= 0:
            raise ValueError("steps and seconds: give one of them, a run must end")
        shares_of = [field.name for field in dataclasses.fields(self) if field.name.endswith("_share")]
        for name in (*shares_of, "max_broken"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected a share from 0 to 1")
        if 0 < self.max_pixels < max(self.min_pixels, CELL * CELL):
            raise ValueError(f"max_pixels={self.max_pixels}: expected {CELL * CELL} or more, and min_pixels or more")
        if self.positive_weight == 0:
            raise ValueError("positive_weight=0: give a number above 0 such as 8.0")
        if len(self.keeps) != 2 or not all(type(share) in (int, float) for share in self.keeps):
            raise ValueError(f"keeps={self.keeps}: give two numbers, the least and the most fraction KEPT")
        if not (0 < self.keeps[0] < 1 and self.keeps[0] <= self.keeps[1] <= 1):
            raise ValueError(f"keeps={self.keeps}: expected 0 < least <= most <= 1, least below 1, fractions KEPT")
        smallest = min(side for *sides, share in self.sizes if share > 0 for side in sides)
        if self.data == "scenes" and self.reading_share > 0 and smallest < READABLE:
            raise ValueError(f"sizes: {smallest} px is too small for reading_share, give {READABLE} px a side or more")
        self._check_stage()

    def _check_stage(self) -> None:
        """Settings that would have no effect are refused: whoever gives them expects one."""
        if self.stage != 2 and self.strategy != "score":
            raise ValueError(f"strategy={self.strategy!r} needs answers: use it with stage 2")
        if self.order and (self.stage == 2 or self.target == "attention"):
            raise ValueError(f"order={self.order} is of cells inside boxes: use it in stages 1 and 3, with boxes")
        if self.stage == 2 and self.target == "attention":
            raise ValueError(f"target={self.target!r} supervises maps: use it with stage 1 or 3")
        for name in ("void_share", "reading_share"):
            if self.data != "scenes" and getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: only scenes are drawn, use it with data='scenes'")
        if self.pseudo_boxes and self.data == "scenes":
            raise ValueError("pseudo_boxes: scenes know their boxes, give it with other data")

    def read_files(self) -> "FileExamples | None":
        """The examples to learn from, every row and every image's header checked; None for scenes. Loads no torch."""
        if self.data == "scenes":
            return None
        from arr_coc.data.sources import read_source

        return read_source(self.data, float(self.max_broken), Path(self.pseudo_boxes) if self.pseudo_boxes else None)

    @property
    def weight_of_hard(self) -> float:
        """Weight of a question about a hard variant against any other."""
        return self.hard_weight if self.stage == 3 else 1.0

    @property
    def needs_answers(self) -> bool:
        """Whether an example without an answer teaches nothing."""
        return self.stage == 2

    @property
    def needs_boxes(self) -> bool:
        """Whether an example without boxes teaches nothing."""
        return self.stage != 2 and self.target == "boxes"

    def rows_of(self, grid: tuple[int, int], cells: int = 0) -> int:
        """Questions that are learned from in one pass, of images with this grid; `cells` are those of a batch."""
        fit = (cells or self.cells_per_batch or MOST_CELLS) // (grid[0] * grid[1])
        return max(self.questions, fit) if self.data == "scenes" else min(self.examples, max(1, fit))


# ---------------------------------------------------------------- any settings in a JSON file

Settings = TypeVar("Settings")


def read_settings(kind: type[Settings], path: Path | None, **overrides: Any) -> Settings:
    """Settings of the dataclass `kind` from a JSON file (None: its defaults), with `overrides` that are not None."""
    try:
        given = json.loads(path.read_text()) if path else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(given, dict):
        raise ValueError(f"{path}: expected a JSON object of settings")
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(given) - known):
        raise ValueError(f"{path}: unknown settings {unknown}; known are {sorted(known)}")
    given |= {name: value for name, value in overrides.items() if value is not None}
    return kind(**{name: _frozen(value) for name, value in given.items()})


def check_kind(name: str, value: Any, default: Any) -> None:
    """A setting has the kind of its default; a whole number may stand for any number."""
    kinds: tuple[type, ...] = (int, float) if type(default) is float else (type(default),)
    if type(value) not in kinds:
        raise ValueError(f"{name}: {value!r} is a {type(value).__name__}, expected {type(default).__name__}")


def is_size(size: Any) -> bool:
    """Whether this is (width, height, share): px in whole cells, and a share of 0 or more."""
    if not isinstance(size, tuple) or len(size) != 3 or not all(isinstance(number, int | float) for number in size):
        return False
    width, height, share = size
    return width >= CELL and height >= CELL and width % CELL == height % CELL == 0 and share >= 0


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


read_selector_config = partial(read_settings, SelectorTrainConfig)
