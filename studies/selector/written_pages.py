"""Densely written pages: columns of text, letters, tables and forms, 10 to 16 px high, on clean and on scanned paper.

What is blank on them is known: a cell that no ink reaches.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from arr_coc_scenes.words import DAYS, GOODS, PEOPLE
from studies.cells import CELL

FONTS = ("DejaVuSans.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf", "STIXGeneral.ttf", "cmr10.ttf")
WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "a", "which", *GOODS, *PEOPLE, *DAYS)
SIZES = ((1024, 1024), (1024, 1440), (1280, 960), (1440, 2048))  # width and height, px
PAPERS = ("white", "cream", "grain", "scan")


@dataclass(frozen=True, slots=True)
class WrittenPage:
    """A page, what it is, and which of its cells no ink reaches."""

    pixels: np.ndarray  # uint8 [h, w, 3]
    kind: str
    paper: str
    blank_HW: np.ndarray


@cache
def font(name: str, px: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), px)


class Sheet:
    """Ink on nothing yet: 255 where all of a pixel is inked."""

    def __init__(self, rng: random.Random, size: tuple[int, int]) -> None:
        self.rng, self.ink, self.face = rng, Image.new("L", size), rng.choice(FONTS)
        self.pen, self.px = ImageDraw.Draw(self.ink), rng.randint(10, 16)
        self.margin = rng.randint(24, 72)

    def words(self, width: float, px: int) -> str:
        """As many words as the width holds."""
        said: list[str] = []
        while font(self.face, px).getlength(" ".join([*said, "breakfast"])) < width:
            said.append(self.rng.choice(WORDS))
        return " ".join(said)

    def say(self, x: float, y: float, text: str, px: int) -> None:
        self.pen.text((x, y), text, font=font(self.face, px), fill=255)

    def paragraphs(self, x: float, y: float, width: float, bottom: float) -> None:
        """Lines down to the bottom; one in eight ends a paragraph half-way."""
        while y + 1.4 * self.px < bottom:
            ends = self.rng.random() < 1 / 8
            self.say(x, y, self.words(width * (self.rng.uniform(0.3, 0.9) if ends else 1), self.px), self.px)
            y += self.px * (2.2 if ends else 1.4)

    def title(self) -> float:
        """A title over the page; where the rest begins."""
        px = self.rng.randint(20, 34)
        self.say(self.margin, self.margin, self.words(0.7 * (self.ink.width - 2 * self.margin), px).title(), px)
        return self.margin + 2 * px


def article(sheet: Sheet) -> None:
    """Two or three columns."""
    top, count, gap = sheet.title(), sheet.rng.choice((2, 3)), sheet.rng.randint(20, 40)
    width = (sheet.ink.width - 2 * sheet.margin - gap * (count - 1)) / count
    for column in range(count):
        sheet.paragraphs(sheet.margin + column * (width + gap), top, width, sheet.ink.height - sheet.margin)


def letter(sheet: Sheet) -> None:
    """One column."""
    top = sheet.title()
    sheet.paragraphs(sheet.margin, top, sheet.ink.width - 2 * sheet.margin, sheet.ink.height - sheet.margin)


def table(sheet: Sheet) -> None:
    """Ruled rows of names and numbers, the numbers at the right of their columns."""
    top, count, row = sheet.title(), sheet.rng.randint(4, 8), round(sheet.rng.uniform(1.7, 2.4) * sheet.px)
    left, right, bottom = sheet.margin, sheet.ink.width - sheet.margin, sheet.ink.height - sheet.margin
    width = (right - left) / count
    for y in range(round(top), bottom - row, row):
        sheet.pen.line((left, y, right, y), fill=120)
        sheet.say(left + 4, y + 0.2 * row, sheet.words(1.0 * width - 8, sheet.px), sheet.px)
        for column in range(1, count):
            number = f"{sheet.rng.uniform(0, 10 ** sheet.rng.randint(1, 5)):.2f}"
            length = font(sheet.face, sheet.px).getlength(number)
            sheet.say(left + (column + 1) * width - length - 6, y + 0.2 * row, number, sheet.px)


def form(sheet: Sheet) -> None:
    """Two columns of labelled fields, filled in, each with its line, and paragraphs of what is asked between them."""
    y, half = sheet.title(), (sheet.ink.width - 2 * sheet.margin) / 2
    while y + 8 * sheet.px < sheet.ink.height - sheet.margin:
        for x in (sheet.margin, sheet.margin + half):
            sheet.say(x, y, sheet.words(0.35 * half, sheet.px).title() + ":", sheet.px)
            sheet.say(x + 0.45 * half, y, sheet.words(0.45 * half, sheet.px), sheet.px)
            sheet.pen.line((x + 0.42 * half, y + 1.3 * sheet.px, x + 0.93 * half, y + 1.3 * sheet.px), fill=160)
        y += 2.2 * sheet.px
        if sheet.rng.random() < 0.25:
            sheet.paragraphs(sheet.margin, y, 2 * half, y + 5 * sheet.px)
            y += 5 * sheet.px


KINDS: dict[str, Callable[[Sheet], None]] = {"article": article, "letter": letter, "table": table, "form": form}


def on_paper(ink: np.ndarray, paper: str, rng: np.random.Generator) -> np.ndarray:
    """Ink `[h, w]` in 0..255 on white or cream, or on grainy paper, evenly lit or not: uint8 `[h, w, 3]`."""
    ground = np.array((245, 242, 232) if paper == "cream" else (255, 255, 255), dtype=np.float32)
    light = np.full((*ink.shape, 1), 1.0, dtype=np.float32)
    if paper == "scan":
        down, across = np.mgrid[0 : ink.shape[0], 0 : ink.shape[1]]
        light -= 0.12 * (rng.uniform() * down / ink.shape[0] + rng.uniform() * across / ink.shape[1])[..., None]
    share = ink[..., None].astype(np.float32) / 255
    drawn = light * ground * (1 - share) + 30 * share
    if paper in ("grain", "scan"):
        drawn = drawn - 8 + rng.normal(0, rng.uniform(1.5, 5), (*ink.shape, 1))
    return drawn.clip(0, 255).astype(np.uint8)


def written_page(seed: int, size: tuple[int, int] | None = None) -> WrittenPage:
    """The page of a seed; kinds, papers and, unless one is given, sizes take turns."""
    kind, paper = list(KINDS)[seed % 4], PAPERS[seed // 4 % 4]
    rng = random.Random(f"written {seed}")
    sheet = Sheet(rng, size or SIZES[seed // 16 % 4])
    KINDS[kind](sheet)
    ink = np.array(sheet.ink)
    high, wide = ink.shape[0] // CELL, ink.shape[1] // CELL
    blank_HW: np.ndarray = ink.reshape(high, CELL, wide, CELL).max((1, 3)) == 0
    return WrittenPage(on_paper(ink, paper, np.random.default_rng(seed)), kind, paper, blank_HW)
