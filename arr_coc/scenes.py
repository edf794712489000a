"""The drawn world has a package of its own, beside this one: `arr_coc_scenes`. Its names are here as they were."""

from arr_coc_scenes import *  # noqa: F403
from arr_coc_scenes import __all__  # noqa: F401
