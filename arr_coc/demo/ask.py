"""The Ask tab: the answer as it comes, what was kept for it, and how relevant every part was."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from arr_coc.demo.inputs import Inquiry, Left, shown
from arr_coc.demo.models import Models
from arr_coc.demo.telling import notices_about, stats
from arr_coc.qwen import Answer
from arr_coc.qwen.streaming import stream_text
from arr_coc.viewing import heatmap, kept_overlay
from arr_coc.viewing.tokens import looked_at

MOST_NEW_TOKENS = 256
MOST_ATTENDED = 2048  # tokens up to which the attention of a plain answer is drawn: its cost is their square

RELEVANCE, ATTENTION = "How relevant each cell is", "Where the answer looked"  # what the second picture shows

THINKING, ANSWERING = "thinking …", "answering …"  # the line under the pictures, until there is more to say
STOPPED, FAILED = "stopped", "no answer"
SETTLED = 0.5  # s after Stop until nothing more arrives of what was stopped
# Where the answer stands below the question and not beside it, the page goes there.
TO_ANSWER = """() => {
  const tabs = document.getElementById("tabs");
  if (tabs.getBoundingClientRect().top > window.innerHeight / 2) tabs.scrollIntoView({behavior: "smooth"});
}"""


@dataclass(frozen=True, slots=True)
class Told:
    """What the page shows of an answer; the pictures come with the last one."""

    answer: str
    overlay: Image.Image | None = None
    heat: Image.Image | None = None
    heat_label: str = RELEVANCE
    stats: str = ""


def ask(models: Models, name: str, asked: Inquiry) -> Iterator[Told]:
    """The answer piece by piece, and at last whole with its pictures. Leaving the loop early ends the generation."""
    with models.use(name) as owner:
        tokenizer = owner.processor.tokenizer
    done: list[tuple[Answer, Tensor | None, list[str]]] = []

    def run(streamer: Any, stop: Any) -> None:
        with models.use(name) as owner:
            if stop.event.is_set():
                return
            how: dict[str, Any] = {"keep": asked.keep, "max_new_tokens": MOST_NEW_TOKENS, "stopping_criteria": [stop]}
            answer = owner.ask(asked.image, asked.question, streamer=streamer, **how)
            heat_HW = answer.selection[0].relevance
            attended = answer.tokens_total + len(tokenizer(asked.question + answer.text)["input_ids"])
            if heat_HW is None and attended <= MOST_ATTENDED:
                heat_HW = looked_at(owner, [asked.image], asked.question, answer.text)[0]
            done.append((answer, heat_HW, notices_about(owner, answer)))

    said = ""
    with closing(stream_text(tokenizer, run)) as pieces:  # type: ignore[type-var]
        for piece in pieces:
            said += piece
            yield Told(said)
    answer, heat_HW, notices = done[0]
    yield _told(asked, answer, heat_HW, notices)


def _told(asked: Inquiry, answer: Answer, heat_HW: Tensor | None, notices: list[str]) -> Told:
    picture, choice = shown(asked.image), answer.selection[0]
    chosen = choice.tokens_kept < choice.tokens_total
    heat = None
    if heat_HW is not None:
        title = "relevance for the question" if chosen else "where the answer looked"
        heat = heatmap(picture, heat_HW, kept_HW=choice.mask if chosen else None, title=title)
    label = RELEVANCE if chosen else ATTENTION
    return Told(answer.text, kept_overlay(picture, choice.mask, choice.periphery), heat, label, stats(answer, notices))


def ask_tab(models: Models, side: Left, tabs: Any) -> None:
    import gradio as gr

    from arr_coc.demo.parts import AT_ONCE, MODELS, PRIVATE, guarded, picture

    answer = gr.Textbox(label="Answer", lines=2, interactive=False, elem_id="answer", buttons=["copy"])
    with gr.Row():
        overlay = picture("What the model saw: kept cells are clear", "overlay")
        heat = picture(RELEVANCE, "heat")
    stats = gr.Markdown("Click an example, or upload an image and ask.", elem_id="stats")
    label = gr.State(RELEVANCE)  # what `heat` shows: apart from it, so that who calls the API gets a picture alone
    label.change(lambda text: gr.Image(label=text), label, heat, **AT_ONCE)
    outputs = [answer, overlay, heat, stats, label]

    @guarded
    def answer_it(
        path: str | None, question: str, mode: str, percent: float, use: bool, name: str
    ) -> Iterator[tuple[Any, ...]]:
        asked = Inquiry.of(path, question, mode, percent, use)
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
        asked(to_front, None, tabs, **AT_ONCE)
        asked(None, None, None, js=TO_ANSWER, queue=False, **PRIVATE)
    ended = side.stop.click(None, None, None, cancels=[clicked, *others], queue=False, **PRIVATE)
    ended.then(stopped, stats, stats, **AT_ONCE)
    everything, nothing = [side.image, side.question, *outputs], (None, "", "", None, None, "", RELEVANCE)
    side.clear.click(lambda: nothing, None, everything, cancels=[clicked, *others], queue=False, **PRIVATE)
