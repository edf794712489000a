"""Ways to choose visual tokens, behind one interface, by name."""

from arr_coc.selectors.interface import SELECTORS, Selector, View, make_selector, register
from arr_coc.selectors.learned import ARRCOCSelector
from arr_coc.selectors.training_free import TrainingFreeSelector

__all__ = [
    "SELECTORS",
    "ARRCOCSelector",
    "Selector",
    "TrainingFreeSelector",
    "View",
    "make_selector",
    "register",
]
