"""Ways to choose visual tokens, behind one interface, by name."""

from arr_coc.selectors.base import (
    PLAIN,
    SELECTORS,
    Selector,
    View,
    equivalent_tokens,
    make_selector,
    read_selector,
    register,
    settings_of,
)
from arr_coc.selectors.controls import (
    DownsamplingSelector,
    EvenGridSelector,
    OracleSelector,
    PoolingSelector,
    RandomSelector,
)
from arr_coc.selectors.field.base import FieldSelector, Pick, Taken
from arr_coc.selectors.field.cdpruner import CDPrunerSelector
from arr_coc.selectors.field.divprune import DivPruneSelector
from arr_coc.selectors.field.fastv import FastVSelector
from arr_coc.selectors.field.mmtok import MMTokSelector
from arr_coc.selectors.field.visionzip import VisionZipSelector
from arr_coc.selectors.learned import ARRCOCSelector
from arr_coc.selectors.training_free import TrainingFreeSelector

__all__ = [
    "PLAIN",
    "SELECTORS",
    "ARRCOCSelector",
    "CDPrunerSelector",
    "DivPruneSelector",
    "DownsamplingSelector",
    "EvenGridSelector",
    "FastVSelector",
    "FieldSelector",
    "MMTokSelector",
    "OracleSelector",
    "Pick",
    "PoolingSelector",
    "RandomSelector",
    "Selector",
    "Taken",
    "TrainingFreeSelector",
    "View",
    "VisionZipSelector",
    "equivalent_tokens",
    "make_selector",
    "read_selector",
    "register",
    "settings_of",
]
