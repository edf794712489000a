"""Seed -> scene description: choose a layout, fill it, ask about it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from arr_coc_scenes import asking_texts as texts
from arr_coc_scenes import asking_things as things
from arr_coc_scenes import charts, documents, layouts, signs
from arr_coc_scenes.draft import Draft, Layout
from arr_coc_scenes.splits import SPLITS, stream
from arr_coc_scenes.types import Question, Scene

Asker = Callable[[Draft], Question | None]

ASKERS: dict[str, tuple[Asker, ...]] = {
    "colour": (things.ask_colour,),
    "thing": (things.ask_thing,),
    "count": (things.ask_count,),
    "exists": (things.ask_exists, texts.ask_exists_row),
    "spatial": (things.ask_spatial,),
    "larger": (things.ask_larger,),
    "read_sign": (texts.ask_read_sign,),
    "title": (texts.ask_title,),
    "lookup": (texts.ask_lookup,),
    "chart": (texts.ask_chart,),
    "odd_one_out": (things.ask_odd,),
    "grey_text": (texts.ask_grey_text,),
    "describe": (things.ask_describe,),
}
FAMILIES: tuple[str, ...] = tuple(ASKERS)

_THINGS = {"colour": 2.0, "thing": 2.0, "count": 2.0, "exists": 0.8, "spatial": 2.0, "larger": 3.0, "describe": 2.0}
_FEW = {"colour": 0.8, "thing": 0.8, "exists": 0.3, "spatial": 0.4, "count": 0.3, "describe": 0.8}
LAYOUTS: dict[str, Layout] = {
    "free": (3.0, layouts.lay_free, _THINGS),
    "street": (2.4, signs.lay_street, {"read_sign": 6.0, **_FEW}),
    "grid": (2.0, layouts.lay_grid, {"odd_one_out": 3.0, "colour": 1.0, "thing": 1.0, "count": 2.0, "exists": 0.4}),
    "grey": (1.8, signs.lay_grey, {"grey_text": 3.0, "read_sign": 2.0, **_FEW}),
    "page": (1.2, documents.lay_page, {"title": 3.0, **_FEW}),
    "table": (1.3, documents.lay_table, {"lookup": 6.0, "title": 1.0, **_FEW}),
    "receipt": (1.2, documents.lay_receipt, {"lookup": 6.0, "title": 1.5, **_FEW}),
    "chart": (2.0, charts.lay_chart, {"chart": 6.0, "title": 1.0, **_FEW}),
}
UNSEEN_LAYOUTS: dict[str, Layout] = {
    "ring": (3.0, layouts.lay_ring, _THINGS),
    "board": (2.4, signs.lay_board, LAYOUTS["street"][2]),
    "odd_ring": (2.0, layouts.lay_odd_ring, LAYOUTS["grid"][2]),
    "grey_stack": (1.8, partial(signs.lay_grey, stacked=True), LAYOUTS["grey"][2]),
    "poster": (1.2, documents.lay_poster, LAYOUTS["page"][2]),
    "wide_table": (1.3, partial(documents.lay_table, wide=True), LAYOUTS["table"][2]),
    "menu": (1.2, partial(documents.lay_receipt, menu=True), LAYOUTS["receipt"][2]),
    "side_chart": (2.0, charts.lay_side_chart, LAYOUTS["chart"][2]),
}

# (width, height), all multiples of 32; squares of 512 px are the commonest.
SIZES = (
    *((256, 256), (384, 384), (512, 512), (512, 512), (512, 512), (768, 768), (1024, 1024)),
    *((512, 384), (384, 512), (640, 480), (480, 640), (768, 512), (512, 768), (320, 256), (256, 320)),
    *((1024, 576), (576, 1024), (1024, 768), (768, 1024), (896, 640), (640, 320)),
)
SMALLEST = 96  # pixels a side
_ATTEMPTS = 60
# Asked once at most; but for the description, whatever layout has them is about them and asks them first.
_FIRST = ("title", "grey_text", "odd_one_out")
_ONCE = (*_FIRST, "describe")
# Most questions of a family in a scene, 4 if not said: once the large groups are counted, only ones are left.
_MOST = {"count": 2, "exists": 2, "larger": 2}


def _check(split: str, size: tuple[int, int] | None, difficulty: str | None, crowd: float) -> None:
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: use one of {', '.join(SPLITS)}")
    if size is not None and min(size) < SMALLEST:
        raise ValueError(f"a scene of {size[0]}x{size[1]} has no room: use at least {SMALLEST} pixels a side")
    if difficulty not in (None, "plain", "hard"):
        raise ValueError(f"unknown difficulty {difficulty!r}: use 'plain', 'hard' or None")
    if not 0.0 <= crowd <= 1.0:
        raise ValueError(f"crowd is {crowd}: use a number from 0 (one or two things) to 1 (the full world)")


def _choose_layout(rng: Random, choices: Mapping[str, Layout], wanted: frozenset[str]) -> tuple[str, Layout]:
    fitting = {name: lay for name, lay in choices.items() if wanted & set(lay[2])}
    # A narrow wish goes to the layouts that are about it: a share by what they would ask.
    shares = [
        lay[0] * sum(w for f, w in lay[2].items() if f in wanted) / sum(lay[2].values()) for lay in fitting.values()
    ]
    name = rng.choices(list(fitting), shares)[0]
    return name, fitting[name]


def ask_all(draft: Draft, weights: dict[str, float], wanted: frozenset[str]) -> list[Question]:
    """Up to 8 different questions of the wanted families; fewer where no more are clear."""
    rng = draft.rng
    open_to = {family: weight for family, weight in weights.items() if family in wanted}
    asked: dict[str, Question] = {}
    goal = rng.choice((4, 5, 6, 6, 7, 8))
    for _ in range(6 * goal):
        if len(asked) == goal or not open_to:
            break
        first = [f for f in _FIRST if f in open_to]
        family = first[0] if first else rng.choices(list(open_to), list(open_to.values()))[0]
        askers = ASKERS[family]
        question = (askers[0] if len(askers) == 1 else rng.choice(askers))(draft)
        if family in _ONCE:
            del open_to[family]
        if question is None:
            continue
        if sum(q.family == family for q in asked.values()) >= _MOST.get(family, 4):
            continue
        # The same answer from the same evidence in other words teaches nothing.
        key = f"{family} {question.answer} {sorted(question.evidence) or question.text}"
        asked.setdefault(key, question)
    return list(asked.values())


def make_scene(
    seed: int,
    split: str = "train",
    size: tuple[int, int] | None = None,
    difficulty: str | None = None,
    crowd: float = 1.0,
    families: Sequence[str] | None = None,
) -> Scene:
    """The description of scene number `seed` of a split, without drawing it.

    Args:
        seed: any whole number.
        split: "train", "val", "seen" or "unseen"; the same seed gives another scene in another split.
        size: (width, height) in pixels, at least 96 a side; None: drawn from the seed, 256 to 1024.
        difficulty: "plain", "hard" (tiny text, low contrast, more distractors); None: one in four is hard.
        crowd: 0 (one or two things) to 1 (the full world).
        families: ask only these; None: all.
    """
    return lay_scene(seed, split, size, difficulty, crowd, families)[0]


def lay_scene(
    seed: int,
    split: str = "train",
    size: tuple[int, int] | None = None,
    difficulty: str | None = None,
    crowd: float = 1.0,
    families: Sequence[str] | None = None,
    begin: Callable[..., Draft] = Draft,
    further: Mapping[str, Layout] | None = None,
) -> tuple[Scene, Draft]:
    """As `make_scene`, with the draft behind the scene: its rows and bars, for further questions.

    Another draft to `begin` with, or `further` layouts, make other scenes than those of the split.
    """
    _check(split, size, difficulty, crowd)
    wanted = frozenset(FAMILIES if families is None else families)
    unknown = sorted(wanted - set(FAMILIES))
    if unknown or not wanted:
        raise ValueError(f"unknown families {unknown}: use some of {', '.join(FAMILIES)}")
    choices = {**(UNSEEN_LAYOUTS if split == "unseen" else LAYOUTS), **(further or {})}
    for attempt in range(_ATTEMPTS):
        rng = stream(split, seed, attempt)
        width, height = size or rng.choice(SIZES)
        level = difficulty or ("hard" if rng.random() < 0.25 else "plain")
        name, (_, lay, weights) = _choose_layout(rng, choices, wanted)
        draft = begin(rng, split, width, height, level == "hard", crowd)
        if not lay(draft):
            continue
        draft.add_clutter()
        if questions := tuple(ask_all(draft, weights, wanted)):
            drawn = tuple(draft.elements), questions, draft.background, tuple(draft.marks)
            return Scene(seed, split, width, height, name, level, *drawn), draft
    raise ValueError(f"no scene of {size} with questions of {', '.join(sorted(wanted))} was found: use a larger size")
