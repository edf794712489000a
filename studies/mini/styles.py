"""How scenes for practice differ from the world: further fonts, wordings and layouts, and labels on the other side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from arr_coc_scenes import Scene
from arr_coc_scenes.draft import Draft, Layout
from arr_coc_scenes.making import LAYOUTS, lay_scene
from arr_coc_scenes.masks import TRAIN_FONTS
from arr_coc_scenes.words import Wordings
from studies.mini.layouts import lay_bar_list, lay_cards
from studies.mini.phrasings import PRACTICE_PHRASINGS

# No split shows these fonts, and none is of the family of UNSEEN_FONTS.
PRACTICE_FILES = {
    "sans-oblique": "DejaVuSans-Oblique.ttf",
    "serif-italic": "DejaVuSerif-Italic.ttf",
    "modern": "cmr10.ttf",
    "modern-bold": "cmb10.ttf",
    "modern-sans": "cmss10.ttf",
    "modern-mono": "cmtt10.ttf",
}
PRACTICE_FONTS = (
    *TRAIN_FONTS,
    *PRACTICE_FILES.values(),
    *(f"{font}*{width}" for font in TRAIN_FONTS for width in (82, 118)),
)
PRACTICE_LAYOUTS: dict[str, Layout] = {
    "cards": (2.0, lay_cards, LAYOUTS["table"][2]),
    "bar_list": (2.0, lay_bar_list, LAYOUTS["chart"][2]),
}


@dataclass(frozen=True, slots=True)
class Style:
    """How scenes for practice may differ from the world; the default is the world itself."""

    fonts: tuple[str, ...] = ()
    """Fonts to write with; (): those of the split."""
    mirrored: bool = False
    """Labels of tables stand at the right of their values, those of charts above the bars."""
    rephrased: float = 0.0
    """Share of questions that are asked in `wordings`."""
    wordings: Wordings = field(default_factory=dict)
    """Further wordings by the keys of WORDINGS."""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """Further layouts, drawn beside those of the split."""


PLAIN = Style()


@dataclass
class PracticeDraft(Draft):
    """A draft in a style."""

    style: Style = PLAIN

    def __post_init__(self) -> None:
        self.mirrored = self.style.mirrored
        super().__post_init__()

    @property
    def wording(self) -> Wordings:
        """Those of the split, or of the style."""
        if self.style.rephrased and self.rng.random() < self.style.rephrased:
            return self.style.wordings
        return super().wording

    def any_font(self) -> str:
        return self.rng.choice(self.style.fonts) if self.style.fonts else super().any_font()


def lay_practice(
    seed: int,
    size: tuple[int, int],
    style: Style,
    crowd: float = 1.0,
    families: Sequence[str] | None = None,
) -> tuple[Scene, Draft]:
    """A scene of training in a style, and the draft behind it."""
    return lay_scene(seed, "train", size, None, crowd, families, partial(PracticeDraft, style=style), style.layouts)


def practice_style(
    fonts: tuple[str, ...] = (), mirrored: bool = False, rephrased: float = 0.0, layouts: bool = False
) -> Style:
    """A style with the wordings of practice for a share of the questions, and its layouts where they are wanted."""
    return Style(fonts, mirrored, rephrased, PRACTICE_PHRASINGS, PRACTICE_LAYOUTS if layouts else {})
