"""The Microscope tab: the channels, the maps, their weights, every cell by a click, and a second question.

H W grid of cells.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from PIL import Image, ImageDraw

from arr_coc.config import SCORERS
from arr_coc.demo.inputs import Inquiry, Left, check_question, read_upload, shown
from arr_coc.demo.models import Models
from arr_coc.demo.telling import share
from arr_coc.qwen.answers import ImageSelection
from arr_coc.viewing import choice_overlay, difference, heatmap, homunculus, texture_sheet, token_rows
from arr_coc.viewing.heatmaps import TENSION_ENDS, weight_told

FRAME = "#e8590c"
CLICK = "Click a cell of the picture to see its numbers, and why it was kept or dropped."
NOTHING = "nothing under the microscope yet: click Look first"
MOST_MAPS = len(SCORERS) + 1
KEPT_FOR = 1800  # seconds that a session's last look is kept
TENSIONS_MEAN = {
    "particularize": "how many cells",
    "explore": "how many of them are spread evenly",
    "diversify": "how much a kept cell holds its neighbours back",
}


@dataclass(frozen=True, slots=True)
class Look:
    """A look at one choice; stays with the session that took it, a few megabytes whatever the size of the image."""

    picture: Image.Image
    asked: Inquiry
    choice: ImageSelection
    cell: int  # px of a cell's side

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per cell, row by row."""
        return token_rows(self.choice)


def look(models: Models, name: str, asked: Inquiry) -> Look:
    """Choose for the question, and keep what was thought of every cell."""
    picture = shown(asked.picture)
    with models.use(name) as owner:
        choice, cell = owner.choose(asked.image, asked.question, asked.keep)[0], owner.geometry.cell
    if choice.relevance is None:
        raise ValueError("every token is kept, so nothing was weighed: turn the dial below 100 percent")
    return Look(picture, asked, choice, cell)


def to_remember(looked: Look) -> Look:
    """What a session keeps: the image itself stays in its file."""
    return replace(looked, asked=replace(looked.asked, image=looked.picture))


def kept_picture(looked: Look) -> Image.Image:
    return choice_overlay(looked.picture, looked.choice)


def maps_pictures(looked: Look) -> list[tuple[Image.Image, str]]:
    """Each scorer's map with its exponent, and last the relevance that they make, with the cut."""
    choice = looked.choice
    assert choice.relevance is not None
    weights = {name: choice.weights.get(name, 1.0) for name in choice.maps}
    drawn = [
        (heatmap(looked.picture, values, weight=weights[name]), f"{name}, {weight_told(weights[name])}")
        for name, values in choice.maps.items()
    ]
    whole = heatmap(looked.picture, choice.relevance, kept_HW=choice.mask, covered_HW=choice.covered_mask)
    return [*drawn, (whole, "relevance, of all maps")]


def balance(looked: Look) -> str:
    """Markdown: the exponents and the tensions in words and numbers, and what was done with them."""
    choice = looked.choice
    told = [f"**{choice.cells_kept}** of {choice.tokens_total} cells kept: {choice.why}."]
    if choice.balance:
        told.append(f"The choice follows {choice.balance}.")
    rows = [(f"exponent of the {name} map", value) for name, value in choice.weights.items()]
    for name, value in choice.tensions.items():
        low, high = TENSION_ENDS[name]
        rows.append((f"{low} (0) to {high} (1): {TENSIONS_MEAN[name]}", value))
    if rows:
        told.append("\n".join(["| | value |", "|---|---|", *(f"| {name} | {value:.3f} |" for name, value in rows)]))
    return "\n\n".join(told)


def cell_at(looked: Look, x: float, y: float) -> int:
    """The flat index of the cell under a point of the picture, in px."""
    height, width = looked.choice.grid
    row = min(height - 1, max(0, int(y * height / looked.picture.height)))
    column = min(width - 1, max(0, int(x * width / looked.picture.width)))
    return row * width + column


def cell_picture(looked: Look, cell: int) -> Image.Image:
    """What was kept, with a frame around one cell."""
    height, width = looked.choice.grid
    picture = kept_picture(looked)
    row, column = divmod(cell, width)
    across, down = picture.width / width, picture.height / height
    box = (column * across, row * down, (column + 1) * across - 1, (row + 1) * down - 1)
    draw = ImageDraw.Draw(picture)
    draw.rectangle(box, outline="white", width=5)
    draw.rectangle(box, outline=FRAME, width=3)
    return picture


def cell_numbers(looked: Look, cell: int) -> str:
    """Markdown: the numbers of one cell and why it was kept or dropped."""
    rows = looked.rows
    row = rows[cell]
    rank = 1 + sum(other["relevance"] > row["relevance"] for other in rows)
    lines = [
        f"### Row {row['y']}, column {row['x']}",
        f"**{row['why']}**",
        "",
        "| | value |",
        "|---|---|",
        f"| relevance | {row['relevance']:.3f} |",
        f"| rank | {rank} of {len(rows)} |",
        *(f"| {name} | {row[name]:.3f} |" for name in looked.choice.maps),
    ]
    return "\n".join(lines)


def second_question(models: Models, name: str, looked: Look, question: str | None) -> tuple[Image.Image, str]:
    """The same image and dial under another question: where the two choices differ."""
    asked = Inquiry(looked.asked.image, check_question(question), looked.asked.keep)
    other = look(models, name, asked).choice
    both = int((looked.choice.mask & other.mask).sum())
    either = int((looked.choice.mask | other.mask).sum())
    line = (
        f"First question: {looked.choice.cells_kept} cells. Second: {other.cells_kept}. "
        f"In common: {both}, which is {share(both, either)} of all that either keeps."
    )
    return difference(looked.picture, looked.choice, other), line


def microscope_tab(models: Models, side: Left) -> tuple[list[Any], list[Any]]:
    """What belongs to one image, and what may be running."""
    import gradio as gr

    from arr_coc.demo.parts import MODELS, PRIVATE, begins, filled, guarded, leave_nothing_late, picture, pictures

    last = gr.State(None, time_to_live=KEPT_FOR)
    button = gr.Button("Look", variant="primary", elem_id="look")
    with gr.Row():
        kept = picture("Kept cells: click one", "cells", bare=True)
        with gr.Column(min_width=280):
            numbers = gr.Markdown(CLICK, elem_id="numbers", min_height=120)
    weights = gr.Markdown(elem_id="balance")
    maps = pictures("map", MOST_MAPS)
    with gr.Row():
        second = gr.Textbox("Which word is blue?", label="A second question", scale=4, elem_id="second")
        differ = gr.Button("Difference", min_width=100, elem_id="differ")
    line = gr.Markdown(elem_id="difference-line")
    difference = picture("Where the two choices differ", "difference", visible=False)
    with gr.Accordion("Homunculus: room by relevance", open=False):
        grown = picture("Homunculus", "homunculus")
    with gr.Accordion("Texture channels", open=False):
        channels = picture("What is read from the pixels", "channels")

    @guarded
    def look_at(path: str | None, question: str, dial: float, name: str, played: str | None) -> tuple[Any, ...]:
        looked = look(models, name, Inquiry.of(played or path, question, dial, partial(models.fit, name)))
        assert looked.choice.relevance is not None
        room = homunculus(looked.picture, looked.choice.relevance)
        drawn = kept_picture(looked), room, texture_sheet(looked.picture, cell=looked.cell)
        hidden = gr.Image(None, visible=False)
        return (
            (to_remember(looked), path),
            CLICK,
            balance(looked),
            "",
            *drawn,
            hidden,
            *filled(maps, maps_pictures(looked)),
        )

    @guarded
    def click(last: tuple[Look, str] | None, event: gr.SelectData) -> tuple[Any, str]:
        if last is None:
            raise ValueError(NOTHING)
        looked, _ = last
        cell = cell_at(looked, *event.index)
        return cell_picture(looked, cell), cell_numbers(looked, cell)

    @guarded
    def compare(last: tuple[Look, str] | None, question: str, name: str) -> tuple[Any, str]:
        if last is None:
            raise ValueError(NOTHING)
        light, path = last
        looked = replace(light, asked=replace(light.asked, image=read_upload(path)))
        drawn, said = second_question(models, name, looked, question)
        return gr.Image(drawn, visible=True), said

    outputs = [last, numbers, weights, line, kept, grown, channels, difference, *maps]
    how: dict[str, Any] = {"js": begins("microscope"), **MODELS, **PRIVATE}
    inputs = [*side.asked, side.model, side.played]
    running = [button.click(look_at, inputs, outputs, show_progress_on=kept, **how)]
    kept.select(click, last, [kept, numbers], show_progress="hidden", **PRIVATE)
    running += [
        event(compare, [last, second, side.model], [difference, line], **how) for event in (differ.click, second.submit)
    ]
    leave_nothing_late("microscope", running, outputs)
    return outputs, running
