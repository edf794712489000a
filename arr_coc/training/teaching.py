"""A teacher for images without boxes: where the dense model itself looks while it gives the right answer.

R questions, H W grid of cells, N = H * W, L tokens of a sequence, h heads.

The whole image goes through the model, with the question and its answer; the attention of the tokens that predict the
answer, on the image, averaged over heads and layers, is the target. On mini's scenes the quarter of the cells with
the most of it holds 97 % of the evidence.
"""

from typing import Any

import torch
from torch import Tensor

from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.training.data import Group
from arr_coc.training.inputs import answered_inputs
from arr_coc.training.losses import IGNORE

ROWS_AT_ONCE = 64  # attention maps of whole sequences are large: this bounds them


@torch.no_grad()
def teacher_attention(owner: ARRCOCQwen, group: Group) -> Tensor:
    """Attention of each row's answer on its image, `[R, H, W]`, at least 0, in no particular scale."""
    rows = torch.arange(len(group.examples))
    return torch.cat([_attention(owner, group.rows(part)) for part in rows.split(ROWS_AT_ONCE)])


def _attention(owner: ARRCOCQwen, group: Group) -> Tensor:
    model = owner.model
    inputs, labels_RL = answered_inputs(owner.processor, group)
    inputs.pop("question_mask")
    is_image_RL = inputs["input_ids"] == model.config.image_token_id
    output = _with_weights(model, inputs | {"mm_token_type_ids": is_image_RL.int()})
    # The token before each answer token predicts it: its row says where that came from.
    predicts_RL = (labels_RL != IGNORE).roll(-1, dims=1)
    predicts_RL[:, -1] = False
    share_RL = predicts_RL / predicts_RL.sum(1, keepdim=True).clamp(min=1)
    total_RL = torch.zeros_like(share_RL)
    for weights_RhLL in output.attentions:
        total_RL += torch.einsum("rhlm,rl->rm", weights_RhLL.float(), share_RL) / weights_RhLL.shape[1]
    return total_RL[is_image_RL].view(len(group.examples), *group.grid)


def _with_weights(model: Any, inputs: dict[str, Tensor]) -> Any:
    """The stock forward with attention weights, which only the eager attention shows; it is switched for that long."""
    text = model.model.language_model
    before = text.config._attn_implementation
    text.set_attn_implementation("eager")
    try:
        return model(**inputs, output_attentions=True, logits_to_keep=1, use_cache=False)
    finally:
        text.set_attn_implementation(before)
