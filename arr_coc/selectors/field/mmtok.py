"""MMTok: cells that together cover the words of the question and the rest of the image.

B images with one grid, N cells, K kept, L words of the question, D language-model width, X width of the ViT, C things
to cover (cells and words).
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import kept_indices
from arr_coc.selectors.base import View, registered
from arr_coc.selectors.field.base import FieldSelector, Pick, greedy, in_parts, likeness, unit

WORD_TEMPERATURE = 0.02
CELL_TEMPERATURE = 0.2
CELL_WEIGHT = 0.5  # of covering cells, beside covering words
STEP = 16  # questions are filled up with nothing to a multiple of so many words: sums round by how many they add


def word_rows(visual_BND: Tensor, words_BLD: Tensor, counts: Sequence[int]) -> Tensor:
    """How well each cell covers each word, `[B, L, N]` fp32: all rows of an image together sum to one.

    Each image has so many words as `counts` says, the first ones; rows of no word are zero.
    """
    length, device = words_BLD.shape[1], visual_BND.device
    logits_BLN = torch.zeros(len(counts), length, visual_BND.shape[1], device=device)
    tokens_BND, words_BLD = unit(visual_BND), unit(words_BLD)
    for row, count in enumerate(counts):
        # One product per image and of its own words alone: it may round by how many there are.
        torch.mm(words_BLD[row, :count], tokens_BND[row].T, out=logits_BLN[row, :count])
    count_B11 = torch.tensor(counts, device=device).view(-1, 1, 1)
    real_BL1 = torch.arange(length, device=device).view(1, -1, 1) < count_B11
    return logits_BLN.div_(WORD_TEMPERATURE).softmax(-1).mul_(real_BL1).div_(count_B11.clamp(min=1))


def cell_rows(patches_BNX: Tensor) -> Tensor:
    """How well each cell covers each cell, as before the merger, `[B, N, N]` fp32: rows sum to their weight."""
    return likeness(unit(patches_BNX)).div_(CELL_TEMPERATURE).softmax(-1).mul_(CELL_WEIGHT / patches_BNX.shape[1])


def covering_order(cover_BCN: Tensor, k: int) -> Tensor:
    """`[B, K]` cells in the order picked: always the one that raises the best cover of all rows most; ties by index.

    Eight operations per pick, whatever B.
    """
    best_BC1, left_BN = torch.zeros_like(cover_BCN[..., :1]), torch.zeros_like(cover_BCN[:, 0])
    more_BCN = torch.empty_like(cover_BCN)
    picks: list[Tensor] = []
    while len(picks) < k:
        gain_BN = torch.sub(cover_BCN, best_BC1, out=more_BCN).clamp_(min=0).sum(1).add_(left_BN)
        pick_B1 = gain_BN.argmax(-1, keepdim=True)
        picks.append(pick_B1)
        left_BN.scatter_(1, pick_B1, -math.inf)
        own_BC1 = cover_BCN.gather(2, pick_B1.unsqueeze(1).expand(-1, cover_BCN.shape[1], 1))
        best_BC1 = torch.maximum(best_BC1, own_BC1)
    return torch.cat(picks, 1)


@registered
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
        words, scores_BN = _Words(view), torch.empty_like(whole_BN, dtype=torch.float32)
        for part in in_parts(range(len(scores_BN)), words.floats, scores_BN.device, words.lengths):
            scores_BN[part] = words.cover(part).sum(1)
        return scores_BN.masked_fill(~whole_BN, torch.nan)

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        patches_BNX, words = view.patches_BNX, _Words(view)
        assert patches_BNX is not None

        def order(rows: list[int], k: int) -> Tensor:
            return covering_order(torch.cat([cell_rows(patches_BNX[rows]), words.cover(rows)], 1), k)

        cells, width = patches_BNX.shape[1:]
        return Pick(greedy(order, k_B, cells, 2 * cells * (cells + width) + words.floats, words.lengths))


class _Words:
    """The words of each question in a row, and how well cells cover them."""

    def __init__(self, view: View) -> None:
        assert view.visual_BND is not None
        self.visual_BND, self.tokens_BLD = view.visual_BND, view.question.tokens_BLD
        self.place_BL, real_BL = kept_indices(view.question.mask_BL)
        self.counts: list[int] = real_BL.sum(-1).tolist()
        self.lengths = [-(-count // STEP) * STEP for count in self.counts]  # by each question alone
        cells, width = view.visual_BND.shape[1:]
        self.floats = 2 * (cells * width + max(self.lengths) * (cells + width))  # numbers held for an image

    def cover(self, rows: list[int]) -> Tensor:
        """`word_rows` of images whose questions are filled up to one length."""
        length = self.lengths[rows[0]]
        assert all(self.lengths[row] == length for row in rows), "sums of different lengths round differently"
        place_BL = F.pad(self.place_BL[rows, :length], (0, max(0, length - self.place_BL.shape[1])))
        words_BLD = self.tokens_BLD[rows].gather(1, place_BL.unsqueeze(-1).expand(-1, -1, self.tokens_BLD.shape[-1]))
        return word_rows(self.visual_BND[rows], words_BLD, [self.counts[row] for row in rows])
