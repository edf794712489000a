"""What is found out about a batch once for all methods: questions, pixels, the whole ViT, each selector's judgement.

B images, R questions (rows), N cells, D language-model width, X width of the ViT.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from arr_coc.evaluation.field.batch import Batch
from arr_coc.qwen import encoding, insides_vision
from arr_coc.qwen.glance import glance
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.showing import show_question
from arr_coc.records import Judgement
from arr_coc.selectors import ARRCOCSelector, Selector, View
from arr_coc.timing import Stopwatch

SHARED = ("glance", "texture", "sight", "insides")  # parts of judging that are done once per image


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one method made of a batch."""

    answers: list[str]
    kept: list[list[int]]  # cells of each row
    tokens: list[int]  # visual tokens that the language model was given
    prompts: list[tuple[int, ...]]  # token ids that it was given, image tokens left out
    time_ms: dict[str, float]  # of one question: select, vision, prefill, decode


@dataclass(slots=True)
class Looked:
    """What is known of a batch so far, filled when a method first asks for it."""

    batch: Batch
    question: Any = None
    question_ms: float = 0.0
    pixels: Tensor | None = None  # [B, 3, h, w] in [0, 1]
    pixels_ms: float = 0.0
    features: Any = None  # the stock ViT's output over all images
    features_ms: float = 0.0
    features_bytes: int = 0  # peak of the GPU's memory while they were made
    judgements: dict[str, tuple[Judgement, float]] = field(default_factory=dict)  # with ms per question


def dense_features(owner: ARRCOCQwen, looked: Looked) -> Any:
    """The stock ViT over every image, once for all dense methods."""
    if looked.features is None:
        batch, stopwatch = looked.batch, Stopwatch(owner.device)
        with stopwatch.part("vision"), torch.no_grad():
            looked.features = encoding.encode_dense(owner.model, batch.pixel_values, batch.image_grid_thw, True)
        looked.features_ms = stopwatch.milliseconds()["vision"] / batch.images
        if owner.device.type == "cuda":
            looked.features_bytes = torch.cuda.max_memory_allocated(owner.device)
    return looked.features


class Looker:
    """Looks at batches with a model."""

    def __init__(self, owner: ARRCOCQwen) -> None:
        self.owner, self.model = owner, owner.model
        images = owner.processor.image_processor
        self.mean, self.std = torch.tensor(images.image_mean), torch.tensor(images.image_std)
        self.vision = owner.model.config.vision_config

    def judge(self, looked: Looked, selector: Selector) -> tuple[Judgement, float]:
        """The judgement of all rows, and what it took per question in ms."""
        batch, stopwatch = looked.batch, Stopwatch(self.owner.device)
        if looked.question is None:
            with stopwatch.part("question"):
                looked.question = show_question(self.model, self.owner.config, self.owner._chat, batch.request)
            looked.question_ms = stopwatch.milliseconds()["question"] / batch.rows
            stopwatch = Stopwatch(self.owner.device)
        before_ms = looked.question_ms
        if isinstance(selector, ARRCOCSelector):
            judgement = self._judge_pixels(looked, selector, stopwatch)
            before_ms += looked.pixels_ms
        else:
            judgement = selector.judge(self._view(looked, selector, stopwatch), stopwatch)
        times = stopwatch.milliseconds()
        return judgement, before_ms + sum(
            ms / (batch.images if part in SHARED else batch.rows) for part, ms in times.items()
        )

    def _judge_pixels(self, looked: Looked, selector: ARRCOCSelector, stopwatch: Stopwatch) -> Judgement:
        """ARR-COC itself: every image is looked at once, then weighed for each of its questions."""
        batch, layer = looked.batch, selector.layer
        pixels_B3hw = self.pixels(looked)
        glance_BXHW = None
        if selector.reads_glance:
            with stopwatch.part("glance"):
                glance_BXHW = glance(self.model, pixels_B3hw, batch.grid, self.mean, self.std)
        pyramid = layer.see(pixels_B3hw, batch.grid, glance_BXHW, stopwatch)
        return layer.weigh(pyramid.rows(batch.image_R), looked.question, stopwatch)

    def pixels(self, looked: Looked) -> Tensor:
        batch = looked.batch
        if looked.pixels is None:
            stopwatch = Stopwatch(self.owner.device)
            with stopwatch.part("pixels"):
                rows = batch.pixel_values.split(batch.image_grid_thw.prod(-1).tolist())
                mean, std = self.mean.to(self.owner.device), self.std.to(self.owner.device)
                looked.pixels = torch.stack(
                    [encoding.unpatchify(row, batch.grid, self.vision, mean, std) for row in rows]
                )
            looked.pixels_ms = stopwatch.milliseconds()["pixels"] / batch.images
        return looked.pixels

    def _view(self, looked: Looked, selector: Selector, stopwatch: Stopwatch) -> View:
        """What a method of the field says that it reads, a row per question."""
        batch, device = looked.batch, self.owner.device
        assert not selector.reads_pixels, f"{selector.name} reads pixels: give it a way to look at an image once"
        more: dict[str, Tensor] = {"number_B": torch.tensor([p.number for p in batch.pictures], device=device)}
        if selector.reads_evidence:
            evidence_RN = torch.zeros(batch.rows, batch.cells, dtype=torch.bool)
            for row, cells in enumerate(batch.evidence_R):
                evidence_RN[row, sorted(cells)] = True
            more["evidence_BHW"] = evidence_RN.view(-1, *batch.grid).to(device)
        visual_RND = None
        if selector.reads_tokens:
            features = dense_features(self.owner, looked)
            with stopwatch.part("insides"):
                inside: dict[str, Sequence[Tensor]] = {}
                if selector.reads_patches:
                    inside["patches_BNX"] = insides_vision.patch_features(self.model, features)
                if selector.reads_received:
                    inside["received_BN"], inside["keys_BNd"] = insides_vision.received_attention(
                        self.model, features, batch.image_grid_thw
                    )
            more |= {name: torch.stack(list(values))[batch.image_R] for name, values in inside.items()}
            visual_RND = torch.stack(list(features.pooler_output))[batch.image_R]
        return View(batch.grid, looked.question, None, visual_RND, **more)
