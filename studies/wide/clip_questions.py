"""What is asked about a clip: what moves, where to, what comes and goes, in which order, how often, what a sign says.

A question is asked only where its answer is one: "What moves?" where one actor does. Order and direction can only be
told from time: `TIMED` names the families that frames in another order must break.
"""

from collections.abc import Callable, Sequence
from random import Random

from arr_coc_scenes.types import Box
from arr_coc_scenes.words import THINGS, noun, with_article
from studies.mini.views import ViewQuestion
from studies.wide.acting import APPEARS, BLINKS, LEAVES, MOVES, STAYS, Actor
from studies.wide.clip_words import CLIP_WORDINGS
from studies.wide.wording import reworded

TIMED = ("direction", "order", "comes or goes")
STORY = "story"  # a list of all that happens, for training alone
_STORY_SHARE = 0.3
REWORDED = 0.4  # share of questions with other spelling, capitals, synonyms
_VERBS = {APPEARS: "appears", LEAVES: "leaves", BLINKS: "blinks", STAYS: "stays"}

Say = Callable[..., str]
Evidence = tuple[tuple[int, Box], ...]


def called(actor: Actor) -> str:
    """How a question calls an actor."""
    return "sign" if actor.is_sign else noun(actor.element.name)


def named(actor: Actor) -> str:
    """How an answer calls an actor."""
    return "sign" if actor.is_sign else actor.element.name


def seen_in(*actors: Actor) -> Evidence:
    """The boxes of actors in all frames in which they are there."""
    frames = range(len(actors[0].path))
    boxes = ((frame, actor.box(frame)) for frame in frames for actor in actors)
    return tuple((frame, box) for frame, box in boxes if box is not None)


def ask_clip(rng: Random, cast: Sequence[Actor], frames: int, held_wordings: bool = False) -> list[ViewQuestion]:
    """All questions about a clip, each in one wording."""

    def say(key: str, **slots: str) -> str:
        return rng.choice(CLIP_WORDINGS[key][held_wordings]).format(**slots)

    found = [*_of_motion(say, rng, cast), *_of_coming(say, rng, cast), *_of_order(say, rng, cast)]
    found += [*_of_number(say, rng, cast, frames), *_of_looks(say, rng, cast)]
    if rng.random() < _STORY_SHARE and not held_wordings:
        found.append(_story(say, cast))
    return [
        reworded(question, rng) if rng.random() < REWORDED and not held_wordings else question for question in found
    ]


def _playing(cast: Sequence[Actor], role: str) -> list[Actor]:
    return [actor for actor in cast if actor.part.role == role]


def _of_motion(say: Say, rng: Random, cast: Sequence[Actor]) -> list[ViewQuestion]:
    movers, stays = _playing(cast, MOVES), _playing(cast, STAYS)
    found = []
    for mover in movers:
        text = say("direction", x=called(mover))
        found.append(ViewQuestion(text, mover.part.way, "direction", seen_in(mover)))
        if mover.is_sign:
            found.append(ViewQuestion(say("moving_sign"), mover.element.text, "moving sign", seen_in(mover)))
    if len(movers) == 1:
        found.append(ViewQuestion(say("moves"), named(movers[0]), "moves", seen_in(*movers)))
        text = say("way")
        found.append(ViewQuestion(text, movers[0].part.way, "direction", seen_in(*movers)))
        if not movers[0].is_sign:
            found.append(ViewQuestion(say("moving_colour"), movers[0].element.colour, "moves", seen_in(*movers)))
    elif len(movers) > 1:
        mover = rng.choice(movers)
        if [other.part.way for other in movers].count(mover.part.way) == 1:
            text = say("who_goes", w=mover.part.way)
            found.append(ViewQuestion(text, named(mover), "direction", seen_in(*movers)))
    if len(stays) == 1 and len(stays) + len(movers) == len(cast):
        found.append(ViewQuestion(say("stays"), named(stays[0]), "moves", seen_in(*cast)))
    return found


def _of_coming(say: Say, rng: Random, cast: Sequence[Actor]) -> list[ViewQuestion]:
    found = []
    blinkers = _playing(cast, BLINKS)
    for role in (APPEARS, LEAVES):
        playing = _playing(cast, role)
        if len(playing) == 1 and not blinkers:
            found.append(ViewQuestion(say(role), named(playing[0]), "comes or goes", seen_in(*playing)))
    changing = [actor for actor in cast if actor.part.role in (APPEARS, LEAVES)]
    if changing and not blinkers:
        actor = rng.choice(changing)
        text = say("comes_or_goes", x=called(actor))
        found.append(ViewQuestion(text, _VERBS[actor.part.role], "comes or goes", seen_in(actor)))
    if len(blinkers) == 1:
        found.append(ViewQuestion(say("blinks"), named(blinkers[0]), "often", seen_in(*blinkers)))
    return found


def _of_order(say: Say, rng: Random, cast: Sequence[Actor]) -> list[ViewQuestion]:
    found = []
    blinkers = _playing(cast, BLINKS)
    for role in (APPEARS, LEAVES):
        playing = sorted(_playing(cast, role), key=lambda actor: sum(actor.part.there) * (1 if role == LEAVES else -1))
        if len(playing) < 2:
            continue
        evidence = seen_in(*playing)
        two = rng.sample(playing, 2)
        first = rng.random() < 0.5
        chosen = [actor for actor in playing if actor in two][0 if first else 1]
        text = say(f"which_{role}", x=called(two[0]), y=called(two[1]), o="first" if first else "last")
        found.append(ViewQuestion(text, named(chosen), "order", seen_in(*two)))
        if blinkers:
            continue
        place = rng.choice(("first", "last"))
        text = say(f"order_{role}", o=place)
        found.append(ViewQuestion(text, named(playing[0 if place == "first" else -1]), "order", evidence))
        number = rng.randrange(len(playing) - 1)
        text = say(f"after_{role}", x=called(playing[number]))
        found.append(ViewQuestion(text, named(playing[number + 1]), "order", evidence))
        text = say(f"list_{role}")
        found.append(ViewQuestion(text, ", ".join(named(actor) for actor in playing), "order", evidence))
    return found


def _of_number(say: Say, rng: Random, cast: Sequence[Actor], frames: int) -> list[ViewQuestion]:
    found = [
        ViewQuestion(say("often", x=called(actor)), str(actor.part.times), "often", seen_in(actor))
        for actor in _playing(cast, BLINKS)
    ]
    frame, key = rng.choice(((0, "count_start"), (frames - 1, "count_end")))
    evidence = tuple((frame, box) for actor in cast if not actor.is_sign and (box := actor.box(frame)) is not None)
    found.append(ViewQuestion(say(key), str(len(evidence)), "count", evidence))
    return found


def _of_looks(say: Say, rng: Random, cast: Sequence[Actor]) -> list[ViewQuestion]:
    """Questions that need no time."""
    signs, things = ([actor for actor in cast if actor.is_sign is kind] for kind in (True, False))
    found = [ViewQuestion(say("sign"), sign.element.text, "sign", seen_in(sign)) for sign in signs]
    if things:
        actor = rng.choice(things)
        found.append(ViewQuestion(say("colour", x=called(actor)), actor.element.colour, "colour", seen_in(actor)))
        alone = [a for a in things if [b.element.colour for b in things].count(a.element.colour) == 1]
        if alone and len(things) == len(cast):
            actor = rng.choice(alone)
            found.append(ViewQuestion(say("thing", c=actor.element.colour), named(actor), "thing", seen_in(actor)))
    names = [actor.element.name for actor in things]
    if names and rng.random() < 0.5:
        actor = rng.choice(things)
        text = say("exists", a=with_article(called(actor)))
        found.append(ViewQuestion(text, "yes", "exists", seen_in(actor)))
    else:
        missing = rng.choice([name for name in THINGS if name not in names])
        found.append(ViewQuestion(say("exists", a=with_article(noun(missing))), "no", "exists", ()))
    return found


def _story(say: Say, cast: Sequence[Actor]) -> ViewQuestion:
    """All that happens, in the order of first sight, then from left to right: "red star moves left, key appears"."""
    order = sorted(cast, key=lambda actor: (actor.part.first, (actor.path[actor.part.first] or (0, 0))[0]))
    told = []
    for actor in order:
        who = "sign" if actor.is_sign else f"{actor.element.colour} {actor.element.name}"
        told.append(f"{who} moves {actor.part.way}" if actor.part.way else f"{who} {_VERBS[actor.part.role]}")
    return ViewQuestion(say(STORY), ", ".join(told), STORY, seen_in(*cast))
