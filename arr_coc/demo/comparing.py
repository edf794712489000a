"""The Compare tab: one question, several ways to answer it, with tokens and times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image

from arr_coc.demo.choosing import choose
from arr_coc.demo.inputs import Asked, shown
from arr_coc.demo.models import Models, choosable_selectors
from arr_coc.demo.telling import Row, cards
from arr_coc.qwen import Answer
from arr_coc.viewing import before_after, kept_overlay, latency_bars, stage_times

PLAIN, OURS = "plain", "ARR-COC"
SIMPLE = ("even_grid", "random", "downsampling", "pooling")  # what every method has to beat, so first in the list
SELECTOR_OF = {OURS: "auto"} | {
    name.replace("_", " "): name for name in sorted(choosable_selectors(), key=lambda name: name not in SIMPLE)
}
WAYS = (PLAIN, *SELECTOR_OF)
MOST_WAYS = 4
MOST_NEW_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Compared:
    """What the page shows of a comparison."""

    cards: str  # HTML
    slider: tuple[Image.Image, Image.Image] | None  # the image, and what was kept of it; None where all was kept
    kept: list[tuple[Image.Image, str]]  # what each way kept, with its name and answer
    bars: Image.Image
    memory: str


def compare(models: Models, names: Sequence[str], chosen: Sequence[str], asked: Asked) -> Compared:
    """Answer in each chosen way with each named model: at most four answers, all but the plain ones of equal budget."""
    pairs = [(name, way) for name in names for way in chosen]
    if not 1 <= len(pairs) <= MOST_WAYS:
        raise ValueError(f"{len(pairs)} answers to compare: choose 1 to {MOST_WAYS}, counting each model with each way")
    if unknown := set(chosen) - set(WAYS):
        raise ValueError(f"{len(unknown)} of the ways are unknown: take them from the list")
    asked = _with_budget(models, names[0], asked)
    picture = shown(asked.image)
    rows: list[Row] = []
    kept: list[tuple[Image.Image, str]] = []
    slider: tuple[Image.Image, Image.Image] | None = None
    for name, way in pairs:
        answer = _answer(models, name, way, asked)
        choice, label = answer.selection[0], f"{way}, {name}" if len(names) > 1 else way
        rows.append(Row(label, answer.text, answer.tokens_kept, answer.tokens_total, stage_times(answer.timings_ms)))
        kept.append((kept_overlay(picture, choice.mask), f"{label}: {answer.text}"))
        if slider is None and choice.tokens_kept < choice.tokens_total:
            slider = before_after(picture, choice)
    bars = latency_bars({row.way: row.times_ms for row in rows})
    return Compared(cards(rows), slider, kept, bars, models.memory())


def _with_budget(models: Models, name: str, asked: Asked) -> Asked:
    """An automatic budget is ARR-COC's to set, once, so that all ways get as many tokens."""
    if asked.keep != "auto":
        return asked
    with models.use(name) as owner:
        return replace(asked, keep=max(2, choose(owner, asked).tokens_kept))


def _answer(models: Models, name: str, way: str, asked: Asked) -> Answer:
    """The first answer of a model pays for what later ones find ready, so it is given twice and timed once."""
    keep = 1.0 if way == PLAIN else asked.keep
    with models.use(name, SELECTOR_OF.get(way, "auto")) as owner:
        owner.ask(asked.image, asked.question, keep=keep, max_new_tokens=1)
        return owner.ask(asked.image, asked.question, keep=keep, max_new_tokens=MOST_NEW_TOKENS)
