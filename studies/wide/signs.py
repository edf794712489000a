"""Signs of the wide world: tilted, on an arc, on plates of several forms."""

from math import ceil

import numpy as np
from PIL import Image, ImageDraw

from arr_coc_scenes.draft import Draft, Sign
from arr_coc_scenes.layouts import scatter
from arr_coc_scenes.palette import grey_tone, jittered, readable_colours
from arr_coc_scenes.signs import add_sign
from arr_coc_scenes.splits import sign_word
from arr_coc_scenes.types import RGB, Box, Element, Glyph
from arr_coc_scenes.words import COLOURS
from studies.wide.draft import WideDraft
from studies.wide.sprites import Sprite, bent_line, box_of, rim, to_mask

FORMS = ("round", "oval", "tilted", "banner")
_FINER = 2  # plates are drawn this much larger and shrunk, so that their edges are smooth


def plate_mask(form: str, width: int, height: int, angle: int) -> np.ndarray:
    """The mask of a plate that holds a text of width x height px turned by `angle` degrees."""
    pad = max(6, height // 3)
    wide, high = (width + 2 * pad) * _FINER, (height + 2 * pad) * _FINER
    if form == "oval":
        wide, high = ceil(wide * 1.25), ceil(high * 1.45)
    image = Image.new("L", (wide, high))
    pen = ImageDraw.Draw(image)
    if form == "oval":
        pen.ellipse((0, 0, wide - 1, high - 1), fill=255)
    elif form == "banner":
        nick = high // 4
        ends = [(0, 0), (wide - 1, 0), (wide - 1 - nick, high // 2), (wide - 1, high - 1), (0, high - 1)]
        pen.polygon([*ends, (nick, high // 2)], fill=255)
    else:
        pen.rounded_rectangle((0, 0, wide - 1, high - 1), high // (2 if form == "round" else 8), fill=255)
    if angle:
        image = image.rotate(angle, Image.Resampling.BILINEAR, expand=True)
    return to_mask(np.asarray(image.resize((image.width // _FINER, image.height // _FINER), Image.Resampling.BOX)))


def _inks(draft: WideDraft, style: str) -> tuple[RGB | None, str, str, RGB]:
    """(plate's tone or None, its colour word, the ink's colour word, the ink)."""
    rng = draft.rng
    if style == "coloured":
        plate = rng.choice([c for c in draft.colours if c not in ("black", "white")])
        tone = jittered(rng, COLOURS[plate])
        return tone, plate, *draft.neutral_ink(tone)
    if style == "neutral":
        light = rng.random() < 0.6
        tone = grey_tone(rng, 236, 252, 4) if light else grey_tone(rng, 18, 40, 4)
        draft.papers.add("white" if light else "black")
        word = rng.choice(readable_colours((tone,), draft.hard))
        return tone, "", word, jittered(rng, COLOURS[word])
    able = readable_colours(draft.chosen.tones, draft.hard)
    word = rng.choice(able)
    return None, "", word, jittered(rng, COLOURS[word])


def _put_letters(
    draft: WideDraft, text: str, font: str, px: int, way: tuple[int, int], at: Box, inks: tuple[str, RGB]
) -> Element:
    """Turned letters in the middle of the box `at`."""
    word, ink = inks
    placed = bent_line(text, font, px, *way)
    width = max(x + mask.shape[1] for _, mask, x, _ in placed)
    height = max(y + mask.shape[0] for _, mask, _, y in placed)
    left, top = (at[0] + at[2] - width) // 2, (at[1] + at[3] - height) // 2
    sprites = [Sprite(mask, left + x, top + y, ink) for _, mask, x, y in placed]
    glyphs = tuple(Glyph(char, sprite.box) for (char, *_), sprite in zip(placed, sprites, strict=True))
    element = Element("text", box_of(sprites), "", word, text, glyphs, ink, font, px)
    draft.put(element, sprites)
    return element


def add_turned_sign(draft: WideDraft) -> bool:
    """A sign that is tilted or bent, on a plate or bare, where there is room."""
    rng = draft.rng
    text, font, px = sign_word(rng, draft.split), draft.any_font(), draft.text_px()
    style = rng.choice(("coloured", "neutral", "bare"))
    bent = style == "bare" and px >= 18 and rng.random() < 0.6
    way = (rng.randint(-20, 20), rng.choice((-110, -70, 70, 110)) if bent else 0)
    placed = bent_line(text, font, px, *way)
    width = max(x + mask.shape[1] for _, mask, x, _ in placed)
    height = max(y + mask.shape[0] for _, mask, _, y in placed)
    plate: np.ndarray | None = None
    if style != "bare":
        flat = bent_line(text, font, px, 0, 0)
        flat_size = max(x + m.shape[1] for _, m, x, _ in flat), max(y + m.shape[0] for _, m, _, y in flat)
        plate = plate_mask(rng.choice(FORMS), *flat_size, way[0])
        height, width = plate.shape[:2]
    box = draft.spot(width, height, 12)
    if box is None:
        return False
    tone, colour, word, ink = _inks(draft, style)
    if plate is not None and tone is not None:
        draft.under.append(Sprite(plate, *box[:2], tone))
        draft.taken.append(box)
    element = _put_letters(draft, text, font, px, way, box, (word, ink))
    if plate is None and draft.chosen.rim is not None:
        draft.under += [
            rim(sprite, max(2, px // 10), draft.chosen.rim) for sprite in draft.sprites_of(len(draft.elements) - 1)
        ]
    draft.signs.append(Sign(element, box, plate is not None, colour, None))
    return True


def lay_turned_street(draft: Draft) -> bool:
    """Signs that stand askew, some straight ones with a thing beside them, and a few things."""
    assert isinstance(draft, WideDraft)
    room = min(8.0, max(2.0, 5 * draft.width * draft.height / 262144))
    for _ in range(draft.between(1, room)):
        if draft.rng.random() < 0.7:
            add_turned_sign(draft)
        else:
            add_sign(draft, beside=draft.rng.random() < 0.5)
    scatter(draft, draft.between(1, room))
    return bool(draft.signs)
