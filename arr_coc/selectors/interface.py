"""The selection interface: look at a group of images with one grid, judge them, then choose within a budget.

B images with one grid, H W grid of cells, N = H * W, D language-model width.

Judging and choosing are apart because a budget may be shared between images of different grids: all are judged first.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from arr_coc.attending import TokenAllocator
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import Allocation, Judgement, Question
from arr_coc.timing import Stopwatch


@dataclass(frozen=True, slots=True)
class View:
    """What a selector may look at: what it said that it reads, else None."""

    grid: tuple[int, int]
    question: Question
    image_B3hw: Tensor | None  # float in [0, 1], of any size
    visual_BND: Tensor | None  # the merged visual tokens, as the language model would see them
    glance_BXHW: Tensor | None = None  # what the ViT makes of the image when it is small


class Selector(nn.Module, ABC):
    """One way to choose. Subclasses judge; most leave budget and choice to the shared allocator."""

    name: str
    reads_pixels: bool
    """Whether it needs the images themselves."""
    reads_tokens: bool
    """Whether it needs the vision encoder's output, and so cannot be used with sparse encoding."""
    reads_glance: bool = False
    """Whether it needs what the vision encoder makes of a small copy of the image."""

    def __init__(self, allocator: TokenAllocator) -> None:
        super().__init__()
        self.allocator = allocator

    @abstractmethod
    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        """Relevance and tensions of each image, without a budget."""

    def automatic_budget(self, judgement: Judgement) -> Tensor:
        """Number of cells that keep="auto" gives each image, `[B]` long."""
        balance = judgement.balance
        return self.allocator.automatic(balance.relevance_BHW.detach(), balance.tensions_BT[:, 0].detach())

    def choose(self, judgement: Judgement, k_B: Tensor) -> Allocation:
        """Exactly k cells of each image."""
        allocation: Allocation = self.allocator(judgement.balance.relevance_BHW, judgement.balance.tensions_BT, k_B)
        return allocation


SelectorFactory = Callable[[ARRCOCConfig, ARRCOCLayer], Selector]
SELECTORS: dict[str, SelectorFactory] = {}


def register(name: str) -> Callable[[SelectorFactory], SelectorFactory]:
    """Make a selector available by name: a factory from the config and the model's own ARR-COC layer."""

    def add(factory: SelectorFactory) -> SelectorFactory:
        assert name not in SELECTORS, name
        SELECTORS[name] = factory
        return factory

    return add


def make_selector(name: str, config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    """Build a selector by name; "auto" is the trained layer where there is one, else the training-free choice."""
    if name == "auto":
        name = "arr_coc" if config.trained else "training_free"
    if name not in SELECTORS:
        raise ValueError(f"selector={name!r}: expected one of auto, {', '.join(sorted(SELECTORS))}")
    return SELECTORS[name](config, layer)
