"""The Ask tab: the answer as it comes, what was kept for it, and how relevant every part was.

When the page opens, the first example is answered already, and the plain model has answered it too.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from PIL import Image
from torch import Tensor

from arr_coc.comparing import PLAIN, Variant, answer_way
from arr_coc.demo.inputs import STRIP, Inquiry, Left, shown
from arr_coc.demo.models import Models
from arr_coc.demo.scenes import ExampleScene, examples, known_of
from arr_coc.demo.telling import about, figures, legend, note, notices, stats
from arr_coc.images.clips import Clip
from arr_coc.qwen import Answer, ARRCOCQwen
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.streaming import stream_text
from arr_coc.viewing import choice_overlay
from arr_coc.viewing.clips import budget_page, clip_video, strip_page
from arr_coc.viewing.heatmaps import map_block
from arr_coc.viewing.paper import above, page
from arr_coc.viewing.tokens import looked_at

MOST_NEW_TOKENS = 256
MOST_ATTENDED = 2048  # tokens up to which the attention of a plain answer is drawn: its cost is their square
MOST_OPENING = 32  # new tokens of the answer that is there when the page opens

THINKING, ANSWERING, STOPPED = (f'<p class="verdict">{word}</p>' for word in ("thinking …", "answering …", "stopped"))
# To the tab of the answer; and where it stands below the question and not beside it, the page goes there.
TO_ANSWER = """() => {
  const tabs = document.getElementById("tabs");
  if (tabs.getBoundingClientRect().top > window.innerHeight / 2) tabs.scrollIntoView({behavior: "smooth"});
  return {__type__: "update", selected: "ask"};
}"""


@dataclass(frozen=True, slots=True)
class Told:
    """What the page shows of an answer; all but its text comes with the last one."""

    answer: str
    overlay: Image.Image | None = None
    heat: Image.Image | None = None
    player: bytes | None = None  # of a clip, an MP4 of its frames with what was kept
    moments: Image.Image | None = None  # of a clip
    figures: str = ANSWERING  # HTML
    notices: str = ""  # HTML
    legend: str = ""  # HTML
    stats: str = ""  # Markdown


@dataclass(frozen=True, slots=True)
class Opening:
    """What is there when the page opens."""

    example: ExampleScene
    told: Told
    plain: Answer | None  # None: the plain model had no room
    total: int  # visual tokens
    about: str  # HTML, of the model

    def plain_of(self, asked: Inquiry) -> Answer | None:
        """What the plain model said, where this has been asked again."""
        return self.plain if known_of(asked) is self.example.known else None


def opening(models: Models) -> Opening:
    """The first example, answered by the first model with its own dial and with every token; both are timed warm."""
    example = examples()[0]
    with models.use(models.names[0]) as owner:
        asked = Inquiry(example.picture, example.question, None)
        answers = [
            answer_way(Variant(PLAIN, keep), partial(owner.ask, asked.image, asked.question), MOST_OPENING, 1).answer
            for keep in (owner.keep, 1.0)
        ]
        ours, plain = answers
        if ours is None:
            raise MemoryError
        told = _told(owner, asked, ours, plain)
        return Opening(example, told, plain, ours.tokens_total, about(models.names[0], owner))


def ask(models: Models, name: str, asked: Inquiry, plain: Answer | None = None) -> Iterator[Told]:
    """The answer piece by piece, and at last whole with its pictures. Leaving the loop early ends the generation."""
    with models.use(name) as owner:
        tokenizer = owner.processor.tokenizer
    done: list[Told] = []

    def run(streamer: Any, stop: Any) -> None:
        with models.use(name) as owner:
            if stop.event.is_set():
                return
            how: dict[str, Any] = {"keep": asked.keep, "max_new_tokens": MOST_NEW_TOKENS, "stopping_criteria": [stop]}
            answer = owner.ask(asked.image, asked.question, streamer=streamer, **how)
            done.append(_told(owner, asked, answer, plain))

    said = ""
    with closing(stream_text(tokenizer, run)) as pieces:  # type: ignore[type-var]
        for piece in pieces:
            said += piece
            yield Told(said)
    yield done[0]


def _told(owner: ARRCOCQwen, asked: Inquiry, answer: Answer, plain: Answer | None) -> Told:
    told: dict[str, Any] = {"figures": figures(answer, known_of(asked), plain), "notices": notices(owner, answer)}
    told |= {"legend": legend(answer.selection), "stats": stats(answer)}
    if isinstance(asked.image, Clip):
        clip, choices = asked.image, answer.selection
        seen = page(above([strip_page(clip, choices, STRIP), budget_page(choices, STRIP)], gap=18))
        player = clip_video(clip, choices) if find_spec("av") else None
        return Told(answer.text, player=player, moments=seen, **told)
    picture, choice = shown(asked.image), answer.selection[0]
    heat_HW, chose = choice.relevance, choice.relevance is not None
    if heat_HW is None:
        heat_HW = _attention(owner, asked, answer)
    return Told(
        answer.text,
        choice_overlay(picture, choice),
        None if heat_HW is None else heat_picture(picture, heat_HW, choice if chose else None),
        **told,
    )


def _attention(owner: ARRCOCQwen, asked: Inquiry, answer: Answer) -> Tensor | None:
    """Where a plain answer looked; None where that would cost too much."""
    text = owner.processor.tokenizer(asked.question + answer.text)["input_ids"]
    if answer.tokens_total + len(text) > MOST_ATTENDED:
        return None
    return looked_at(owner, [asked.picture], asked.question, answer.text)[0]


def heat_picture(picture: Image.Image, values_HW: Tensor, choice: ImageSelection | None) -> Image.Image:
    """A map over the picture, as large as it; kept cells are outlined, those that are there for coverage dotted."""
    kept_HW, covered_HW = (None, None) if choice is None else (choice.mask, choice.covered_mask)
    return map_block(picture, values_HW, kept_HW, covered_HW, max(picture.size))[0]


def ask_tab(models: Models, side: Left, tabs: Any, first: Opening, chosen: Any) -> tuple[list[Any], list[Any]]:
    """What belongs to one image, and what may be running; `chosen` is the event of an example."""
    import gradio as gr

    from arr_coc.demo import parts

    now = first.told
    notices = gr.HTML(now.notices, elem_id="notices")
    answer = gr.Textbox(now.answer, label="Answer", lines=1, interactive=False, elem_id="answer", buttons=["copy"])
    figures = gr.HTML(now.figures, elem_id="figures")
    with gr.Row(elem_id="seen"):
        overlay = parts.picture("What the model saw", "overlay", value=now.overlay)
        heat = parts.picture("What counts for the question", "heat", value=now.heat)
    video = parts.player("What the model saw", "player", visible=True)  # what is empty the style sheet hides
    legend = gr.HTML(now.legend, elem_id="legend")
    moments = parts.picture("Moments, and the budget over time", "moments")
    stats = gr.Markdown(now.stats, elem_id="stats")
    outputs = [answer, overlay, heat, figures, notices, legend, stats, video, moments]

    def seen(one: Told) -> list[Any]:
        said = [one.answer, one.overlay, one.heat, one.figures, one.notices, one.legend, one.stats]
        return [*said, one.player, one.moments]

    @parts.guarded
    def answer_it(path: str | None, question: str, dial: float, name: str, played: str | None) -> Iterator[list[Any]]:
        try:
            yield seen(Told("", figures=THINKING))
            asked = Inquiry.of(played or path, question, dial, partial(models.fit, name))
            plain = first.plain_of(asked) if name == models.names[0] else None
            for one in ask(models, name, asked, plain):
                yield seen(one)
        except Exception as error:
            why = parts.in_a_line(error)
            yield [*[gr.skip()] * 3, "", note(f"no answer: {why}", "trouble"), "", "", *[gr.skip()] * 2]
            raise parts.toast(why) from None

    for event in (side.ask.click, side.question.submit, chosen.then):  # before the answer: what is first is done first
        event(None, None, tabs, js=TO_ANSWER, queue=False, **parts.PRIVATE)
    inputs = [*side.asked, side.model, side.played]
    looks: dict[str, Any] = {
        "show_progress": "minimal",
        "show_progress_on": answer,
        "js": parts.begins("ask"),
        **parts.MODELS,
    }
    others = (
        event(answer_it, inputs, outputs, **looks, **parts.PRIVATE) for event in (side.question.submit, chosen.then)
    )
    running = [side.ask.click(answer_it, inputs, outputs, api_name="ask", **looks), *others]
    side.stop.click(None, None, None, cancels=running, queue=False, **parts.PRIVATE)
    # It is over, and its last line says that it is not: it was stopped, which is a failure to Gradio.
    unfinished = f"{json.dumps([THINKING, ANSWERING])}.includes(line)"
    stopped = f"line => !({parts.is_late('ask')}) && {unfinished} ? {json.dumps(STOPPED)} : undefined"
    for over in (over for event in running for over in (event.success, event.failure)):
        over(None, figures, figures, js=stopped, queue=False, **parts.PRIVATE)
    parts.leave_nothing_late("ask", running, outputs)
    return outputs, running
