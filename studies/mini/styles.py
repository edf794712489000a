"""How scenes for practice differ from the world: further fonts, wordings and layouts, and labels on the other side."""

from arr_coc.scenes.draft import Layout, Style
from arr_coc.scenes.making import LAYOUTS
from arr_coc.scenes.masks import TRAIN_FONTS
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


def practice_style(
    fonts: tuple[str, ...] = (), mirrored: bool = False, rephrased: float = 0.0, layouts: bool = False
) -> Style:
    """A style with the wordings of practice for a share of the questions, and its layouts where they are wanted."""
    return Style(fonts, mirrored, rephrased, PRACTICE_PHRASINGS, PRACTICE_LAYOUTS if layouts else {})
