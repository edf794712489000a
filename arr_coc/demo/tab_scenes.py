"""Scenes: a drawn world with known answers, so that the choice can be held against the evidence."""

from typing import Any

import gradio as gr

from arr_coc.demo import worlds
from arr_coc.demo.inputs import AUTO, BY_HAND, dial
from arr_coc.demo.left import Left
from arr_coc.demo.models import Models
from arr_coc.demo.parts import MODELS, PRIVATE, guarded, picture

FIRST = 11  # a table


def scenes_tab(models: Models, side: Left, tabs: Any) -> None:
    gr.Markdown("Scenes that training never saw, with questions whose answers and evidence are known.")
    with gr.Row():
        seed = gr.Number(FIRST, label="Seed", precision=0, minimum=0, maximum=worlds.MOST_SEED, elem_id="seed")
        family = gr.Dropdown(list(worlds.FAMILY_CHOICES), value=worlds.ANY, label="Questions about", elem_id="family")
    with gr.Row():
        draw = gr.Button("Draw", variant="primary", min_width=90, elem_id="draw")
        following = gr.Button("Next", min_width=90, elem_id="next")
    first = worlds.scene_of(FIRST, worlds.ANY)
    texts = _texts(first)
    with gr.Row():
        with gr.Column(min_width=320):
            image = picture("The scene", "scene", value=worlds.picture_of(first))
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
        scene = worlds.scene_of(number, kind)
        texts = _texts(scene)
        return worlds.picture_of(scene), gr.Radio(texts, value=texts[0]), "", gr.Image(None, visible=False), ""

    @guarded
    def ask_it(number: float, kind: str, text: str, mode: str, percent: float, name: str) -> tuple[Any, ...]:
        done = worlds.check(models, name, worlds.scene_of(number, kind), text, dial(mode, percent))
        return done.verdict, gr.Image(done.picture, visible=True), done.stats

    drawn = [image, question, verdict, evidence, stats]
    draw.click(draw_it, [seed, family], drawn, **PRIVATE)
    family.change(draw_it, [seed, family], drawn, **PRIVATE)
    following.click(lambda number: int(number or 0) + 1, seed, seed, queue=False, **PRIVATE).then(
        draw_it, [seed, family], drawn, **PRIVATE
    )
    percent.input(lambda: BY_HAND, None, mode, queue=False, show_progress="hidden", **PRIVATE)
    inputs = [seed, family, question, mode, percent, side.model]
    ask.click(ask_it, inputs, [verdict, evidence, stats], **MODELS, **PRIVATE)


def _texts(scene: worlds.Scene) -> list[str]:
    return [question.text for question in scene.questions]
