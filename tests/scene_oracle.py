"""A second reader of scenes: takes a question's words apart and answers from the drawn elements alone.

It shares the names and phrasings with the package but none of the code that asks, so that both must err
alike to hide a wrong answer.
"""

import re
from collections import Counter
from collections.abc import Callable
from itertools import chain

from arr_coc_scenes import COLOURS, THINGS, Box, Element, Question, Scene
from arr_coc_scenes.words import MOST, PLACES, RELATIONS, SIZES, WORDINGS, noun, plural

KEYS = {
    "exists": ("exists", "exists_row"),
    "larger": ("larger", "largest"),
    "read_sign": ("read_text", "read_plate", "read_place", "read_beside"),
    "lookup": ("price", "value_of", "total", "which_costs", "which_has"),
    "chart": ("extreme", "bar_value", "which_bar"),
}
BY_NOUN = {noun(t): t for t in THINGS}
BY_PLURAL = {plural(t): t for t in THINGS}
Slots = dict[str, str]
# What a slot can hold where "anything" would cut a sentence in the wrong place.
HOLDS = {
    "c": "|".join(COLOURS),
    "r": "|".join(chain(*RELATIONS.values())),
    "w": "|".join(PLACES.values()),
    "s": "|".join((*chain(*SIZES.values()), *chain(*MOST.values()), "highest", "lowest")),
}


def readings(question: Question) -> list[tuple[str, Slots]]:
    """Every (key, slots) of the question's family whose phrasing gives exactly its text."""
    found = []
    for key in KEYS.get(question.family, (question.family,)):
        for template in chain(*(wordings[key] for wordings in WORDINGS.values())):
            parts = re.split(r"\{(\w)\}", template)
            pattern = "".join(f"(?P<{p}>{HOLDS.get(p, '.+?')})" if k % 2 else re.escape(p) for k, p in enumerate(parts))
            match = re.fullmatch(pattern, question.text)
            if match:
                found.append((key, match.groupdict()))
    return found


def things(scene: Scene) -> list[Element]:
    return [e for e in scene.elements if e.kind == "thing"]


def texts(scene: Scene) -> list[Element]:
    return [e for e in scene.elements if e.kind == "text"]


def at_box(scene: Scene, box: Box) -> Element:
    """The one element with exactly this box."""
    (element,) = [e for e in scene.elements if e.box == box]
    return element


def middle(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def named(scene: Scene, phrase: str, table: dict[str, str]) -> list[Element] | None:
    """The things a phrase such as "red star" or "stars" means; None when it is no such phrase."""
    colour, _, rest = phrase.partition(" ")
    colour, said = (colour, rest) if colour in COLOURS else ("", phrase)
    if said == "things":
        return [t for t in things(scene) if colour in ("", t.colour)]
    if said not in table:
        return None
    return [t for t in things(scene) if t.name == table[said] and colour in ("", t.colour)]


def one(scene: Scene, phrase: str) -> Element | None:
    """The only thing a phrase means; None when there is another one or none."""
    found = named(scene, phrase, BY_NOUN)
    return found[0] if found and len(found) == 1 else None


def check_colour(scene: Scene, q: Question, s: Slots) -> bool:
    thing = one(scene, s["x"])
    return thing is not None and thing.colour == q.answer and q.evidence == (thing.box,)


def check_thing(scene: Scene, q: Question, s: Slots) -> bool:
    worn = [e.name for e in scene.elements if e.colour == s["c"] and e.kind != "text"]
    return worn == [q.answer] and s["c"] not in papers(scene)


def papers(scene: Scene) -> set[str]:
    """The colours, black or white, of plates and sheets large enough to be meant by "the white thing"."""
    large = [m.ink for m in scene.marks if m.shape == "rect" and min(m.box[2] - m.box[0], m.box[3] - m.box[1]) > 40]
    return {"white" if min(ink) > 230 else "black" for ink in large if min(ink) > 230 or max(ink) < 50}


def check_count(scene: Scene, q: Question, s: Slots) -> bool:
    found = named(scene, s["p"], BY_PLURAL)
    return found is not None and str(len(found)) == q.answer and sorted(q.evidence) == sorted(t.box for t in found)


def check_exists(scene: Scene, q: Question, s: Slots) -> bool:
    article, _, phrase = s["a"].partition(" ")
    found = named(scene, phrase, BY_NOUN)
    if found is None or article != ("an" if phrase[0] in "aeiou" else "a"):
        return False
    return (q.answer == "yes") == bool(found) and sorted(q.evidence) == sorted(t.box for t in found)


def check_exists_row(scene: Scene, q: Question, s: Slots) -> bool:
    boxes = tuple(t.box for t in texts(scene) if t.text == s["g"].capitalize())
    return (q.answer == "yes") == bool(boxes) and q.evidence == boxes


def check_spatial(scene: Scene, q: Question, s: Slots) -> bool:
    anchor = one(scene, s["x"])
    way = next((w for w, said in RELATIONS.items() if s["r"] in said), None)
    if anchor is None or way is None:
        return False
    ax, ay = middle(anchor.box)
    others = [e for e in (*things(scene), *texts(scene)) if e is not anchor]
    offsets = {e: (middle(e.box)[0] - ax, middle(e.box)[1] - ay) for e in others}
    sector = {
        "left": lambda x, y: x < 0 and abs(y) < -x,
        "right": lambda x, y: x > 0 and abs(y) < x,
        "above": lambda x, y: y < 0 and abs(x) < -y,
        "below": lambda x, y: y > 0 and abs(x) < y,
        "nearest": lambda x, y: True,
    }[way]
    inside = sorted((x * x + y * y, t.name) for t, (x, y) in offsets.items() if sector(x, y))
    clear = len(inside) == 1 or inside[1][0] >= 1.9 * inside[0][0]  # squared distances
    return bool(inside) and inside[0][1] == q.answer and clear and q.evidence[0] == anchor.box


def height(e: Element) -> int:
    return e.box[3] - e.box[1]


def check_larger(scene: Scene, q: Question, s: Slots) -> bool:
    a, b = one(scene, s["x"]), one(scene, s["y"])
    if a is None or b is None:
        return False
    large, small = sorted((a, b), key=height, reverse=True)
    right = large if s["s"] in SIZES[True] else small
    return right.name == q.answer and height(large) >= 1.4 * height(small)


def check_largest(scene: Scene, q: Question, s: Slots) -> bool:
    ordered = sorted(things(scene), key=height, reverse=s["s"] in MOST[True])
    ratio = height(ordered[0]) / height(ordered[1])
    return ordered[0].name == q.answer and max(ratio, 1 / ratio) >= 1.4


def check_read_text(scene: Scene, q: Question, s: Slots) -> bool:
    return [t.text for t in texts(scene) if t.colour == s["c"]] == [q.answer]


def check_read_plate(scene: Scene, q: Question, s: Slots) -> bool:
    def near(ink: tuple[int, ...]) -> bool:
        return all(abs(a - b) <= 12 for a, b in zip(ink, COLOURS[s["c"]], strict=True))

    plates = [m.box for m in scene.marks if m.shape == "rect" and near(m.ink)]
    on = [
        t.text
        for t in texts(scene)
        if any(p[0] <= t.box[0] and p[1] <= t.box[1] and t.box[2] <= p[2] and t.box[3] <= p[3] for p in plates)
    ]
    return on == [q.answer]


def check_read_place(scene: Scene, q: Question, s: Slots) -> bool:
    place = next(p for p, said in PLACES.items() if said == s["w"])
    axis, last = (1 if place in ("top", "bottom") else 0), place in ("bottom", "right")
    ordered = sorted(texts(scene), key=lambda t: middle(t.box)[axis], reverse=last)
    return ordered[0].text == q.answer


def check_read_beside(scene: Scene, q: Question, s: Slots) -> bool:
    thing = one(scene, s["x"])
    if thing is None:
        return False
    x, y = middle(thing.box)
    beside = [t for t in texts(scene) if t.box[1] - 8 < y < t.box[3] + 8]
    nearest = min(beside, key=lambda t: min(abs(t.box[0] - x), abs(t.box[2] - x)))
    return nearest.text == q.answer


def check_evidence_text(scene: Scene, q: Question, s: Slots) -> bool:
    return at_box(scene, q.evidence[0]).text == q.answer


def check_grey(scene: Scene, q: Question, s: Slots) -> bool:
    return [t.text for t in texts(scene) if t.colour == ""] == [q.answer] and bool(q.distractors)


def check_lookup(scene: Scene, q: Question, s: Slots) -> bool:
    label, value = at_box(scene, q.evidence[0]), at_box(scene, q.evidence[1])
    axis = 0 if scene.layout == "wide_table" else 1
    in_line = label.box[axis] < value.box[axis + 2] and value.box[axis] < label.box[axis + 2]
    asked_row = s.get("g", "total" if "n" not in s else q.answer)
    asked_value = s.get("n", q.answer)
    if len(q.evidence) == 3:
        header = at_box(scene, q.evidence[2])
        column = header.text.lower() == s.get("v", "price")
        other = 1 - axis
        in_line &= column and header.box[other] < value.box[other + 2] and value.box[other] < header.box[other + 2]
    return in_line and label.text == asked_row.capitalize() and value.text == asked_value


def _bars(scene: Scene) -> list[tuple[str, int, Element]]:
    """(label, length, bar) of every bar, the label found by where it stands."""
    axis = 1 if scene.layout == "side_chart" else 0
    found = []
    for bar in (e for e in scene.elements if e.kind == "bar"):
        at, start = middle(bar.box)[axis], bar.box[0] if axis else bar.box[3]

        def off(t: Element, at: float = at, start: int = start) -> float:
            near = (start - t.box[2]) if axis else (t.box[1] - start)
            return abs(middle(t.box)[axis] - at) + (near if near >= 0 else 1e6)

        label = min((t for t in texts(scene) if t.text[0].isalpha()), key=off).text
        found.append((label, bar.box[2] - bar.box[0] if axis else height(bar), bar))
    return found


def check_extreme(scene: Scene, q: Question, s: Slots) -> bool:
    ordered = sorted(_bars(scene), key=lambda b: b[1], reverse=s["s"] == "highest")
    return q.answer.capitalize().startswith(ordered[0][0]) and ordered[0][1] != ordered[1][1]


def check_bar(scene: Scene, q: Question, s: Slots) -> bool:
    word, value = s.get("b", q.answer), int(s.get("n", q.answer))
    bars = _bars(scene)
    (length,) = [length for label, length, _ in bars if word.capitalize().startswith(label)]
    printed = at_box(scene, q.evidence[2])
    # The scale is linear: compare with the bar whose number is the largest one written.
    top = max(int(t.text) for t in texts(scene) if t.text.isdigit())
    longest = max(length for _, length, _ in bars)
    return printed.text == str(value) and abs(length / longest - value / top) < 0.03


def check_odd(scene: Scene, q: Question, s: Slots) -> bool:
    pairs = Counter(f"{t.colour} {t.name}" for t in things(scene))
    return len(pairs) == 2 and pairs[q.answer] == 1 and len(things(scene)) >= 3


def check_describe(scene: Scene, q: Question, s: Slots) -> bool:
    return Counter(q.answer.split(", ")) == Counter(f"{t.colour} {t.name}" for t in things(scene))


CHECKS: dict[str, Callable[[Scene, Question, Slots], bool]] = {
    "colour": check_colour,
    "thing": check_thing,
    "count": check_count,
    "exists": check_exists,
    "exists_row": check_exists_row,
    "spatial": check_spatial,
    "larger": check_larger,
    "largest": check_largest,
    "read_text": check_read_text,
    "read_plate": check_read_plate,
    "read_place": check_read_place,
    "read_beside": check_read_beside,
    "title": check_evidence_text,
    "grey_text": check_grey,
    "price": check_lookup,
    "value_of": check_lookup,
    "total": check_lookup,
    "which_costs": check_lookup,
    "which_has": check_lookup,
    "extreme": check_extreme,
    "bar_value": check_bar,
    "which_bar": check_bar,
    "odd_one_out": check_odd,
    "describe": check_describe,
}


def is_right(scene: Scene, question: Question) -> bool:
    """Whether one reading of the question, answered from the elements, gives its answer."""
    return any(CHECKS[key](scene, question, slots) for key, slots in readings(question))
