"""CDPruner: cells that are different from each other, the more so the more they suit the question.

B images with one grid, N cells, K kept, S picked so far, L question tokens, D language-model width.

A determinantal point process whose kernel weighs each cell by its relevance. This is a port to Qwen: relevance is the
mean cosine with the question's word embeddings, counted positively, since Qwen has no text tower beside its ViT.
"""

import math

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import QuestionTokens
from arr_coc.selectors.base import View, registered
from arr_coc.selectors.field.base import FieldSelector, Pick, at, greedy, in_parts, likeness, stretch, unit

LEAST = 1e-10  # what is left of a cell is never taken for less
OFFSET = 1e-6  # keeps the least relevant cell's weight above zero


def question_cosine(visual_BND: Tensor, question: QuestionTokens) -> Tensor:
    """Mean cosine of each token with the question's tokens, `[B, N]`; 0 where nothing was asked."""
    mask_BL1 = question.mask_BL.unsqueeze(-1)
    words = mask_BL1.sum(1).clamp(min=1)
    mean_BD = (unit(question.tokens_BLD) * mask_BL1).sum(1) / words
    images, cells, width = visual_BND.shape
    cosine_BN = mean_BD.new_empty(images, cells)
    for part in in_parts(range(images), 3 * cells * width, visual_BND.device):
        # One product per image: a product of all at once may round by how many there are.
        for row, tokens_ND in zip(part, unit(visual_BND[part]), strict=True):
            torch.mv(tokens_ND, mean_BD[row], out=cosine_BN[row])
    return cosine_BN


def quality(relevance_BN: Tensor, theta: float) -> Tensor:
    """Weight of each cell: 1 for theta = 0 (diversity alone), the relevance itself for theta = 1."""
    if theta == 1:
        return relevance_BN
    return (relevance_BN * theta / (2 * (1 - theta))).exp()


def dpp_order(unit_BND: Tensor, quality_BN: Tensor, k: int) -> Tensor:
    """`[B, K]` cells in the order picked: greedy MAP of the process with kernel quality * cosine * quality.

    `left` is what each cell adds to the volume of the picked ones, squared; `taken` is what each pick took of its root.
    Rounding must not take more from a cell than is left of it: tokens may be more than they have dimensions. Ties go to
    the lower index. 16 operations per pick, whatever B.
    """
    kernel_BNN = likeness(unit_BND).mul_(quality_BN.unsqueeze(2) * quality_BN.unsqueeze(1))
    left_BN = quality_BN.square()
    taken_BKN = kernel_BNN.new_empty(kernel_BNN.shape[0], k, kernel_BNN.shape[1])
    shared_BKN = torch.empty_like(taken_BKN)
    picks: list[Tensor] = []
    for step in range(k):
        pick_B1 = left_BN.argmax(-1, keepdim=True)
        picks.append(pick_B1)
        share_BN = at(kernel_BNN, pick_B1)
        if step:
            before_BSN = taken_BKN[:, :step]
            own_BS1 = before_BSN.gather(2, pick_B1.unsqueeze(1).expand(-1, step, 1))
            share_BN = share_BN - torch.mul(own_BS1, before_BSN, out=shared_BKN[:, :step]).sum(1)
        root_BN = left_BN.clamp(min=0).sqrt()
        share_BN = share_BN / root_BN.gather(1, pick_B1).clamp(min=math.sqrt(LEAST))
        taken_BN = torch.clamp(share_BN, -root_BN, root_BN, out=taken_BKN[:, step])
        left_BN = (left_BN - taken_BN.square()).scatter_(1, pick_B1, -math.inf)
    return torch.cat(picks, 1)


@registered
class CDPrunerSelector(FieldSelector):
    """`theta` in [0, 1] is the weight of relevance: 0 is diversity alone."""

    name = "cdpruner"
    pays = "ViT: all; LM: the kept tokens; choosing: N^2 similarities once, then N K^2, one kept token after the other"
    reason = "cells that differ from each other and suit the question"
    reads_tokens = True

    def __init__(self, config: ARRCOCConfig, layer: ARRCOCLayer | None = None, theta: float = 0.5) -> None:
        super().__init__(config)
        if not 0 <= theta <= 1:
            raise ValueError(f"theta={theta}: expected the weight of relevance, in [0, 1]")
        self.theta = theta

    def score(self, view: View) -> Tensor:
        assert view.visual_BND is not None
        return question_cosine(view.visual_BND, view.question)

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        assert view.visual_BND is not None
        visual_BND, weights_BN = view.visual_BND, quality(stretch(scores_BN) + OFFSET, self.theta)

        def order(rows: list[int], k: int) -> Tensor:
            return dpp_order(unit(visual_BND[rows]), weights_BN[rows], k)

        cells, width = visual_BND.shape[1:]
        return Pick(greedy(order, k_B, cells, cells * (4 * cells + 2 * width)))
