"""Pages as people make them, for want of documents with gaze: papers, web pages and slides, with what is written where.

Every page has a title, running text, a figure (a drawn scene or a bar chart), and paper that is left blank.
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
FONTS = ("DejaVuSans.ttf", "DejaVuSerif.ttf", "STIXGeneral.ttf")
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
    lines: list[Box] = field(default_factory=list)
    figures: list[Box] = field(default_factory=list)

    @property
    def pixels(self) -> np.ndarray:
        """uint8 [h, w, 3]"""
        return np.array(self.image)

    def say(self, words: str, x: int, y: int, px: int) -> Box:
        letters = font(self.face, px)
        ImageDraw.Draw(self.image).text((x, y), words, font=letters, fill=(25, 25, 40))
        return x, y, x + round(letters.getlength(words)), y + round(1.2 * px)

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
