"""vLLM's Qwen3-VL, dense and MoE, for images of which windows were kept: its ViT and its positions know of the rest.

D width of visual tokens with their DeepStack levels, K kept cells, L tokens of a prompt.
"""

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm import envs
from vllm.model_executor.layers.attention import MMEncoderAttention
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessingInfo,
)
from vllm.model_executor.models.qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration, Qwen3VLMoeProcessingInfo
from vllm.multimodal import MULTIMODAL_REGISTRY

from arr_coc.vllm.processor import ARRCOCProcessor


def refuse(vllm_config: Any) -> None:
    """What goes past the processor, or past what is here of the model."""
    images = vllm_config.model_config.get_multimodal_config()
    wrong = {
        "--mm-encoder-tp-mode data": images.mm_encoder_tp_mode == "data",
        "video pruning (--video-pruning-rate)": images.is_multimodal_pruning_enabled(),
        "cudagraph_mm_encoder": bool(vllm_config.compilation_config.cudagraph_mm_encoder),
        "VLLM_USE_RUST_FRONTEND": bool(envs.VLLM_USE_RUST_FRONTEND),
    }
    for what, is_set in wrong.items():
        if is_set:
            raise ValueError(f"ARR-COC does not work with {what}: start vLLM without it")


class OfWindows(Qwen3VLForConditionalGeneration):
    """What both have beside the stock model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        refuse(vllm_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)

    def _parse_and_validate_image_input(self, **kwargs: Any) -> Any:
        if "image_kept" in kwargs:
            return {"type": "windows", **kwargs}
        return super()._parse_and_validate_image_input(**kwargs)

    def _process_image_input(self, image_input: Any) -> Any:
        """Visual tokens of each image's kept cells, `[K, D]`; a small copy is attended to, and not handed on."""
        if image_input["type"] != "windows":
            return super()._process_image_input(image_input)
        places, unit = image_input["image_places"], self.visual.spatial_merge_unit
        how = encoder_metadata(self.visual, image_input["image_grid_thw"].tolist(), places)
        tokens = self.visual(image_input["pixel_values"], None, encoder_metadata=how)
        parts = tokens.split([len(one) // unit for one in places])
        return tuple(part[: len(kept)] for part, kept in zip(parts, image_input["image_kept"], strict=True))

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """Positions in the whole images, of what is left of them."""
        columns, features, end = [], [], 0
        whole: list[int] = []
        for feature in sorted(mm_features, key=lambda one: one.mm_position.offset):
            place, data = feature.mm_position, feature.data
            columns += [np.arange(end, place.offset) - end + len(whole)]
            whole += input_tokens[end : place.offset]
            end = place.offset + place.length
            cells, size = np.arange(place.length), place.length
            if "image_kept" in data:
                cells = data["image_kept"].data.numpy()
                size = int(data["image_grid_thw"].data.prod()) // self.visual.spatial_merge_unit
            features.append(replace(feature, mm_position=replace(place, offset=len(whole), length=size)))
            columns += [cells + len(whole)]
            whole += [input_tokens[place.offset]] * size if size != place.length else input_tokens[place.offset : end]
        columns += [np.arange(end, len(input_tokens)) - end + len(whole)]
        positions, _ = super().get_mrope_input_positions(whole + input_tokens[end:], features)
        left = positions[:, torch.from_numpy(np.concatenate(columns))]
        return left, int(left.max()) + 1 - len(input_tokens)


def encoder_metadata(visual: Any, grids: list[list[int]], places: Any) -> dict[str, Any]:
    """What the ViT is told of patches at these places of images of these grids; attention stays within an image."""
    firsts = accumulate((height * width for _, height, width in grids), initial=0)
    rows = torch.cat([one + first for one, (first, _) in zip(places, pairwise(firsts), strict=True)]).to(visual.device)
    cos, sin = visual.rot_pos_emb(grids)
    ends = np.cumsum([0, *map(len, places)], dtype=np.int32)
    backend = visual.attn_backend
    longest = MMEncoderAttention.compute_max_seqlen(backend, ends)
    sizes = (visual.hidden_size, visual.tp_size, visual.device)
    return {
        "pos_embeds": visual.fast_pos_embed_interpolate(grids)[rows],
        "rotary_pos_emb_cos": cos[rows],
        "rotary_pos_emb_sin": sin[rows],
        "sequence_lengths": MMEncoderAttention.maybe_compute_seq_lens(backend, ends, visual.device),
        "max_seqlen": torch.tensor(longest, dtype=torch.int32),
        "cu_seqlens": MMEncoderAttention.maybe_recompute_cu_seqlens(
            backend, ends, *sizes, fp8_padded_hidden_size=visual.fp8_padded_hidden_size
        ),
    }


@MULTIMODAL_REGISTRY.register_processor(
    ARRCOCProcessor, info=Qwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class ARRCOCQwen3VLForConditionalGeneration(OfWindows):
    """Dense."""


@MULTIMODAL_REGISTRY.register_processor(
    ARRCOCProcessor, info=Qwen3VLMoeProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class ARRCOCQwen3VLMoeForConditionalGeneration(OfWindows, Qwen3VLMoeForConditionalGeneration):
    """With experts."""
