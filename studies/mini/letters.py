"""Sheets of letters: training scenes that are full of text.

An ordinary scene shows some twenty characters, so letters come to be known last. A full sheet shows a hundred or so
on a small image, in every training font, at 14 to 36 px, on plates, bare, and grey on grey, and asks for words by
their colour or place as the scenes do. Words are those of the training split, fonts too unless a style says more.
"""

from functools import cache
from random import Random

from arr_coc_scenes.asking_texts import ask_grey_text, ask_read_sign
from arr_coc_scenes.draft import Draft, Sign
from arr_coc_scenes.masks import set_text
from arr_coc_scenes.palette import grey_tone, jittered, readable_colours
from arr_coc_scenes.splits import sign_word
from arr_coc_scenes.types import RGB, Question, Scene
from arr_coc_scenes.words import COLOURS, DAYS, GOODS, GOODS_COLUMNS, MONTHS, PEOPLE, PEOPLE_COLUMNS
from studies.mini.styles import PLAIN, PracticeDraft, Style

SPLIT = "train"
QUESTIONS = 8
FULL = 80  # words of a sheet at most
_LABELS = (
    *(word.capitalize() for word in (*GOODS, *PEOPLE, *GOODS_COLUMNS, *PEOPLE_COLUMNS)),
    *(word[:3] for word in (*MONTHS, *DAYS)),
    "Total",
    "Item",
    "Name",
)


def letter_sheet(seed: int, size: tuple[int, int], style: Style = PLAIN) -> Scene:
    """Sheet number `seed` in `size` (width, height) px: three in five full, the others with a few words."""
    rng = Random(f"letters {seed}")
    hard = rng.random() < 0.25
    draft = PracticeDraft(rng, SPLIT, *size, hard, 1.0, style=style)
    most = rng.randint(3, 8) if rng.random() < 0.4 else FULL
    spare = list(COLOURS)
    rng.shuffle(spare)
    bare = readable_colours((draft.background.low, draft.background.high), hard)
    tallest = rng.choice((16, 20, 26, 36))
    y = rng.randint(4, 12) if most == FULL else rng.randint(4, size[1] // 3)
    while y < size[1] - 14 and len(draft.signs) < most:
        px = rng.randint(14, tallest)
        _line(draft, y, px, spare, bare, most)
        y += round(px * rng.uniform(1.2, 1.8 if most == FULL else 3.5)) + 4
    return Scene(
        seed,
        SPLIT,
        *size,
        "letters",
        "hard" if hard else "plain",
        tuple(draft.elements),
        tuple(_questions(draft)),
        draft.background,
        tuple(draft.marks),
    )


def _line(draft: Draft, y: int, px: int, spare: list[str], bare: list[str], most: int) -> None:
    """Words from left to right at height `y`, until the line or the sheet is full."""
    rng = draft.rng
    x = rng.randint(4, 24 if most == FULL else max(24, draft.width // 2))
    while len(draft.signs) < most:
        text, font = _word(rng), draft.any_font()
        line = set_text(text, font, px)
        if x + line.width + 4 > draft.width or y + line.height + 4 > draft.height:
            return
        box = (x - 3, y - 3, x + line.width + 3, y + line.height + 3)
        tone, plate, word, ink = _dress(draft, spare, bare)
        if tone is not None:
            draft.rect(box, tone)
        element = draft.put_text(text, font, px, x, y, word, ink)
        if word:
            draft.signs.append(Sign(element, box, tone is not None, plate, None))
        else:
            draft.grey = element
        x += line.width + rng.randint(8, 20 if most == FULL else 90)


def _word(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.55:
        return sign_word(rng, SPLIT)
    if kind < 0.65:
        return f"{rng.randint(0, 60)}.{5 * rng.randint(0, 19):02d}"
    if kind < 0.8:
        return str(rng.randint(0, 199))
    return rng.choice(_LABELS)


def _readable(ground: RGB, draft: Draft) -> list[str]:
    """Ink for a plate that is nearly white or nearly black; the two tones stand for all, to save time."""
    tone = 244 if ground[0] > 128 else 29
    return _inks((tone, tone, tone), draft.hard)


@cache
def _inks(tone: RGB, hard: bool) -> list[str]:
    return readable_colours((tone,), hard)


def _dress(draft: Draft, spare: list[str], bare: list[str]) -> tuple[RGB | None, str, str, RGB]:
    """(plate tone or None, plate's colour word, ink's colour word, ink); colours from `spare` are used once."""
    rng = draft.rng
    way = rng.random()
    if way < 0.1 and draft.grey is None:
        level = rng.randint(88, 168)
        step = level + rng.randint(28, 60) * rng.choice((-1, 1))
        return (level, level, level), "", "", (step, step, step)
    ground: RGB | None = None
    if way < 0.4:
        ground = grey_tone(rng, 236, 252, 4) if rng.random() < 0.6 else grey_tone(rng, 18, 40, 4)
    elif way < 0.6 and spare and spare[-1] not in ("black", "white"):
        plate = spare.pop()
        ground = jittered(rng, COLOURS[plate])
        return ground, plate, *draft.neutral_ink(ground)
    able = _readable(ground, draft) if ground else bare
    free = [c for c in spare if c in able]
    word = free[0] if free and rng.random() < 0.6 else ""
    if word:
        spare.remove(word)
    else:
        plain = [c for c in ("black", "white") if c in able] or able or ["black"]
        word = rng.choice(plain)
    return ground, "", word, jittered(rng, COLOURS[word])


def _questions(draft: Draft) -> list[Question]:
    found: dict[str, Question] = {}
    if (grey := ask_grey_text(draft)) is not None:
        found[grey.answer] = grey
    for _ in range(12):
        if len(found) == QUESTIONS:
            break
        if (question := ask_read_sign(draft)) is not None:
            found.setdefault(question.answer, question)
    return list(found.values())
