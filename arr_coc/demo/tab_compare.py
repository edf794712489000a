"""Compare: several ways to answer the same question, side by side."""

from typing import Any

import gradio as gr

from arr_coc.demo.comparing import MOST_WAYS, OURS, PLAIN, WAYS, compare
from arr_coc.demo.inputs import Asked
from arr_coc.demo.left import Left
from arr_coc.demo.models import Models
from arr_coc.demo.parts import MODELS, PRIVATE, filled, guarded, picture, pictures


def compare_tab(models: Models, side: Left) -> None:
    ways = gr.CheckboxGroup(
        list(WAYS), value=[PLAIN, OURS], label=f"Ways to choose the tokens, up to {MOST_WAYS}", elem_id="ways"
    )
    several = len(models.names) > 1
    names = gr.CheckboxGroup(models.names, value=models.names[:1], label="Models", visible=several, elem_id="models")
    button = gr.Button("Compare", variant="primary", elem_id="compare")
    result = gr.HTML(elem_id="cards")
    slider = gr.ImageSlider(
        label="The image, and what the first way that chose kept of it: drag the line",
        type="pil",
        interactive=False,
        buttons=["fullscreen"],
        max_height=520,
        elem_id="slider",
        elem_classes="titled",
        visible=False,
    )
    bars = picture("Where the time goes", "bars", visible=False)
    kept = pictures("kept", MOST_WAYS)
    memory = gr.Markdown(models.memory(), elem_id="memory")

    @guarded
    def compare_them(
        path: str | None, question: str, mode: str, percent: float, chosen: list[str], named: list[str]
    ) -> tuple[Any, ...]:
        done = compare(models, named, chosen, Asked.of(path, question, mode, percent))
        return (
            done.cards,
            gr.ImageSlider(done.slider, visible=done.slider is not None),
            gr.Image(done.bars, visible=True),
            done.memory,
            *filled(kept, done.kept),
        )

    outputs = [result, slider, bars, memory, *kept]
    inputs = [*side.asked, ways, names]
    running = button.click(compare_them, inputs, outputs, api_name="compare", show_progress_on=result, **MODELS)
    side.stop.click(None, None, None, cancels=[running], **PRIVATE)
