"""Ask: the answer as it comes, what was kept for it, and how relevant every part was."""

from collections.abc import Iterator
from typing import Any

import gradio as gr

from arr_coc.demo.asking import ask
from arr_coc.demo.inputs import Asked
from arr_coc.demo.left import Left
from arr_coc.demo.models import Models
from arr_coc.demo.parts import MODELS, PRIVATE, guarded, picture

# Where the answer stands below the question and not beside it, the page goes there.
TO_ANSWER = """() => {
  const tabs = document.getElementById("tabs");
  if (tabs.getBoundingClientRect().top > window.innerHeight / 2) tabs.scrollIntoView({behavior: "smooth"});
}"""


def ask_tab(models: Models, side: Left, tabs: Any) -> None:
    answer = gr.Textbox(label="Answer", lines=2, interactive=False, elem_id="answer", buttons=["copy"])
    with gr.Row():
        overlay = picture("What the model saw: kept cells are clear", "overlay")
        heat = picture("How relevant each cell is", "heat")
    stats = gr.Markdown("Click an example, or upload an image and ask.", elem_id="stats")
    outputs = [answer, overlay, heat, stats]

    @guarded
    def answer_it(
        path: str | None, question: str, mode: str, percent: float, use: bool, name: str
    ) -> Iterator[tuple[Any, ...]]:
        asked = Asked.of(path, question, mode, percent, use)
        yield "", None, None, "thinking …"
        for told in ask(models, name, asked):
            yield told.answer, told.overlay, told.heat, told.stats or "answering …"

    def to_front() -> Any:
        return gr.Tabs(selected="ask")

    inputs = [*side.asked, side.use, side.model]
    looks: dict[str, Any] = {"show_progress": "minimal", **MODELS}
    clicked = side.ask.click(answer_it, inputs, outputs, api_name="ask", **looks)
    others = [
        event(answer_it, inputs, outputs, **looks, **PRIVATE)
        for event in (side.question.submit, side.examples.load_input_event.then)
    ]
    for shown in (side.ask.click, side.question.submit):
        shown(to_front, None, tabs, queue=False, show_progress="hidden", **PRIVATE)
    for asked in (side.ask.click, side.question.submit, side.examples.load_input_event.then):
        asked(None, None, None, js=TO_ANSWER, queue=False, **PRIVATE)
    side.stop.click(None, None, None, cancels=[clicked, *others], **PRIVATE)
    side.clear.click(
        lambda: (None, "", "", None, None, ""),
        None,
        [side.image, side.question, *outputs],
        cancels=[clicked, *others],
        queue=False,
        **PRIVATE,
    )
