"""Choose, encode, compact: everything between the processor's output and the language model.

B batch, L full length, M compact length, I images of all samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig, Keep
from arr_coc.layer import straight_through_gate
from arr_coc.qwen import encoding
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.choosing import Candidates, Choice, choose, keep_everything, keep_weighted
from arr_coc.qwen.glance import glance
from arr_coc.qwen.language import Begun, begin, go_on
from arr_coc.qwen.positions import ChatTokens, Compact, compact
from arr_coc.qwen.requests import Layout, Request, resize, with_small_images
from arr_coc.qwen.showing import show_more, show_pixels, show_question
from arr_coc.selectors import Selector
from arr_coc.timing import Stopwatch


@dataclass(frozen=True, slots=True)
class Prepared:
    """Inputs for the stock model, and how they came about."""

    compact: Compact
    features: dict[str, Any]
    images: list[list[ImageSelection]]  # per sample, per image
    stopwatch: Stopwatch
    begun: Begun | None = None  # what the language model did already, where the choice needed that

    @property
    def attention_mask(self) -> Tensor:
        return self.compact.attention_mask

    def model_inputs(self) -> dict[str, Any]:
        return _model_inputs(self.compact, self.features)

    def runner(self, stock: Any) -> Any:
        """What to run on these inputs: the stock model, or a view of it that goes on where the choice was made."""
        return stock if self.begun is None else go_on(stock, self.begun, self.compact.columns)


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
        if self.selector.resizes and not request.keeps_all:
            return self._prepare_small(request, stopwatch)
        return self._prepare(request, stopwatch)

    def _compact(self, request: Request, positions_3BL: Tensor, keep_BL: Tensor) -> Compact:
        return compact(
            request.input_ids,
            request.attention_mask,
            positions_3BL,
            keep_BL,
            policy=self.config.position_policy,
            pad_id=self.pad_id,
            labels=request.labels,
        )

    def _prepare(self, request: Request, stopwatch: Stopwatch) -> Prepared:
        layout = Layout.of(request, self.model.config)
        positions_3BL, _ = self.model.model.get_rope_index(
            request.input_ids, layout.types_BL, request.image_grid_thw, request.video_grid_thw, request.attention_mask
        )
        videos = {}
        if request.pixel_values_videos is not None:
            videos["video"] = self.model.model.get_video_features(
                request.pixel_values_videos, request.video_grid_thw, return_dict=True
            )
        choice, features, begun = self._choose_and_encode(request, layout, positions_3BL, videos, stopwatch)
        keep_BL = torch.ones_like(layout.types_BL, dtype=torch.bool)
        keep_BL[layout.types_BL == 1] = torch.cat([image.mask.flatten() for image in choice.images])
        short = self._compact(request, positions_3BL, keep_BL)
        return Prepared(short, {"image": features, **videos}, _by_sample(layout, choice), stopwatch, begun)

    def _prepare_small(self, request: Request, stopwatch: Stopwatch) -> Prepared:
        """Make the images smaller instead of dropping tokens, then prepare all of what they have become."""
        self._check()
        layout = Layout.of(request, self.model.config)
        choice = self._choose(request, layout, None, None, stopwatch)
        grids = choice.grids or layout.grids
        with stopwatch.part("resize"):
            rows = self._small_rows(request, layout.grids, grids)
            small, short = with_small_images(request, layout.types_BL, grids, rows, self.pad_id)
        prepared = self._prepare(small, stopwatch)
        found = prepared.compact.columns
        columns = short.columns.gather(1, found.clamp(min=0)).masked_fill(found < 0, -1)
        counted = replace(prepared.compact, columns=columns, dropped=short.dropped)
        return replace(prepared, compact=counted, images=_by_sample(layout, choice))

    def _choose_and_encode(
        self, request: Request, layout: Layout, positions_3BL: Tensor, videos: dict[str, Any], stopwatch: Stopwatch
    ) -> tuple[Choice, Any, Begun | None]:
        if request.keeps_all:
            choice = keep_everything(layout.grids, request.input_ids.device, "keep_all", "all tokens were asked for")
            return choice, self._encode(request, choice.indices, stopwatch), None
        self._check()
        if self.encoding == "sparse":
            choice = self._choose(request, layout, None, None, stopwatch)
            return choice, self._gate(self._encode(request, choice.indices, stopwatch), choice), None
        features = self._encode(request, None, stopwatch)
        begun = self._begin(request, positions_3BL, {"image": features, **videos}, stopwatch)
        choice = self._choose(request, layout, features, begun, stopwatch)
        if self.encoding == "weighted":
            choice = keep_weighted(choice, [request.keeps[sample] == 1.0 for sample in layout.sample_of])
        elif choice.weights is not None:
            features = encoding.merge(features, choice.weights, choice.indices)
        else:
            features = encoding.take(features, choice.indices)
        return choice, self._gate(features, choice), begun

    def _check(self) -> None:
        """Whether the selector can work with these settings."""
        name = self.selector.name
        if self.encoding == "sparse" and self.selector.reads_tokens:
            raise ValueError(
                f"encoding='sparse' chooses before the ViT, but selector {name!r} reads its output: "
                "use encoding='dense', or selector='arr_coc'"
            )
        if self.encoding == "weighted" and not self.selector.gives_relevance:
            raise ValueError(
                f"encoding='weighted' scales tokens by their relevance, which selector {name!r} does not give: "
                "use encoding='dense'"
            )
        if self.config.position_policy != "original" and self._full_layers():
            raise ValueError(
                f"selector {name!r} drops tokens inside the language model, where they have their positions already: "
                "use position_policy='original'"
            )

    def _full_layers(self) -> int:
        return self.selector.full_layers(len(self.model.config.vision_config.deepstack_visual_indexes))

    def _begin(
        self, request: Request, positions_3BL: Tensor, encoded: dict[str, Any], stopwatch: Stopwatch
    ) -> Begun | None:
        """The first layers of the language model, where the selector chooses after those."""
        layers = self._full_layers()
        if not layers:
            return None
        whole = self._compact(request, positions_3BL, torch.ones_like(request.input_ids, dtype=torch.bool))
        with stopwatch.part("first layers"):
            return begin(self.model, _model_inputs(whole, encoded), layers)

    def _encode(self, request: Request, indices: list[Tensor] | None, stopwatch: Stopwatch) -> Any:
        with stopwatch.part("vision"):
            if self.encoding == "sparse" and indices is not None:
                return encoding.encode_sparse(self.model, request.pixel_values, request.image_grid_thw, indices)
            inside = indices is None and self.selector.reads_received
            return encoding.encode_dense(self.model, request.pixel_values, request.image_grid_thw, inside)

    def _choose(
        self, request: Request, layout: Layout, features: Any, begun: Begun | None, stopwatch: Stopwatch
    ) -> Choice:
        with stopwatch.part("question"):
            question = show_question(self.model, self.config, self.chat, request)
        with stopwatch.part("pixels"):
            pixels = self._pixels(request, layout.grids) if self.selector.reads_pixels else None
        with stopwatch.part("insides"):
            more = show_more(self.selector, self.model, request, layout, features, begun)
        tokens = features.pooler_output if self.selector.reads_tokens else None
        # Weighted encoding keeps every token and uses the relevance alone: any budget short of all makes one.
        keeps: list[Keep] = [0.5] * len(request.keeps) if self.encoding == "weighted" else request.keeps
        look = self._glance if self.selector.reads_glance else None
        batch = Candidates(layout.grids, pixels, tokens, question, layout.sample_of, keeps, look, more)
        return choose(self.selector, batch, stopwatch, self.strict)

    def _pixels(self, request: Request, grids: Sequence[tuple[int, int]]) -> list[Tensor]:
        mean, std = torch.tensor(self.image_mean), torch.tensor(self.image_std)
        return show_pixels(self.model.config.vision_config, mean, std, request, grids)

    def _small_rows(
        self, request: Request, grids: Sequence[tuple[int, int]], small: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """The patches of each image at its smaller size; those of an image that keeps its size are left as they are."""
        vision = self.model.config.vision_config
        mean, std = torch.tensor(self.image_mean), torch.tensor(self.image_std)
        cell = vision.patch_size * vision.spatial_merge_size
        images = self._pixels(request, grids)
        rows = request.pixel_values.split(request.image_grid_thw.prod(-1).tolist())
        return [
            row if new == old else encoding.patchify(resize(image, new, cell), vision, mean, std)
            for row, image, old, new in zip(rows, images, grids, small, strict=True)
        ]

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


def _model_inputs(sequence: Compact, encoded: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_ids": sequence.input_ids,
        "attention_mask": sequence.attention_mask,
        "position_ids": sequence.position_ids,
        "mm_encoder_outputs": encoded,
    }


def _by_sample(layout: Layout, choice: Choice) -> list[list[ImageSelection]]:
    """The selections of each sample's images."""
    images: list[list[ImageSelection]] = [[] for _ in range(layout.types_BL.shape[0])]
    for sample, image in zip(layout.sample_of, choice.images, strict=True):
        images[sample].append(image)
    return images
