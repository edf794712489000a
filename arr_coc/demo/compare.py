"""The Compare tab: one question, several ways to answer it side by side, with tokens and times."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image

from arr_coc.comparing import PLAIN, Variant, answer_ways
from arr_coc.config import Keep
from arr_coc.demo.inputs import STRIP, Inquiry, Left, shown
from arr_coc.demo.models import Models, choosable_selectors
from arr_coc.demo.scenes import known_of
from arr_coc.demo.telling import cards
from arr_coc.images.clips import Clip
from arr_coc.qwen import Answer, ARRCOCQwen
from arr_coc.viewing import before_after, choice_overlay, latency_bars, stage_times
from arr_coc.viewing.clips import strip_page
from arr_coc.viewing.paper import page

OURS = "ARR-COC"
SIMPLE = ("even_grid", "random", "downsampling", "pooling")  # what every method has to beat, so first in the list
SELECTOR_OF = {OURS: "auto"} | {
    name.replace("_", " "): name for name in sorted(choosable_selectors(), key=lambda name: name not in SIMPLE)
}
WAYS = (PLAIN, *SELECTOR_OF)
MOST_WAYS = 4
MOST_NEW_TOKENS = 64
Pictures = list[tuple[Image.Image, str]]
Halves = tuple[Image.Image, Image.Image]  # of a slider
# What would make more answers than there is room for cannot be ticked.
AT_MOST = """(ways, models) => {
  const more = {ways: (ways.length + 1) * models.length, models: ways.length * (models.length + 1)};
  for (const name in more)
    for (const box of document.querySelectorAll(`#${name} input`)) box.disabled = !box.checked && more[name] > MOST;
}""".replace("MOST", str(MOST_WAYS))


@dataclass(frozen=True, slots=True)
class Compared:
    """What the page shows of a comparison."""

    cards: str  # HTML
    slider: Halves | None  # None where all was kept, and of a clip
    kept: Pictures  # what each way kept, with its name and answer
    bars: Image.Image
    memory: str


def compare(models: Models, names: Sequence[str], chosen: Sequence[str], asked: Inquiry) -> Compared:
    """Answer in each chosen way with each named model: at most four answers, all but the plain ones of equal budget."""
    pairs = [(name, way) for name in names for way in chosen]
    if not 1 <= len(pairs) <= MOST_WAYS:
        raise ValueError(f"{len(pairs)} answers to compare: choose 1 to {MOST_WAYS}, counting each model with each way")
    if unknown := set(chosen) - set(WAYS):
        raise ValueError(f"{len(unknown)} of the ways are unknown: take them from the list")
    keep = _budget(models, names[0], asked)
    ways = [Variant(way, 1.0 if way == PLAIN else keep, name) for name, way in pairs]

    def using(way: Variant) -> AbstractContextManager[ARRCOCQwen]:
        return models.use(way.model, SELECTOR_OF.get(way.selector, "auto"))

    answers: list[tuple[str, Answer]] = []
    for way in answer_ways(ways, using, asked.image, asked.question, max_new_tokens=MOST_NEW_TOKENS, warm_up=1):
        if way.answer is None:
            raise MemoryError
        answers.append((f"{way.selector}, {way.model}" if len(names) > 1 else way.selector, way.answer))
    kept, slider = _kept(asked.image, answers)
    bars = latency_bars({label: stage_times(answer.timings_ms) for label, answer in answers})
    return Compared(cards(answers, known_of(asked)), slider, kept, bars, models.memory())


def _kept(image: Image.Image | Clip, answers: Sequence[tuple[str, Answer]]) -> tuple[Pictures, Halves | None]:
    """What each way kept, with its name and answer; and the image against what the first way that chose kept of it."""
    said = [f"{label}: {answer.text}" for label, answer in answers]
    if isinstance(image, Clip):
        return list(zip((page(strip_page(image, one.selection, STRIP)) for _, one in answers), said, strict=True)), None
    picture, choices = shown(image), [answer.selection[0] for _, answer in answers]
    chose = [choice for choice in choices if choice.tokens_kept < choice.tokens_total]
    kept = zip((choice_overlay(picture, choice) for choice in choices), said, strict=True)
    return list(kept), before_after(picture, chose[0]) if chose else None


def _budget(models: Models, name: str, asked: Inquiry) -> Keep:
    """An automatic budget is ARR-COC's to set, once, so that all ways get as many tokens."""
    if asked.keep is not None and asked.keep != "auto":
        return asked.keep
    with models.use(name) as owner:
        chosen = owner.choose(asked.image, asked.question, asked.keep)
    return max(2, sum(one.tokens_kept for one in chosen))


def compare_tab(models: Models, side: Left) -> tuple[list[Any], list[Any]]:
    """What belongs to one image, and what may be running."""
    import gradio as gr

    from arr_coc.demo import parts

    ways = gr.CheckboxGroup(
        list(WAYS), value=[PLAIN, OURS], label=f"Ways to choose the tokens, up to {MOST_WAYS}", elem_id="ways"
    )
    several = len(models.names) > 1
    names = gr.CheckboxGroup(models.names, value=models.names[:1], label="Models", visible=several, elem_id="models")
    button = gr.Button("Compare", variant="primary", elem_id="compare")
    result = gr.HTML(elem_id="cards")
    label = "The image, and what the first way that chose kept of it: drag the line"
    looks: dict[str, Any] = {"buttons": ["fullscreen"], "max_height": 520, "elem_id": "slider", **parts.SHOWN}
    slider = gr.ImageSlider(label=label, visible=False, **looks)
    bars = parts.picture("Where the time goes", "bars", visible=False)
    kept = parts.pictures("kept", MOST_WAYS)
    memory = gr.Markdown(models.memory(), elem_id="memory")

    @parts.guarded
    def compare_them(
        path: str | None, question: str, dial: float, chosen: list[str], named: list[str], played: str | None
    ) -> tuple[Any, ...]:
        fit = partial(models.fit, (named or models.names)[0])
        done = compare(models, named, chosen, Inquiry.of(played or path, question, dial, fit))
        return (
            done.cards,
            gr.ImageSlider(done.slider, visible=done.slider is not None),
            gr.Image(done.bars, visible=True),
            done.memory,
            *parts.filled(kept, done.kept),
        )

    outputs = [result, slider, bars, memory, *kept]
    inputs = [*side.asked, ways, names, side.played]
    looks = {"show_progress_on": result, "js": parts.begins("compare"), **parts.MODELS}
    running = button.click(compare_them, inputs, outputs, api_name="compare", **looks)
    side.stop.click(None, None, None, cancels=[running], **parts.PRIVATE)
    for event in (ways.change, names.change):
        event(None, [ways, names], None, js=AT_MOST, **parts.AT_ONCE)
    belongs = [result, slider, bars, *kept]
    parts.leave_nothing_late("compare", [running], belongs)
    return belongs, [running]
