"""The plain engine: methods through `ARRCOCQwen`'s own path, for choices inside the language model, and as a check.

R questions (rows).
"""

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.evaluation.field.batch import Batch
from arr_coc.evaluation.field.looking import KnownBatch, Outcome, dense_features
from arr_coc.evaluation.field.methods import Method
from arr_coc.qwen.eager import BEFORE, Prepared
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.selectors import PLAIN, Selector

NOT_CHOOSING = ("vision", "first layers")


class FirstToken:
    """Notes when the first token is about to be picked; handed to `generate` among its logits processors."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0
        self.started = self._now()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not self.seconds:
            self.seconds = self._now() - self.started
        return scores

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class PlainEngine:
    """Prepares and generates with the stock classes, a batch at a time."""

    def __init__(self, owner: ARRCOCQwen, selectors: dict[str, Selector], most_tokens: int) -> None:
        self.owner, self.selectors, self.most_tokens = owner, selectors, most_tokens

    @torch.no_grad()
    def run(self, looked: KnownBatch, method: Method) -> Outcome:
        """Choose, encode, answer."""
        batch, owner = looked.batch, self.owner
        prepared, vision_ms = self._prepare(looked, method)
        first = FirstToken(owner.device)
        prompt = prepared.compact.input_ids
        output = prepared.runner(owner.model).generate(
            **prepared.model_inputs(), max_new_tokens=self.most_tokens, do_sample=False, logits_processor=[first]
        )
        whole = first._now() - first.started
        tokenizer = owner.processor.tokenizer
        texts = tokenizer.batch_decode(
            output[:, prompt.shape[1] :], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        parts = prepared.stopwatch.milliseconds()
        early = parts.get("first layers", 0.0)
        time_ms = {
            "select": sum(ms for part, ms in parts.items() if part not in NOT_CHOOSING) / batch.rows,
            "vision": vision_ms + parts.get("vision", 0.0) / batch.rows,
            "prefill": (early + 1e3 * first.seconds) / batch.rows,
            "decode": 1e3 * (whole - first.seconds) / batch.rows,
        }
        image_id = owner.model.config.image_token_id
        shown_BM = (prompt == image_id) & prepared.attention_mask.bool()
        asked_BM = (prompt != image_id) & (prepared.compact.columns >= 0)  # without marks around small copies
        return Outcome(
            texts,
            [images[0].kept.tolist() for images in prepared.images],
            shown_BM.sum(-1).tolist(),
            [tuple(row[asked].tolist()) for row, asked in zip(prompt, asked_BM, strict=True)],
            time_ms,
        )

    def _prepare(self, looked: KnownBatch, method: Method) -> tuple[Prepared, float]:
        """Inputs of the language model, and ms of vision that is not on their stopwatch."""
        owner, batch = self.owner, looked.batch
        plain = method.name == PLAIN
        selector = owner.selector if plain else self.selectors[method.selector]
        looker = replace(owner.looker(), selector=selector, strict=True)
        encoding = "dense" if selector.resizes else method.encoding
        preparer = replace(owner.preparer(), looker=looker, encoding=encoding)
        keeps = [method.keep] * batch.rows
        reads_inside = selector.reads_patches or selector.reads_received
        if preparer.encoding in BEFORE or selector.resizes or (reads_inside and not plain):
            request = replace(batch.request, keeps=keeps, pixel_values=batch.rows_pixels())
            return preparer(request), 0.0
        features = dense_features(owner, looked)
        sharing = replace(preparer, shared=lambda: rows_features(features, batch))
        pixels = batch.rows_pixels() if selector.reads_pixels and not plain else batch.pixel_values
        return sharing(replace(batch.request, keeps=keeps, pixel_values=pixels)), looked.features_ms


def rows_features(features: Any, batch: Batch) -> Any:
    """The stock output with an image per row, the tensors shared."""
    images = batch.image_R.tolist()
    copied = type(features)()
    copied.pooler_output = tuple(features.pooler_output[image] for image in images)
    copied.deepstack_features = [tuple(level[image] for image in images) for level in features.deepstack_features]
    return copied
