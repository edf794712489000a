"""What decides how much memory a training run needs, checked once."""

from dataclasses import dataclass
from typing import Any

import torch

from arr_coc.attending import budget_bounds
from arr_coc.config import CELL, SIGHTS, ARRCOCConfig, Keep, check_keep, tokens_to_keep
from arr_coc.qwen.adapting import HOWS


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does with memory."""

    model_config: Any
    how: str  # what of the model learns: none, lora, last4, all
    stage: int
    batch: int  # questions per step and process
    image_side: int  # px
    keep: Keep  # the most that is kept: with random budgets the upper end
    text_tokens: int  # of a row besides the image: template, question and answer
    dtype: torch.dtype
    checkpointing: bool
    selector_parameters: int
    encoding: str = "sparse"
    gated: bool = True  # whether the answer's gradient reaches the visual tokens (straight_through, gumbel)
    answer_tokens: int = 0  # columns of a row whose logits are made; 0: all, as with labels= of the stock model
    rank: int = 16
    dropout: float = 0.0
    accumulate: bool = False  # several batches per optimizer step: gradients wait beside the next one's activations
    questions_per_image: int = 1  # in stages 1 and 3 questions share what was seen of an image
    sight: str = "glance"
    glance_channels: int = 96

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        check_keep(self.keep)
        names = {"how": HOWS, "stage": (1, 2, 3), "encoding": ("sparse", "dense"), "sight": SIGHTS}
        for name, allowed in names.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(map(str, allowed))}")
        if self.stage != 2 and self.how != "none":
            raise ValueError(f"how={self.how!r} in stage {self.stage}: only stage 2 trains the model, use how='none'")
        least = {"batch": 1, "image_side": CELL, "text_tokens": 1, "selector_parameters": 0}
        least |= {"answer_tokens": 0, "rank": 1, "questions_per_image": 1, "glance_channels": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least {bound}")
        if not self.dtype.is_floating_point:
            raise ValueError(f"dtype={self.dtype}: expected a floating dtype such as torch.bfloat16")

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W) in cells."""
        return self.image_side // CELL, self.image_side // CELL

    @property
    def cells(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def kept(self) -> int:
        """Visual tokens of a row."""
        defaults = ARRCOCConfig(hidden_dim=1)
        wanted = tokens_to_keep(self.keep, self.cells)
        return wanted or budget_bounds(self.cells, defaults.min_tokens, defaults.max_tokens)[1]

    @property
    def length(self) -> int:
        """Tokens of a row, M."""
        return self.kept + self.text_tokens

    @property
    def learns(self) -> str:
        """What of an ordinary layer of either tower learns."""
        return self.how if self.how in ("lora", "all") else "none"
