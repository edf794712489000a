"""Pages as people make them, for want of documents with gaze: papers, web pages and slides, with what is written where.

Every page has a title, running text, and paper that is left blank; those of SIZES a figure (a drawn scene or a bar
chart), those of DENSE headings, more print, and less paper.
"""

import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from arr_coc_scenes import draw_scene, make_scene
from arr_coc_scenes.types import Box
from arr_coc_scenes.words import DAYS, GOODS, PEOPLE

SIZES = {"paper": (768, 1024), "web": (1024, 768), "slide": (1024, 576)}
DENSE = {"newspaper": (768, 1024), "report": (768, 1024), "leaflet": (640, 1024)}
FONTS = ("DejaVuSans.ttf", "DejaVuSerif.ttf", "STIXGeneral.ttf")
BOLD = dict(zip(FONTS, ("DejaVuSans-Bold.ttf", "DejaVuSerif-Bold.ttf", "STIXGeneralBol.ttf"), strict=True))
Ink = tuple[int, int, int]
WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", *GOODS, *PEOPLE, *DAYS)


@cache
def font(name: str, px: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), px)


@dataclass(slots=True)
class WholePage:
    """A page that is being made: what is on it so far, in px."""

    rng: random.Random
    image: Image.Image
    face: str
    titles: list[Box] = field(default_factory=list)
    headings: list[Box] = field(default_factory=list)
    lines: list[Box] = field(default_factory=list)
    figures: list[Box] = field(default_factory=list)

    @property
    def pixels(self) -> np.ndarray:
        """uint8 [h, w, 3]"""
        return np.array(self.image)

    def say(self, words: str, x: int, y: int, px: int, face: str = "", ink: Ink = (25, 25, 40)) -> Box:
        letters = font(face or self.face, px)
        ImageDraw.Draw(self.image).text((x, y), words, font=letters, fill=ink)
        return x, y, x + round(letters.getlength(words)), y + round(1.2 * px)

    def heading(self, x: int, y: int, px: int, words: int, ink: Ink = (25, 25, 40)) -> None:
        said = " ".join(self.rng.choice(WORDS) for _ in range(words)).capitalize()
        self.headings.append(self.say(said, x, y, px, BOLD[self.face], ink))

    def title(self, x: int, y: int, px: int, words: int) -> None:
        self.titles.append(self.say(" ".join(self.rng.choice(WORDS).title() for _ in range(words)), x, y, px))

    def text(self, x: int, y: int, width: int, height: int, px: int) -> None:
        """Lines of words; one in eight ends a paragraph half-way."""
        letters = font(self.face, px)
        for top in range(y, y + height - px, round(1.35 * px)):
            words: list[str] = []
            most = width * (0.5 if self.rng.random() < 1 / 8 else 0.85)
            while letters.getlength(" ".join(words)) < most:
                words.append(self.rng.choice(WORDS))
            self.lines.append(self.say(" ".join(words), x, top, px))

    def figure(self, x: int, y: int, width: int, height: int) -> None:
        if self.rng.random() < 0.5:
            drawn = Image.fromarray(draw_scene(make_scene(self.rng.randrange(10**6), "train", (512, 512))))
        else:
            drawn = Image.new("RGB", (400, 300), "white")
            pen = ImageDraw.Draw(drawn)
            for left in range(30, 390, 60):
                ink = (self.rng.randrange(200), self.rng.randrange(200), self.rng.randrange(200))
                pen.rectangle((left, self.rng.randrange(30, 250), left + 40, 290), fill=ink)
            pen.line((20, 10, 20, 290, 390, 290), fill="black", width=2)
        self.image.paste(drawn.resize((width, height)), (x, y))
        self.figures.append((x, y, x + width, y + height))


def whole_page(seed: int, kind: str) -> WholePage:
    """A page of a kind of SIZES."""
    rng = random.Random(f"{kind} {seed}")
    paper = rng.choice(((255, 255, 255), (255, 255, 255), (245, 242, 235)))
    page = WholePage(rng, Image.new("RGB", SIZES[kind], paper), rng.choice(FONTS))
    if kind == "slide":
        page.title(60, 40, 40, 3)
        page.text(60, 140, 430, rng.choice((180, 300)), 22)
        page.figure(560, 150, 380, 300)
    elif kind == "web":
        ImageDraw.Draw(page.image).rectangle((0, 0, 1024, 56), fill=(40, 60, 110))
        page.title(40, 90, 34, 5)
        page.text(40, 150, 520, rng.choice((240, 420, 560)), 16)
        page.figure(620, 150, 340, 260)
        page.text(620, 440, 340, 160, 13)
    elif rng.random() < 0.5:
        page.title(80, 60, 30, 4)
        page.figure(80, 130, 280, 220)
        page.text(80, 370, 280, 560, 13)
        page.text(400, 130, 290, rng.choice((400, 800)), 13)
    else:
        page.title(80, 60, 30, 4)
        page.text(80, 130, 600, 300, 15)
        page.figure(200, 450, 380, 250)
        page.text(80, 720, 600, 250, 15)
    return page


def dense_page(seed: int, kind: str) -> WholePage:
    """A page of a kind of DENSE."""
    rng = random.Random(f"{kind} {seed}")
    page = WholePage(rng, Image.new("RGB", DENSE[kind], (250, 248, 242)), rng.choice(FONTS))
    if kind == "newspaper":
        page.title(150, 16, 46, 2)
        page.heading(40, 84, 30, 5)
        page.text(40, 135, 215, 400, 11)
        page.figure(275, 135, 455, 270)
        page.text(275, 420, 215, 115, 11)
        page.text(515, 420, 205, 115, 11)
        for x in (40, 280, 520):
            page.heading(x, 560, 19, 2)
            page.text(x, 592, 205, 410, 11)
    elif kind == "report":
        page.title(80, 50, 28, 4)
        top = 120
        while top < 790:
            page.heading(80, top, 16, 3)
            high = rng.choice((90, 130, 180))
            page.text(80, top + 26, 600, high, 12)
            top += high + 50
    else:
        page.title(40, 30, 36, 3)
        for number, top in enumerate(range(140, 1000, 215)):
            ink = (rng.randrange(40, 220), rng.randrange(40, 160), rng.randrange(40, 220))
            x, badge = ((200, 40), (40, 420))[number % 2]
            ImageDraw.Draw(page.image).ellipse((badge, top, badge + 130, top + 130), fill=ink)
            page.say(f"{rng.randrange(10, 99)} %", badge + 25, top + 45, 34, BOLD[page.face], (255, 255, 255))
            page.figures.append((badge, top, badge + 130, top + 130))
            page.heading(x, top, 20, 3, ink)
            page.text(x, top + 36, 330, 110, 13)
    return page
