"""Seed -> clip: a ground, a cast of things and signs with their parts, the frames, and what is asked about them.

    clip = make_clip(7, "train", CLIP_FORMS[0])
    clip.pictures                                 # frames, uint8 [H, W, 3]
    clip.questions[0].evidence                    # ((frame, box), ...)

What is not always there or moves is drawn anew in every frame, everything else once.
"""

from random import Random

import numpy as np

from arr_coc_scenes.types import Element
from studies.mini.styles import practice_style
from studies.mini.views import Form, ShownViews
from studies.wide.acting import APPEARS, BLINKS, LEAVES, MOVES, STAYS, Actor, add_actor
from studies.wide.capture import capture
from studies.wide.clip_questions import ask_clip
from studies.wide.draft import WideDraft
from studies.wide.grounds import paint_ground
from studies.wide.held_out import SPLITS
from studies.wide.looks import Look, choose_look
from studies.wide.sprites import paint

# (width, height) and frames; each of about as many visual tokens as an image of 512 px, or fewer.
CLIP_FORMS = (
    Form(((256, 256),), 4),
    Form(((256, 256),), 8),
    Form(((192, 192),), 8),
    Form(((224, 160),), 12),
    Form(((160, 160),), 16),
    Form(((160, 128),), 24),
    Form(((128, 128),), 32),
)
# Kinds of clips by weight: the roles of those who must be there, and how many others may join them. In training those
# with movers are twice as likely: directions are learned last.
PLOTS: tuple[tuple[float, tuple[str, ...], int], ...] = (
    (2.0, (MOVES,), 3),
    (1.5, (MOVES, MOVES), 2),
    (1.5, (APPEARS, APPEARS), 2),
    (1.0, (APPEARS, APPEARS, APPEARS), 1),
    (0.8, (LEAVES, LEAVES), 2),
    (1.0, (APPEARS, LEAVES), 2),
    (1.5, (BLINKS,), 2),
    (1.0, (BLINKS, BLINKS), 1),
)
OTHERS = (STAYS, STAYS, STAYS, MOVES, APPEARS, LEAVES, BLINKS)
SIGN_SHARE = 0.5  # of clips in which one of the cast is a sign
SIGN_SIDE = 128  # px of the shorter side under which letters would not fit
DEAR = ("jpeg", "phone", "soft")  # captures that take a millisecond a frame: for short clips alone
_ATTEMPTS = 40


def _attempt(rng: Random, split: str, form: Form) -> tuple[WideDraft, list[Actor]] | None:
    """A draft with its cast; None where the one that the plot needs found no room."""
    size = form.sizes[0]
    look = choose_look(rng, split, hard=False, side=min(size))
    style = practice_style(mirrored=False, rephrased=0.0)
    draft = WideDraft(rng, "seen" if split == "pairs" else "val", *size, False, 1.0, style=style, look=look, alike=True)
    if len(draft.colours) < 5:
        return None
    practised = MOVES if split == "train" else None
    weights = [weight * (1 + (practised in roles)) for weight, roles, _ in PLOTS]
    _, needed, most = rng.choices(PLOTS, weights)[0]
    cast: list[Actor] = []
    taken: set[int] = set()
    sign_at = rng.randrange(len(needed)) if min(size) >= SIGN_SIDE and rng.random() < SIGN_SHARE else -1
    for number, role in enumerate(needed):
        if not add_actor(draft, role, form.frames, number == sign_at, cast, taken):
            return None
    for _ in range(rng.randint(0 if len(cast) > 1 else 1, most)):
        add_actor(draft, rng.choice(OTHERS), form.frames, False, cast, taken)
    return draft, cast


def _frames(rng: Random, look: Look, form: Form, cast: list[Actor]) -> list[np.ndarray]:
    """The pictures: what never changes is drawn once."""
    still = [actor for actor in cast if len(set(actor.path)) == 1]
    base = paint_ground(rng, look.ground, form.sizes[0], look.low, look.high)
    for actor in still:
        for sprite in actor.drawn(0):
            paint(base, sprite)
    kind = "clean" if look.capture in DEAR and form.frames > 8 else look.capture
    seed, pictures = rng.randrange(2**30), []
    for frame in range(form.frames):
        canvas = base.copy()
        for actor in cast:
            for sprite in actor.drawn(frame) if actor not in still else ():
                paint(canvas, sprite)
        fine = any(0 < actor.element.px < 16 for actor in cast if actor.is_sign)
        # Light, lines and softness belong to the camera, grain to the moment.
        pictures.append(capture(canvas, kind, Random(seed + frame * (kind == "grain")), fine))
    return pictures


def _elements(cast: list[Actor], frame: int) -> tuple[Element, ...]:
    return tuple(element for actor in cast if (element := actor.shown(frame)) is not None)


def make_clip(seed: int, split: str, form: Form) -> ShownViews:
    """Clip number `seed` of a split of the wide world (`held_out.SPLITS`; "layouts" has nothing of its own here)."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: use one of {', '.join(SPLITS)}")
    if form.frames < 4 or form.frames % 2 or len(form.sizes) != 1:
        raise ValueError(
            f"a clip of {form.frames} frames of {len(form.sizes)} sizes: use an even number from 4, one size"
        )
    for attempt in range(_ATTEMPTS):
        rng = Random(f"clip/{split}/{seed}/{attempt}")
        made = _attempt(rng, split, form)
        if made is None:
            continue
        draft, cast = made
        questions = ask_clip(rng, cast, form.frames, held_wordings=draft.chosen.held_wordings)
        elements = tuple(_elements(cast, frame) for frame in range(form.frames))
        pictures = tuple(_frames(rng, draft.chosen, form, cast))
        return ShownViews(form, pictures, elements, tuple(questions))
    raise ValueError(f"no clip of {form} was found: use larger frames")
