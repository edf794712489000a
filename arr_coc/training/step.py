"""What one batch teaches: stages 1 and 3 supervise the maps, stage 2 answers end to end.

B images, R questions about them, L tokens of a question, H W grid of cells, X width of the ViT.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.records import Judgement
from arr_coc.selectors import ARRCOCSelector
from arr_coc.timing import Stopwatch
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.data import Group
from arr_coc.training.inputs import answered_inputs
from arr_coc.training.losses import (
    IGNORE,
    answer_cross_entropy,
    answers_right,
    budget_loss,
    distillation_loss,
    relevance_bce,
    relevance_mse,
    soft_iou,
)
from arr_coc.training.sampling import relevance_after_tensions
from arr_coc.training.strategy_selector import StrategySelector
from arr_coc.training.teaching import teacher_attention

Losses = dict[str, Tensor]


def map_losses(
    judgement: Judgement, group: Group, layer: ARRCOCLayer, config: SelectorTrainConfig, teacher_RHW: Tensor | None
) -> Losses:
    """The losses of the maps, each already weighted: against boxes, or against the teacher's attention."""
    balance, weight_R = judgement.balance, group.weight_R
    soft_RHW = relevance_after_tensions(judgement)
    wanted_RHW = judgement.maps["participatory"]
    if teacher_RHW is not None:
        return {
            "relevance": config.bce * distillation_loss(soft_RHW, teacher_RHW, weight_B=weight_R),
            "participatory": config.participatory * distillation_loss(wanted_RHW, teacher_RHW, weight_B=weight_R),
        }
    target_RHW, known_R = group.targets_RHW, group.known_R
    positive = config.positive_weight
    standout_R = group.standout_BHW[group.image_R]
    return {
        "relevance": config.bce * relevance_bce(soft_RHW, target_RHW, positive, known_R, weight_R),
        "mse": config.mse * relevance_mse(soft_RHW, target_RHW, known_R, weight_R),
        "iou": config.iou * soft_iou(soft_RHW, target_RHW, known_R, weight_R),
        "participatory": config.participatory * relevance_bce(wanted_RHW, target_RHW, positive, known_R, weight_R),
        "perspectival": config.perspectival
        * relevance_bce(judgement.maps["perspectival"], standout_R, positive, known_R, weight_R),
        "budget": config.budget
        * budget_loss(
            balance.relevance_BHW,
            balance.tensions_BT[:, 0],
            target_RHW,
            layer.attending,
            known_R,
            weight_R,
            too_few=config.too_few,
        ),
    }


def counted_rows(group: Group, config: SelectorTrainConfig) -> dict[str, float]:
    """Over how many rows, by their weights, each loss of a group is a mean: its share when groups are put together."""
    weight_R = group.weight_R
    if config.target == "attention":
        return dict.fromkeys(("relevance", "participatory"), float(weight_R.sum()))
    known_R = weight_R * group.known_R
    rows = len(group.examples)
    return {
        **dict.fromkeys(("relevance", "mse", "participatory", "perspectival"), float(known_R.sum())),
        **dict.fromkeys(("iou", "budget"), float((known_R * (group.targets_RHW.sum((1, 2)) > 0)).sum())),
        **dict.fromkeys(("answer", "right"), float(rows)),
    }


def judge_group(owner: ARRCOCQwen, group: Group) -> Judgement:
    """What the layer thinks of every row of a group, as the product does; each image is looked at once."""
    looker = replace(owner.looker(), selector=ARRCOCSelector(owner.layer))
    pixels_B3hw = group.images_Bhw3.permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        question = looker.question(group.ids_RL, group.mask_RL)
    stopwatch = Stopwatch(pixels_B3hw.device)
    return looker.judge(group.grid, question, stopwatch, image_B3hw=pixels_B3hw, image_R=group.image_R)


class MapLearner(nn.Module):
    """Stages 1 and 3. The base model only lends its word embeddings and its ViT, without gradients."""

    def __init__(self, owner: ARRCOCQwen, config: SelectorTrainConfig) -> None:
        super().__init__()
        self.layer, self.config = owner.layer, config
        self._owner = (owner,)  # a tuple hides it: the frozen base is not part of what is trained and synchronised

    def forward(self, group: Group, seed: int, progress: float) -> Losses:
        """Losses of one group. Nothing here is drawn by chance, so `seed` and `progress` do not matter."""
        owner = self._owner[0]
        judgement = judge_group(owner, group)
        teacher_RHW = None
        if self.config.target == "attention":
            teacher_RHW = teacher_attention(owner, group)
        return map_losses(judgement, group, self.layer, self.config, teacher_RHW)


class AnswerLearner(nn.Module):
    """Stage 2. Kept cells of random budgets go through the model, and the answer's loss comes back."""

    def __init__(self, owner: ARRCOCQwen, config: SelectorTrainConfig) -> None:
        super().__init__()
        self.owner, self.config = owner, config
        assert isinstance(owner.selector, StrategySelector)
        self.selector: StrategySelector = owner.selector

    def forward(self, group: Group, seed: int, progress: float) -> Losses:
        """Losses of one group: the answers under the strategy, and the maps where boxes are known."""
        inputs, labels_RL = answered_inputs(self.owner.processor, group)
        keeps = [self._budget(seed, row) for row in range(len(group.examples))]
        self.selector.start(seed, progress)
        prepared = self.owner.prepare(**inputs, labels=labels_RL, keep=keeps)
        # Answers end together on the right, so the last columns are all that have to be turned into words.
        tail = int((labels_RL != IGNORE).sum(1).max()) + 1
        output = self.owner.model(**prepared.model_inputs(), use_cache=False, logits_to_keep=tail)
        assert prepared.compact.labels is not None
        logits, labels_RT = output.logits, prepared.compact.labels[:, -tail:]
        ((judgement, drawn),) = self.selector.take()
        assert judgement.balance.relevance_BHW.shape == group.targets_RHW.shape, "the processor changed an image's size"
        loss_R, right_R = answer_cross_entropy(logits, labels_RT), answers_right(logits, labels_RT)
        answer = self.config.answer * self.selector.strategy.answer_loss(loss_R, right_R, drawn)
        maps = map_losses(judgement, group, self.owner.layer, self.config, None)
        return {"answer": answer, **maps, "right": right_R.float().mean()}

    def _budget(self, seed: int, row: int) -> float:
        """A fraction KEPT, drawn evenly in its logarithm: small budgets are met as often as large ones."""
        least, most = (math.log(share) for share in self.config.keeps)
        return float(math.exp(np.random.default_rng([seed, row]).uniform(least, most)))
