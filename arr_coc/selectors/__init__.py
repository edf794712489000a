"""Ways to choose visual tokens, behind one interface, by name."""

from arr_coc.config import settings_of
from arr_coc.selectors import controls, look_twice, training_free
from arr_coc.selectors.base import (
    PLAIN,
    SELECTORS,
    ARRCOCSelector,
    Selector,
    View,
    make_selector,
    read_selector,
)
from arr_coc.selectors.field import cdpruner, divprune, fastv, mmtok, visionzip
from arr_coc.selectors.field.base import FieldSelector, Pick, Taken

# Each registers what it has.
METHODS = (look_twice, training_free, controls, cdpruner, divprune, fastv, mmtok, visionzip)
