"""Questions of training alone: list everything in an image.

One long answer about the whole image teaches where things are long before single answers do (without it the
loss stays at the answer prior), and letters come with the texts. The list of things is worded as the
scenes' own descriptions are.
"""

import numpy as np

from arr_coc_scenes import Element, Question, Scene

THINGS = ("Describe the scene.", "List the things.", "Name all the things and their colours.")
TEXTS = ("Read all the text.", "Read the text.")
MOST_THINGS = 10
MOST_LETTERS = 60


def list_question(scene: Scene, rng: np.random.Generator) -> Question | None:
    """A question for all things with their colours, or for all texts as drawn; None if there are too many."""
    things = [e for e in scene.elements if e.kind == "thing"]
    texts = [e for e in scene.elements if e.kind == "text"]
    if sum(len(e.text) + 2 for e in texts) > MOST_LETTERS:
        texts = []
    if len(things) > MOST_THINGS:
        things = []
    if texts and (not things or rng.random() < 0.5):
        listed = _reading_order(texts, scene.height)
        return _question(TEXTS, ", ".join(e.text for e in listed), listed, rng)
    if things:
        listed = _reading_order(things, scene.height)
        return _question(THINGS, ", ".join(f"{e.colour} {e.name}" for e in listed), listed, rng)
    return None


def _question(wordings: tuple[str, ...], answer: str, listed: list[Element], rng: np.random.Generator) -> Question:
    text = wordings[int(rng.integers(len(wordings)))]
    return Question(text, answer, "describe", tuple(e.box for e in listed), ())


def _reading_order(elements: list[Element], height: int) -> list[Element]:
    """Four bands from top to bottom, inside a band from left to right, as the scenes' descriptions do."""
    band = height / 4
    return sorted(elements, key=lambda e: (int((e.box[1] + e.box[3]) / 2 // band), e.box[0]))
