"""Questions about things: each asker reads a draft and returns one question, or None when none is clear."""

from collections import Counter

from arr_coc_scenes.draft import Draft
from arr_coc_scenes.splits import pair_allowed
from arr_coc_scenes.types import Box, Element, Question, centre
from arr_coc_scenes.words import MOST, RELATIONS, SIZES, THINGS, noun, phrase, plural, with_article

_CLEARER = 1.4  # how much farther, or smaller, the next candidate must be
_LONGEST_LIST = 10  # things in a description


def boxes(elements: list[Element]) -> tuple[Box, ...]:
    """The boxes of some elements."""
    return tuple(e.box for e in elements)


def _others(draft: Draft, used: list[Element]) -> tuple[Box, ...]:
    """Boxes of the things that are not `used`."""
    boxes_used = {e.box for e in used}
    return tuple(t.box for t in draft.things if t.box not in boxes_used)


def call(draft: Draft, thing: Element) -> str | None:
    """The shortest phrase that names only this thing, "star" or "red star"; None if there is none."""
    alike = [t for t in draft.things if t.name == thing.name]
    if len(alike) == 1:
        return noun(thing.name)
    if sum(t.colour == thing.colour for t in alike) == 1:
        return f"{thing.colour} {noun(thing.name)}"
    return None


def ask_colour(draft: Draft) -> Question | None:
    """As in "What colour is the star?": of a thing that is the only one of its name."""
    counts = Counter(t.name for t in draft.things)
    single = [t for t in draft.things if counts[t.name] == 1]
    if not single:
        return None
    thing = draft.rng.choice(single)
    text = phrase(draft.rng, draft.wording, "colour", x=noun(thing.name))
    return Question(text, thing.colour, "colour", (thing.box,), _others(draft, [thing]))


def ask_thing(draft: Draft) -> Question | None:
    """As in "What is the red thing?": where one thing and nothing else has the colour."""
    counts = Counter(t.colour for t in draft.things)
    taken = draft.other_colours()
    single = [t for t in draft.things if counts[t.colour] == 1 and t.colour not in taken]
    if not single:
        return None
    thing = draft.rng.choice(single)
    text = phrase(draft.rng, draft.wording, "thing", c=thing.colour)
    return Question(text, thing.name, "thing", (thing.box,), _others(draft, [thing]))


def _groups(draft: Draft) -> dict[str, list[Element]]:
    """Countable groups by the plural that names them: stars, red things, red stars, things."""
    groups: dict[str, list[Element]] = {}
    taken = draft.other_colours()
    for thing in draft.things:
        groups.setdefault(plural(thing.name), []).append(thing)
        groups.setdefault(f"{thing.colour} {plural(thing.name)}", []).append(thing)
        if thing.colour not in taken:
            groups.setdefault(f"{thing.colour} things", []).append(thing)
        if not draft.signs and not draft.bars:
            groups.setdefault("things", []).append(thing)
    return groups


def ask_count(draft: Draft) -> Question | None:
    """As in "How many stars are there?": large groups first, so that 1 is no good guess; rarely none."""
    rng = draft.rng
    groups = {said: members for said, members in _groups(draft).items() if len(members) <= 9}
    if not groups:
        return None
    if draft.may_count_none and rng.random() < 0.3:
        wording, present = draft.wording, {t.name for t in draft.things}
        absent = plural(rng.choice([t for t in THINGS if t not in present]))
        return Question(phrase(rng, wording, "count", p=absent), "0", "count", (), boxes(draft.things))
    # Small groups are in every scene, large ones in few: large ones are asked for when they are there.
    sizes = sorted({len(m) for m in groups.values()})
    number = rng.choices(sizes, [min(s, 6) ** 2 for s in sizes])[0]
    said = rng.choice(sorted(s for s, m in groups.items() if len(m) == number))
    if number == 1 and rng.random() < 0.7:
        return None
    members = groups[said]
    text = phrase(rng, draft.wording, "count", p=said)
    return Question(text, str(number), "count", boxes(members), _others(draft, members))


def _absent(draft: Draft, with_colour: bool) -> tuple[str, str] | None:
    """A (colour, thing) that is not there; with the colour, mostly one whose thing is there in another."""
    rng = draft.rng
    names = {t.name for t in draft.things}
    here = {(t.colour, t.name) for t in draft.things}
    for _ in range(20):
        known = with_colour and rng.random() < 0.6
        name = rng.choice(sorted(names) if known else THINGS)
        pair = rng.choice(draft.colours), name
        missing = pair not in here if with_colour else name not in names
        if missing and pair_allowed(draft.split, *pair):
            return pair
    return None


def ask_exists(draft: Draft) -> Question | None:
    """As in "Is there a red star?": yes or no by the toss of a coin, whatever the wording."""
    rng = draft.rng
    if not draft.things:
        return None
    yes, with_colour = rng.random() < 0.5, rng.random() < 0.6
    thing = rng.choice(draft.things)
    pair = (thing.colour, thing.name) if yes else _absent(draft, with_colour)
    if pair is None:
        return None
    said = f"{pair[0]} {noun(pair[1])}" if with_colour else noun(pair[1])
    found = [t for t in draft.things if t.name == pair[1] and (t.colour == pair[0] or not with_colour)]
    assert bool(found) == yes
    text = phrase(rng, draft.wording, "exists", a=with_article(said))
    return Question(text, "yes" if yes else "no", "exists", boxes(found), _others(draft, found))


def _along(anchor: Element, other: Element, way: str) -> tuple[float, float]:
    """(distance in the direction `way`, distance across it) from anchor to other, centre to centre."""
    (ax, ay), (ox, oy) = centre(anchor.box), centre(other.box)
    dx, dy = ox - ax, oy - ay
    return {"left": (-dx, abs(dy)), "right": (dx, abs(dy)), "above": (-dy, abs(dx)), "below": (dy, abs(dx))}[way]


def find_related(things: list[Element], anchor: Element, way: str, texts: list[Element]) -> Element | None:
    """The one thing that is `way` ("left" ... "nearest") of the anchor; None if that is not clear, or is a text."""
    rest = [t for t in (*things, *texts) if t is not anchor]
    ways = {id(t): (0.0, 0.0) if way == "nearest" else _along(anchor, t, way) for t in rest}
    ax, ay = centre(anchor.box)

    def far(t: Element) -> float:
        x, y = centre(t.box)
        return float(((x - ax) ** 2 + (y - ay) ** 2) ** 0.5)

    if way != "nearest":
        rest = [t for t in rest if ways[id(t)][0] > 0 and ways[id(t)][1] <= 1.3 * ways[id(t)][0]]
    rest.sort(key=far)
    if not rest or (len(rest) > 1 and far(rest[1]) < _CLEARER * far(rest[0])):
        return None
    along, across = ways[id(rest[0])]
    return None if across > 0.55 * along or rest[0].kind == "text" else rest[0]


def ask_spatial(draft: Draft) -> Question | None:
    """As in "What is left of the star?": anchor and answer are the evidence."""
    rng = draft.rng
    if len(draft.things) < 2:
        return None
    texts = [e for e in draft.elements if e.kind == "text"]
    named = [(t, said) for t in draft.things if (said := call(draft, t))]
    for _ in range(6):
        picked, way = rng.choice(named) if named else None, rng.choice(tuple(RELATIONS))
        if picked is None:
            return None
        anchor, said = picked
        found = find_related(draft.things, anchor, way, texts)
        # The answer must not repeat the question: a star near a star says nothing.
        if found is not None and found.name != anchor.name:
            text = phrase(rng, draft.wording, "spatial", r=rng.choice(RELATIONS[way]), x=said)
            used = [anchor, found]
            return Question(text, found.name, "spatial", boxes(used), _others(draft, used))
    return None


def clearly_larger(a: Element, b: Element) -> bool:
    """Whether `a` is larger than `b` for everybody: 1.4 times in height and in area."""
    height_a, height_b = a.box[3] - a.box[1], b.box[3] - b.box[1]
    width_a, width_b = a.box[2] - a.box[0], b.box[2] - b.box[0]
    return height_a >= _CLEARER * height_b and height_a * width_a >= _CLEARER * height_b * width_b


def _ask_largest(draft: Draft) -> Question | None:
    most = draft.rng.random() < 0.6
    for thing in draft.things:
        rest = [t for t in draft.things if t is not thing]
        if all(clearly_larger(thing, t) if most else clearly_larger(t, thing) for t in rest):
            text = phrase(draft.rng, draft.wording, "largest", s=draft.rng.choice(MOST[most]))
            # All others must be looked at to compare, the answer is on one of them.
            return Question(text, thing.name, "larger", boxes([thing, *rest]), ())
    return None


def ask_larger(draft: Draft) -> Question | None:
    """The largest thing of all; more rarely the larger of two (a guess would be half right)."""
    rng = draft.rng
    if len(draft.things) < 2:
        return None
    if len(draft.things) > 2:
        asked = _ask_largest(draft)
        if asked is not None and rng.random() < 0.8:
            return asked
    if rng.random() < 0.6:
        return None
    for _ in range(8):
        a, b = rng.sample(draft.things, 2)
        said_a, said_b = call(draft, a), call(draft, b)
        if not said_a or not said_b or a.name == b.name or not (clearly_larger(a, b) or clearly_larger(b, a)):
            continue
        larger = rng.random() < 0.5
        right = a if clearly_larger(a, b) == larger else b
        text = phrase(rng, draft.wording, "larger", s=rng.choice(SIZES[larger]), x=said_a, y=said_b)
        return Question(text, right.name, "larger", (a.box, b.box), _others(draft, [a, b]))
    return None


def ask_odd(draft: Draft) -> Question | None:
    """As in "What is unusual here?": one answer like "red star"; the evidence is the odd one."""
    if draft.odd is None:
        return None
    text = phrase(draft.rng, draft.wording, "odd_one_out")
    answer = f"{draft.odd.colour} {draft.odd.name}"
    return Question(text, answer, "odd_one_out", (draft.odd.box,), _others(draft, [draft.odd]))


def ask_describe(draft: Draft) -> Question | None:
    """As in "Describe the scene.": every thing with its colour, where there are few enough.

    As one reads: four bands from top to bottom, inside a band from left to right.
    """
    if not 0 < len(draft.things) <= _LONGEST_LIST:
        return None
    listed = sorted(draft.things, key=lambda t: (int(centre(t.box)[1] // (draft.height / 4)), t.box[0]))
    answer = ", ".join(f"{t.colour} {t.name}" for t in listed)
    text = phrase(draft.rng, draft.wording, "describe")
    return Question(text, answer, "describe", boxes(listed), tuple(s.box for s in draft.signs))
