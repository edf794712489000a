"""What the four parts hand to each other. They import these records, and never one another.

B batch of images with one grid, C channels, H W grid of cells, N = H * W, L question tokens, D language-model width,
S scorers, T tensions, G channels of sight, M attention maps (of layers and heads).
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor

CAUTION = 0.5  # least share of even coverage where a map, or an image, looks like noise
# Claims on what is left of a budget: 0 comes after all that claim more, LOUD after that, and BARE is the last of all,
# also where else cells are spread evenly.
LOUD, BARE = -0.5, -1.0
MOST_TABLE_BYTES = 32 << 20  # of a kind: those of 80 image sizes up to 1,024 px a side


def rows_at(tensor: Tensor, places: Sequence[int]) -> Tensor:
    """Some rows, in that order. A list as an index would make the host wait until the device has nothing to do."""
    return tensor.index_select(0, torch.tensor(places).to(tensor.device, non_blocking=True))


def constant_table(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A table that depends on sizes and a device alone: made once, and kept for a while.

    Kept in a plain dictionary, which torch.compile can look into: a table that is there is an input to it. Looking one
    up takes no lock, keeping one does; who made a table uses it, whatever becomes of it here.
    """
    kept: dict[tuple[object, ...], Tensor] = {}
    lock = threading.Lock()

    @wraps(make)
    def table(height: int, width: int, device: torch.device, *more: object) -> Tensor:
        key = (height, width, device.type, device.index, *more)
        found = kept.get(key)
        if found is None:
            found = make(height, width, device, *more)
            with lock:
                kept[key] = found
                while len(kept) > 1 and sum(one.nbytes for one in kept.values()) > MOST_TABLE_BYTES:
                    kept.pop(next(iter(kept)))
        return found

    return table


@dataclass(frozen=True, slots=True)
class TexturePyramid:
    """The same channels at three scales; every value finite and in [0, 1]."""

    fine_BChw: Tensor  # [B, C, 4H, 4W]
    middle_BChw: Tensor  # [B, C, 2H, 2W]
    cell_BCHW: Tensor  # [B, C, H, W]
    names: tuple[str, ...]
    spread_B: Tensor  # how unevenly detail lies over the cells
    seen_BGHW: Tensor | None = None  # [B, G, H, W], what the layer's sight made of a small copy; None before it did

    @property
    def grid(self) -> tuple[int, int]:
        return self.cell_BCHW.shape[-2], self.cell_BCHW.shape[-1]

    def rows(self, image_R: Tensor) -> "TexturePyramid":
        """One row per entry of `image_R`, so that several questions can be put to one image."""
        seen = None if self.seen_BGHW is None else self.seen_BGHW[image_R]
        levels = self.fine_BChw[image_R], self.middle_BChw[image_R], self.cell_BCHW[image_R]
        return TexturePyramid(*levels, self.names, self.spread_B[image_R], seen)

    def only(self, names: tuple[str, ...]) -> "TexturePyramid":
        """With those channels alone, in that order; itself where it has no others."""
        if names == self.names:
            return self
        places = [self.names.index(name) for name in names]
        fine, middle, cell = (
            torch.stack([level[:, place] for place in places], dim=1)
            for level in (self.fine_BChw, self.middle_BChw, self.cell_BCHW)
        )
        return TexturePyramid(fine, middle, cell, names, self.spread_B, self.seen_BGHW)

    @property
    def levels(self) -> tuple[Tensor, ...]:
        """All tensors, as `together` takes them."""
        own = self.fine_BChw, self.middle_BChw, self.cell_BCHW, self.spread_B
        return own if self.seen_BGHW is None else (*own, self.seen_BGHW)

    @classmethod
    def together(cls, several: Sequence[tuple[Tensor, ...]], names: tuple[str, ...]) -> "TexturePyramid":
        """The levels of pyramids of one grid as one pyramid."""
        fine, middle, cell, spread, *seen = (torch.cat(level) for level in zip(*several, strict=True))
        return cls(fine, middle, cell, names, spread, *seen)


@dataclass(frozen=True, slots=True)
class QuestionTokens:
    """The user's question as token embeddings in fp32; a mask row without True means that nothing was asked."""

    tokens_BLD: Tensor
    mask_BL: Tensor  # bool, True where there is a token
    looked_BMHW: Tensor | None = None  # where the language model looked at a small copy; 0 all over: it did not

    @classmethod
    def of(cls, embeds: Tensor, mask_BL: Tensor | None = None) -> "QuestionTokens":
        """From `[B, L, D]` with an optional mask, or from an already pooled `[B, D]`."""
        if embeds.ndim == 2:
            embeds = embeds.unsqueeze(1)
        if embeds.ndim != 3:
            raise ValueError(f"query_embeds has shape {tuple(embeds.shape)}: expected [B, L, D] or [B, D]")
        if mask_BL is None:
            mask_BL = torch.ones(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
        if mask_BL.shape != embeds.shape[:2]:
            raise ValueError(f"query mask has shape {tuple(mask_BL.shape)}, query_embeds {tuple(embeds.shape)}")
        # One all-masked token stands for "no question", so that reductions over L are never empty.
        if embeds.shape[1] == 0:
            embeds, mask_BL = F.pad(embeds, (0, 0, 0, 1)), F.pad(mask_BL, (0, 1))
        return cls(embeds.float(), mask_BL.bool())

    @property
    def asked_B(self) -> Tensor:
        return self.mask_BL.any(-1)


@dataclass(frozen=True, slots=True)
class Balance:
    """One relevance map, and what made it."""

    relevance_BHW: Tensor  # in [0, 1]
    weights_BS: Tensor  # exponents of a product, 0 or more; or weights of a mean
    tensions_BT: Tensor  # in [0, 1], in the order of TENSIONS


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is thought of the images before a budget is set."""

    maps: dict[str, Tensor]  # scorer -> [B, H, W]; the weights of `balance` are in this order
    balance: Balance
    mass_B: Tensor  # what each image claims of a shared budget; comparable between images
    rest_BHW: Tensor | None = field(default=None, kw_only=True)  # -1 to 1: claims of ruled-out cells; None: all alike


@dataclass(frozen=True, slots=True)
class Allocation:
    """What was kept of each image, and why."""

    keep_BHW: Tensor  # bool
    soft_BHW: Tensor  # relevance after the tensions; 1 where it is not to be trusted
    strategy_B: Tensor  # long, index into STRATEGIES
    covered_BHW: Tensor  # bool: kept for even coverage of the image, and not for what the map says of the cell

    def strategy(self, index: int) -> tuple[str, str]:
        """Name of the strategy used for one image, and the reason in words."""
        return STRATEGIES[int(self.strategy_B[index])]


# From the weakest claim to the strongest: the last that applies is used.
STRATEGIES = (
    ("relevance", "the most relevant cells; what they leave of the budget is spread over the others"),
    ("half_even", "the relevance map looks like noise, so half of the budget went to an even grid"),
    ("even_grid", "the relevance map points nowhere, so the cells were chosen on an even grid"),
    ("keep_all", "the budget covers every token"),
    ("keep_all", "the scores were not finite, so every token was kept"),
)
RELEVANCE, HALF_EVEN, EVEN_GRID, WHOLE_BUDGET, NOT_FINITE = range(5)
