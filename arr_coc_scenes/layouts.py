"""Layouts of things: scattered, in a ring, and in grids where one does not belong."""

from math import cos, pi, sin

from arr_coc_scenes.draft import Draft
from arr_coc_scenes.masks import thing_mask
from arr_coc_scenes.splits import pair_allowed
from arr_coc_scenes.words import THINGS

FLATTEST = 1.4  # the longer side of the flattest thing (a cloud) over its size


def room_for_things(draft: Draft) -> float:
    """How many things a full scene of this size holds: 12 at 512 x 512, between 3 and 26."""
    most = 12 * draft.width * draft.height / 262144
    return min(26.0, max(3.0, most)) * (1.3 if draft.hard else 1.0)


def plan_things(draft: Draft, count: int) -> list[tuple[str, str]]:
    """(colour, thing) for `count` things: one group of 1 to 6 alike in name, the rest mixed."""
    rng = draft.rng
    colour, name = draft.pick_pair()
    # In a small crowd a large group would leave nothing else to ask about.
    size = rng.randint(1, 6 if count >= 6 else (count + 1) // 2)
    one_colour = rng.random() < 0.4
    pairs = [(colour, name)]
    pairs += [draft.pick_pair(name, colour if one_colour else None) for _ in range(size - 1)]
    while len(pairs) < count:
        # Now and then a name again in another colour: "the red star" beside a blue one.
        known = rng.choice(pairs)[1] if rng.random() < 0.12 else None
        pairs.append(draft.pick_pair(known))
    return pairs


def plan_sizes(draft: Draft, count: int) -> list[int]:
    """Sizes in pixels, largest first; often one stands out by half, so that "the largest" has an answer."""
    sizes = sorted((draft.thing_px() for _ in range(count)), reverse=True)
    if count > 1 and draft.rng.random() < 0.5:
        sizes[0] = 4 * round(sizes[1] * 1.6 / 4)
    if count > 1 and draft.rng.random() < 0.4:
        floor = 16 if draft.hard else 20
        sizes = [max(s, 4 * round(floor * 1.6 / 4)) for s in sizes[:-1]] + [floor]
    return sizes


def scatter(draft: Draft, count: int) -> None:
    """Place up to `count` things where there is room."""
    pairs = plan_things(draft, count)
    draft.rng.shuffle(pairs)
    gap = max(6, draft.side // 48)
    for (colour, name), px in zip(pairs, plan_sizes(draft, count), strict=True):
        draft.scatter_thing(colour, name, px, gap)


def lay_free(draft: Draft) -> bool:
    """Things anywhere on the background."""
    scatter(draft, draft.between(1.5, room_for_things(draft)))
    return bool(draft.things)


def lay_ring(draft: Draft) -> bool:
    """Things on a ring around the middle (unseen)."""
    count = min(draft.between(2, room_for_things(draft)), 12)
    radius_x, radius_y = draft.width * 0.39, draft.height * 0.39
    # Neither neighbours on the ring nor the edge of the image may be touched.
    room = min(min(radius_x, radius_y) * min(1.0, 2 * sin(pi / count)) - 10, 0.21 * draft.side)
    if room < 16 * FLATTEST:
        return False
    turn = draft.rng.random()
    sizes = plan_sizes(draft, count)
    draft.rng.shuffle(sizes)
    for k, ((colour, name), px) in enumerate(zip(plan_things(draft, count), sizes, strict=True)):
        angle = 2 * pi * (k / count + turn)
        x, y = draft.width / 2 + radius_x * cos(angle), draft.height / 2 + radius_y * sin(angle)
        px = min(px, 4 * int(room / FLATTEST / 4))
        height, width = thing_mask(name, px).shape[:2]
        draft.put_thing(colour, name, px, int(x - width / 2), int(y - height / 2))
    return True


def _odd_pair(draft: Draft, colour: str, name: str) -> tuple[str, str]:
    """A pair that differs from (colour, name) in colour, in thing, or in both."""
    while True:
        how = draft.rng.choice(("colour", "thing", "both"))
        odd_colour = colour if how == "thing" else draft.rng.choice(draft.colours)
        odd_name = name if how == "colour" else draft.rng.choice(THINGS)
        if (odd_colour, odd_name) != (colour, name) and pair_allowed(draft.split, odd_colour, odd_name):
            return odd_colour, odd_name


def _fill_places(draft: Draft, places: list[tuple[float, float]], cell: float) -> bool:
    """Put alike things at the centres `places`, and one odd among them."""
    px = 4 * int(cell * draft.rng.uniform(0.45, 0.9 / FLATTEST) / 4)
    px = min(px, 32) if draft.hard else px
    if px < 16:
        return False
    common = draft.pick_pair()
    odd_pair, at = _odd_pair(draft, *common), draft.rng.randrange(len(places))
    slack = max(0, int((cell - px * FLATTEST) / 2) - 2)
    for k, (x, y) in enumerate(places):
        colour, name = odd_pair if k == at else common
        height, width = thing_mask(name, px).shape[:2]
        x += draft.rng.randint(-slack, slack)
        y += draft.rng.randint(-slack, slack)
        thing = draft.put_thing(colour, name, px, int(x - width / 2), int(y - height / 2))
        if k == at:
            draft.odd = thing
    return True


def lay_grid(draft: Draft) -> bool:
    """Rows and columns of one thing, all alike but one: 3 x 1 at no crowd, up to 6 x 5 where the image has room."""
    columns = max(3, min(draft.width // 64, draft.between(3, 6)))
    rows = max(1, min(draft.height // 64, draft.between(1, 5)))
    cell = min(draft.width / columns, draft.height / rows, 130.0)
    left = draft.rng.uniform(0, draft.width - columns * cell)
    top = draft.rng.uniform(0, draft.height - rows * cell)
    places = [(left + (c + 0.5) * cell, top + (r + 0.5) * cell) for r in range(rows) for c in range(columns)]
    return _fill_places(draft, places, cell)


def lay_odd_ring(draft: Draft) -> bool:
    """One thing many times on a ring, all alike but one (unseen)."""
    count = max(3, min(draft.between(3, 12), draft.side // 32))
    radius = draft.side * 0.38
    cell = min(2 * radius * sin(pi / count), draft.side * 0.24)
    turn = draft.rng.random()
    angles = [2 * pi * (k / count + turn) for k in range(count)]
    places = [(draft.width / 2 + radius * cos(a), draft.height / 2 + radius * sin(a)) for a in angles]
    return _fill_places(draft, places, cell)
