"""A torch dataset that draws scenes on the fly: index -> seed -> scene -> pixels."""

from dataclasses import dataclass

import torch
from torch.utils.data import Dataset

from arr_coc.scenes.drawing import draw_scene
from arr_coc.scenes.making import make_scene
from arr_coc.scenes.types import Question, Scene


@dataclass(frozen=True, slots=True)
class Sample:
    """One drawn scene."""

    image: torch.Tensor
    """uint8 [3, height, width], RGB."""
    questions: tuple[Question, ...]
    scene: Scene


class SceneDataset(Dataset[Sample]):
    """`count` scenes of a split, seeds from `first_seed` on. Nothing is stored: workers need no shared state.

    Use with `DataLoader(..., collate_fn=list)`: scenes have different numbers of questions.
    """

    def __init__(
        self,
        count: int,
        split: str = "train",
        first_seed: int = 0,
        size: tuple[int, int] | None = None,
        difficulty: str | None = None,
        crowd: float = 1.0,
    ) -> None:
        if count < 1:
            raise ValueError(f"count is {count}: a dataset needs at least one scene")
        self.count, self.split, self.first_seed = count, split, first_seed
        self.size, self.difficulty, self.crowd = size, difficulty, crowd

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        """The scene with seed `first_seed + index`."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        scene = make_scene(self.first_seed + index, self.split, self.size, self.difficulty, self.crowd)
        image = torch.from_numpy(draw_scene(scene)).permute(2, 0, 1).contiguous()
        return Sample(image, scene.questions, scene)
