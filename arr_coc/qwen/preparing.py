"""Choose, encode, compact: everything between the processor's output and the language model.

B batch, L full length, M compact length, I images of all samples.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arr_coc.attending import kept_indices
from arr_coc.config import ARRCOCConfig, Keep, check_keeps
from arr_coc.layer import straight_through_gate
from arr_coc.qwen import encoding
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.choosing import Candidates, Choice, choose, keep_everything, keep_weighted
from arr_coc.qwen.glance import glance
from arr_coc.qwen.images import image_tensor
from arr_coc.qwen.positions import ChatTokens, Compact, compact, find_question, samples_of_images, token_types
from arr_coc.records import Question
from arr_coc.selectors import Selector
from arr_coc.timing import Stopwatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """Model inputs as the processor returns them, and what the caller wants of them."""

    input_ids: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor
    attention_mask: Tensor
    keeps: list[Keep]  # one checked dial per sample
    labels: Tensor | None = None
    pixel_values_videos: Tensor | None = None
    video_grid_thw: Tensor | None = None
    question_mask: Tensor | None = None
    original_image: Any = None

    @classmethod
    def of(
        cls,
        device: torch.device,
        input_ids: Tensor | None,
        pixel_values: Tensor,
        image_grid_thw: Tensor | None,
        attention_mask: Tensor | None,
        keep: Any,
        original_image: Any,
        **tensors: Tensor | None,
    ) -> "Request":
        """Check what must be there and bring it to the model's device."""
        if input_ids is None or image_grid_thw is None:
            raise ValueError("pixel_values need input_ids and image_grid_thw: pass all that the processor returns")
        moved = {name: tensor if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
        return cls(
            input_ids.to(device),
            pixel_values.to(device),
            image_grid_thw.to(device),
            torch.ones_like(input_ids, device=device) if attention_mask is None else attention_mask.to(device),
            check_keeps(keep, input_ids.shape[0]),
            original_image=original_image,
            **moved,
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """Inputs for the stock model, and how they came about."""

    compact: Compact
    features: dict[str, Any]
    images: list[list[ImageSelection]]  # per sample, per image
    stopwatch: Stopwatch

    @property
    def attention_mask(self) -> Tensor:
        return self.compact.attention_mask

    def model_inputs(self) -> dict[str, Any]:
        return {
            "input_ids": self.compact.input_ids,
            "attention_mask": self.compact.attention_mask,
            "position_ids": self.compact.position_ids,
            "mm_encoder_outputs": self.features,
        }


@dataclass(frozen=True, slots=True)
class Preparer:
    """The settings that preparing depends on."""

    model: Any  # the stock model
    selector: Selector
    config: ARRCOCConfig
    encoding: str  # dense, sparse or weighted
    chat: ChatTokens | None
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    pad_id: int
    strict: bool  # let errors of the selector through, as training should

    def __call__(self, request: Request) -> Prepared:
        stopwatch = Stopwatch(request.input_ids.device)
        config = self.model.config
        types_BL = token_types(request.input_ids, config)
        grids = encoding.cells_of(request.image_grid_thw, config.vision_config.spatial_merge_size)
        sample_of = samples_of_images(types_BL, grids)
        choice, features = self._choose_and_encode(request, grids, sample_of, stopwatch)
        encoded = {"image": features}
        if request.pixel_values_videos is not None:
            encoded["video"] = self.model.model.get_video_features(
                request.pixel_values_videos, request.video_grid_thw, return_dict=True
            )
        positions_3BL, _ = self.model.model.get_rope_index(
            request.input_ids, types_BL, request.image_grid_thw, request.video_grid_thw, request.attention_mask
        )
        keep_BL = torch.ones_like(types_BL, dtype=torch.bool)
        keep_BL[types_BL == 1] = torch.cat([image.mask.flatten() for image in choice.images])
        short = compact(
            request.input_ids,
            request.attention_mask,
            positions_3BL,
            keep_BL,
            policy=self.config.position_policy,
            pad_id=self.pad_id,
            labels=request.labels,
        )
        images: list[list[ImageSelection]] = [[] for _ in request.keeps]
        for sample, image in zip(sample_of, choice.images, strict=True):
            images[sample].append(image)
        return Prepared(short, encoded, images, stopwatch)

    def _choose_and_encode(
        self, request: Request, grids: list[tuple[int, int]], sample_of: list[int], stopwatch: Stopwatch
    ) -> tuple[Choice, Any]:
        if all(isinstance(keep, float) and keep == 1.0 for keep in request.keeps):
            choice = keep_everything(grids, request.input_ids.device, "keep_all", "all tokens were asked for")
            return choice, self._encode(request, choice.indices, stopwatch)
        if self.encoding == "sparse":
            if self.selector.reads_tokens:
                raise ValueError(
                    f"encoding='sparse' chooses before the ViT, but selector {self.selector.name!r} reads its output: "
                    "use encoding='dense', or selector='arr_coc'"
                )
            choice = self._choose(request, grids, None, sample_of, stopwatch)
            return choice, self._gate(self._encode(request, choice.indices, stopwatch), choice)
        features = self._encode(request, None, stopwatch)
        tokens = features.pooler_output if self.selector.reads_tokens else None
        choice = self._choose(request, grids, tokens, sample_of, stopwatch)
        if self.encoding == "weighted":
            choice = keep_weighted(choice, [request.keeps[sample] == 1.0 for sample in sample_of])
        else:
            features = encoding.take(features, choice.indices)
        return choice, self._gate(features, choice)

    def _encode(self, request: Request, indices: list[Tensor] | None, stopwatch: Stopwatch) -> Any:
        with stopwatch.part("vision"):
            if self.encoding == "sparse" and indices is not None:
                return encoding.encode_sparse(self.model, request.pixel_values, request.image_grid_thw, indices)
            return encoding.encode_dense(self.model, request.pixel_values, request.image_grid_thw)

    def _choose(
        self,
        request: Request,
        grids: list[tuple[int, int]],
        tokens: Sequence[Tensor] | None,
        sample_of: list[int],
        stopwatch: Stopwatch,
    ) -> Choice:
        with stopwatch.part("question"):
            question = self._question(request)
        with stopwatch.part("pixels"):
            pixels = self._pixels(request, grids) if self.selector.reads_pixels else None
        # Weighted encoding keeps every token and uses the relevance alone: any budget short of all makes one.
        keeps: list[Keep] = [0.5] * len(request.keeps) if self.encoding == "weighted" else request.keeps
        look = self._glance if self.selector.reads_glance else None
        batch = Candidates(grids, pixels, tokens, question, sample_of, keeps, look)
        return choose(self.selector, batch, stopwatch, self.strict)

    def _glance(self, image_B3hw: Tensor, grid: tuple[int, int]) -> Tensor:
        mean, std = torch.tensor(self.image_mean), torch.tensor(self.image_std)
        return glance(self.model, image_B3hw, grid, mean, std)

    def _gate(self, features: Any, choice: Choice) -> Any:
        """Scale by relevance (weighted), or pass its gradient on (straight-through); else nothing."""
        if choice.soft is None:
            return features
        if self.encoding == "weighted":
            return encoding.scale(features, choice.soft)
        if self.config.straight_through:
            kept = [soft[index] for soft, index in zip(choice.soft, choice.indices, strict=True)]
            return encoding.scale(features, [straight_through_gate(scores) for scores in kept])
        return features

    def _question(self, request: Request) -> Question:
        """The question's token embeddings, or the language model's reading of them when the pooling is "lm"."""
        mask_BL = request.question_mask
        if mask_BL is None:
            mask_BL = find_question(request.input_ids, request.attention_mask, self.model.config, self.chat)
        columns_BQ, mask_BQ = kept_indices(mask_BL.bool())
        embeds = self.model.get_input_embeddings()(request.input_ids.gather(1, columns_BQ)).detach()
        if self.config.pooling == "lm" and columns_BQ.shape[1]:
            with torch.no_grad():
                read = self.model.model.language_model(
                    inputs_embeds=embeds, attention_mask=mask_BQ.long(), use_cache=False
                )
            embeds = read.last_hidden_state
        return Question.of(embeds, mask_BQ)

    def _pixels(self, request: Request, grids: list[tuple[int, int]]) -> list[Tensor]:
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
        vision = self.model.config.vision_config
        patches = [height * width * vision.spatial_merge_size**2 for height, width in grids]
        mean, std = torch.tensor(self.image_mean, device=device), torch.tensor(self.image_std, device=device)
        rows = torch.split(request.pixel_values, patches)
        return [encoding.unpatchify(row, grid, vision, mean, std) for row, grid in zip(rows, grids, strict=True)]


def _check_aspect(image: Tensor, grid: tuple[int, int]) -> None:
    """An original must be the picture that was resized to this grid, give or take the rounding to whole cells."""
    height, width = image.shape[-2:]
    stretch = (height / width) / (grid[0] / grid[1])
    rounding = (1 + 1 / grid[0]) * (1 + 1 / grid[1])
    if not 1 / rounding**2 <= stretch <= rounding**2:
        raise ValueError(
            f"original_image of {width}x{height} px does not have the shape of the {grid[1]}x{grid[0]} cells"
        )
