"""All that touches transformers' Qwen3-VL. Names are loaded on first use: parts of it do without the rest."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arr_coc.qwen.answers import Answer, ImageSelection
    from arr_coc.qwen.chooser import Chooser
    from arr_coc.qwen.model import ARRCOCQwen

_HOMES = {
    "ARRCOCQwen": "arr_coc.qwen.model",
    "Answer": "arr_coc.qwen.answers",
    "Chooser": "arr_coc.qwen.chooser",
    "ImageSelection": "arr_coc.qwen.answers",
}

__all__ = ["ARRCOCQwen", "Answer", "Chooser", "ImageSelection"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'arr_coc.qwen' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
