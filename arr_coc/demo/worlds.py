"""The Scenes tab: draw a scene that training never saw, ask what it asks, and compare choice and evidence."""

from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image

from arr_coc.config import Keep
from arr_coc.demo.inputs import Asked
from arr_coc.demo.models import Models
from arr_coc.demo.telling import share, stats
from arr_coc.qwen.cells import boxes_cells
from arr_coc.scenes import FAMILIES, Scene, draw_scene, make_scene
from arr_coc.viewing import evidence_overlay

ANY = "any"
FAMILY_CHOICES = (ANY, *FAMILIES)
SPLIT = "seen"  # test scenes of the kind that training draws, with other seeds, words and colours
SIZE = (512, 512)
MOST_SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class Example:
    """One question of one scene, by numbers alone."""

    seed: int
    family: str
    question: int


EXAMPLES = (
    Example(529, ANY, 6),
    Example(529, ANY, 2),
    Example(529, ANY, 4),
    Example(1, "odd_one_out", 0),
    Example(1, "lookup", 0),
    Example(2, "chart", 0),
)


def scene_of(seed: float | None, family: str | None) -> Scene:
    """A scene by its seed, with questions of one family or of any. The same numbers give the same scene."""
    if not isinstance(seed, (int, float)) or not 0 <= seed <= MOST_SEED or seed != int(seed):
        raise ValueError(f"a seed is a whole number from 0 to {MOST_SEED:,}")
    if family not in FAMILY_CHOICES:
        raise ValueError("there is no such family: take one of the list")
    return make_scene(int(seed), SPLIT, SIZE, families=None if family == ANY else [family])


def picture_of(scene: Scene) -> Image.Image:
    return Image.fromarray(draw_scene(scene))


def example_rows() -> Iterator[tuple[Image.Image, str, str]]:
    """(image, question, right answer) of each example."""
    for example in EXAMPLES:
        scene = scene_of(example.seed, example.family)
        question = scene.questions[example.question]
        yield picture_of(scene), question.text, question.answer


@dataclass(frozen=True, slots=True)
class Checked:
    """An answer beside the right one, and the choice beside the evidence."""

    picture: Image.Image
    verdict: str  # Markdown
    stats: str  # Markdown


def check(models: Models, name: str, scene: Scene, text: str | None, keep: Keep) -> Checked:
    """Ask one of the scene's own questions and hold the choice against the boxes that carry the answer."""
    found = [question for question in scene.questions if question.text == text]
    if not found:
        raise ValueError("choose one of the scene's questions first")
    question, asked = found[0], Asked(picture_of(scene), found[0].text, keep)
    with models.use(name) as owner:
        answer = owner.ask(asked.image, asked.question, keep=keep)
    choice = answer.selection[0]
    evidence = boxes_cells(question.evidence, *choice.grid)
    held = len(evidence & set(choice.kept.tolist()))
    right = answer.text.strip().lower() == question.answer.lower()
    lines = [
        f"### {'Right' if right else 'Wrong'}: {answer.text.strip() or '(no answer)'}",
        f"The right answer is **{question.answer}**.",
        f"{held} of {len(evidence)} evidence cells were kept ({share(held, len(evidence))})."
        if evidence
        else "The answer is that nothing is there: no cell is evidence.",
    ]
    return Checked(evidence_overlay(asked.image, choice.mask, question.evidence), "\n\n".join(lines), stats(answer))
