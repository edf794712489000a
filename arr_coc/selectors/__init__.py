"""Ways to choose visual tokens, behind one interface, by name."""

from arr_coc.selectors.cdpruner import CDPrunerSelector
from arr_coc.selectors.chance import RandomSelector
from arr_coc.selectors.divprune import DivPruneSelector
from arr_coc.selectors.downsampling import DownsamplingSelector
from arr_coc.selectors.even import EvenGridSelector
from arr_coc.selectors.fastv import FastVSelector
from arr_coc.selectors.field import FieldSelector, Pick, Taken
from arr_coc.selectors.interface import SELECTORS, Selector, View, equivalent_tokens, make_selector, register
from arr_coc.selectors.learned import ARRCOCSelector
from arr_coc.selectors.mmtok import MMTokSelector
from arr_coc.selectors.oracle import OracleSelector
from arr_coc.selectors.pooling import PoolingSelector
from arr_coc.selectors.rival import RivalSelector
from arr_coc.selectors.training_free import TrainingFreeSelector
from arr_coc.selectors.visionzip import VisionZipSelector

__all__ = [
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
    "RivalSelector",
    "Selector",
    "Taken",
    "TrainingFreeSelector",
    "View",
    "VisionZipSelector",
    "equivalent_tokens",
    "make_selector",
    "register",
]
