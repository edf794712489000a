"""Who acts in a clip: things and signs of the wide world, and where each of them is in every frame."""

from dataclasses import dataclass, replace
from random import Random

from arr_coc_scenes.types import Box, Element, Glyph, around
from studies.wide.draft import WideDraft
from studies.wide.signs import add_turned_sign
from studies.wide.sprites import Sprite, box_of

STAYS, MOVES, APPEARS, LEAVES, BLINKS = ROLES = ("stays", "moves", "appears", "leaves", "blinks")
WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
GAP, EDGE = 5, 3  # px between actors, and between an actor and the edge of a frame
REACH = 0.35  # share of the frame that a mover crosses at least
FEWEST_TO_BLINK = 6  # frames of a clip
_TRIES = 24

Offset = tuple[int, int]
Path = tuple[Offset | None, ...]  # per frame (dx, dy) in px from the actor's own place; None: it is not there


@dataclass(frozen=True, slots=True)
class Part:
    """What an actor plays: a role of ROLES, the frames in which it is there, and the way a mover goes."""

    role: str
    there: tuple[bool, ...]
    way: str = ""

    @property
    def first(self) -> int:
        """The first frame in which it is there."""
        return self.there.index(True)

    @property
    def times(self) -> int:
        """How often it comes into view."""
        return sum(now and not before for before, now in zip((False, *self.there), self.there, strict=False))


@dataclass(frozen=True, slots=True)
class Actor:
    """A thing or a sign with its part and its path."""

    element: Element
    under: tuple[Sprite, ...]
    """Plate, rim and shadow."""
    sprites: tuple[Sprite, ...]
    part: Part
    path: Path

    @property
    def is_sign(self) -> bool:
        return bool(self.element.text)

    def box(self, frame: int) -> Box | None:
        """Where it is in a frame; None where it is not there."""
        offset = self.path[frame]
        return None if offset is None else moved(self.element.box, offset)

    def shown(self, frame: int) -> Element | None:
        """The element where it is in a frame; None where it is not there."""
        offset = self.path[frame]
        if offset is None:
            return None
        glyphs = tuple(Glyph(glyph.char, moved(glyph.box, offset)) for glyph in self.element.glyphs)
        return replace(self.element, box=moved(self.element.box, offset), glyphs=glyphs)

    def drawn(self, frame: int) -> list[Sprite]:
        """Its sprites in a frame, in the order of drawing."""
        offset = self.path[frame]
        if offset is None:
            return []
        return [
            Sprite(s.mask, s.x + offset[0], s.y + offset[1], s.ink, s.low_ink) for s in (*self.under, *self.sprites)
        ]


def moved(box: Box, offset: Offset) -> Box:
    """A box moved by an offset."""
    dx, dy = offset
    return box[0] + dx, box[1] + dy, box[2] + dx, box[3] + dy


# ---- parts ---------------------------------------------------------------------------------------------


def choose_part(rng: Random, role: str, frames: int, taken: set[int]) -> Part | None:
    """A part of a role in a clip of so many frames. Comings and goings keep two frames from those in `taken`."""
    always = (True,) * frames
    if role == STAYS:
        return Part(role, always)
    if role == MOVES:
        return Part(role, always, rng.choice(tuple(WAYS)))
    if role == BLINKS and frames >= FEWEST_TO_BLINK:
        return Part(role, _blinking(rng, frames))
    moments = [f for f in range(2, frames - 1) if all(abs(f - other) >= 2 for other in taken)]
    even = [f for f in moments if f % 2 == 0]
    if not moments:
        return None
    moment = rng.choice(even if even and rng.random() < 0.7 else moments)
    taken.add(moment)
    later = tuple(frame >= moment for frame in range(frames))
    if role == LEAVES:
        return Part(role, tuple(not there for there in later))
    return Part(APPEARS, later)  # a blinker too, where there is no time to blink


def _blinking(rng: Random, frames: int) -> tuple[bool, ...]:
    """In which frames a blinker is there: hidden at first, then for two frames or more at a time, with such gaps.

    One that is there once alone goes again: it would only appear otherwise.
    """
    units = frames // 2
    times = rng.randint(1, min(5, units // 2))
    lengths = [1] * (2 * times)  # hidden, there, hidden, there ...; what is left over goes to any of them or to the end
    for _ in range(units - len(lengths) - (times == 1)):
        place = rng.randrange(len(lengths) + 1)
        if place < len(lengths):
            lengths[place] += 1
    there = [bool(number % 2) for number, length in enumerate(lengths) for _ in range(2 * length)]
    return (*there, *[False] * (frames - len(there)))


# ---- places --------------------------------------------------------------------------------------------


def choose_path(rng: Random, box: Box, part: Part, size: tuple[int, int], others: list["Actor"]) -> Path | None:
    """A path on which the actor stays inside the frame and apart from the others; None if none was found."""
    width, height = size[0] - 2 * EDGE - (box[2] - box[0]), size[1] - 2 * EDGE - (box[3] - box[1])
    if width < 0 or height < 0:
        return None
    frames = len(part.there)
    across, down = WAYS.get(part.way, (0, 0))
    least = (round(REACH * size[0]) * abs(across), round(REACH * size[1]) * abs(down))
    if least[0] > width or least[1] > height:
        return None
    for _ in range(_TRIES):
        reach = (rng.randint(least[0], width) * across, rng.randint(least[1], height) * down)
        x = rng.randint(max(0, -reach[0]), width - max(0, reach[0])) + EDGE - box[0]
        y = rng.randint(max(0, -reach[1]), height - max(0, reach[1])) + EDGE - box[1]
        begin = rng.randint(0, frames // 4) if part.way and frames > 4 else 0
        end = rng.randint(frames - 1 - frames // 4, frames - 1) if part.way and frames > 4 else frames - 1
        shares = [min(1.0, max(0.0, (frame - begin) / (end - begin))) for frame in range(frames)]
        path = tuple(
            (x + round(reach[0] * share), y + round(reach[1] * share)) if there else None
            for share, there in zip(shares, part.there, strict=True)
        )
        if all(_apart(box, path, whole_box(other), other.path) for other in others):
            return path
    return None


def whole_box(actor: Actor) -> Box:
    """All that an actor covers at its own place: plate, rim and shadow too."""
    return around([sprite.box for sprite in (*actor.under, *actor.sprites)])


def _apart(box: Box, path: Path, other: Box, others_path: Path) -> bool:
    """Whether two actors keep their distance in every frame. One that is hidden keeps its last place free as well."""
    for mine, theirs in zip(path, others_path, strict=True):
        if mine is None or theirs is None:
            continue
        a, b = moved(box, mine), moved(other, theirs)
        if a[0] - GAP < b[2] and b[0] - GAP < a[2] and a[1] - GAP < b[3] and b[1] - GAP < a[3]:
            return False
    return True


# ---- the cast ------------------------------------------------------------------------------------------


def add_actor(draft: WideDraft, role: str, frames: int, sign: bool, cast: list[Actor], taken: set[int]) -> bool:
    """Add a thing of a new name, or a sign, to the cast where there is room for its part."""
    rng, size = draft.rng, (draft.width, draft.height)
    part = choose_part(rng, role, frames, taken)
    if part is None:
        return False
    lifted, placed = len(draft.under), len(draft.elements)
    draft.taken.clear()  # the path finds the place
    if sign:
        if not add_turned_sign(draft):
            return False
    else:
        names = {actor.element.name for actor in cast}
        colour, name = draft.pick_pair()
        if name in names:
            return False
        side = min(size)
        px = rng.randint(max(26, side // 7), max(34, side // 4))
        draft.put_thing(colour, name, 2 * (px // 2), 0, 0)
    sprites = tuple(draft.sprites_of(placed))
    under = tuple(draft.under[lifted:])
    path = choose_path(rng, box_of([*under, *sprites]), part, size, cast)
    if path is None:
        return False
    cast.append(Actor(draft.elements[placed], under, sprites, part, path))
    return True
