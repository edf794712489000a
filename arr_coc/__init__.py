"""ARR-COC: ask Qwen3-VL about an image with only the visual tokens that matter for the question.

The names below are loaded on first use, so that `import arr_coc` and `arr-coc --help` cost no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arr_coc.attending import TokenAllocator
    from arr_coc.balancing import AdaptiveTensionBalancer
    from arr_coc.config import ARRCOCConfig
    from arr_coc.knowing import InformationScorer, ParticipatoryScorer, PerspectivalScorer
    from arr_coc.layer import ARRCOCLayer, ARRCOCOutput
    from arr_coc.qwen.model import ARRCOCQwen
    from arr_coc.texture import generate_texture_array

__version__ = "0.1.0"

_HOMES = {
    "generate_texture_array": "arr_coc.texture",
    "InformationScorer": "arr_coc.knowing",
    "PerspectivalScorer": "arr_coc.knowing",
    "ParticipatoryScorer": "arr_coc.knowing",
    "AdaptiveTensionBalancer": "arr_coc.balancing",
    "TokenAllocator": "arr_coc.attending",
    "ARRCOCLayer": "arr_coc.layer",
    "ARRCOCOutput": "arr_coc.layer",
    "ARRCOCQwen": "arr_coc.qwen",
    "ARRCOCConfig": "arr_coc.config",
}

__all__ = [
    "ARRCOCConfig",
    "ARRCOCLayer",
    "ARRCOCOutput",
    "ARRCOCQwen",
    "AdaptiveTensionBalancer",
    "InformationScorer",
    "ParticipatoryScorer",
    "PerspectivalScorer",
    "TokenAllocator",
    "__version__",
    "generate_texture_array",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'arr_coc' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
