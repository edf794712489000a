"""What one batch teaches: stages 1 and 3 supervise the maps, stage 2 answers end to end.

B images, R questions about them, L tokens of a question or a row, H W grid of cells, X width of the ViT, h heads.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from arr_coc.config import SCORERS
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import vision
from arr_coc.qwen.batched import Frame, look_first
from arr_coc.qwen.language import attended
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.processor import Conversation, encode, text_ids
from arr_coc.records import Judgement
from arr_coc.selectors import ARRCOCSelector, View
from arr_coc.timing import Stopwatch
from arr_coc.training import losses
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.groups import GridGroup
from arr_coc.training.memory import TEMPLATE_TOKENS, teacher_rows
from arr_coc.training.strategies import StrategySelector, relevance_after_tensions

Losses = dict[str, Tensor]
DOUBT = (0.3, 1.0)  # how far a mistaken map is another's


def taught_rows(group: GridGroup, config: SelectorTrainConfig) -> Tensor:
    """Which rows learn from the model's own attention: bool `[R]`."""
    if config.stage == 2 or config.target == "boxes":
        return torch.zeros_like(group.known_R)
    return ~group.known_R if config.target == "auto" else torch.ones_like(group.known_R)


def map_losses(
    judgement: Judgement, group: GridGroup, layer: ARRCOCLayer, config: SelectorTrainConfig, teacher_RHW: Tensor | None
) -> Losses:
    """The losses of the maps, each already weighted: against boxes, and of taught rows against the teacher's attention.

    `teacher_RHW` is None where no row asks for it.
    """
    balance, taught_R = judgement.balance, taught_rows(group, config)
    counted = (group.known_R & ~taught_R, group.weight_R)
    soft_RHW = relevance_after_tensions(judgement)
    wanted_RHW = judgement.maps["participatory"]
    found: Losses = {}
    if teacher_RHW is not None and bool(taught_R.any()):
        weight_R = group.weight_R * taught_R
        for weight, map_RHW in ((config.bce, soft_RHW), (config.participatory, wanted_RHW)):
            off = weight * losses.distillation_loss(map_RHW, teacher_RHW, weight_B=weight_R)
            found["taught"] = found.get("taught", 0.0) + off
    if config.target == "attention":
        return found
    target_RHW, positive = group.targets_RHW, config.positive_weight
    standout_RHW = group.standout_BHW[group.image_R]
    # Blind maps learn what any question could be about. Balanced, so that they take nothing from what might be asked.
    blind = {
        name: losses.relevance_bce(judgement.maps[name], standout_RHW, "balanced", *counted)
        for name in ("information", "perspectival")
    }
    room = (balance.relevance_BHW, balance.tensions_BT[:, 0], target_RHW, layer.attending)
    if config.order and teacher_RHW is not None:
        found["order"] = config.order * losses.order_loss(balance.relevance_BHW, target_RHW, teacher_RHW, *counted)
    return found | {
        "relevance": config.bce * losses.relevance_bce(soft_RHW, target_RHW, positive, *counted),
        "mse": config.mse * losses.relevance_mse(soft_RHW, target_RHW, *counted),
        "iou": config.iou * losses.soft_iou(soft_RHW, target_RHW, *counted),
        "participatory": config.participatory * losses.relevance_bce(wanted_RHW, target_RHW, positive, *counted),
        **{name: getattr(config, name) * loss for name, loss in blind.items()},
        "budget": config.budget * losses.budget_loss(*room, *counted, too_few=config.too_few),
    }


def counted_rows(group: GridGroup, config: SelectorTrainConfig) -> dict[str, float]:
    """Over how many rows, by their weights, each loss of a group is a mean: its share when groups are put together."""
    weight_R, taught_R = group.weight_R, taught_rows(group, config)
    taught = {"taught": float((weight_R * taught_R).sum())}
    known_R = weight_R * (group.known_R & ~taught_R)
    rows = len(group.examples)
    return {
        **taught,
        **dict.fromkeys(("relevance", "mse", "participatory", "information", "perspectival"), float(known_R.sum())),
        **dict.fromkeys(("iou", "budget", "order"), float((known_R * (group.targets_RHW.sum((1, 2)) > 0)).sum())),
        **dict.fromkeys(("answer", "right"), float(rows)),
    }


def judge_group(owner: ARRCOCQwen, group: GridGroup, selector: ARRCOCSelector | None = None) -> Judgement:
    """What the layer thinks of every row of a group, as the product does; each image is looked at once."""
    selector = selector or ARRCOCSelector(owner.layer)
    looker = replace(owner.looker(), selector=selector)
    pixels_B3hw = group.images_Bhw3.permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        question = looker.question(group.ids_RL, group.mask_RL)
    more: dict[str, Tensor] = {}
    if selector.first_look is not None:
        frame = Frame.of(owner.processor, owner.model.config.image_token_id)
        given = (owner.geometry, selector.first_look, (group.ids_RL, group.mask_RL), group.image_R)
        more["looked_BMN"], more["glance_BXHW"] = look_first(owner.model, frame, pixels_B3hw, group.grid, *given)
    stopwatch = Stopwatch(pixels_B3hw.device)
    return looker.judge(group.grid, question, stopwatch, image_B3hw=pixels_B3hw, image_R=group.image_R, **more)


class DoubtingSelector(ARRCOCSelector):
    """The layer while it learns whom to trust: some rows ask nothing, and of some the participatory map is mistaken.

    The maps of its judgement are those of the scorers; what they became is made of the mistaken ones.
    """

    def __init__(self, layer: ARRCOCLayer, config: SelectorTrainConfig, seed: int) -> None:
        chance = np.random.default_rng([seed, 3])
        super().__init__(layer, light=int(chance.random() < config.light_share))
        self.config, self.chance = config, chance

    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        assert view.image_B3hw is not None
        assert view.image_R is not None
        pyramid = self.see(view.image_B3hw, view.grid, view.glance_BXHW, stopwatch).rows(view.image_R)
        question, (rows, device) = self._asked(view), (len(view.image_R), view.image_R.device)
        hidden_R = torch.from_numpy(self.chance.random(rows) < self.config.hidden_share).to(device)
        question = replace(question, mask_BL=question.mask_BL & ~hidden_R.unsqueeze(1))
        scores_RSHW = self.layer.knowing(pyramid, question)
        doubt_R = self.chance.uniform(*DOUBT, rows) * (self.chance.random(rows) < self.config.noisy_share)
        told_RSHW = with_doubt(scores_RSHW, torch.from_numpy(doubt_R).to(scores_RSHW), self.chance)
        judgement = self.layer.settle(told_RSHW, question, pyramid.spread_B)
        return replace(judgement, maps=dict(zip(SCORERS, scores_RSHW.unbind(1), strict=True)))


def with_doubt(scores_RSHW: Tensor, doubt_R: Tensor, chance: np.random.Generator) -> Tensor:
    """The maps, the participatory one mixed as logits with that of another row, by a share in [0, 1]; 0: as it is."""
    place, rows = SCORERS.index("participatory"), scores_RSHW.shape[0]
    other_R = torch.from_numpy(chance.permutation(rows)).to(doubt_R.device)
    own_RHW = scores_RSHW[:, place]
    doubt_R11 = doubt_R.view(-1, 1, 1)
    mixed_RHW = torch.lerp(own_RHW.logit(1e-4), own_RHW[other_R].detach().logit(1e-4), doubt_R11).sigmoid()
    told = [one if number != place else mixed_RHW for number, one in enumerate(scores_RSHW.unbind(1))]
    return torch.where(doubt_R11.unsqueeze(1) > 0, torch.stack(told, dim=1), scores_RSHW)


class MapLearner(nn.Module):
    """Stages 1 and 3. The base model only lends its word embeddings and its ViT, without gradients."""

    def __init__(self, owner: ARRCOCQwen, config: SelectorTrainConfig) -> None:
        super().__init__()
        self.layer, self.config = owner.layer, config
        self._owner = (owner,)  # a tuple hides it: the frozen base is not part of what is trained and synchronised

    def forward(self, group: GridGroup, seed: int, progress: float) -> Losses:
        """Losses of one group; which questions are hidden and which maps mistaken depends on `seed` alone."""
        owner = self._owner[0]
        orders = self.config.order > 0 and np.random.default_rng([seed, 4]).random() < self.config.order_share
        asks_R = taught_rows(group, self.config) | (group.known_R & orders)
        (taught,) = asks_R.nonzero(as_tuple=True)
        teacher_RHW = None
        if len(taught):  # first: what it holds is gone before the scorers keep theirs
            teacher_RHW = torch.zeros_like(group.targets_RHW)
            teacher_RHW[taught] = teacher_attention(owner, group.rows(taught.cpu()))
        judgement = judge_group(owner, group, DoubtingSelector(self.layer, self.config, seed))
        return map_losses(judgement, group, self.layer, self.config, teacher_RHW)


class AnswerLearner(nn.Module):
    """Stage 2. Kept cells of random budgets go through the model, and the answer's loss comes back."""

    def __init__(self, owner: ARRCOCQwen, config: SelectorTrainConfig) -> None:
        super().__init__()
        self.owner, self.config = owner, config
        assert isinstance(owner.selector, StrategySelector)
        self.selector: StrategySelector = owner.selector

    def forward(self, group: GridGroup, seed: int, progress: float) -> Losses:
        """Losses of one group: the answers under the strategy, and the maps where boxes are known."""
        inputs, labels_RL = answered_inputs(self.owner.processor, group)
        keeps = [self._budget(seed, row) for row in range(len(group.examples))]
        self.selector.start(seed, progress)
        prepared = self.owner.prepare(**inputs, labels=labels_RL, keep=keeps)
        # Answers end together on the right, so the last columns are all that have to be turned into words.
        tail = int((labels_RL != losses.IGNORE).sum(1).max()) + 1
        output = self.owner.model(**prepared.model_inputs(), use_cache=False, logits_to_keep=tail)
        assert prepared.compact.labels is not None
        logits, labels_RT = output.logits, prepared.compact.labels[:, -tail:]
        ((judgement, drawn),) = self.selector.take()
        assert judgement.balance.relevance_BHW.shape == group.targets_RHW.shape, "the processor changed an image's size"
        loss_R, right_R = losses.answer_cross_entropy(logits, labels_RT), losses.answers_right(logits, labels_RT)
        answer = self.config.answer * self.selector.strategy.answer_loss(loss_R, right_R, drawn)
        maps = map_losses(judgement, group, self.owner.layer, self.config, None)
        return {"answer": answer, **maps, "right": right_R.float().mean()}

    def _budget(self, seed: int, row: int) -> float:
        """A fraction KEPT, drawn evenly in its logarithm: small budgets are met as often as large ones."""
        least, most = (math.log(share) for share in self.config.keeps)
        return float(math.exp(np.random.default_rng([seed, row]).uniform(least, most)))


# ---------------------------------------------------------------- whole rows, with their answers


def answered_inputs(processor: Any, group: GridGroup) -> tuple[dict[str, Any], Tensor]:
    """Model inputs of every row with its answer, if it has one, at the end, and labels on the answer alone.

    All on the group's device. Rows are padded on the left, so they end together.
    """
    device = group.images_Bhw3.device
    pictures = [Image.fromarray(image) for image in group.images_Bhw3.cpu().numpy()]
    conversations = [
        Conversation([pictures[number]], example.question, ())
        for number, example in zip(group.image_R.tolist(), group.examples, strict=True)
    ]
    inputs = encode(processor, conversations)
    inputs.pop("mm_token_type_ids")
    tokenizer = processor.tokenizer
    said = (example.answer for example in group.examples)
    endings = ([*text_ids(tokenizer, answer), tokenizer.eos_token_id] if answer else [] for answer in said)
    answers = [torch.tensor(ending, dtype=torch.long) for ending in endings]
    ids_RL, nothing = inputs["input_ids"], [torch.zeros_like(answer, dtype=torch.bool) for answer in answers]
    rows = {
        "input_ids": _with_ends(ids_RL, answers, tokenizer.pad_token_id or 0),
        "attention_mask": _with_ends(inputs["attention_mask"], [torch.ones_like(answer) for answer in answers], 0),
        "question_mask": _with_ends(inputs["question_mask"], nothing, 0),
    }
    labels_RL = _with_ends(torch.full_like(ids_RL, losses.IGNORE), answers, losses.IGNORE)
    rows |= {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
    return {name: value.to(device) for name, value in rows.items()}, labels_RL.to(device)


def _with_ends(start_RL: Tensor, ends: list[Tensor], fill: int) -> Tensor:
    """Rows with their ends behind them, and padding before them that makes them equally long."""
    rows = [torch.cat([row, end]) for row, end in zip(start_RL, ends, strict=True)]
    return pad_sequence(rows, batch_first=True, padding_value=fill, padding_side="left")


# ---------------------------------------------------------------- a teacher for images without boxes
#
# The whole image goes through the model, with the question and, if it is known, its answer; the attention of the tokens
# that predict the answer (without one: of the last token of the prompt), on the image, averaged over heads and layers,
# is the target. On mini's scenes the quarter of the cells with the most of it holds 97 % of the evidence.


@torch.no_grad()
def teacher_attention(owner: ARRCOCQwen, group: GridGroup) -> Tensor:
    """Attention of each row's answer on its image, `[R, H, W]`, at least 0, in no particular scale."""
    rows = torch.arange(len(group.examples))
    text = TEMPLATE_TOKENS + group.ids_RL.shape[1] + max(len(example.answer) for example in group.examples)
    at_once = teacher_rows(group.grid[0] * group.grid[1], text)  # a letter is a token at most, as a rule
    return torch.cat([_attention(owner, group.rows(part)) for part in rows.split(at_once)])


def _attention(owner: ARRCOCQwen, group: GridGroup) -> Tensor:
    inputs, labels_RL = answered_inputs(owner.processor, group)
    inputs.pop("question_mask")
    is_image_RL = inputs["input_ids"] == owner.model.config.image_token_id
    inputs["mm_token_type_ids"] = is_image_RL.int()
    # The token before each answer token predicts it: its row says where that came from.
    asks_RL = (labels_RL != losses.IGNORE).roll(-1, dims=1)
    asks_RL[:, -1] = ~asks_RL[:, :-1].any(1)
    inputs["mm_encoder_outputs"] = {"image": _seen_once(owner.model, inputs.pop("pixel_values"), inputs, group)}
    return attended(owner.model, inputs, asks_RL)[is_image_RL].view(len(group.examples), *group.grid)


def _seen_once(model: Any, patches: Tensor, inputs: dict[str, Any], group: GridGroup) -> Any:
    """What the ViT makes of each row's image: of an image that several rows ask about, once."""
    numbers, image_R = group.image_R.unique(return_inverse=True)
    first_B = torch.stack([(image_R == one).nonzero()[0, 0] for one in range(len(numbers))])
    patches = patches.unflatten(0, (len(image_R), -1))[first_B].flatten(0, 1)  # those of all rows are let go
    features = vision.encode_dense(model, patches, inputs["image_grid_thw"][first_B])
    return vision.repeated(features, image_R.tolist())
