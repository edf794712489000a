"""A choice without an answer: which cells a model would keep, and why."""

import torch

from arr_coc.demo.inputs import Asked
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.answers import ImageSelection


@torch.no_grad()
def choose(owner: ARRCOCQwen, asked: Asked) -> ImageSelection:
    """What is kept of the image for the question. Costs the choice and the vision encoder, no generation."""
    return owner.choose(asked.image, asked.question, asked.keep)[0]
