"""What one scene looks like, chosen once per scene: grounds and tones, rims, shadows, fonts, pose, capture."""

from dataclasses import dataclass
from random import Random

from arr_coc_scenes.palette import grey_tone, jittered, visible_colours
from arr_coc_scenes.types import RGB
from studies.wide import grounds, held_out
from studies.wide.capture import CAPTURES

POSED = 0.2  # share of scenes seen from aside


@dataclass(frozen=True, slots=True)
class Look:
    """The style of a scene; every colour in it is one that the things and letters stand out from."""

    ground: str
    """A key of grounds.KINDS."""
    low: RGB
    high: RGB
    """The ground's tones; a busy ground has others too."""
    rim: RGB | None
    """Tone of the edge around things and letters; None: none."""
    shadow: tuple[int, int] | None
    """(dx, dy) in px of what things throw on the ground; None: nothing."""
    turn: int
    """Most degrees that a thing is turned by."""
    roomy: bool
    """Few and large letters, so that thin and hand-like fonts can be read."""
    posed: bool
    capture: str
    """A key of capture.CAPTURES."""
    held_styles: bool = False
    held_fonts: bool = False
    held_wordings: bool = False
    held_pairs: bool = False

    @property
    def tones(self) -> tuple[RGB, ...]:
        """What ink lies on where no plate is under it."""
        return (self.rim,) if self.rim else (self.low, self.high)


def _tones(rng: Random, hard: bool) -> tuple[RGB, RGB]:
    """Two tones from which at least six colours stand out."""
    while True:
        level_low, level_high = rng.choice(((185, 250), (185, 250), (8, 62), (8, 62), (95, 155)))
        low = grey_tone(rng, level_low, level_high, tint=rng.choice((6, 20, 42)))
        spread = rng.randint(-40, 40)
        high = jittered(rng, (low[0] + spread, low[1] + spread, low[2] + spread), rng.choice((4, 12, 24)))
        high = (min(255, max(0, high[0])), min(255, max(0, high[1])), min(255, max(0, high[2])))
        if len(visible_colours((low, high), hard)) >= 6:
            return low, high


def _capture(rng: Random, held: bool) -> str:
    if held and rng.random() < 0.5:
        return rng.choice(held_out.CAPTURES)
    names = held_out.choices(tuple(CAPTURES), held_out.CAPTURES, False)
    return rng.choices(names, [CAPTURES[name] for name in names])[0]


def choose_look(rng: Random, split: str, hard: bool, side: int) -> Look:
    """A look for a scene of a split; `side` is the shorter side in px, `hard` accepts lower contrast."""
    styles = split == "styles"
    kinds = held_out.choices(grounds.KINDS, held_out.GROUNDS, styles)
    ground = rng.choices(kinds, [grounds.WEIGHTS[kind] for kind in kinds])[0]
    low, high = _tones(rng, hard)
    rim: RGB | None = None
    if ground in grounds.BUSY or rng.random() < 0.12:
        rim = grey_tone(rng, 238, 253, 4) if rng.random() < 0.6 else grey_tone(rng, 10, 30, 4)
    thrown = (rng.choice((-4, -3, 3, 4)), rng.randint(2, 5)) if rng.random() < 0.25 and not rim else None
    return Look(
        ground,
        low,
        high,
        rim,
        thrown,
        turn=rng.choice((0, 0, 10, 20)),
        roomy=side >= 384 and not hard and rng.random() < 0.35,
        posed=side >= 192 and rng.random() < POSED,
        capture=_capture(rng, styles),
        held_styles=styles,
        held_fonts=split == "fonts",
        held_wordings=split == "wordings",
        held_pairs=split == "pairs",
    )
