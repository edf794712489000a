"""The two engines that answer a batch with a method.

R questions (rows), N cells, K kept, U different (image, cells) pairs, P patches, X values of a patch.

The plain one goes through `ARRCOCQwen`'s own path: for choices inside the language model, and as a check. In the fast
one, what methods share is done once, and every batch goes through the model in one piece. Once per image: its pixels,
its glance, its textures, the whole ViT. Once per selector: its judgement, for all budgets. Once per different choice:
the sparse ViT and the language model over the image. Choices that do not depend on the question are the same for all
questions of an image. Times are what each question would pay alone in such a batch: of shared work it is charged as if
nobody shared it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import tokens_to_keep
from arr_coc.evaluation.field.batch import Batch
from arr_coc.evaluation.field.methods import Method
from arr_coc.qwen import batched, vision
from arr_coc.qwen.answers import PLAIN_TEXT
from arr_coc.qwen.batched import Seen
from arr_coc.qwen.eager import BEFORE, Prepared
from arr_coc.qwen.family import levels_of
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.streaming import PromptRestorer
from arr_coc.records import Allocation
from arr_coc.selectors import PLAIN, Selector, Taken
from arr_coc.timing import Stopwatch

NOT_CHOOSING = ("vision", "first layers")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one method made of a batch."""

    answers: list[str]
    kept: list[list[int]]  # cells of each row
    covered: list[list[int]]  # those of them that are there for even coverage
    tokens: list[int]  # visual tokens that the language model was given
    prompts: list[tuple[int, ...]]  # token ids that it was given, image tokens left out
    time_ms: dict[str, float]  # of one question: select, vision, prefill, decode


class FastEngine:
    """Runs methods over the modules of a stock model (`qwen.batched`)."""

    def __init__(self, owner: ARRCOCQwen, selectors: dict[str, Selector], most_tokens: int) -> None:
        self.owner, self.model, self.selectors, self.most_tokens = owner, owner.model, selectors, most_tokens

    def suits(self, method: Method) -> bool:
        """Whether it can run here: not where small copies go along or budgets differ, nor where the model chooses."""
        fits = method.encoding != "foveated" and method.keep != "auto"
        return method.name == PLAIN or (fits and not self.selectors[method.selector].full_layers(3))

    @torch.no_grad()
    def run(self, batch: Batch, method: Method) -> Outcome:
        """Choose, encode, answer."""
        stopwatch, allocation, select_ms = Stopwatch(self.owner.device), None, 0.0
        kept = [list(range(batch.cells))] * batch.rows
        covered: list[list[int]] = [[]] * batch.rows
        if method.name != PLAIN:
            allocation, select_ms = self._choose(batch, method, stopwatch)
            kept, covered = (
                [mask.nonzero().squeeze(-1).tolist() for mask in cells_BHW.flatten(1).cpu()]
                for cells_BHW in (allocation.keep_BHW, allocation.covered_BHW)
            )
        seen, unique_R, vision_ms = self._see(batch, method, allocation, kept, stopwatch)
        texts, times = self._answer(batch, seen, unique_R, stopwatch)
        tokens = [seen.merged_BKD.shape[1]] * batch.rows
        times = {"select": select_ms, "vision": vision_ms, **times}
        return Outcome(texts, kept, covered, tokens, batch.prompts, times)

    def _choose(self, batch: Batch, method: Method, stopwatch: Stopwatch) -> tuple[Allocation, float]:
        selector = self.selectors[method.selector]
        judgement, judged_ms = batch.judged(method.selector, selector)
        k = tokens_to_keep(method.keep, batch.cells)
        assert k is not None, "budgets of the field are fixed"
        with stopwatch.part("attending"):
            k_R = torch.full((batch.rows,), min(k, batch.cells), device=self.owner.device)
            allocation = selector.choose(judgement, k_R)
        return allocation, judged_ms + stopwatch.milliseconds()["attending"] / batch.rows

    # ---------------------------------------------------------------- encoding

    def _see(
        self, batch: Batch, method: Method, allocation: Allocation | None, kept: list[list[int]], stopwatch: Stopwatch
    ) -> tuple[Seen, Tensor, float]:
        """The visual tokens of each different choice, the choice of each row, and ms of the ViT per question."""
        taken, geometry = allocation if isinstance(allocation, Taken) else None, self.owner.geometry
        # Merged tokens are made of all cells; but for the same image and kept cells they are made alike only where the
        # method is blind to the question, which the methods that merge are.
        numbers: dict[tuple[int, ...], int] = {}
        pairs = zip(batch.image_R.tolist(), kept, strict=True)
        unique_R = [numbers.setdefault((image, *cells), len(numbers)) for image, cells in pairs]
        first = [unique_R.index(number) for number in range(len(numbers))]
        image_U, unique = batch.image_R[first], batch.image_R.new_tensor(unique_R)
        cells_UK = batch.image_R.new_tensor([kept[row] for row in first])
        small = taken.grids[0] if taken is not None and taken.grids is not None else batch.grid
        if small != batch.grid:
            seen, vision_ms = self._see_small(batch, small, image_U, stopwatch)
        elif method.encoding == "sparse" and allocation is not None:
            looker, context = replace(self.owner.looker(), selector=self.selectors[method.selector]), None
            with stopwatch.part("vision"):
                copy = looker.context_grid(batch.grid, cells_UK.shape[1])
                if copy is not None:  # small copies that kept windows attend to, and where their patches stand
                    rows_BPX = vision.glance_rows(batch.pixels()[0], copy, geometry)
                    places = vision.under_centres(copy, batch.grid, geometry.merge, self.owner.device)
                    context = rows_BPX[image_U], places
                rows_UPX = batch.pixel_values.unflatten(0, (batch.images, -1))[image_U]
                seen = batched.encode_vision(self.model, rows_UPX, batch.grid, cells_UK, context)
            vision_ms = stopwatch.milliseconds()["vision"] / len(first)
        else:
            features, vision_ms = batch.features()
            weights = taken.weights if taken is not None else None
            merged = None if weights is None else torch.stack([weights[row] for row in first])
            seen = _cut(features, image_U, cells_UK, merged, batch.grid)
        return seen, unique, vision_ms

    def _see_small(
        self, batch: Batch, small: tuple[int, int], image_U: Tensor, stopwatch: Stopwatch
    ) -> tuple[Seen, float]:
        """The images made smaller, all of their tokens; images come before questions, so U is B."""
        (pixels_B3hw, pixels_ms), geometry = batch.pixels(), self.owner.geometry
        with stopwatch.part("vision"):
            images = torch.stack([vision.resize(image, small, geometry.cell) for image in pixels_B3hw])
            seen = batched.encode_vision(self.model, vision.patchify(images, geometry), small)
        vision_ms = pixels_ms + stopwatch.milliseconds()["vision"] / batch.images
        cut = Seen(seen.merged_BKD[image_U], [level[image_U] for level in seen.deepstack_BKD], None, small)
        return cut, vision_ms

    # ---------------------------------------------------------------- answering

    def _answer(
        self, batch: Batch, seen: Seen, unique_R: Tensor, stopwatch: Stopwatch
    ) -> tuple[list[str], dict[str, float]]:
        lead, device = batch.lead, self.owner.device
        opening, end_id = batch.prompts[0][:lead], batch.prompts[0][lead]
        assert all(prompt[: lead + 1] == (*opening, end_id) for prompt in batch.prompts), "one template for all"
        with stopwatch.part("prefix"):
            cache_U = batched.run_prefix(self.model, seen, torch.tensor(opening, device=device), end_id)
        cache = batched.share_cache(cache_U, unique_R)
        tokenizer = self.owner.processor.tokenizer
        rest, start = [prompt[lead + 1 :] for prompt in batch.prompts], batched.text_start(seen.grid, lead)
        given = (rest, start, tokenizer.eos_token_id, self.most_tokens, stopwatch)
        found = batched.answer_rows(partial(batched.read_last, self.model), cache, *given)
        texts = [tokenizer.decode(ids, **PLAIN_TEXT) for ids in found]
        times = stopwatch.milliseconds()
        prefill = times["prefix"] / seen.merged_BKD.shape[0] + times["prefill"] / batch.rows
        return texts, {"prefill": prefill, "decode": times["decode"] / batch.rows}


def _cut(features: Any, image_U: Tensor, cells_UK: Tensor, weights_UKN: Tensor | None, grid: tuple[int, int]) -> Seen:
    """The kept tokens of some images on every level, or what is merged into them; sums are in fp32."""

    def level(tokens: Sequence[Tensor]) -> Tensor:
        tokens_UND = torch.stack(list(tokens))[image_U]
        if weights_UKN is not None and weights_UKN.shape[1] < weights_UKN.shape[2]:
            return (weights_UKN @ tokens_UND.float()).to(tokens_UND.dtype)
        return tokens_UND.gather(1, cells_UK.unsqueeze(-1).expand(-1, -1, tokens_UND.shape[-1]))

    deepstack = [level(one) for one in levels_of(features)]
    return Seen(level(features.pooler_output), deepstack, cells_UK, grid)


# ---------------------------------------------------------------- the product's own path


class PlainEngine:
    """Prepares and generates with the stock classes, a batch at a time."""

    def __init__(self, owner: ARRCOCQwen, selectors: dict[str, Selector], most_tokens: int) -> None:
        self.owner, self.selectors, self.most_tokens = owner, selectors, most_tokens

    @torch.no_grad()
    def run(self, batch: Batch, method: Method) -> Outcome:
        """Choose, encode, answer."""
        owner = self.owner
        prepared, vision_ms = self._prepare(batch, method)
        prompt, parts = prepared.compact.input_ids, prepared.stopwatch.milliseconds()  # the device is done by then
        first = PromptRestorer(prompt, None)  # its clock begins here
        output = prepared.runner(owner.model).generate(
            **prepared.model_inputs(), max_new_tokens=self.most_tokens, do_sample=False, streamer=first
        )
        whole = time.perf_counter() - first.started
        texts = owner.processor.tokenizer.batch_decode(output[:, prompt.shape[1] :], **PLAIN_TEXT)
        early = parts.get("first layers", 0.0)
        time_ms = {
            "select": sum(ms for part, ms in parts.items() if part not in NOT_CHOOSING) / batch.rows,
            "vision": vision_ms + parts.get("vision", 0.0) / batch.rows,
            "prefill": (early + 1e3 * first.prefill_seconds) / batch.rows,
            "decode": 1e3 * (whole - first.prefill_seconds) / batch.rows,
        }
        image_id = owner.model.config.image_token_id
        shown_BM = (prompt == image_id) & prepared.attention_mask.bool()
        asked_BM = (prompt != image_id) & (prepared.compact.columns >= 0)  # without marks around small copies
        return Outcome(
            texts,
            [images[0].kept.tolist() for images in prepared.images],
            [images[0].kept_for_coverage.tolist() for images in prepared.images],
            shown_BM.sum(-1).tolist(),
            [tuple(row[asked].tolist()) for row, asked in zip(prompt, asked_BM, strict=True)],
            time_ms,
        )

    def _prepare(self, batch: Batch, method: Method) -> tuple[Prepared, float]:
        """Inputs of the language model, and ms of vision that is not on their stopwatch."""
        owner, plain = self.owner, method.name == PLAIN
        selector = owner.selector if plain else self.selectors[method.selector]
        looker = replace(owner.looker(), selector=selector, strict=True)
        encoding = "dense" if selector.resizes else method.encoding
        preparer = replace(owner.preparer(), looker=looker, encoding=encoding)
        keeps = [method.keep] * batch.rows
        reads_inside = selector.reads_patches or selector.reads_received
        if preparer.encoding in BEFORE or selector.resizes or (reads_inside and not plain):
            request = replace(batch.request, keeps=keeps, pixel_values=batch.rows_pixels())
            return preparer(request), 0.0
        features, features_ms = batch.features()
        sharing = replace(preparer, shared=lambda: rows_features(features, batch))
        pixels = batch.rows_pixels() if selector.reads_pixels and not plain else batch.pixel_values
        return sharing(replace(batch.request, keeps=keeps, pixel_values=pixels)), features_ms


def rows_features(features: Any, batch: Batch) -> Any:
    """The stock output with an image per row, the tensors shared."""
    images = batch.image_R.tolist()
    copied = type(features)()
    copied.pooler_output = tuple(features.pooler_output[image] for image in images)
    copied.deepstack_features = [tuple(level[image] for image in images) for level in levels_of(features)] or None
    return copied


Engine = FastEngine | PlainEngine
