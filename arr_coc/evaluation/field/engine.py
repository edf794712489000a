"""The fast engine: what methods share is done once, and every batch goes through the model in one piece.

R questions (rows), N cells, K kept, U different (image, cells) pairs, P patches, X values of a patch.

Once per image: its pixels, its glance, its textures, the whole ViT. Once per selector: its judgement, for all budgets.
Once per different choice: the sparse ViT and the language model over the image. Choices that do not depend on the
question are the same for all questions of an image. Times are what each question would pay alone in such a batch: of
shared work it is charged as if nobody shared it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import tokens_to_keep
from arr_coc.evaluation.field.batch import Batch
from arr_coc.evaluation.field.looking import KnownBatch, Outcome, dense_features, judge, pixels_of
from arr_coc.evaluation.field.methods import Method
from arr_coc.qwen import vision
from arr_coc.qwen.batched import Seen, answer_rows, encode_vision, run_prefix, share_cache, text_start
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.records import Allocation
from arr_coc.selectors import PLAIN, Selector, Taken
from arr_coc.timing import Stopwatch


class FastEngine:
    """Runs methods over the modules of a stock model (`qwen.batched`)."""

    def __init__(self, owner: ARRCOCQwen, selectors: dict[str, Selector], most_tokens: int) -> None:
        self.owner, self.model, self.selectors, self.most_tokens = owner, owner.model, selectors, most_tokens

    def suits(self, method: Method) -> bool:
        """Whether it can run here: not where small copies go along, nor where the language model makes the choice."""
        if method.name == PLAIN:
            return True
        return method.encoding != "foveated" and not self.selectors[method.selector].full_layers(3)

    @torch.no_grad()
    def run(self, looked: KnownBatch, method: Method) -> Outcome:
        """Choose, encode, answer."""
        stopwatch = Stopwatch(self.owner.device)
        if method.name == PLAIN:
            allocation, select_ms = None, 0.0
        else:
            allocation, select_ms = self._choose(looked, method, stopwatch)
        kept = self._kept(looked.batch, allocation)
        seen, unique_R, vision_ms = self._see(looked, method, allocation, kept, stopwatch)
        texts, times = self._answer(looked.batch, seen, unique_R, stopwatch)
        tokens = [seen.merged_BKD.shape[1]] * looked.batch.rows
        time_ms = {"select": select_ms, "vision": vision_ms, **times}
        return Outcome(texts, kept, tokens, list(looked.batch.prompts), time_ms)

    # ---------------------------------------------------------------- choosing

    def _choose(self, looked: KnownBatch, method: Method, stopwatch: Stopwatch) -> tuple[Allocation, float]:
        batch, selector = looked.batch, self.selectors[method.selector]
        if method.selector not in looked.judgements:
            looked.judgements[method.selector] = judge(self.owner, looked, selector)
        judgement, judged_ms = looked.judgements[method.selector]
        k = tokens_to_keep(method.keep, batch.cells)
        assert k is not None, "budgets of the field are fixed"
        with stopwatch.part("attending"):
            k_R = torch.full((batch.rows,), min(k, batch.cells), device=self.owner.device)
            allocation = selector.choose(judgement, k_R)
        return allocation, judged_ms + stopwatch.milliseconds()["attending"] / batch.rows

    def _kept(self, batch: Batch, allocation: Allocation | None) -> list[list[int]]:
        if allocation is None:
            return [list(range(batch.cells))] * batch.rows
        masks_RN = allocation.keep_BHW.flatten(1).cpu()
        return [mask.nonzero().squeeze(-1).tolist() for mask in masks_RN]

    # ---------------------------------------------------------------- encoding

    def _see(
        self,
        looked: KnownBatch,
        method: Method,
        allocation: Allocation | None,
        kept: list[list[int]],
        stopwatch: Stopwatch,
    ) -> tuple[Seen, Tensor, float]:
        """The visual tokens of each different choice, the choice of each row, and ms of the ViT per question."""
        batch, device = looked.batch, self.owner.device
        images = batch.image_R.tolist()
        merges = isinstance(allocation, Taken) and allocation.weights is not None
        # Merged tokens are made of all cells; but for the same image and kept cells they are made alike only where the
        # method is blind to the question, which the methods that merge are.
        numbers: dict[tuple[int, ...], int] = {}
        unique_R = [
            numbers.setdefault((image, *cells), len(numbers)) for image, cells in zip(images, kept, strict=True)
        ]
        first = [unique_R.index(number) for number in range(len(numbers))]
        unique = torch.tensor(unique_R, device=device)
        image_U = batch.image_R[first]
        small = allocation.grids[0] if isinstance(allocation, Taken) and allocation.grids is not None else batch.grid
        if small != batch.grid:
            seen, vision_ms = self._see_small(looked, small, image_U, stopwatch)
        elif method.encoding == "sparse" and allocation is not None:
            cells_UK = torch.tensor([kept[row] for row in first], device=device)
            looker = replace(self.owner.looker(), selector=self.selectors[method.selector])
            rows_BPX = batch.pixel_values.unflatten(0, (batch.images, -1))
            with stopwatch.part("vision"):
                context = self._context(looked, looker.context_grid(batch.grid, cells_UK.shape[1]), image_U)
                seen = encode_vision(self.model, rows_BPX[image_U], batch.grid, cells_UK, context)
            vision_ms = stopwatch.milliseconds()["vision"] / len(first)
        else:
            features, vision_ms = dense_features(self.owner, looked), looked.features_ms
            weights = None
            if merges:
                assert isinstance(allocation, Taken)
                assert allocation.weights is not None
                weights = torch.stack([allocation.weights[row] for row in first])
            cells_UK = torch.tensor([kept[row] for row in first], device=device)
            seen = _cut(features, image_U, cells_UK, weights, batch.grid)
        return seen, unique, vision_ms

    def _context(
        self, looked: KnownBatch, small: tuple[int, int] | None, image_U: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Small copies that kept windows attend to, and where their patches stand."""
        if small is None:
            return None
        geometry, device = self.owner.geometry, self.owner.device
        rows_BPX = vision.glance_rows(pixels_of(self.owner, looked), small, geometry)
        places = vision.under_centres(small, looked.batch.grid, geometry.merge, device)
        return rows_BPX[image_U], places

    def _see_small(
        self, looked: KnownBatch, small: tuple[int, int], image_U: Tensor, stopwatch: Stopwatch
    ) -> tuple[Seen, float]:
        """The images made smaller, all of their tokens; images come before questions, so U is B."""
        pixels_B3hw, batch, geometry = pixels_of(self.owner, looked), looked.batch, self.owner.geometry
        with stopwatch.part("vision"):
            images = torch.stack([vision.resize(image, small, geometry.cell) for image in pixels_B3hw])
            seen = encode_vision(self.model, vision.patchify(images, geometry), small)
        vision_ms = looked.pixels_ms + stopwatch.milliseconds()["vision"] / batch.images
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
            cache_U = run_prefix(self.model, seen, torch.tensor(opening, device=device), end_id)
        cache = share_cache(cache_U, unique_R)
        tokenizer = self.owner.processor.tokenizer
        found = answer_rows(
            self.model,
            cache,
            [prompt[lead + 1 :] for prompt in batch.prompts],
            text_start(seen.grid, lead),
            tokenizer.eos_token_id,
            self.most_tokens,
            stopwatch,
        )
        plain = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        texts = [tokenizer.decode(ids, **plain) for ids in found]
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

    deepstack = [level(one) for one in features.deepstack_features]
    return Seen(level(features.pooler_output), deepstack, cells_UK, grid)
