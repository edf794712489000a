"""What a selector is shown of a request: the question, the pixels, and whatever else it says that it reads.

B batch, L full length, Q question tokens, I images of all samples, H W grid of cells, N = H * W.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from arr_coc.attending import kept_indices
from arr_coc.config import ARRCOCConfig
from arr_coc.images.reader import image_tensor
from arr_coc.qwen import encoding, insides_vision
from arr_coc.qwen.language import Begun
from arr_coc.qwen.positions import ChatTokens, find_question
from arr_coc.qwen.requests import Layout, Request, evidence_mask
from arr_coc.records import Question
from arr_coc.selectors import Selector


def show_question(model: Any, config: ARRCOCConfig, chat: ChatTokens | None, request: Request) -> Question:
    """The question's token embeddings, or the language model's reading of them when the pooling is "lm"."""
    mask_BL = request.question_mask
    if mask_BL is None:
        mask_BL = find_question(request.input_ids, request.attention_mask, model.config, chat)
    columns_BQ, mask_BQ = kept_indices(mask_BL.bool())
    embeds = model.get_input_embeddings()(request.input_ids.gather(1, columns_BQ)).detach()
    if config.pooling == "lm" and columns_BQ.shape[1]:
        with torch.no_grad():
            read = model.model.language_model(inputs_embeds=embeds, attention_mask=mask_BQ.long(), use_cache=False)
        embeds = read.last_hidden_state
    return Question.of(embeds, mask_BQ)


def show_pixels(
    vision_config: Any, mean: Tensor, std: Tensor, request: Request, grids: Sequence[tuple[int, int]]
) -> list[Tensor]:
    """Each image `[3, h, w]` in [0, 1]: the originals if given, else rebuilt from the patches."""
    device = request.input_ids.device
    if request.original_image is not None:
        given = request.original_image
        several = given if isinstance(given, (list, tuple)) else [given]
        if len(several) != len(grids):
            raise ValueError(f"original_image has {len(several)} images, the inputs have {len(grids)}")
        images = [image_tensor(image).to(device) for image in several]
        for image, grid in zip(images, grids, strict=True):
            _check_aspect(image, grid)
        return images
    rows = request.pixel_values.split(request.image_grid_thw.prod(-1).tolist())
    mean, std = mean.to(device), std.to(device)
    return [encoding.unpatchify(row, grid, vision_config, mean, std) for row, grid in zip(rows, grids, strict=True)]


def show_more(
    selector: Selector, model: Any, request: Request, layout: Layout, features: Any, begun: Begun | None
) -> dict[str, Sequence[Tensor]]:
    """Other fields of the view, a tensor per image: its number, and of the insides what the selector reads."""
    device = request.input_ids.device
    places = [layout.sample_of[:image].count(sample) for image, sample in enumerate(layout.sample_of)]
    numbers = places if request.image_numbers is None else request.image_numbers
    more: dict[str, Sequence[Tensor]] = {"number_B": torch.tensor(numbers, device=device).unbind()}
    if selector.reads_evidence:
        if request.evidence is None:
            raise ValueError(
                f"selector {selector.name!r} must be told where the answer is: pass evidence=, the boxes of each image"
            )
        boxes = zip(request.evidence, layout.grids, strict=True)
        more["evidence_BHW"] = [evidence_mask(several, grid).to(device) for several, grid in boxes]
    if selector.reads_patches:
        more["patches_BNX"] = insides_vision.patch_features(model, features)
    if selector.reads_received:
        received, keys = insides_vision.received_attention(model, features, request.image_grid_thw)
        more |= {"received_BN": received, "keys_BNd": keys}
    if begun is not None:
        cells = [height * width for height, width in layout.grids]
        more["attended_BN"] = begun.attended_BL[layout.types_BL == 1].split(cells)
    return more


def _check_aspect(image: Tensor, grid: tuple[int, int]) -> None:
    """An original must be the picture that was resized to this grid, give or take the rounding to whole cells."""
    height, width = image.shape[-2:]
    stretch = (height / width) / (grid[0] / grid[1])
    rounding = (1 + 1 / grid[0]) * (1 + 1 / grid[1])
    if not 1 / rounding**2 <= stretch <= rounding**2:
        raise ValueError(
            f"original_image of {width}x{height} px does not have the shape of the {grid[1]}x{grid[0]} cells"
        )
