"""Seed -> several images in one prompt, and what is asked about them together and about each.

    shown = make_several(7, "train", SEVERAL_FORMS[0])

Mostly the images are scenes of their own. Where all have one size they may also be copies of one scene in which a thing
is gone or has another colour: what differs?
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from random import Random

import numpy as np

from arr_coc_scenes.palette import jittered
from arr_coc_scenes.splits import pair_allowed
from arr_coc_scenes.types import Box, Element, Question
from arr_coc_scenes.words import COLOURS, THINGS, noun, with_article
from studies.mini.views import Form, ShownViews, ViewQuestion
from studies.wide.clip_words import ORDINALS, SEVERAL_WORDINGS
from studies.wide.held_out import SPLITS
from studies.wide.making import Wide, make_wide
from studies.wide.wording import reworded

# (width, height) in px; together about as many visual tokens as one image of 512 px.
SEVERAL_FORMS = (
    Form(((384, 384), (384, 384))),
    Form(((320, 320), (320, 320))),
    Form(((448, 320), (288, 320))),
    Form(((384, 256), (256, 384), (256, 256))),
    Form(((288, 288), (288, 288), (288, 288))),
    Form(((256, 256), (256, 256), (256, 256), (256, 256))),
)
COPIES, PRACTISED_COPIES = 0.35, 0.55  # share of rows of one size that show a scene and its changed copies; in training
OWN = 3  # questions about each image alone, at most
REWORDED = 0.4
PAGES = {
    "chart": ("chart", "line", "lying_bars", "pie", "bar_list", "side_chart"),
    "table": ("table", "turned_table", "wide_table"),
    "receipt": ("receipt", "bill"),
}
_ASKING = ("What", "Which", "How", "Is", "Do", "Does", "Can", "Tell", "Name", "Count", "Read", "Where", "Say", "Show")
_SEEDS = 5_000_011  # apart, so that the images of a row are no neighbours
Say = Callable[..., str]
Pair = tuple[str, str]  # colour ("": any), thing


def make_several(seed: int, split: str, form: Form) -> ShownViews:
    """Row number `seed` of a split of the wide world (`held_out.SPLITS`)."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: use one of {', '.join(SPLITS)}")
    if not 2 <= len(form.sizes) <= len(ORDINALS) or form.frames:
        raise ValueError(f"{len(form.sizes)} images: use 2 to {len(ORDINALS)}")
    rng = Random(f"several/{split}/{seed}")
    held = split == "wordings"

    def say(key: str, **slots: str) -> str:
        return rng.choice(SEVERAL_WORDINGS[key][held]).format(**slots)

    copies = PRACTISED_COPIES if split == "train" else COPIES
    if len(set(form.sizes)) == 1 and split != "layouts" and rng.random() < copies:
        shown = _copies(rng, say, seed, split, form)
    else:
        shown = _scenes(rng, say, seed, split, form)
    said = tuple(_said(rng, question) for question in shown.questions)
    return shown if held else replace(shown, questions=said)


def _said(rng: Random, question: ViewQuestion) -> ViewQuestion:
    return reworded(question, rng) if rng.random() < REWORDED else question


def _which(number: int) -> str:
    return f"the {ORDINALS[number]} image"


# ---- scenes of their own ---------------------------------------------------------------------------------


def _scenes(rng: Random, say: Say, seed: int, split: str, form: Form) -> ShownViews:
    wides = [make_wide(seed + number * _SEEDS, split, size) for number, size in enumerate(form.sizes)]
    questions = [*_about_things(rng, say, wides), *_about_texts(rng, say, wides)]
    for number, wide in enumerate(wides):
        own = rng.sample(wide.scene.questions, min(OWN, len(wide.scene.questions)))
        questions += [own_question(say, number, question) for question in own]
    pictures, elements = tuple(wide.pixels for wide in wides), tuple(wide.scene.elements for wide in wides)
    return ShownViews(form, pictures, elements, tuple(questions))


def own_question(say: Say, number: int, question: Question) -> ViewQuestion:
    """A question about one image as one about image `number` of several."""
    ordinal, text = ORDINALS[number], question.text
    for word in ("image", "picture", "photo"):
        if f"the {word}" in text:
            text = text.replace(f"the {word}", f"the {ordinal} {word}")
            break
    else:
        asks = text.split(" ")[0] in _ASKING
        small = text[0].lower() + text[1:] if asks else text
        text = say("own", o=ordinal, q=small, Q=text)
    return ViewQuestion(text, question.answer, question.family, tuple((number, box) for box in question.evidence))


def _found(wides: Sequence[Wide], pair: Pair) -> list[tuple[int, Box]]:
    """Where things of a name, and of a colour if one is given, are."""
    inside = [(number, element) for number, wide in enumerate(wides) for element in wide.scene.elements]
    return [(number, element.box) for number, element in inside if _is(element, pair)]


def _is(element: Element, pair: Pair) -> bool:
    return element.name == pair[1] and pair[0] in ("", element.colour)


def _called(pair: Pair) -> str:
    return with_article(f"{pair[0]} {noun(pair[1])}".strip())


def _about_things(rng: Random, say: Say, wides: Sequence[Wide]) -> list[ViewQuestion]:
    """Which image has it, how many have it, do both."""
    things = [e for wide in wides for e in wide.scene.elements if e.name]
    able = sorted({("", e.name) for e in things} | {(e.colour, e.name) for e in things})
    found = []
    for pair in rng.sample(able, min(6, len(able))):
        where = tuple(_found(wides, pair))
        images = sorted({number for number, _ in where})
        if len(images) == 1 and rng.random() < 0.75:
            found.append(ViewQuestion(say("which", a=_called(pair)), _which(images[0]), "which image", where))
        elif len(wides) == 2 and rng.random() < 0.4:
            answer = "yes" if len(images) == 2 else "no"
            found.append(ViewQuestion(say("both", a=_called(pair)), answer, "both", where))
        else:
            found.append(ViewQuestion(say("images", a=_called(pair)), str(len(images)), "how many images", where))
    if rng.random() < 0.3:
        missing = ("", rng.choice([name for name in THINGS if ("", name) not in able]))
        key, answer = rng.choice((("which", "none"), ("images", "0")))
        family = {"which": "which image", "images": "how many images"}[key]
        found.append(ViewQuestion(say(key, a=_called(missing)), answer, family, ()))
    return found


def _about_texts(rng: Random, say: Say, wides: Sequence[Wide]) -> list[ViewQuestion]:
    """Which image says a word, which one shows a chart, a table, a receipt."""
    found = []
    signs = [(number, sign.text.text) for number, wide in enumerate(wides) for sign in wide.draft.signs]
    for number, text in rng.sample(signs, min(2, len(signs))):
        words = [(n, e) for n, w in enumerate(wides) for e in w.scene.elements if e.text == text]
        if {n for n, _ in words} == {number}:
            where = tuple((n, element.box) for n, element in words)
            found.append(ViewQuestion(say("says", s=text), _which(number), "which image", where))
    for page, layouts in PAGES.items():
        showing = [number for number, wide in enumerate(wides) if wide.scene.layout in layouts]
        if len(showing) == 1:
            boxes = tuple((showing[0], e.box) for e in wides[showing[0]].scene.elements if e.text)
            found.append(ViewQuestion(say("page", a=f"a {page}"), _which(showing[0]), "which image", boxes))
    return found


# ---- copies of one scene ---------------------------------------------------------------------------------


def _copies(rng: Random, say: Say, seed: int, split: str, form: Form) -> ShownViews:
    """One scene in every image, but one thing is gone or of another colour in one of them."""
    wide = make_wide(seed, split, form.sizes[0], families=("colour", "thing", "count", "exists"))
    things = [n for n, e in enumerate(wide.scene.elements) if e.name]
    names = [wide.scene.elements[n].name for n in things]
    alone = [n for n in things if names.count(wide.scene.elements[n].name) == 1]
    if not alone:
        return _scenes(rng, say, seed, split, form)
    number, odd = rng.choice(alone), rng.randrange(len(form.sizes))
    element = wide.scene.elements[number]
    other = rng.choice([c for c in wide.draft.colours if c != element.colour])
    gone = rng.random() < 0.5 or not (split == "pairs" or pair_allowed("val", other, element.name))
    changed, changed_elements = _without(wide, number) if gone else _recoloured(rng, wide, number, other)
    same = wide.pixels
    pictures = tuple(changed if n == odd else same for n in range(len(form.sizes)))
    elements = tuple(changed_elements if n == odd else wide.scene.elements for n in range(len(form.sizes)))
    where = tuple((n, element.box) for n in range(len(form.sizes)))
    questions = [ViewQuestion(say("differs"), element.name, "differs", where)]
    if gone:
        questions.append(ViewQuestion(say("missing", o=ORDINALS[odd]), element.name, "differs", where))
    else:
        questions.append(ViewQuestion(say("recoloured", o=ORDINALS[odd]), element.name, "differs", where))
        for n in range(len(form.sizes)):
            ask = Question(f"What colour is the {noun(element.name)}?", "", "colour", (element.box,), ())
            ask = replace(ask, answer=other if n == odd else element.colour)
            questions.append(own_question(say, n, ask))
    if len(form.sizes) > 2:
        questions.append(ViewQuestion(say("odd"), _which(odd), "differs", where))
    for pair in ((element.colour, element.name), ("", rng.choice(names))):
        found = [(n, e.box) for n, inside in enumerate(elements) for e in inside if _is(e, pair)]
        images = len({n for n, _ in found})
        key, answer, family = "images", str(images), "how many images"
        if len(form.sizes) == 2 and rng.random() < 0.5:
            key, answer, family = "both", "yes" if images == 2 else "no", "both"
        questions.append(ViewQuestion(say(key, a=_called(pair)), answer, family, tuple(found)))
    for question in rng.sample(wide.scene.questions, min(2, len(wide.scene.questions))):
        n = rng.choice([n for n in range(len(form.sizes)) if n != odd])
        questions.append(own_question(say, n, question))
    return ShownViews(form, pictures, elements, tuple(questions))


def _without(wide: Wide, number: int) -> tuple[np.ndarray, tuple[Element, ...]]:
    """The scene without one of its things, its rim and its shadow."""
    bare = _changed(wide, number)
    bare.sprites[number] = []
    return bare.pixels, tuple(e for n, e in enumerate(wide.scene.elements) if n != number)


def _recoloured(rng: Random, wide: Wide, number: int, colour: str) -> tuple[np.ndarray, tuple[Element, ...]]:
    """The scene with one of its things in another colour."""
    other, ink = _changed(wide, -1), jittered(rng, COLOURS[colour])
    other.sprites[number] = [replace(sprite, ink=ink, low_ink=None) for sprite in wide.sprites[number]]
    old = wide.scene.elements
    return other.pixels, (*old[:number], replace(old[number], colour=colour, ink=ink), *old[number + 1 :])


def _changed(wide: Wide, number: int) -> Wide:
    """A copy to be changed; without what lies under the sprites of an element (-1: with everything)."""
    boxes = [sprite.box for sprite in wide.sprites[number]] if number >= 0 else []
    draft = copy(wide.draft)
    draft.under = [sprite for sprite in draft.under if not any(_about(sprite.box, box) for box in boxes)]
    return replace(wide, sprites=list(wide.sprites), draft=draft)


def _about(box: Box, other: Box) -> bool:
    """Whether a box is another one with a rim, or moved as its shadow."""
    return all(abs(a - b) <= 14 for a, b in zip(box, other, strict=True))
