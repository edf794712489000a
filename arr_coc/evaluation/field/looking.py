"""What is found out about a batch once for all methods: questions, pixels, the whole ViT, each selector's judgement.

B images, R questions (rows), N cells, D language-model width, X width of the ViT.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.evaluation.field.batch import Batch
from arr_coc.qwen import vision
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.records import Judgement
from arr_coc.selectors import Selector
from arr_coc.timing import Stopwatch

SHARED = ("glance", "texture", "sight", "insides", "first look")  # parts of judging that are done once per image


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one method made of a batch."""

    answers: list[str]
    kept: list[list[int]]  # cells of each row
    tokens: list[int]  # visual tokens that the language model was given
    prompts: list[tuple[int, ...]]  # token ids that it was given, image tokens left out
    time_ms: dict[str, float]  # of one question: select, vision, prefill, decode


@dataclass(slots=True)
class KnownBatch:
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


def dense_features(owner: ARRCOCQwen, looked: KnownBatch) -> Any:
    """The stock ViT over every image, once for all dense methods."""
    if looked.features is None:
        batch, stopwatch = looked.batch, Stopwatch(owner.device)
        with stopwatch.part("vision"), torch.no_grad():
            looked.features = vision.encode_dense(owner.model, batch.pixel_values, batch.image_grid_thw, True)
        looked.features_ms = stopwatch.milliseconds()["vision"] / batch.images
        if owner.device.type == "cuda":
            looked.features_bytes = torch.cuda.max_memory_allocated(owner.device)
    return looked.features


def pixels_of(owner: ARRCOCQwen, looked: KnownBatch) -> Tensor:
    """The pixels of every image, rebuilt once from their patches."""
    if looked.pixels is None:
        batch, stopwatch = looked.batch, Stopwatch(owner.device)
        with stopwatch.part("pixels"):
            rows = batch.pixel_values.split(batch.image_grid_thw.prod(-1).tolist())
            looked.pixels = torch.stack([vision.unpatchify(row, batch.grid, owner.geometry) for row in rows])
        looked.pixels_ms = stopwatch.milliseconds()["pixels"] / batch.images
    return looked.pixels


def judge(owner: ARRCOCQwen, looked: KnownBatch, selector: Selector) -> tuple[Judgement, float]:
    """The judgement of all rows as the product makes it, and what it took per question in ms."""
    batch, looker = looked.batch, replace(owner.looker(), selector=selector)
    if looked.question is None:
        stopwatch = Stopwatch(owner.device)
        with stopwatch.part("question"):
            looked.question = looker.question_of(batch.request)
        looked.question_ms = stopwatch.milliseconds()["question"] / batch.rows
    before_ms, stopwatch = looked.question_ms, Stopwatch(owner.device)
    given: dict[str, Tensor] = batch.told(selector.reads_evidence)
    if selector.reads_pixels:
        given["image_B3hw"] = pixels_of(owner, looked)
        before_ms += looked.pixels_ms
    if selector.first_look is not None:
        with stopwatch.part("first look"):
            seen = looker.first_looker().look(batch.request, list(pixels_of(owner, looked)), batch.image_R.tolist())
            given["attended_BN"] = torch.stack(seen.attended)
    if selector.reads_tokens:
        features = dense_features(owner, looked)
        with stopwatch.part("insides"):
            inside = looker.insides(features, batch.image_grid_thw)
        given |= {name: torch.stack(list(values)) for name, values in inside.items()}
        given["visual_BND"] = torch.stack(list(features.pooler_output))
    judgement = looker.judge(batch.grid, looked.question, stopwatch, image_R=batch.image_R, **given)
    times = stopwatch.milliseconds()
    return judgement, before_ms + sum(
        ms / (batch.images if part in SHARED else batch.rows) for part, ms in times.items()
    )
