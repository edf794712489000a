"""Drawn scenes and what is asked about them, the same for every study."""

from dataclasses import dataclass

import numpy as np

from arr_coc.evaluation.field.data import ask_scenes
from arr_coc_scenes import Question, Scene, draw_scene


@dataclass(frozen=True, slots=True)
class Asked:
    """A scene, its pixels and the questions that are asked about it."""

    scene: Scene
    image: np.ndarray
    questions: tuple[Question, ...]


def ask_about(split: str, questions: int, size: tuple[int, int] | None, seed: int = 0) -> list[Asked]:
    """Scenes of `split` with `questions` questions in all; at most six of a scene, drawn at random."""
    return [
        Asked(scene, draw_scene(scene), tuple(asked)) for _, scene, asked in ask_scenes(split, questions, size, seed)
    ]
