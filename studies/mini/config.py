"""Settings of `python -m studies.mini.train`: one frozen dataclass, read from JSON, checked once."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_coc.training.config import check_kind, is_size, read_settings
from arr_coc_scenes import FAMILIES
from studies.cells import CELL
from studies.mini.practice import KINDS


@dataclass(frozen=True, slots=True)
class MiniTrainConfig:
    """Everything that decides a run. The defaults are the recipe for one large GPU."""

    seed: int = 0
    steps: int = 6000
    """Planned optimizer steps; with `seconds`, the plan is the time instead."""
    seconds: float = 0.0
    """Wall-clock budget of the whole command, 0: none. Learning rate and curriculum then follow the clock."""
    sizes: tuple[tuple[int, int, float], ...] = (
        (512, 512, 0.46),
        (256, 256, 0.06),
        (128, 128, 0.02),
        (384, 384, 0.08),
        (640, 480, 0.07),
        (480, 640, 0.05),
        (768, 512, 0.06),
        (768, 768, 0.06),
        (1024, 768, 0.04),
        (1024, 1024, 0.10),
    )
    """(width, height, share) in px; a batch has one size."""
    early_sizes: tuple[tuple[int, int, float], ...] = ((256, 256, 0.4), (384, 384, 0.3), (512, 512, 0.3))
    """Sizes until scenes fill up: small images of one or two things make many cheap steps. (): as later."""
    focus: tuple[str, ...] = ()
    """Families that need more practice: `focus_share` of the scenes ask these alone."""
    focus_share: float = 0.0
    sheet_shares: tuple[float, float] = (0.0, 0.0)
    """Share of rows that are sheets of letters (`studies/mini/letters.py`), at the start and at the end of the run."""
    sheet_side: int = 512
    """Images with a longer side are never sheets: a full one would take long to draw."""
    binding_share: float = 0.0
    """Share of rows about a table or a chart that open with a question about its pairs (`studies/mini/binding.py`)."""
    practice: tuple[str, ...] = ()
    """Kinds of questions (keys of `studies/mini/practice.py`) of which every scene that can asks more."""
    practice_most: int = 4
    """Further questions of `practice` per scene at most."""
    distractor_share: float = 0.0
    """Share of sparse rows that keep the distractors of their questions too, and ask as many as fit with them."""
    style_share: float = 0.0
    """Share of scenes in a style of practice: half of them in further fonts, half with labels on the other side."""
    rephrase_share: float = 0.0
    """Share of the questions of scenes in a style of practice that are asked in further wordings."""
    practice_layouts: bool = False
    """Whether scenes in a style of practice may be laid out as cards or as a list of bars."""
    world: str = ""
    """Another world to draw from beside the scenes: "module:name" of a `World` (`mini_data.py`); "": none."""
    world_share: float = 0.0
    """Share of rows that show the other world."""
    several_share: float = 0.0
    """Share of batches that show several images per row; the other world draws them."""
    clip_share: float = 0.0
    """Share of batches that show clips; likewise."""
    foveated_share: float = 0.0
    """Share of the other batches whose sparse use shows a small copy of the image before the kept cells."""
    cells_per_batch: int = 65_536
    """Visual tokens of a dense batch: 256 images at 512 px."""
    max_images: int = 384
    """Upper bound of the batch for small images, whose cost is the text."""
    questions: int = 6
    """Questions per image and step, in one sequence."""
    text_tokens: int = 224
    """Room for the turns of one sequence; what does not fit is left out."""
    sparse_shares: tuple[float, ...] = (0.125, 0.25, 0.25, 0.375, 0.5)
    """Shares of cells KEPT in sparse steps, one drawn per batch."""
    learning_rate: float = 1e-3
    final_rate: float = 0.02
    """Learning rate at the end, as a share of the peak."""
    warmup_steps: int = 300
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    head_rate: float = 1.0
    """Learning rate of the dense head as a multiple of the others': more lets a fresh head catch up."""
    auxiliary: float = 0.3
    """Weight of the dense loss, summed over classes, averaged over cells."""
    curriculum: tuple[float, float] = (0.15, 0.5)
    """Progress at which scenes start to fill up, and at which they are full. (0, 0): full from the start."""
    list_shares: tuple[float, float] = (0.5, 0.15)
    """Share of sequences that open with a "list everything" question, during the curriculum and after it."""
    workers: int = 14
    compile: bool = True
    precision: str = "bfloat16"
    log_every: float = 5.0
    """Seconds between lines about the loss; each of them waits for the GPU."""
    evaluate_every: float = 150.0
    """Seconds between evaluations on `val`, 0: only at the end."""
    evaluate_questions: int = 360
    checkpoint_every: float = 120.0
    """Seconds between checkpoints."""
    profile: bool = False
    """Write where the time of a dense and a sparse step goes to `profile.txt` in the run's folder, before training."""
    hidden: int = 256
    layers: tuple[int, int] = (6, 7)
    """Vision and text layers."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_kind(field.name, getattr(self, field.name), field.default)
        if not self.sizes or not all(is_size(size) for size in (*self.sizes, *self.early_sizes)):
            raise ValueError(
                f"sizes: each is [width, height, share], in px that are multiples of {CELL}, share 0 or more"
            )
        if self.seed < 0 or self.questions < 1 or self.text_tokens < 32 or self.workers < 0:
            raise ValueError("seed and workers are 0 or more, questions 1 or more, text_tokens 32 or more")
        if self.hidden < 64 or self.hidden % 64:
            raise ValueError(f"hidden: {self.hidden} must be a multiple of 64, the size of a head")
        if unknown := sorted(set(self.focus) - set(FAMILIES)):
            raise ValueError(f"focus: unknown families {unknown}; known are {', '.join(FAMILIES)}")
        if self.focus_share and not self.focus:
            raise ValueError("focus_share without focus: name the families to practise")
        if not all(0 < share <= 1 for share in self.sparse_shares):
            raise ValueError(f"sparse_shares: {self.sparse_shares} are shares KEPT, each in (0, 1]")
        if self.precision not in ("bfloat16", "float32"):
            raise ValueError(f"precision: {self.precision!r} is neither 'bfloat16' nor 'float32'")
        if self.steps < 1 and self.seconds <= 0:
            raise ValueError("steps and seconds: give one of them, a run must end")
        singles = (self.focus_share, self.binding_share, self.distractor_share, self.style_share, self.rephrase_share)
        if not all(0 <= share <= 1 for share in (*self.sheet_shares, *self.list_shares, *singles, self.world_share)):
            raise ValueError("sheet_shares, list_shares and every setting named ..._share: each must be from 0 to 1")
        if unknown := sorted(set(self.practice) - set(KINDS)):
            raise ValueError(f"practice: unknown kinds {unknown}; known are {sorted(KINDS)}")
        if bool(self.world) != (self.world_share > 0):
            raise ValueError("world and world_share: give both or neither")
        shares = (self.several_share, self.clip_share, self.foveated_share)
        if not all(0 <= share <= 1 for share in shares) or self.several_share + self.clip_share > 1:
            raise ValueError(
                "several_share, clip_share and foveated_share: each from 0 to 1, the first two at most 1 in all"
            )
        if (self.several_share or self.clip_share) and not self.world:
            raise ValueError("several_share and clip_share: name the world that draws them")
        start, full = self.curriculum
        if not 0 <= start <= full <= 1:
            raise ValueError(f"curriculum: {self.curriculum} must hold 0 <= start <= full <= 1")

    def sizes_at(self, progress: float) -> tuple[tuple[int, int, float], ...]:
        """The sizes to draw from at `progress` (0 to 1) of the run."""
        return self.early_sizes if self.early_sizes and progress < self.curriculum[0] else self.sizes

    def crowd(self, progress: float) -> float:
        """How full scenes are, 0 to 1, at `progress` (0 to 1) of the run."""
        start, full = self.curriculum
        return min(1.0, max(0.0, (progress - start) / (full - start))) if full > start else 1.0

    def sheet_share(self, progress: float, width: int, height: int) -> float:
        """Share of sheets of letters among images of this size at `progress` of the run."""
        start, end = self.sheet_shares
        return start + (end - start) * min(1.0, progress) if max(width, height) <= self.sheet_side else 0.0

    def list_share(self, progress: float) -> float:
        """Share of sequences with a "list everything" question at `progress` of the run."""
        return self.list_shares[progress >= self.curriculum[1]]

    def rate(self, step: int, progress: float) -> float:
        """Learning rate: linear warm-up over steps times a cosine over progress."""
        cosine = 0.5 + 0.5 * math.cos(math.pi * min(1.0, progress))
        level = self.final_rate + (1 - self.final_rate) * cosine
        return self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps)) * level

    def batch_images(self, cells: int) -> int:
        """Rows per batch of so many cells each, a multiple of 8 where there are that many."""
        images = min(self.max_images, self.cells_per_batch // cells)
        return max(1, images if images < 8 else images // 8 * 8)


def read_config(path: Path | None, **overrides: Any) -> MiniTrainConfig:
    """The config of a JSON file (None: the recipe), with `overrides` that are not None on top."""
    return read_settings(MiniTrainConfig, path, **overrides)
