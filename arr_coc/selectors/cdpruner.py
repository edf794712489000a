"""CDPruner: cells that are different from each other, the more so the more they suit the question.

B images with one grid, N cells, K kept, L question tokens, D language-model width.

A determinantal point process whose kernel weighs each cell by its relevance. This is a port to Qwen: relevance is the
mean cosine with the question's word embeddings, counted positively, since Qwen has no text tower beside its ViT.
"""

import math

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import Question
from arr_coc.selectors.field import FieldSelector, Pick, marked, stretch, unit
from arr_coc.selectors.interface import Selector, View, register

LEAST = 1e-10  # what is left of a cell is never taken for less
OFFSET = 1e-6  # keeps the least relevant cell's weight above zero


def question_cosine(visual_BND: Tensor, question: Question) -> Tensor:
    """Mean cosine of each token with the question's tokens, `[B, N]`; 0 where nothing was asked."""
    mask_BL1 = question.mask_BL.unsqueeze(-1)
    words = mask_BL1.sum(1).clamp(min=1)
    mean_BD = (unit(question.tokens_BLD) * mask_BL1).sum(1) / words
    return torch.stack([unit(tokens) @ mean for tokens, mean in zip(visual_BND, mean_BD, strict=True)])


def quality(relevance_N: Tensor, theta: float) -> Tensor:
    """Weight of each cell: 1 for theta = 0 (diversity alone), the relevance itself for theta = 1."""
    if theta == 1:
        return relevance_N
    return (relevance_N * theta / (2 * (1 - theta))).exp()


def dpp_order(unit_ND: Tensor, quality_N: Tensor, k: int) -> Tensor:
    """`[K]` cells in the order picked: greedy MAP of the process with kernel quality * cosine * quality.

    `left` is what each cell adds to the volume of the picked ones, squared. One row of the kernel per step.
    Rounding must not take more from a cell than is left of it: tokens may be more than they have dimensions.
    """
    left_N = quality_N.square()
    taken_KN = unit_ND.new_zeros(k, unit_ND.shape[0])
    picks: list[Tensor] = []
    for step in range(k):
        pick = left_N.argmax()
        picks.append(pick)
        kernel_N = quality_N[pick] * quality_N * (unit_ND @ unit_ND[pick])
        shared_N = taken_KN[:step, pick] @ taken_KN[:step]
        bound_N = left_N.clamp(min=0).sqrt()
        share_N = (kernel_N - shared_N) / left_N[pick].clamp(min=LEAST).sqrt()
        taken_KN[step] = share_N.clamp(min=-bound_N, max=bound_N)
        left_N = left_N - taken_KN[step].square()
        left_N[pick] = -math.inf
    return torch.stack(picks)


class CDPrunerSelector(FieldSelector):
    """`theta` in [0, 1] is the weight of relevance: 0 is diversity alone."""

    name = "cdpruner"
    pays = "ViT: all; LM: the kept tokens; choosing: N K^2 operations, one kept token after the other"
    reason = "cells that differ from each other and suit the question"
    reads_tokens = True

    def __init__(self, config: ARRCOCConfig, theta: float = 0.5) -> None:
        super().__init__(config)
        if not 0 <= theta <= 1:
            raise ValueError(f"theta={theta}: expected the weight of relevance, in [0, 1]")
        self.theta = theta

    def score(self, view: View) -> Tensor:
        assert view.visual_BND is not None
        return question_cosine(view.visual_BND, view.question)

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        assert view.visual_BND is not None
        weights_BN = quality(stretch(scores_BN) + OFFSET, self.theta)
        picks = [
            dpp_order(unit(tokens), weights, k)
            for tokens, weights, k in zip(view.visual_BND, weights_BN, k_B.tolist(), strict=True)
        ]
        return Pick(marked(picks, scores_BN.shape[1]))


@register("cdpruner")
def make(config: ARRCOCConfig, layer: ARRCOCLayer, theta: float = 0.5) -> Selector:
    return CDPrunerSelector(config, theta)
