"""What others do with clips, as selectors: none of them reads the question but the oracle, which is told.

B moments of one clip (pairs of frames), N cells of a moment, D width of a token.

    uniform_frames   whole moments, evenly over time        evs        cells that changed against the moment before
    look_twice_dense ours, chosen after the whole ViT
    vidcom2          tokens that differ from the mean of their moment and of the clip; after the whole ViT
    blind            looking twice with no question: information and what stands out, over time as ours
"""

from dataclasses import replace

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.chooser import FOR_CLIPS
from arr_coc.records import Judgement
from arr_coc.selectors.base import View, make_selector
from arr_coc.selectors.field.base import FieldSelector, count, unit
from arr_coc.selectors.look_twice import LookTwiceSelector
from arr_coc.timing import Stopwatch

METHODS = (
    "look_twice",
    "look_twice_dense",
    "uniform_frames",
    "evs",
    "vidcom2",
    "random",
    "downsampling",
    "blind",
    "oracle",
)
BLIND = ("uniform_frames", "evs", "vidcom2", "random", "downsampling", "blind")  # they do not read the question


def even_order(moments: int) -> list[int]:
    """Rank of each moment in an order whose first ones are spread evenly, for any number of them."""
    bits = max(1, (moments - 1).bit_length())
    turned = [int(f"{n:0{bits}b}"[::-1], 2) for n in range(2**bits)]
    order = [n for n in turned if n < moments]
    return [order.index(n) for n in range(moments)]


class UniformFrames(FieldSelector):
    name, pays, reason = "uniform_frames", "", "whole moments, evenly over time"

    def score(self, view: View) -> Tensor:
        return torch.ones(count(view))

    def claim(self, view: View, scores_BN: Tensor) -> Tensor:
        return 1 / (1 + torch.tensor(even_order(scores_BN.shape[0]), dtype=torch.float32))

    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        judgement = super().judge(view, stopwatch)
        even = torch.ones_like(judgement.balance.relevance_BHW)
        return replace(judgement, balance=replace(judgement.balance, relevance_BHW=even))


class OverClip(FieldSelector):
    """Scores of all cells of a clip are compared with each other: moments claim what they hold."""

    def claim(self, view: View, scores_BN: Tensor) -> Tensor:
        return scores_BN.sum(-1)

    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        judgement = super().judge(view, stopwatch)
        scores_BHW = judgement.scores_BN.view_as(judgement.balance.relevance_BHW)  # type: ignore[attr-defined]
        return replace(judgement, balance=replace(judgement.balance, relevance_BHW=scores_BHW))


class Changed(OverClip):
    """As EVS: the first moment is all new; later, how far a cell is from the same place a moment before."""

    name, pays, reason, reads_pixels = "evs", "", "cells that changed", True

    def score(self, view: View) -> Tensor:
        assert view.image_B3hw is not None
        apart = (view.image_B3hw[1:] - view.image_B3hw[:-1]).abs().mean(1)
        pooled = torch.nn.functional.adaptive_avg_pool2d(apart.unsqueeze(1), view.grid).flatten(1)
        return torch.cat([torch.ones(1, pooled.shape[1]), pooled])


class Unlike(OverClip):
    """As VidCom2: a token is worth as much as it differs from its moment's mean and from the clip's."""

    name, pays, reason, reads_tokens = "vidcom2", "", "tokens unlike the others", True

    def score(self, view: View) -> Tensor:
        assert view.visual_BND is not None
        tokens = unit(view.visual_BND)
        own, clip = unit(tokens.mean(1, keepdim=True)), unit(tokens.mean((0, 1), keepdim=True))
        return 1 - ((tokens * own).sum(-1) + (tokens * clip).sum(-1)) / 2


class Unasked(LookTwiceSelector):
    """Looking twice where nobody asked."""

    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        nobody = replace(view.question, mask_BL=torch.zeros_like(view.question.mask_BL))
        return super().judge(replace(view, question=nobody), stopwatch)


def method(name: str, config: ARRCOCConfig, layer: ARRCOCLayer) -> FieldSelector | LookTwiceSelector:
    """A selector by the name that it has in the tables."""
    if name.startswith("look_twice"):
        return make_selector("look_twice", config, layer, **FOR_CLIPS)  # type: ignore[return-value]
    own = {"uniform_frames": UniformFrames, "evs": Changed, "vidcom2": Unlike, "blind": Unasked}
    return own[name](config, layer) if name in own else make_selector(name, config, layer)  # type: ignore[return-value]
