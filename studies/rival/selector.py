"""The trained rival: a scorer that reads the ViT's output tokens beside the question, learned from the same boxes.

B images with one grid, N cells, K kept, L question tokens, D language-model width, H width of the scorer.

It has what ARR-COC has (the question, boxes to learn from, as many steps) and more to look at: every token as the whole
ViT made it. What it cannot do is choose before that ViT has run. With `diversity` the picks are by maximal marginal
relevance: relevance less the likeness to what is kept already.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from arr_coc.attending import choose_cells
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import QuestionTokens
from arr_coc.selectors.base import SELECTORS, Selector, View
from arr_coc.selectors.field.base import FieldSelector, Pick, at, greedy, likeness, unit

WIDTH, HEADS = 160, 4
WEIGHTS = "rival.safetensors"


class RivalScorer(nn.Module):
    """Relevance of every visual token to a question, `[B, N]` logits: tokens attend to the question's words."""

    def __init__(self, hidden_dim: int, width: int = WIDTH) -> None:
        super().__init__()
        self.hidden_dim, self.width = hidden_dim, width
        self.cells = nn.Sequential(nn.LayerNorm(hidden_dim), nn.Linear(hidden_dim, width))
        self.words = nn.Sequential(nn.LayerNorm(hidden_dim), nn.Linear(hidden_dim, width))
        self.attend = nn.MultiheadAttention(width, HEADS, batch_first=True)
        self.judge = nn.Sequential(nn.Linear(4 * width, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.score = nn.Linear(width, 1)
        nn.init.constant_(self.score.bias, -2.0)  # evidence is rare

    def forward(self, visual_BND: Tensor, question: QuestionTokens) -> Tensor:
        cells_BNH = self.cells(visual_BND.float())
        words_BLH = self.words(question.tokens_BLD.float())
        # A row without a question must not be a softmax over nothing: it sees its padding.
        hidden_BL = ~question.mask_BL & question.asked_B.unsqueeze(1)
        read_BNH, _ = self.attend(cells_BNH, words_BLH, words_BLH, key_padding_mask=hidden_BL, need_weights=False)
        count_B11 = question.mask_BL.sum(-1).clamp(min=1).view(-1, 1, 1)
        pooled_B1H = (words_BLH * question.mask_BL.unsqueeze(-1)).sum(1, keepdim=True) / count_B11
        seen = torch.cat([cells_BNH, read_BNH, cells_BNH * read_BNH, cells_BNH * pooled_B1H], dim=-1)
        logits_BN: Tensor = self.score(self.judge(seen)).squeeze(-1)
        return logits_BN


def save_rival(folder: Path, scorer: RivalScorer, about: dict[str, object]) -> Path:
    """Write the weights; `about` (how it was trained) goes along as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().float().cpu().contiguous() for name, tensor in scorer.state_dict().items()}
    shape = {"hidden_dim": scorer.hidden_dim, "width": scorer.width}
    save_file(weights, str(folder / WEIGHTS), metadata={"shape": json.dumps(shape), "about": json.dumps(about)})
    return folder / WEIGHTS


def load_rival(path: Path) -> RivalScorer:
    """Read a scorer from its file, or from the folder that it is in."""
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{file}: no trained rival there; make one with python -m studies.rival.train")
    try:
        with safe_open(str(file), framework="pt") as opened:
            shape = json.loads((opened.metadata() or {})["shape"])
            weights = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a dict)
        scorer = RivalScorer(int(shape["hidden_dim"]), int(shape["width"]))
        scorer.load_state_dict(weights)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{file}: not the weights of a rival ({reason}); copy or train it again") from None
    return scorer.eval().requires_grad_(False)


def mmr_order(scores_BN: Tensor, unit_BND: Tensor, k: int, diversity: float) -> Tensor:
    """`[B, K]` cells in the order picked: always the highest (1 - diversity) * score - diversity * likeness.

    Scores are in [0, 1]; the likeness of a cell is its greatest cosine with a picked one, or 0. Ties go to the lower
    index; a picked cell is infinitely like itself, so it is never picked again. Four operations per pick, whatever B.
    """
    loss_BNN = likeness(unit_BND).mul_(diversity)
    loss_BNN.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    relevance_BN, lost_BN = (1 - diversity) * scores_BN, torch.zeros_like(scores_BN)
    picks = [relevance_BN.argmax(-1)]
    while len(picks) < k:
        lost_BN = torch.maximum(lost_BN, at(loss_BNN, picks[-1]))
        picks.append((relevance_BN - lost_BN).argmax(-1))
    return torch.stack(picks, 1)


class RivalSelector(FieldSelector):
    """The k cells that the scorer finds most relevant; with `diversity`, by maximal marginal relevance."""

    name = "rival"
    pays = "ViT: all; LM: the kept tokens; choosing: a small network over all tokens and the question's words"
    reason = "the cells that a scorer trained on the ViT's output finds relevant"
    reads_tokens = True

    def __init__(self, config: ARRCOCConfig, scorer: RivalScorer, diversity: float = 0.0) -> None:
        super().__init__(config)
        if not 0 <= diversity < 1:
            raise ValueError(f"diversity={diversity}: expected a weight in [0, 1), 0 for relevance alone")
        if scorer.hidden_dim != config.hidden_dim:
            raise ValueError(
                f"the rival was trained for a width of {scorer.hidden_dim}, this model has {config.hidden_dim}"
            )
        self.scorer, self.diversity = scorer, diversity

    def score(self, view: View) -> Tensor:
        assert view.visual_BND is not None
        return F.sigmoid(self.scorer(view.visual_BND, view.question))

    def claim(self, view: View, scores_BN: Tensor) -> Tensor:
        return scores_BN.sum(-1)

    def pick(self, view: View, scores_BN: Tensor, k_B: Tensor) -> Pick:
        if not self.diversity:
            return Pick(choose_cells(scores_BN, k_B))
        visual_BND = view.visual_BND
        assert visual_BND is not None

        def order(rows: list[int], k: int) -> Tensor:
            return mmr_order(scores_BN[rows], unit(visual_BND[rows]), k, self.diversity)

        cells, width = visual_BND.shape[1:]
        return Pick(greedy(order, k_B, cells, cells * (cells + 2 * width)))


def make(config: ARRCOCConfig, layer: ARRCOCLayer, path: str = "", diversity: float = 0.0) -> Selector:
    if not path:
        raise ValueError("selector 'rival' is trained: give its weights, as in rival:path=runs/rival")
    return RivalSelector(config, load_rival(Path(path)), diversity)


SELECTORS["rival"] = make
