"""Drawn scenes and what is asked about them, the same for everybody who evaluates."""

from dataclasses import dataclass

import numpy as np

from arr_coc.scenes import Question, Scene, draw_scene, make_scene

PER_IMAGE = 6  # questions asked about one scene
# Families whose answer is a text of the image; charts need heights and places as well.
READING = ("read_sign", "title", "lookup", "grey_text")
SPREAD = ("describe", "count", "exists")  # families whose evidence may be anywhere; all others are localised


@dataclass(frozen=True, slots=True)
class Asked:
    """A scene, its pixels and the questions that are asked about it."""

    scene: Scene
    image: np.ndarray
    questions: tuple[Question, ...]


def ask_about(split: str, questions: int, size: tuple[int, int] | None, seed: int = 0) -> list[Asked]:
    """Scenes of `split` with `questions` questions in all; at most PER_IMAGE of a scene, drawn at random."""
    asked: list[Asked] = []
    left, number = questions, 0
    while left > 0:
        scene = make_scene(seed * 1_000_000 + number, split, size)
        order = np.random.default_rng([seed, number]).permutation(len(scene.questions))
        chosen = tuple(scene.questions[i] for i in order[: min(PER_IMAGE, left)].tolist())
        number += 1
        if chosen:
            asked.append(Asked(scene, draw_scene(scene), chosen))
            left -= len(chosen)
    return asked
