"""What training never draws or says, fixed before the first training run. One test split per axis, by name.

    axis       what is held out                                         everything else in that split
    styles     icon sets, fills, grounds and captures below             as in training
    fonts      font families below                                      as in training
    pairs      the pairs of colour and thing of `arr_coc_scenes`        as in training
    wordings   the unseen wordings of `arr_coc_scenes`                  as in training
    layouts    the unseen layouts of `arr_coc_scenes`                   as in training

"seen" draws new scenes of what training draws.
"""

from arr_coc_scenes.making import UNSEEN_LAYOUTS
from arr_coc_scenes.splits import HELD_OUT_PAIRS
from arr_coc_scenes.words import WORDINGS as WORLD_WORDINGS

AXES = ("styles", "fonts", "pairs", "wordings", "layouts")
SPLITS = ("train", "seen", *AXES)

ICON_SETS = ("noto",)
FILLS = ("dots",)
GROUNDS = ("mosaic", "bricks")
CAPTURES = ("lines",)
FONTS = (
    *("roboto-condensed", "vollkorn", "comic", "hack", "andika", "bookman"),
    *("gothic", "radis", "bold-carlito"),
)
PAIRS = HELD_OUT_PAIRS
WORDINGS: dict[str, tuple[str, ...]] = dict(WORLD_WORDINGS["unseen"])
LAYOUTS: tuple[str, ...] = tuple(UNSEEN_LAYOUTS)


def choices(all_of: tuple[str, ...], held: tuple[str, ...], wanted: bool) -> tuple[str, ...]:
    """The held-out ones of some names when `wanted`, else the others; all order is kept."""
    return tuple(name for name in all_of if (name in held) == wanted)
