"""ARRCOCLayer: texture, knowing, balancing, attending in order -> the kept tokens and the full explanation.

B batch of images with one grid, H W grid of cells, N = H * W, K kept (the most in the batch), D language-model width.
"""

import inspect
import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from arr_coc.attending import TokenAllocator, kept_indices
from arr_coc.balancing import EVEN, AdaptiveTensionBalancer, cautious, overlooked
from arr_coc.config import SCORERS, ARRCOCConfig, Keep, check_keeps
from arr_coc.knowing import Knowing, QuestionPooler
from arr_coc.records import NOT_FINITE, STRATEGIES, Allocation, Judgement, QuestionTokens, TexturePyramid
from arr_coc.sight import Sight, sight_width
from arr_coc.texture import bare_paper, texture_pyramid
from arr_coc.timing import Stopwatch

logger = logging.getLogger(__name__)

CELL = 32  # px on a side of a cell, where neither a grid nor a model says it: patch 16, merged 2 x 2


@dataclass(frozen=True, slots=True)
class ARRCOCOutput:
    """Kept tokens, where they are, and why. Rows with fewer than K tokens are padded; `mask` is True for real ones."""

    tokens: Tensor | None  # [B, K, D]; None when the layer was given no vision_embeds
    indices: Tensor  # [B, K] flat, strictly increasing where mask is True
    positions: Tensor  # [B, K, 2] (y, x) of each kept cell
    budgets: Tensor  # [B, K] relevance of each kept cell after the tensions, 0 where masked
    mask: Tensor  # [B, K] bool
    kept: Tensor  # [B, H, W] bool
    relevance: Tensor  # [B, H, W]
    maps: dict[str, Tensor]  # scorer -> [B, H, W]
    weights: Tensor  # [B, 3] exponents, in the order of SCORERS
    tensions: Tensor  # [B, 3] in the order of TENSIONS
    strategies: list[tuple[str, str]]  # (name, reason) per image
    timings_ms: dict[str, float] = field(default_factory=dict)


class ARRCOCLayer(nn.Module):
    """Chooses, for a question, which cells of an image go on to the language model.

    Called with `(vision_embeds, query_embeds, image_tensor, grid=None)`: `vision_embeds` `[B, N, D]` or None (then only
    positions come out, which is what sparse encoding needs), `query_embeds` `[B, L, D]` or `[B, D]`, `image_tensor`
    `[B, 3, h, w]` (uint8, or float in [0, 1]), `grid` (H, W). Without a grid it is taken from the image's size
    where that fits the tokens (cells of 32 px), else the tokens must form a square. A layer with `sight="glance"` also
    takes `glance` `[B, X, H, W]`, what the ViT makes of the image when it is small (`arr_coc.qwen.vision`), and one
    with `sight="look"` may take `looked` `[B, M, H, W]`, where the language model looked at that for the question.
    """

    def __init__(
        self,
        hidden_dim: int,
        texture_channels: int = 13,
        min_tokens: int = 64,
        max_tokens: int = 400,
        *,
        sight: str = "stem",
        sight_channels: int = 32,
        glance_channels: int = 96,
        glance_dim: int = 0,
        look_dim: int = 0,
        pooling: str = "mean",
        straight_through: bool = False,
        voids: bool = False,
    ) -> None:
        super().__init__()
        self.texture_channels, self.straight_through, self.voids = texture_channels, straight_through, voids
        self.sight = Sight(sight, texture_channels, sight_channels, glance_channels, glance_dim)
        seen = sight_width(sight, texture_channels, sight_channels, glance_channels)
        self.knowing = Knowing(hidden_dim, texture_channels, seen, look_dim)
        self.pool = QuestionPooler(hidden_dim, pooling)
        self.balancing = AdaptiveTensionBalancer(hidden_dim)
        self.attending = TokenAllocator(min_tokens, max_tokens)

    @classmethod
    def from_config(cls, config: ARRCOCConfig) -> "ARRCOCLayer":
        """With every setting that both know by one name."""
        return cls(**{name: getattr(config, name) for name in inspect.signature(cls).parameters})

    def see(
        self, image_B3hw: Tensor, grid: tuple[int, int], glance_BXHW: Tensor | None, stopwatch: Stopwatch
    ) -> TexturePyramid:
        """Texture and sight, in fp32: what does not depend on the question, and serves all questions about an image."""
        with torch.autocast(image_B3hw.device.type, enabled=False):
            with stopwatch.part("texture"):
                pyramid = texture_pyramid(image_B3hw, grid, self.texture_channels)
            with stopwatch.part("sight"):
                return replace(pyramid, seen_BGHW=self.sight(pyramid, glance_BXHW))

    def weigh(self, pyramid: TexturePyramid, question: QuestionTokens, stopwatch: Stopwatch | None = None) -> Judgement:
        """Knowing and balancing: one row of the pyramid per row of the question."""
        # A compiler cannot see through a clock: where nobody times it, there is none.
        part: Callable[[str], AbstractContextManager[Any]] = nullcontext if stopwatch is None else stopwatch.part
        with torch.autocast(pyramid.cell_BCHW.device.type, enabled=False):
            with part("knowing"):
                bare_BHW = bare_paper(pyramid)  # first: what it takes is gone before anything is kept for gradients
                scores_BSHW = self.knowing(pyramid, question)
            with part("balancing"):
                judgement = self.settle(scores_BSHW, question, pyramid.spread_B)
                found = judgement.balance.relevance_BHW, judgement.maps["information"]
                return replace(judgement, rest_BHW=overlooked(pyramid, *found, bare_BHW))

    def settle(self, scores_BSHW: Tensor, question: QuestionTokens, spread_B: Tensor) -> Judgement:
        """Balancing alone: what becomes of three maps; `spread_B` says how unevenly the image's detail lies."""
        even = 0.0 if self.voids else EVEN
        balance = cautious(self.balancing(scores_BSHW, self.pool(question)), spread_B, even)
        maps = dict(zip(SCORERS, scores_BSHW.unbind(1), strict=True))
        return Judgement(maps, balance, balance.relevance_BHW.detach().sum((1, 2)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ARRCOCLayer":
        """Moves with its model, and stays in fp32 when the model is cast: ranks of a thousand scores need it."""
        super()._apply(fn, recurse)
        return super()._apply(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor, recurse)

    def forward(
        self,
        vision_embeds: Tensor | None,
        query_embeds: Tensor,
        image_tensor: Tensor,
        grid: tuple[int, int] | None = None,
        *,
        query_mask: Tensor | None = None,
        glance: Tensor | None = None,
        looked: Tensor | None = None,
        keep: Keep | list[Keep] = "auto",
    ) -> ARRCOCOutput:
        image_B3hw = image_tensor.unsqueeze(0) if image_tensor.ndim == 3 else image_tensor
        keeps = check_keeps(keep, image_B3hw.shape[0])
        grid = _grid_of(vision_embeds, image_B3hw, grid)
        question = replace(QuestionTokens.of(query_embeds, query_mask), looked_BMHW=looked)
        stopwatch = Stopwatch(image_B3hw.device)
        judgement = self.weigh(self.see(image_B3hw, grid, glance, stopwatch), question, stopwatch)
        balance = judgement.balance
        with stopwatch.part("attending"):
            k_B = self.attending.budgets(balance.relevance_BHW.detach(), balance.tensions_BT[:, 0].detach(), keeps)
            allocation = self.attending(balance.relevance_BHW, balance.tensions_BT, k_B, judgement.rest_BHW)
        return self._output(vision_embeds, judgement, allocation, stopwatch)

    def _output(
        self, vision_BND: Tensor | None, judgement: Judgement, allocation: Allocation, stopwatch: Stopwatch
    ) -> ARRCOCOutput:
        indices_BK, mask_BK = kept_indices(allocation.keep_BHW.flatten(1))
        budgets_BK = allocation.soft_BHW.flatten(1).gather(1, indices_BK) * mask_BK
        tokens_BKD = None
        if vision_BND is not None:
            tokens_BKD = vision_BND.gather(1, indices_BK.unsqueeze(-1).expand(-1, -1, vision_BND.shape[-1]))
            if self.straight_through:
                tokens_BKD = tokens_BKD * straight_through_gate(budgets_BK).unsqueeze(-1).to(tokens_BKD.dtype)
            tokens_BKD = tokens_BKD * mask_BK.unsqueeze(-1)
        strategies = [allocation.strategy(b) for b in range(mask_BK.shape[0])]
        for strategy in strategies:
            if strategy == STRATEGIES[NOT_FINITE]:
                logger.warning("%s", strategy[1])
        width = allocation.keep_BHW.shape[-1]
        return ARRCOCOutput(
            tokens=tokens_BKD,
            indices=indices_BK,
            positions=torch.stack([indices_BK // width, indices_BK % width], dim=-1),
            budgets=budgets_BK,
            mask=mask_BK,
            kept=allocation.keep_BHW,
            relevance=judgement.balance.relevance_BHW,
            maps=judgement.maps,
            weights=judgement.balance.weights_BS,
            tensions=judgement.balance.tensions_BT,
            strategies=strategies,
            timings_ms=stopwatch.milliseconds(),
        )


def straight_through_gate(scores: Tensor) -> Tensor:
    """1 in value, the scores' gradient in the backward pass."""
    return 1 + scores - scores.detach()


def _grid_of(vision_BND: Tensor | None, image_B3hw: Tensor, grid: tuple[int, int] | None) -> tuple[int, int]:
    """The grid asked for; else the image's own, if it fits the tokens; else a square of them. Checked."""
    of_image = (max(1, image_B3hw.shape[-2] // CELL), max(1, image_B3hw.shape[-1] // CELL))
    if grid is None:
        side = 0 if vision_BND is None else math.isqrt(vision_BND.shape[1])
        fits = vision_BND is None or of_image[0] * of_image[1] == vision_BND.shape[1]
        grid = of_image if fits else (side, side)
    if vision_BND is not None and grid[0] * grid[1] != vision_BND.shape[1]:
        raise ValueError(f"{vision_BND.shape[1]} tokens do not fill a grid of {grid}: pass grid=(H, W)")
    return grid
