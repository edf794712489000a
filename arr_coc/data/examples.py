"""One image with one question, to learn from or to be asked, and datasets that give such examples by index.

A dataset of examples has `len`, gives an Example by index (the image is drawn or decoded only then), and lists
in `broken` what it had to leave out. Files that fail to decode only later raise BrokenExample from
`__getitem__`; a training loop takes its examples through `readable_example`, which walks on past them.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import numpy as np
from torch.utils.data import Dataset

from arr_coc.scenes import Scene, draw_scene, make_scene

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in pixels of the upright image at its stored size; ends exclusive."""

MOST_IN_A_ROW = 16  # so many unreadable files one after the other are a lost disk, not a bad file


@dataclass(frozen=True, slots=True)
class Example:
    """One image with one question."""

    name: str  # names the row in messages, e.g. "val2017/000000000139.jpg: dog"
    image: np.ndarray = field(repr=False)  # uint8 [height, width, 3], RGB, EXIF-upright
    question: str
    answer: str  # "" where there is none
    boxes: tuple[Box, ...] | None  # where the answer is; () means that nothing is there, None that it is not known
    family: str = ""  # group for reports
    hard: bool = False  # hard variants get double weight in stage 3
    answers: tuple[str, ...] = ()  # all answers that people gave, where there are several; `answer` stands for them


class BrokenExample(ValueError):
    """An image that passed the check of its header and yet does not decode. Names the row and the reason."""


class Examples(Protocol):
    """What every dataset of examples offers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


def readable_example(examples: Examples, index: int) -> tuple[Example, list[str]]:
    """The example at `index`, or the next one that decodes (from the end on to the start).

    Also gives the messages of those passed over, for the log. It depends on the index and the files alone, so a
    resumed run sees the same examples, and batches keep their size in every process. After 16 failures in a
    row it raises ValueError.
    """
    passed: list[str] = []
    for step in range(min(MOST_IN_A_ROW, len(examples))):
        try:
            return examples[(index + step) % len(examples)], passed
        except BrokenExample as why:
            passed.append(str(why))
    raise ValueError(
        f"{len(passed)} images in a row do not decode, first {passed[0]}; check the disk or copy them again"
    )


def scene_examples(scene: Scene) -> list[Example]:
    """All questions of a scene as examples that share one drawn image."""
    image = draw_scene(scene)
    return [
        Example(
            name=f"scenes/{scene.split}/{scene.seed}: {question.text}",
            image=image,
            question=question.text,
            answer=question.answer,
            boxes=tuple((float(x0), float(y0), float(x1), float(y1)) for x0, y0, x1, y1 in question.evidence),
            family=question.family,
            hard=scene.difficulty == "hard",
        )
        for question in scene.questions
    ]


@dataclass(eq=False, repr=False)
class SceneExamples(Dataset[Example]):
    """`count` scenes of a split, drawn on the fly, seeds from `first_seed` on, one question of each.

    Which question is settled by split and seed. `size` is (width, height) in px, None: mixed; `difficulty` is
    "plain", "hard" or None (one in four is hard). Nothing is stored: workers need no shared state.
    """

    count: int
    split: str = "train"
    first_seed: int = 0
    size: tuple[int, int] | None = None
    difficulty: str | None = None
    broken: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}: a dataset needs at least one scene")
        make_scene(self.first_seed, self.split, self.size, self.difficulty)  # mistakes are told now, not in a worker

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        """One question of the scene with seed `first_seed + index`."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        seed = self.first_seed + index
        asked = scene_examples(make_scene(seed, self.split, self.size, self.difficulty))
        # Another stream than the scene's own: the choice must not follow how the scene was laid.
        return asked[Random(f"question/{self.split}/{seed}").randrange(len(asked))]
