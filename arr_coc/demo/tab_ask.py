"""Ask: the answer as it comes, what was kept for it, and how relevant every part was."""

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from arr_coc.demo.asking import RELEVANCE, ask
from arr_coc.demo.inputs import Asked
from arr_coc.demo.left import Left
from arr_coc.demo.models import Models
from arr_coc.demo.parts import MODELS, PRIVATE, guarded, picture

THINKING, ANSWERING = "thinking …", "answering …"  # the line under the pictures, until there is more to say
STOPPED, FAILED = "stopped", "no answer"
SETTLED = 0.5  # s after Stop until nothing more arrives of what was stopped
# Where the answer stands below the question and not beside it, the page goes there.
TO_ANSWER = """() => {
  const tabs = document.getElementById("tabs");
  if (tabs.getBoundingClientRect().top > window.innerHeight / 2) tabs.scrollIntoView({behavior: "smooth"});
}"""


def ask_tab(models: Models, side: Left, tabs: Any) -> None:
    answer = gr.Textbox(label="Answer", lines=2, interactive=False, elem_id="answer", buttons=["copy"])
    with gr.Row():
        overlay = picture("What the model saw: kept cells are clear", "overlay")
        heat = picture(RELEVANCE, "heat")
    stats = gr.Markdown("Click an example, or upload an image and ask.", elem_id="stats")
    label = gr.State(RELEVANCE)  # what `heat` shows: apart from it, so that who calls the API gets a picture alone
    label.change(lambda text: gr.Image(label=text), label, heat, queue=False, show_progress="hidden", **PRIVATE)
    outputs = [answer, overlay, heat, stats, label]

    @guarded
    def answer_it(
        path: str | None, question: str, mode: str, percent: float, use: bool, name: str
    ) -> Iterator[tuple[Any, ...]]:
        asked = Asked.of(path, question, mode, percent, use)
        yield "", None, None, THINKING, gr.skip()
        try:
            for told in ask(models, name, asked):
                yield told.answer, told.overlay, told.heat, told.stats or ANSWERING, told.heat_label
        except Exception:
            yield gr.skip(), gr.skip(), gr.skip(), FAILED, gr.skip()
            raise

    def stopped(line: str) -> Any:
        time.sleep(SETTLED)
        return STOPPED if line in (THINKING, ANSWERING) else gr.skip()

    def to_front() -> Any:
        return gr.Tabs(selected="ask")

    inputs = [*side.asked, side.use, side.model]
    looks: dict[str, Any] = {"show_progress": "minimal", **MODELS}
    clicked = side.ask.click(answer_it, inputs, outputs, api_name="ask", **looks)
    others = [
        event(answer_it, inputs, outputs, **looks, **PRIVATE)
        for event in (side.question.submit, side.examples.load_input_event.then)
    ]
    for asked in (side.ask.click, side.question.submit, side.examples.load_input_event.then):
        asked(to_front, None, tabs, queue=False, show_progress="hidden", **PRIVATE)
        asked(None, None, None, js=TO_ANSWER, queue=False, **PRIVATE)
    ended = side.stop.click(None, None, None, cancels=[clicked, *others], queue=False, **PRIVATE)
    ended.then(stopped, stats, stats, queue=False, show_progress="hidden", **PRIVATE)
    side.clear.click(
        lambda: (None, "", "", None, None, "", RELEVANCE),
        None,
        [side.image, side.question, *outputs],
        cancels=[clicked, *others],
        queue=False,
        **PRIVATE,
    )
