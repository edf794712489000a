"""A question-aware choice that needs no training: visual tokens against the question's words, with coverage.

B images, N visual tokens, L question tokens, D language-model width.

In Qwen's language models, visual tokens and word embeddings meet in one space. Both are RMS-normalised; a word counts
by how far a token's match with it stands above that word's mean over the image, so words that match everywhere (the,
is, of) say nothing. A quarter of the budget is spent on even coverage, since what answers may be beside what was named.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import TokenAllocator
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import Balance, Judgement, QuestionTokens
from arr_coc.selectors.base import Selector, View, registered
from arr_coc.timing import Stopwatch

TENSIONS = (0.5, 0.25, 0.0)  # particularize, explore, diversify
# A map stretched to [0, 1] is a ranking, with hardly a cell at 0: a steepness of 1 would always end at the most tokens.
# On mini's scenes this gives "auto" 20 to 39 % of the cells, median 33 %.
STEEPNESS = 2.0


def word_match(visual_BND: Tensor, question: QuestionTokens) -> Tensor:
    """How well each token matches the word that fits it best, above that word's mean over the image: `[B, N]`."""
    tokens = F.rms_norm(visual_BND.float(), visual_BND.shape[-1:], eps=1e-6)
    words = F.rms_norm(question.tokens_BLD, question.tokens_BLD.shape[-1:], eps=1e-6)
    match_BNL = tokens @ words.transpose(1, 2) / tokens.shape[-1]
    above_BNL = match_BNL - match_BNL.mean(1, keepdim=True)
    best_BN = above_BNL.masked_fill(~question.mask_BL.unsqueeze(1), -torch.inf).amax(-1)
    return torch.where(question.asked_B.unsqueeze(1), best_BN, torch.zeros_like(best_BN))


@registered
class TrainingFreeSelector(Selector):
    name = "training_free"
    pays = "ViT: all; LM: the kept tokens; choosing: one product of all tokens with the question's words"
    reads_tokens = True
    untrained_notice = "no trained adapter: tokens are chosen by the question's words, after the ViT"

    def __init__(self, config: ARRCOCConfig, layer: ARRCOCLayer | None = None) -> None:
        super().__init__(TokenAllocator(config.min_tokens, config.max_tokens, STEEPNESS))

    @torch.no_grad()
    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        view = view.per_row()
        assert view.visual_BND is not None
        with stopwatch.part("knowing"), torch.autocast(view.visual_BND.device.type, enabled=False):
            match_BN = word_match(view.visual_BND, view.question)
            low_B1, high_B1 = match_BN.amin(-1, keepdim=True), match_BN.amax(-1, keepdim=True)
            relevance_BHW = ((match_BN - low_B1) / (high_B1 - low_B1).clamp(min=1e-6)).view(-1, *view.grid)
        tensions_BT = relevance_BHW.new_tensor(TENSIONS).expand(relevance_BHW.shape[0], -1)
        weights_B1 = relevance_BHW.new_ones(relevance_BHW.shape[0], 1)
        # The map is stretched per image; the matches before that tell one image from another.
        mass_B = match_BN.clamp(min=0).square().sum(-1)
        return Judgement({"question words": relevance_BHW}, Balance(relevance_BHW, weights_B1, tensions_BT), mass_B)
