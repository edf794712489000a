"""All that touches transformers' Qwen3-VL."""

from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.qwen.model import ARRCOCQwen

__all__ = ["ARRCOCQwen", "Answer", "ImageSelection"]
