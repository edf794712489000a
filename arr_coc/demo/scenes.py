"""Scenes whose answers and evidence are known: the examples of the page, and the Scenes tab, where new ones are drawn.

Training never saw any of them, and every choice is held against the boxes that carry the answer.
"""

import html
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.config import Keep
from arr_coc.demo.inputs import Inquiry, Left, dialled
from arr_coc.demo.models import Models
from arr_coc.demo.telling import Known, figures, stats
from arr_coc.files import read_json_object
from arr_coc.images.clips import Clip, is_played
from arr_coc.qwen.request import Box
from arr_coc.viewing import evidence_overlay
from arr_coc.viewing.clips import frame_of
from arr_coc_scenes import FAMILIES, Question, Scene, draw_scene, make_scene

ANY = "any"
FAMILY_CHOICES = (ANY, *FAMILIES)
SPLIT = "seen"  # test scenes of the kind that training draws, with other seeds, words and colours
SIDE = 512  # px
MOST_SEED = 1_000_000
FIRST = 11  # a table
SAMPLE, ASKED = 529, (6, 2, 4)  # the scene of some examples, and numbers of its questions
ORDER = (3, 0, 9, 1, 6, 4, 5, 7, 2, 8)  # of the examples; the first is there when the page opens
ASSETS = Path(str(files("arr_coc") / "assets"))  # gallery.json: pictures of the wide world, by studies/wide/gallery.py


def scene_of(seed: float | None, family: str | None) -> Scene:
    """A scene by its seed, with questions of one family or of any. The same numbers give the same scene."""
    if not isinstance(seed, (int, float)) or not 0 <= seed <= MOST_SEED or seed != int(seed):
        raise ValueError(f"a seed is a whole number from 0 to {MOST_SEED:,}")
    if family not in FAMILY_CHOICES:
        raise ValueError("there is no such family: take one of the list")
    return make_scene(int(seed), SPLIT, (SIDE, SIDE), families=None if family == ANY else [family])


def picture_of(scene: Scene) -> Image.Image:
    return Image.fromarray(draw_scene(scene))


def known(question: Question) -> Known:
    return Known(question.answer, _shares(question.evidence))


def _shares(boxes: Any) -> tuple[Box, ...]:
    """Boxes in px as shares of the image."""
    return tuple((left / SIDE, top / SIDE, right / SIDE, bottom / SIDE) for left, top, right, bottom in boxes)


@dataclass(frozen=True, slots=True)
class ExampleScene:
    """A picture or a clip with a question, and what is known of it."""

    picture: Image.Image  # of a clip, its first frame
    question: str
    known: Known
    clip: Path | None = None  # its file

    def is_asked(self, asked: Inquiry) -> bool:
        """Whether this is it, by its question and pixels."""
        if self.question != asked.question or isinstance(asked.image, Clip) != (self.clip is not None):
            return False
        picture = frame_of(asked.image, 0) if isinstance(asked.image, Clip) else asked.image
        return self.picture.size == picture.size and self.picture.tobytes() == picture.tobytes()

    def save(self, folder: Path, name: str) -> str:
        """Its file in a folder of the server's."""
        path = (folder / name).with_suffix(".png" if self.clip is None else self.clip.suffix)
        if self.clip is None:
            self.picture.save(path)
        else:
            path.write_bytes(self.clip.read_bytes())
        return str(path)


@cache
def examples() -> list[ExampleScene]:
    """All of them, in the order of the page."""
    scene = scene_of(SAMPLE, ANY)
    asked = [scene.questions[number] for number in ASKED]
    found = [ExampleScene(picture_of(scene), question.text, known(question)) for question in asked]
    for row in read_json_object(ASSETS / "gallery.json")["examples"]:
        picture, clip = Image.open(ASSETS / row["file"]).convert("RGB"), ASSETS / row["file"]
        told = Known(row["answer"], _shares(row["evidence"]))
        found.append(ExampleScene(picture, row["question"], told, clip if is_played(clip) else None))
    return [found[number] for number in ORDER]


def known_of(asked: Inquiry) -> Known | None:
    """What is known where an example is asked."""
    return next((one.known for one in examples() if one.is_asked(asked)), None)


@dataclass(frozen=True, slots=True)
class Checked:
    """An answer beside the right one, and the choice beside the evidence."""

    picture: Image.Image
    figures: str  # HTML
    stats: str  # Markdown


def check(models: Models, name: str, scene: Scene, text: str | None, keep: Keep | None) -> Checked:
    """Ask one of the scene's own questions and hold the choice against the boxes that carry the answer."""
    found = [question for question in scene.questions if question.text == text]
    if not found:
        raise ValueError("choose one of the scene's questions first")
    question, picture = found[0], picture_of(scene)
    with models.use(name) as owner:
        answer = owner.ask(picture, question.text, keep=keep)
    choice = answer.selection[0]
    drawn = evidence_overlay(picture, choice.mask, question.evidence, choice.periphery, choice.covered_mask)
    said = html.escape(answer.text.strip() or "(no answer)")
    return Checked(drawn, f'<p class="said">{said}</p>{figures(answer, known(question))}', stats(answer))


def _texts(scene: Scene) -> list[str]:
    return [question.text for question in scene.questions]


def scenes_tab(models: Models, side: Left) -> None:
    import gradio as gr

    from arr_coc.demo.parts import MODELS, PRIVATE, dial_slider, guarded, picture

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
            dial = dial_slider("scene-dial", models.keep(models.names[0]))
            ask = gr.Button("Ask", variant="primary", elem_id="scene-ask")
    with gr.Row():
        with gr.Column(min_width=320):
            evidence = picture("Evidence (outlined) against choice (clear cells)", "evidence", visible=False)
        with gr.Column(min_width=320):
            verdict = gr.HTML(elem_id="verdict")
            stats = gr.Markdown(elem_id="scene-stats")

    @guarded
    def draw_it(number: float, kind: str) -> tuple[Any, ...]:
        scene = scene_of(number, kind)
        texts = _texts(scene)
        return picture_of(scene), gr.Radio(texts, value=texts[0]), "", gr.Image(None, visible=False), ""

    @guarded
    def ask_it(number: float, kind: str, text: str, dial: float, name: str) -> tuple[Any, ...]:
        done = check(models, name, scene_of(number, kind), text, dialled(dial))
        return done.figures, gr.Image(done.picture, visible=True), done.stats

    drawn = [image, question, verdict, evidence, stats]
    draw.click(draw_it, [seed, family], drawn, **PRIVATE)
    family.change(draw_it, [seed, family], drawn, **PRIVATE)
    following.click(lambda number: int(number or 0) + 1, seed, seed, queue=False, **PRIVATE).then(
        draw_it, [seed, family], drawn, **PRIVATE
    )
    inputs = [seed, family, question, dial, side.model]
    ask.click(ask_it, inputs, [verdict, evidence, stats], **MODELS, **PRIVATE)
