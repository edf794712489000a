"""The Microscope tab: the channels, the maps, their weights, and every cell by itself.

H W grid of cells.
"""

from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from arr_coc.demo.choosing import choose
from arr_coc.demo.inputs import Asked, check_question, shown
from arr_coc.demo.models import Models
from arr_coc.demo.telling import share
from arr_coc.qwen.answers import ImageSelection
from arr_coc.viewing import difference, heatmap, homunculus, kept_overlay, texture_sheet, token_rows

FRAME = "#e8590c"
TENSION_ENDS = {
    "particularize": "compress (0) to particularize (1): how many cells",
    "explore": "exploit (0) to explore (1): how many of them are spread evenly",
    "diversify": "focus (0) to diversify (1): how much a kept cell holds its neighbours back",
}


@dataclass(frozen=True, slots=True)
class Looked:
    """A look at one choice; stays with the session that took it."""

    picture: Image.Image
    asked: Asked
    choice: ImageSelection
    rows: list[dict[str, Any]]  # one per cell, row by row


def look(models: Models, name: str, asked: Asked) -> Looked:
    """Choose for the question, and keep what was thought of every cell."""
    with models.use(name) as owner:
        choice = choose(owner, asked)
    if choice.relevance is None:
        raise ValueError("every token is kept, so nothing was weighed: turn the dial below 100 percent")
    return Looked(shown(asked.image), asked, choice, token_rows(choice))


def kept_picture(looked: Looked) -> Image.Image:
    return kept_overlay(looked.picture, looked.choice.mask)


def maps_pictures(looked: Looked) -> list[tuple[Image.Image, str]]:
    """Each scorer's map with its weight, and last the relevance that they make, with the cut."""
    choice = looked.choice
    assert choice.relevance is not None
    drawn = [
        (heatmap(looked.picture, values), f"{name}, weight {choice.weights.get(name, 1.0):.2f}")
        for name, values in choice.maps.items()
    ]
    return [*drawn, (heatmap(looked.picture, choice.relevance, kept_HW=choice.mask), "relevance, of all maps")]


def channels_picture(looked: Looked) -> Image.Image:
    return texture_sheet(looked.picture)


def homunculus_picture(looked: Looked) -> Image.Image:
    assert looked.choice.relevance is not None
    return homunculus(looked.picture, looked.choice.relevance)


def balance(looked: Looked) -> str:
    """Markdown: the weights and the tensions in numbers, and what was done with them."""
    choice = looked.choice
    told = [f"**{choice.tokens_kept}** of {choice.tokens_total} cells kept: {choice.reason}."]
    rows = [(f"weight of the {name} map", value) for name, value in choice.weights.items()]
    rows += [(TENSION_ENDS.get(name, name), value) for name, value in choice.tensions.items()]
    if rows:
        told.append("\n".join(["| | value |", "|---|---|", *(f"| {name} | {value:.3f} |" for name, value in rows)]))
    return "\n\n".join(told)


def cell_at(looked: Looked, x: float, y: float) -> int:
    """The flat index of the cell under a point of the picture, in px."""
    height, width = looked.choice.grid
    row = min(height - 1, max(0, int(y * height / looked.picture.height)))
    column = min(width - 1, max(0, int(x * width / looked.picture.width)))
    return row * width + column


def cell_picture(looked: Looked, cell: int) -> Image.Image:
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


def cell_numbers(looked: Looked, cell: int) -> str:
    """Markdown: the numbers of one cell and why it was kept or dropped."""
    row = looked.rows[cell]
    rank = 1 + sum(other["relevance"] > row["relevance"] for other in looked.rows)
    lines = [
        f"### Row {row['y']}, column {row['x']}",
        f"**{row['why']}**",
        "",
        "| | value |",
        "|---|---|",
        f"| relevance | {row['relevance']:.3f} |",
        f"| rank | {rank} of {len(looked.rows)} |",
        *(f"| {name} | {row[name]:.3f} |" for name in looked.choice.maps),
    ]
    return "\n".join(lines)


def second_question(models: Models, name: str, looked: Looked, question: str | None) -> tuple[Image.Image, str]:
    """The same image and dial under another question: where the two choices differ."""
    asked = Asked(looked.asked.image, check_question(question), looked.asked.keep)
    other = look(models, name, asked).choice
    both = int((looked.choice.mask & other.mask).sum())
    either = int((looked.choice.mask | other.mask).sum())
    line = (
        f"First question: {looked.choice.tokens_kept} cells. Second: {other.tokens_kept}. "
        f"In common: {both}, which is {share(both, either)} of all that either keeps."
    )
    return difference(looked.picture, looked.choice, other), line
