"""The selection interface: look at a group of images with one grid, judge them, then choose within a budget.

B images with one grid, R rows (a question about an image), H W grid of cells, N = H * W, K kept cells, D language-model
width, X width of the ViT, d size of a head, M attention maps (of layers and heads).

Judging and choosing are apart because a budget may be shared between images of different grids: all are judged first.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor, nn

from arr_coc.attending import TokenAllocator
from arr_coc.config import GLANCE, ARRCOCConfig, FirstLook, Timing, channel_names, settings_of
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import Allocation, Judgement, QuestionTokens, TexturePyramid
from arr_coc.timing import Stopwatch

Tensors = dict[str, Tensor]
LEVELS = ("fine_BChw", "middle_BChw", "cell_BCHW", "spread_B")  # tensors of textures


@dataclass(frozen=True, slots=True)
class View:
    """What a selector may look at: what it said that it reads, else None.

    A row is judged for each question. Without `image_R` every row has an image of its own, and B is R; with it, several
    rows share an image, which is looked at once.
    """

    grid: tuple[int, int]
    question: QuestionTokens  # of R rows
    image_B3hw: Tensor | None  # float in [0, 1], of any size; pairs of frames [B, 2, 3, h, w] where it `sees`
    visual_BND: Tensor | None  # the merged visual tokens, as the language model would see them
    glance_BXHW: Tensor | None = None  # what the ViT makes of the image when it is small
    number_B: Tensor | None = None  # of each row, a number of its image that no batch changes; None: all are 0
    evidence_BHW: Tensor | None = None  # of each row, bool, the cells that hold the answer: for the oracle alone
    patches_BNX: Tensor | None = None  # the ViT's last hidden states, mean over the patches of a cell
    received_BN: Tensor | None = None  # attention that a cell receives in the ViT's last block, fp32
    keys_BNd: Tensor | None = None  # keys of that block, mean over heads and over the patches of a cell
    attended_BN: Tensor | None = None  # of each row, fp32, where the prompt's last token looks in the language model
    looked_BMN: Tensor | None = None  # of each row, fp32, the same over a small copy, for each layer and head
    pyramid: TexturePyramid | None = None  # what `see` made of the images, where it was done before
    image_R: Tensor | None = None  # the image of each row

    def per_row(self) -> "View":
        """The same with an image for every row, for selectors that look at rows alone."""
        if self.image_R is None:
            return self
        shared = ("image_B3hw", "visual_BND", "glance_BXHW", "patches_BNX", "received_BN", "keys_BNd")
        given = {name: value[self.image_R] for name in shared if (value := getattr(self, name)) is not None}
        return replace(self, **given, image_R=None)


class Selector(nn.Module, ABC):
    """One way to choose. Subclasses judge; most leave budget and choice to the shared allocator."""

    name: str
    pays: str  # which parts of the ViT and of the language model run in full, and what the choice itself costs
    reads_pixels: bool = False  # whether it needs the images themselves
    reads_tokens: bool = False  # whether it needs the vision encoder's output, and so cannot go with sparse encoding
    reads_glance: bool = False  # whether it needs what the vision encoder makes of a small copy of the image
    reads_patches: bool = False  # the vision encoder's last hidden states, before the merger; implies `reads_tokens`
    reads_received: bool = False  # attention and keys of the vision encoder's last block; implies `reads_tokens`
    reads_evidence: bool = False  # whether it must be told where the answer is
    first_look: FirstLook | None = None  # the first look that it needs, which fills `attended_BN` and `looked_BMN`
    timing: Timing | None = None  # how its relevance goes over the moments of a clip; None: each stands for itself
    resizes: bool = False  # it makes the image smaller instead of dropping tokens: its allocation gives the small grids
    untrained_notice: str = ""  # what a user is told once, where it chooses for a model without a trained adapter
    tuned: dict[str, Any] = {}  # what `arr-coc tune` set it to for this model; empty where nothing was tuned
    channels: int = 13  # the set of textures that it reads, by its size, where it `sees`
    sees: bool = False  # part of what it reads is the same for every question about an image, and `see` makes it
    gives_relevance: bool = True  # its map means relevance in [0, 1], so that weighted encoding may scale tokens by it

    def __init__(self, allocator: TokenAllocator) -> None:
        super().__init__()
        self.allocator = allocator

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Selector":
        """Moves with its model, and stays in fp32 when the model is cast, as its maps do."""
        super()._apply(fn, recurse)
        return super()._apply(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor, recurse)

    def channels_for(self, asked: bool) -> int | tuple[str, ...]:
        """Textures that it reads where every row asks something, or where not."""
        return self.channels

    def see(
        self,
        image_B3hw: Tensor,
        grid: tuple[int, int],
        glance_BXHW: Tensor | None,
        stopwatch: Stopwatch,
        asked: bool = True,
    ) -> TexturePyramid:
        """What does not depend on the question, to be handed to `judge` as `pyramid`; only where it `sees`.

        What serves only where a row asks nothing is left out where all rows ask (`asked`).
        """
        raise NotImplementedError

    @abstractmethod
    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        """Relevance and tensions of each row, without a budget."""

    def full_layers(self, levels: int) -> int:
        """How many decoder layers see every token before it chooses, in a model of so many DeepStack levels.

        0 for all who choose before the language model; where it is more, the view holds `attended_BN` of that layer.
        """
        return 0

    def automatic_budget(self, judgement: Judgement) -> Tensor:
        """Number of cells that keep="auto" gives each image, `[B]` long."""
        balance = judgement.balance
        return self.allocator.automatic(balance.relevance_BHW.detach(), balance.tensions_BT[:, 0].detach())

    def choose(self, judgement: Judgement, k_B: Tensor) -> Allocation:
        """Exactly k cells of each image (about k where it `resizes`)."""
        balance = judgement.balance
        allocation: Allocation = self.allocator(balance.relevance_BHW, balance.tensions_BT, k_B, judgement.rest_BHW)
        return allocation


PLAIN = "plain"  # the model itself: no selector, though it stands beside them in comparisons
SELECTORS: dict[str, Callable[..., Selector]] = {}
Method = TypeVar("Method", bound=type[Selector])


def registered(method: Method) -> Method:
    """Make a selector available by its name, made from the config, the model's own ARR-COC layer, and settings."""
    assert method.name not in SELECTORS, method.name
    SELECTORS[method.name] = method
    return method


def make_selector(spec: str, config: ARRCOCConfig, layer: ARRCOCLayer, **settings: Any) -> Selector:
    """Build a selector from NAME or NAME:KEY=VALUE,...; `settings` are more of those, such as `seed` of "random".

    "auto" is the trained layer where there is one, else looking twice.
    """
    name, written = settings_of(spec)
    settings = written | settings
    if name == "auto":
        name = "arr_coc" if config.trained else "look_twice"
    if name not in SELECTORS:
        raise ValueError(f"selector={name!r}: expected one of auto, {', '.join(sorted(SELECTORS))}")
    known = list(inspect.signature(SELECTORS[name]).parameters)[2:]
    for setting in settings:
        if setting not in known:
            raise ValueError(f"selector {name!r} has no setting {setting!r}: it has {', '.join(known) or 'none'}")
    return SELECTORS[name](config, layer, **settings)


def read_selector(spec: str, config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    """The selector that a text asks for; ARR-COC's own must have been trained."""
    if settings_of(spec)[0] == "arr_coc" and not config.trained:
        raise ValueError("selector 'arr_coc' is not trained on this model: give a folder with a trained adapter")
    return make_selector(spec, config, layer)


# ---------------------------------------------------------------- the trained layer


class ARRCOCSelector(Selector):
    name = "arr_coc"
    pays = (
        "ViT: a small copy, and the kept windows when sparse, all when dense; LM: the kept tokens, and in its first "
        "layers a small copy where it looks"
    )
    reads_pixels = True
    sees = True
    timing = Timing()
    untrained_notice = "the ARR-COC layer is untrained: its choice hardly depends on the question"

    def __init__(self, layer: ARRCOCLayer, light: int = 0) -> None:
        """`light` leaves the language model's look out, where the layer has one: a glance must do."""
        super().__init__(layer.attending)
        if light not in (0, 1):
            raise ValueError(f"light={light}: give 1 to do without the language model's look, or 0")
        self.layer, self.channels = layer, layer.texture_channels
        self.reads_glance = layer.sight.glance is not None
        self.first_look = GLANCE if layer.knowing.participatory.looked is not None and not light else None

    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        pyramid = view.pyramid
        if pyramid is None:
            assert view.image_B3hw is not None
            pyramid = self.see(view.image_B3hw, view.grid, view.glance_BXHW, stopwatch)
        rows = pyramid if view.image_R is None else pyramid.rows(view.image_R)
        return self.layer.weigh(rows, self._asked(view), stopwatch)

    @staticmethod
    def _asked(view: View) -> QuestionTokens:
        """The question, with where the language model looked for it."""
        looked = view.looked_BMN
        return replace(view.question, looked_BMHW=None if looked is None else looked.unflatten(-1, view.grid))

    def see(
        self,
        image_B3hw: Tensor,
        grid: tuple[int, int],
        glance_BXHW: Tensor | None,
        stopwatch: Stopwatch,
        asked: bool = True,
    ) -> TexturePyramid:
        return self.layer.see(image_B3hw, grid, glance_BXHW, stopwatch)

    def seen(self, pyramid: TexturePyramid) -> Tensors:
        """What can be known before question and glance: the textures."""
        return {name: getattr(pyramid, name) for name in LEVELS}

    def judge_seen(self, seen: Tensors, view: View) -> Judgement:
        """The rest of `judge`, from what was `seen` before."""
        pyramid = TexturePyramid(**seen, names=channel_names(self.channels))
        seen_BGHW = self.layer.sight(pyramid, view.glance_BXHW)
        return self.layer.weigh(replace(pyramid, seen_BGHW=seen_BGHW), self._asked(view))


SELECTORS["arr_coc"] = lambda config, layer, light=0: ARRCOCSelector(layer, light)
