"""Layouts of signs: a street of them, a board, and grey text beside something bright."""

from arr_coc_scenes.draft import Draft, Sign
from arr_coc_scenes.layouts import FLATTEST, scatter
from arr_coc_scenes.masks import set_text, thing_mask
from arr_coc_scenes.palette import grey_tone, jittered, readable_colours, visible_colours
from arr_coc_scenes.splits import sign_word
from arr_coc_scenes.types import RGB, Element, around
from arr_coc_scenes.words import COLOURS


def _dress(draft: Draft, style: str) -> tuple[RGB | None, str, str, RGB]:
    """(plate tone or None, plate's colour word, ink's colour word, ink) for a style of sign."""
    rng = draft.rng
    if style == "coloured":
        # Black and white plates have no colour word: neutral plates look like them.
        plate = rng.choice([c for c in draft.colours if c not in ("black", "white")])
        tone = jittered(rng, COLOURS[plate])
        return tone, plate, *draft.neutral_ink(tone)
    if style == "neutral":
        light = rng.random() < 0.6
        tone = grey_tone(rng, 236, 252, 4) if light else grey_tone(rng, 18, 40, 4)
        draft.papers.add("white" if light else "black")
        word = rng.choice(readable_colours((tone,), draft.hard))
        return tone, "", word, jittered(rng, COLOURS[word])
    word = rng.choice(readable_colours((draft.background.low, draft.background.high), draft.hard))
    return None, "", word, jittered(rng, COLOURS[word])


def add_sign(draft: Draft, style: str | None = None, beside: bool = False, gap: int = 20) -> Sign | None:
    """Place a sign where there is room, with a thing at its side when `beside`; None when it does not fit."""
    rng = draft.rng
    style = style or rng.choice(("coloured", "neutral", "bare"))
    text, font, px = sign_word(rng, draft.split), draft.any_font(), draft.text_px()
    line = set_text(text, font, px)
    pad = rng.randint(px // 3, px // 2 + 4) if style != "bare" else 0
    plate_w, plate_h = line.width + 2 * pad, line.height + 2 * pad
    colour, name = draft.pick_pair()
    thing_px = max(16 if draft.hard else 24, 4 * (plate_h // 4)) if beside else 0
    thing_h, thing_w = thing_mask(name, thing_px).shape[:2] if beside else (0, 0)
    step = rng.randint(8, 12) if beside else 0
    at = draft.spot(plate_w + step + thing_w, max(plate_h, thing_h), gap)
    if at is None:
        return None
    thing_first = rng.random() < 0.5
    x = at[0] + (thing_w + step if beside and thing_first else 0)
    y = at[1] + (max(plate_h, thing_h) - plate_h) // 2
    tone, plate, word, ink = _dress(draft, style)
    box = (x, y, x + plate_w, y + plate_h)
    if tone is not None:
        draft.rect(box, tone)
        draft.taken.append(box)
    element = draft.put_text(text, font, px, x + pad, y + pad, word, ink)
    thing = None
    if beside:
        thing_x = at[0] if thing_first else at[0] + plate_w + step
        thing_y = at[1] + (max(plate_h, thing_h) - thing_h) // 2
        thing = draft.put_thing(colour, name, thing_px, thing_x, thing_y)
    sign = Sign(element, box, tone is not None, plate, thing)
    draft.signs.append(sign)
    return sign


def lay_street(draft: Draft) -> bool:
    """Several signs, some with a thing beside them, and a few things of their own."""
    room = min(8.0, max(2.0, 5 * draft.width * draft.height / 262144)) * (1.25 if draft.hard else 1.0)
    for _ in range(draft.between(1, room)):
        add_sign(draft, beside=draft.rng.random() < 0.45)
    scatter(draft, draft.between(1, room))
    return bool(draft.signs)


def lay_board(draft: Draft) -> bool:
    """One board with a column of words, each with a thing before it (unseen)."""
    rng, px = draft.rng, draft.text_px()
    pitch = round(px * 2.2)
    count = min(draft.between(2, 7), (draft.height - 24) // pitch)
    font, texts = draft.any_font(), [sign_word(rng, draft.split) for _ in range(count)]
    widest = max((set_text(t, font, px).width for t in texts), default=0)
    at = draft.spot(widest + pitch + 24, pitch * count + 12)
    if count < 1 or at is None:
        return False
    tone = draft.paper(at, dark=rng.random() < 0.4)
    inks = visible_colours((tone,), draft.hard)
    on_background, draft.colours = draft.colours, inks
    for k, text in enumerate(texts):
        y = at[1] + 8 + k * pitch
        pair, thing_px = draft.pick_pair(), 4 * int(pitch * 0.85 / FLATTEST / 4)
        line = y + pitch // 2
        tall = thing_mask(pair[1], thing_px).shape[0]
        thing = draft.put_thing(*pair, thing_px, at[0] + 8, line - tall // 2)
        word = rng.choice(readable_colours((tone,), draft.hard))
        ink = jittered(rng, COLOURS[word])
        top = line - set_text(text, font, px).height // 2
        element = draft.put_text(text, font, px, at[0] + 14 + pitch, top, word, ink)
        draft.signs.append(Sign(element, element.box, False, "", thing))
    draft.colours = on_background
    draft.taken.append(at)
    scatter(draft, draft.between(1, 4))
    return True


def _grey_text(draft: Draft, area: tuple[int, int, int, int] | None) -> Element | None:
    """A grey panel with text a few levels lighter or darker, somewhere in `area`."""
    rng = draft.rng
    text, font, px = sign_word(rng, draft.split), draft.any_font(), max(draft.text_px(), 16)
    line = set_text(text, font, px)
    pad_x, pad_y = rng.randint(12, 30), rng.randint(12, 24)
    panel = draft.spot(line.width + 2 * pad_x, line.height + 2 * pad_y, 8, area)
    if panel is None:
        return None
    level = rng.randint(88, 168)
    step = (rng.randint(28, 36) if draft.hard else rng.randint(38, 60)) * rng.choice((-1, 1))
    draft.rect(panel, (level, level, level))
    ink = (level + step, level + step, level + step)
    element = draft.put_text(text, font, px, panel[0] + pad_x, panel[1] + pad_y, "", ink)
    draft.taken.append(panel)
    return element


def lay_grey(draft: Draft, stacked: bool = False) -> bool:
    """Grey text on grey, bright signs and things around it; `stacked` above it, at the lower edge (unseen)."""
    top = draft.height * 2 // 3
    draft.grey = _grey_text(draft, (4, top, draft.width - 4, draft.height - 4) if stacked else None)
    if stacked:
        draft.taken.append((0, top - 6, draft.width, draft.height))
    for _ in range(draft.between(1, 4 if stacked else 3)):
        add_sign(draft, style="coloured", gap=10)
    scatter(draft, draft.between(1, 4 if stacked else 7 if draft.hard else 5))
    draft.loud = [s.box for s in draft.signs] + [t.box for t in draft.things]
    if draft.grey is None or not draft.loud:
        return False
    return not stacked or around(draft.loud)[3] <= draft.grey.box[1]
