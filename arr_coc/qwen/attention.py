"""Where an answer's tokens attended, in the model as it is: one map per image.

T answer tokens, L all tokens, H W grid of cells.
"""

from typing import Any

import torch
from torch import Tensor

from arr_coc.qwen.encoding import cells_of


@torch.no_grad()
def answer_attention(model: Any, inputs: dict[str, Tensor], answer_ids_T: Tensor) -> list[Tensor]:
    """Attention of the answer's tokens on each image of one conversation, `[H, W]`, mean over heads and layers, peak 1.

    Runs the stock model once more over prompt and answer; without an answer, the last token of the prompt is asked.
    Only eager attention shows its weights: the language model is switched to it for that long, so do not call this
    beside a running generation.
    """
    prompt = inputs["input_ids"]
    ids = torch.cat([prompt, answer_ids_T.view(1, -1).to(prompt)], dim=1).to(model.device)
    is_image_L = ids[0] == model.config.image_token_id
    text = model.model.language_model
    before = text.config._attn_implementation
    text.set_attn_implementation("eager")
    try:
        output = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=is_image_L.int().unsqueeze(0),
            pixel_values=inputs["pixel_values"].to(model.device),
            image_grid_thw=inputs["image_grid_thw"].to(model.device),
            output_attentions=True,
            logits_to_keep=1,
        )
    finally:
        text.set_attn_implementation(before)
    # The token before each answer token predicts it: its row says where that came from.
    rows = slice(prompt.shape[1] - 1, max(prompt.shape[1], ids.shape[1] - 1))
    mean_L = torch.stack([layer[0, :, rows].float().mean((0, 1)) for layer in output.attentions]).mean(0)
    grids = cells_of(inputs["image_grid_thw"], model.config.vision_config.spatial_merge_size)
    per_image = mean_L[is_image_L].split([height * width for height, width in grids])
    return [(values / values.max().clamp(min=1e-12)).view(grid) for values, grid in zip(per_image, grids, strict=True)]
