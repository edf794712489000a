"""Microscope: channels, maps, weights and tensions, every cell by a click, and a second question."""

from typing import Any

import gradio as gr

from arr_coc.config import SCORERS
from arr_coc.demo import microscope
from arr_coc.demo.inputs import Asked
from arr_coc.demo.left import Left
from arr_coc.demo.microscope import Looked
from arr_coc.demo.models import Models
from arr_coc.demo.parts import MODELS, PRIVATE, filled, guarded, picture, pictures

CLICK = "Click a cell of the picture to see its numbers, and why it was kept or dropped."
MOST_MAPS = len(SCORERS) + 1
KEPT_FOR = 1800  # seconds that a session's last look is kept


def microscope_tab(models: Models, side: Left) -> None:
    last = gr.State(None, time_to_live=KEPT_FOR)
    button = gr.Button("Look", variant="primary", elem_id="look")
    with gr.Row():
        kept = picture("Kept cells: click one", "cells", bare=True)
        with gr.Column(min_width=280):
            numbers = gr.Markdown(CLICK, elem_id="numbers", min_height=120)
    balance = gr.Markdown(elem_id="balance")
    maps = pictures("map", MOST_MAPS)
    with gr.Row():
        second = gr.Textbox("Which word is blue?", label="A second question", scale=4, elem_id="second")
        differ = gr.Button("Difference", min_width=100, elem_id="differ")
    line = gr.Markdown(elem_id="difference-line")
    difference = picture("Where the two choices differ", "difference", visible=False)
    with gr.Accordion("Homunculus: room by relevance", open=False):
        homunculus = picture("Homunculus", "homunculus")
    with gr.Accordion("Texture channels", open=False):
        channels = picture("What is read from the pixels", "channels")

    @guarded
    def look(path: str | None, question: str, mode: str, percent: float, name: str) -> tuple[Any, ...]:
        looked = microscope.look(models, name, Asked.of(path, question, mode, percent))
        return (
            looked,
            microscope.kept_picture(looked),
            CLICK,
            microscope.balance(looked),
            microscope.homunculus_picture(looked),
            microscope.channels_picture(looked),
            gr.Image(None, visible=False),
            "",
            *filled(maps, microscope.maps_pictures(looked)),
        )

    @guarded
    def click(looked: Looked | None, event: gr.SelectData) -> tuple[Any, str]:
        if looked is None:
            raise ValueError("nothing under the microscope yet: click Look first")
        cell = microscope.cell_at(looked, *event.index)
        return microscope.cell_picture(looked, cell), microscope.cell_numbers(looked, cell)

    @guarded
    def compare(looked: Looked | None, question: str, name: str) -> tuple[Any, str]:
        if looked is None:
            raise ValueError("nothing under the microscope yet: click Look first")
        drawn, said = microscope.second_question(models, name, looked, question)
        return gr.Image(drawn, visible=True), said

    outputs = [last, kept, numbers, balance, homunculus, channels, difference, line, *maps]
    button.click(look, [*side.asked, side.model], outputs, show_progress_on=kept, **MODELS, **PRIVATE)
    kept.select(click, last, [kept, numbers], show_progress="hidden", **PRIVATE)
    for event in (differ.click, second.submit):
        event(compare, [last, second, side.model], [difference, line], **MODELS, **PRIVATE)
