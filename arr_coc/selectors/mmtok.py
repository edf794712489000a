"""MMTok: cells that together cover the words of the question and the rest of the image.

B images with one grid, N cells, K kept, L words of the question, D language-model width, X width of the ViT, C things
to cover (words and cells).
"""

import math

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.field import FieldSelector, Pick, marked, unit
from arr_coc.selectors.interface import Selector, View, register

WORD_TEMPERATURE = 0.02
CELL_TEMPERATURE = 0.2
CELL_WEIGHT = 0.5  # of covering cells, beside covering words


def word_rows(visual_ND: Tensor, words_LD: Tensor) -> Tensor:
    """How well each cell covers each word, `[L, N]` fp32: all rows together sum to one."""
    return (unit(words_LD) @ unit(visual_ND).T / WORD_TEMPERATURE).softmax(-1) / max(1, words_LD.shape[0])


def cell_rows(patches_NX: Tensor) -> Tensor:
    """How well each cell covers each cell, as they are before the merger, `[N, N]` fp32: rows sum to their weight."""
    patches = unit(patches_NX)
    return (patches @ patches.T / CELL_TEMPERATURE).softmax(-1) * (CELL_WEIGHT / patches.shape[0])


def covering_order(cover_CN: Tensor, k: int) -> Tensor:
    """`[K]` cells in the order picked: always the one that raises the best cover of all rows most; ties by index."""
    best_C1 = torch.zeros_like(cover_CN[:, :1])
    picks: list[Tensor] = []
    while len(picks) < k:
        gain_N = (cover_CN - best_C1).clamp_(min=0).sum(0)
        if picks:
            gain_N[torch.stack(picks)] = -math.inf
        picks.append(gain_N.argmax())
        best_C1 = torch.maximum(best_C1, cover_CN[:, picks[-1]].unsqueeze(1))
    return torch.stack(picks)


class MMTokSelector(FieldSelector):
    """Greedy coverage (facility location) of words and cells. The map shown is how well each cell covers the words."""

    name = "mmtok"
    pays = "ViT: all; LM: the kept tokens; choosing: N (N + L) operations per kept token, one after the other"
    reason = "cells that together cover the question's words and the image"
    reads_tokens = True
    reads_patches = True

    def score(self, view: View) -> Tensor:
        assert view.visual_BND is not None
        assert view.patches_BNX is not None
        whole_BN = view.visual_BND.isfinite().all(-1) & view.patches_BNX.isfinite().all(-1)
        return torch.stack([rows.sum(0) for rows in _words(view)]).masked_fill(~whole_BN, torch.nan)

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        assert view.patches_BNX is not None
        picks = [
            covering_order(torch.cat([words, cell_rows(patches)]), k)
            for words, patches, k in zip(_words(view), view.patches_BNX, k_B.tolist(), strict=True)
        ]
        return Pick(marked(picks, scores_BN.shape[1]))


def _words(view: View) -> list[Tensor]:
    """`word_rows` of each image with its own question; no rows where nothing was asked."""
    assert view.visual_BND is not None
    asked = zip(view.visual_BND, view.question.tokens_BLD, view.question.mask_BL, strict=True)
    return [word_rows(visual, tokens[mask]) for visual, tokens, mask in asked]


@register("mmtok")
def make(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return MMTokSelector(config)
