"""The Scenes tab: a drawn world that training never saw, whose answers are known and the choice is held against."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.config import Keep
from arr_coc.demo.inputs import AUTO, BY_HAND, Inquiry, Left, dial
from arr_coc.demo.models import Models
from arr_coc.demo.telling import share, stats
from arr_coc.files import read_json_object
from arr_coc.qwen.request import evidence_mask
from arr_coc.viewing import evidence_overlay
from arr_coc_scenes import FAMILIES, Scene, draw_scene, make_scene

ANY = "any"
FAMILY_CHOICES = (ANY, *FAMILIES)
SPLIT = "seen"  # test scenes of the kind that training draws, with other seeds, words and colours
SIZE = (512, 512)
MOST_SEED = 1_000_000
FIRST = 11  # a table
SAMPLE, ASKED = 529, (6, 2, 4)  # the scene of the first examples, and numbers of its questions
ASSETS = Path(str(files("arr_coc") / "assets"))  # gallery.json: pictures of the wide world, by studies/wide/gallery.py


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
    scene = scene_of(SAMPLE, ANY)
    for question in (scene.questions[number] for number in ASKED):
        yield picture_of(scene), question.text, question.answer
    for row in read_json_object(ASSETS / "gallery.json")["examples"]:
        yield Image.open(ASSETS / row["file"]).convert("RGB"), row["question"], row["answer"]


@dataclass(frozen=True, slots=True)
class Checked:
    """An answer beside the right one, and the choice beside the evidence."""

    picture: Image.Image
    verdict: str  # Markdown
    stats: str  # Markdown


def check(models: Models, name: str, scene: Scene, text: str | None, keep: Keep | None) -> Checked:
    """Ask one of the scene's own questions and hold the choice against the boxes that carry the answer."""
    found = [question for question in scene.questions if question.text == text]
    if not found:
        raise ValueError("choose one of the scene's questions first")
    question, asked = found[0], Inquiry(picture_of(scene), found[0].text, keep)
    with models.use(name) as owner:
        answer = owner.ask(asked.image, asked.question, keep=keep)
    choice = answer.selection[0]
    wide, high = SIZE
    shares = [(left / wide, top / high, right / wide, bottom / high) for left, top, right, bottom in question.evidence]
    cells = evidence_mask(shares, choice.grid)
    evidence, held = int(cells.sum()), int((cells & choice.mask.cpu()).sum())
    right = answer.text.strip().lower() == question.answer.lower()
    lines = [
        f"### {'Right' if right else 'Wrong'}: {answer.text.strip() or '(no answer)'}",
        f"The right answer is **{question.answer}**.",
        f"{held} of {evidence} evidence cells were kept ({share(held, evidence)})."
        if evidence
        else "The answer is that nothing is there: no cell is evidence.",
    ]
    return Checked(evidence_overlay(asked.image, choice.mask, question.evidence), "\n\n".join(lines), stats(answer))


def _texts(scene: Scene) -> list[str]:
    return [question.text for question in scene.questions]


def scenes_tab(models: Models, side: Left) -> None:
    import gradio as gr

    from arr_coc.demo.parts import AT_ONCE, MODELS, PRIVATE, guarded, picture

    gr.Markdown("Scenes that training never saw, with questions whose answers and evidence are known.")
    with gr.Row():
        seed = gr.Number(FIRST, label="Seed", precision=0, minimum=0, maximum=MOST_SEED, elem_id="seed")
        family = gr.Dropdown(list(FAMILY_CHOICES), value=ANY, label="Questions about", elem_id="family")
    with gr.Row():
        draw = gr.Button("Draw", variant="primary", min_width=90, elem_id="draw")
        following = gr.Button("Next", min_width=90, elem_id="next")
    first = scene_of(FIRST, ANY)
    texts = _texts(first)
    with gr.Row():
        with gr.Column(min_width=320):
            image = picture("The scene", "scene", value=picture_of(first))
        with gr.Column(min_width=320):
            question = gr.Radio(texts, value=texts[0], label="Its questions", elem_id="scene-questions")
            with gr.Row():
                mode = gr.Radio([AUTO, BY_HAND], value=AUTO, label="Visual tokens kept", min_width=150)
                percent = gr.Slider(1, 100, value=25, step=1, label="By hand: percent kept", min_width=150)
            ask = gr.Button("Ask", variant="primary", elem_id="scene-ask")
    with gr.Row():
        with gr.Column(min_width=320):
            evidence = picture("Evidence (outlined) against choice (clear cells)", "evidence", visible=False)
        with gr.Column(min_width=320):
            verdict = gr.Markdown(elem_id="verdict")
            stats = gr.Markdown(elem_id="scene-stats")

    @guarded
    def draw_it(number: float, kind: str) -> tuple[Any, ...]:
        scene = scene_of(number, kind)
        texts = _texts(scene)
        return picture_of(scene), gr.Radio(texts, value=texts[0]), "", gr.Image(None, visible=False), ""

    @guarded
    def ask_it(number: float, kind: str, text: str, mode: str, percent: float, name: str) -> tuple[Any, ...]:
        done = check(models, name, scene_of(number, kind), text, dial(mode, percent))
        return done.verdict, gr.Image(done.picture, visible=True), done.stats

    drawn = [image, question, verdict, evidence, stats]
    draw.click(draw_it, [seed, family], drawn, **PRIVATE)
    family.change(draw_it, [seed, family], drawn, **PRIVATE)
    following.click(lambda number: int(number or 0) + 1, seed, seed, queue=False, **PRIVATE).then(
        draw_it, [seed, family], drawn, **PRIVATE
    )
    percent.input(lambda: BY_HAND, None, mode, **AT_ONCE)
    inputs = [seed, family, question, mode, percent, side.model]
    ask.click(ask_it, inputs, [verdict, evidence, stats], **MODELS, **PRIVATE)
