"""Looking: from a question about images to the cells that are kept, and why. One place for all who choose.

B images with one grid, R rows (a question about an image), S samples, I images of all samples, L full length, Q
question tokens, H W grid of cells, N = H * W, X width of the ViT.

A product's request, a batch of an evaluation and a group of training are looked at by the same `Looker`: what a
selector is shown (question, pixels, glance, insides), its judgement, the budgets, the choice, the explanation. The
recorded path (`arr_coc.qwen.graphs`) shows images in its own way. Images of different grids are grouped, never padded.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.attending import kept_indices
from arr_coc.config import GLANCE, ARRCOCConfig, FirstLook, Keep
from arr_coc.images.reader import image_tensor
from arr_coc.qwen import vision
from arr_coc.qwen.answers import ImageSelection, thoughts
from arr_coc.qwen.familiar import leave_impressions
from arr_coc.qwen.first_look import FirstLooker, FirstSeen
from arr_coc.qwen.language import Begun
from arr_coc.qwen.memory import Memory, weights_stamp
from arr_coc.qwen.moving import over_time
from arr_coc.qwen.periphery import context_grid, periphery_grid
from arr_coc.qwen.request import IMAGE, VIDEO, ChatTokens, Layout, Request, check_aspect, evidence_mask, find_question
from arr_coc.qwen.vision import Geometry, Grid
from arr_coc.records import NOT_FINITE, STRATEGIES, Judgement, QuestionTokens, TexturePyramid, rows_at
from arr_coc.selectors import Selector, Taken, View
from arr_coc.timing import Stopwatch

logger = logging.getLogger(__name__)
fallbacks: Counter[str] = Counter()
"""How often all was kept in this process because choosing went wrong, by the reason; 0 unless something is broken."""
_counting = threading.Lock()
ALL_ASKED = "all tokens were asked for"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a selector is shown of some images: a tensor per image; None where it does not read that."""

    grids: Sequence[Grid]
    pixels: Sequence[Tensor] | None = None  # [3, h, w] in [0, 1]
    tokens: Sequence[Tensor] | None = None  # [N, D]; None where the choice comes before the vision encoder
    more: dict[str, Sequence[Tensor]] = field(default_factory=dict)  # other fields of the view
    views: dict[bool, dict[str, list[Tensor]]] = field(default_factory=dict)  # of the first looks of images, of clips
    first: FirstSeen | None = None  # what came of the selector's first look, if it has one
    keys: Sequence[Hashable] | None = None  # what each image is known by; None where nothing is remembered of them

    def groups(self, layout: Layout) -> dict[tuple[Any, ...], list[int]]:
        """Numbers of the images that can be judged together: one grid, one size in pixels, all beside clips or none."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for image, grid in enumerate(self.grids):
            size = () if self.pixels is None else tuple(self.pixels[image].shape)
            found.setdefault((grid, layout.is_played(image), size), []).append(image)
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    """Kept cells of each image of the batch, in order."""

    indices: list[Tensor]  # per image, increasing
    soft: list[Tensor] | None  # per image, relevance after the tensions of ALL cells, [N]; None when all was kept
    images: list[ImageSelection]
    weights: list[Tensor | None] | None = None  # per image [K, N] where tokens are merged; None: taken as they are
    grids: list[Grid] | None = None  # per image, the grid to resize it to; None: as it is
    shown: Shown | None = None  # what it was chosen by; None when nothing was judged


def keep_everything(
    grids: Sequence[Grid], device: torch.device, strategy: str, reason: str, is_fallback: bool = False
) -> Choice:
    indices = [torch.arange(height * width, device=device) for height, width in grids]
    images = [
        ImageSelection(grid, index, None, {}, {}, {}, strategy, reason, is_fallback=is_fallback)
        for grid, index in zip(grids, indices, strict=True)
    ]
    return Choice(indices, None, images)


@dataclass(frozen=True, slots=True)
class Looker:
    """Looks at images for questions, with one model and one selector, under the settings as they are now."""

    model: Any  # the stock model
    selector: Selector
    config: ARRCOCConfig
    geometry: Geometry
    chat: ChatTokens | None = None
    strict: bool = False  # let errors of the selector through, as training should
    memory: Memory = field(default_factory=lambda: Memory(0))  # what was seen of images before; by default, nothing
    pad_id: int = 0
    raises: bool = False  # let errors of choosing through, and nothing else of `strict`
    for_clips: Selector | None = None  # what chooses where a sample shows a clip; None: the same
    impressions: Memory | None = None  # where glances leave what `picture_notices` reads; None: nobody does
    looks: Callable[[Request, Sequence[Tensor]], FirstSeen] | None = None  # over recordings; None: remembering, eagerly

    # ---------------------------------------------------------------- what is shown

    def question(self, ids_BQ: Tensor, mask_BQ: Tensor) -> QuestionTokens:
        """Token embeddings of questions, or the language model's reading of them when the pooling is "lm"."""
        embeds = self.model.get_input_embeddings()(ids_BQ).detach()
        if self.config.pooling == "lm" and ids_BQ.shape[1]:
            reader = self.model.model.language_model
            with torch.no_grad():
                embeds = reader(inputs_embeds=embeds, attention_mask=mask_BQ.long(), use_cache=False).last_hidden_state
        return QuestionTokens.of(embeds, mask_BQ)

    def question_of(self, request: Request) -> QuestionTokens:
        """The question of each sample: as the processor marked it, else found in the prompt."""
        mask_BL = request.question_mask
        if mask_BL is None:
            mask_BL = find_question(request.input_ids, request.attention_mask, self.model.config, self.chat)
        columns_BQ, mask_BQ = kept_indices(mask_BL.bool())
        return self.question(request.input_ids.gather(1, columns_BQ), mask_BQ)

    def pixels(self, request: Request) -> list[Tensor]:
        """Each image `[3, h, w]` in [0, 1]: the originals if given, else rebuilt from the patches.

        The frames of a clip, two by two `[2, 3, h, w]`, always are; large ones at half their size.
        """
        given, layout, pairs = request.original_image, request.layout, list[Tensor]()
        if request.pixel_values_videos is not None:
            cells, window = layout.cells, self.geometry.window
            sizes = [window * sum(cells[clip.start : clip.stop]) for clip in layout.clips]
            for clip, rows in zip(layout.clips, request.pixel_values_videos.split(sizes), strict=True):
                pairs += vision.frames_of(rows, layout.grids[clip.start], self.geometry).unbind()
        if given is None:
            shown = zip(request.rows[: layout.images], layout.grids, strict=False)
            return [vision.unpatchify(*one, self.geometry) for one in shown] + pairs
        several = given if isinstance(given, (list, tuple)) else [given]
        if len(several) != layout.images:
            raise ValueError(f"original_image has {len(several)} images, the inputs have {layout.images}")
        images = [image_tensor(image).to(request.input_ids.device) for image in several]
        for image, grid in zip(images, layout.grids[: layout.images], strict=True):
            check_aspect(image, grid)
        return images + pairs

    def insides(self, features: Any, image_grid_thw: Tensor) -> dict[str, Sequence[Tensor]]:
        """What the selector reads of the vision encoder's insides: fields of the view, a tensor per image."""
        found: dict[str, Sequence[Tensor]] = {}
        if self.selector.reads_patches:
            found["patches_BNX"] = vision.patch_features(self.model, features)
        if self.selector.reads_received:
            received, keys = vision.received_attention(self.model, features, image_grid_thw)
            found |= {"received_BN": received, "keys_BNd": keys}
        return found

    def _told(self, request: Request) -> dict[str, Sequence[Tensor]]:
        """The number of each image, and where the answer is, for a selector that must be told."""
        device, hints, layout = request.input_ids.device, request.hints, request.layout
        places = [layout.sample_of[:image].count(sample) for image, sample in enumerate(layout.sample_of)]
        numbers = places if hints.image_numbers is None else hints.image_numbers
        told: dict[str, Sequence[Tensor]] = {"number_B": torch.tensor(numbers, device=device).unbind()}
        if self.selector.reads_evidence:
            if hints.evidence is None:
                raise ValueError(
                    f"selector {self.selector.name!r} must be told where the answer is: "
                    "pass hints=Hints(evidence=...), the boxes of each image"
                )
            boxes = zip(hints.evidence, layout.grids, strict=True)
            told["evidence_BHW"] = [evidence_mask(several, grid).to(device) for several, grid in boxes]
        return told

    def show(self, request: Request, features: Any, begun: Begun | None, stopwatch: Stopwatch) -> Shown:
        """What the selector reads of a request; `features` and `begun` are what ViT and language model did already."""
        with stopwatch.part("pixels"):
            pixels = self.pixels(request) if self.selector.reads_pixels else None
        with stopwatch.part("insides"):
            more = self._told(request) | self.insides(features, request.thw)
            if begun is not None:
                assert begun.attended_BL is not None
                attended = [begun.attended_BL[request.layout.types_BL == kind] for kind in (IMAGE, VIDEO)]
                more["attended_BN"] = torch.cat(attended).split(request.layout.cells)
        tokens = features.pooler_output if self.selector.reads_tokens else None
        keys = self.keys(request) if self.selector.sees and not self.strict else None
        return Shown(request.layout.grids, pixels, tokens, more, keys=keys)

    def keys(self, request: Request) -> list[Hashable]:
        """What each image of a request is known by, to be remembered under."""
        given = request.original_image
        if given is None:
            return self.memory.keys(request.rows, self.model.model)
        pairs = request.rows[request.layout.images :] if request.layout.clips else []
        return self.memory.keys([*(given if isinstance(given, (list, tuple)) else [given]), *pairs], self.model.model)

    def over_clips(self) -> "Looker":
        """What looks at samples that show a clip."""
        return self if self.for_clips is None else replace(self, selector=self.for_clips, for_clips=None)

    def first_looker(self) -> FirstLooker:
        """What looks at small copies first, as the selector wants it, or as is usual where it looks at none."""
        settings, glances = self.selector.first_look or FirstLook(), self.selector.reads_glance
        return FirstLooker(self.model, self.geometry, settings, self.memory, self.pad_id, glances)

    @property
    def looks_first(self) -> bool:
        """A look sees what rows end with: where a model learns, answers. What has a glance makes do with it then."""
        return self.selector.first_look is not None and not (self.strict and self.selector.reads_glance)

    def _look_first(self, request: Request, shown: Shown) -> FirstSeen:
        assert shown.pixels is not None
        if self.looks is not None:
            return self.looks(request, shown.pixels)
        return self.first_looker().look(request, shown.pixels, keys=shown.keys)

    @property
    def gives_context(self) -> bool:
        """Whether any windows could attend to a small copy in the ViT."""
        return self.config.context == "always" or (self.config.context != "never" and self.looks_first)

    def context_grid(self, grid: Grid, kept: int) -> Grid | None:
        """Cells of the small copy that `kept` windows of an image attend to in the ViT; None where they do without."""
        return context_grid(self.config.context, kept, grid) if self.gives_context else None

    def beside(self, grid: Grid, budgets: Sequence[int]) -> tuple[list[Grid | None], list[int]]:
        """Cells of small copies that stand in the prompt (None: no room), for one grid, and what windows have left."""
        small = (self.selector.first_look or FirstLook()).grid(grid)
        copies = [periphery_grid(grid, small, budget) for budget in budgets]
        areas = [height * width for height, width in (copy or (0, 0) for copy in copies)]
        return copies, [budget - area for budget, area in zip(budgets, areas, strict=True)]

    # ---------------------------------------------------------------- judging

    def judge(
        self,
        grid: Grid,
        question: QuestionTokens,
        stopwatch: Stopwatch,
        image_B3hw: Tensor | None = None,
        visual_BND: Tensor | None = None,
        image_R: Tensor | None = None,
        glance_BXHW: Tensor | None = None,
        **more: Any,
    ) -> Judgement:
        """What the selector thinks of images of one grid: a row per question, each image looked at once.

        `image_R` is the image of each row (None: its own), `glance_BXHW` was made before, `more` is for the view.
        """
        if glance_BXHW is None and image_B3hw is not None:
            glance_BXHW = self._glance(image_B3hw, grid, stopwatch)
        pictures = image_B3hw if image_B3hw is None or self.selector.sees else vision.still(image_B3hw)
        view = View(grid, question, pictures, visual_BND, glance_BXHW, image_R=image_R, **more)
        judgement = self.selector.judge(view, stopwatch)
        wanted, shape = (question.tokens_BLD.shape[0], *grid), tuple(judgement.balance.relevance_BHW.shape)
        if shape != wanted:
            raise ValueError(f"selector {self.selector.name!r} gave a map of shape {shape}, expected {wanted}")
        return judgement

    def _glance(self, image_B3hw: Tensor, grid: Grid, stopwatch: Stopwatch) -> Tensor | None:
        if not self.selector.reads_glance:
            return None
        with stopwatch.part("glance"):
            return vision.glance(self.model, image_B3hw, grid, self.geometry)

    def _judge_group(
        self, shown: Shown, grid: Grid, members: list[int], question: QuestionTokens, asked: bool, stopwatch: Stopwatch
    ) -> Judgement:
        """One group of images, each with its sample's question, a row of `question`; `asked`: whether all ask."""

        def stacked(values: Sequence[Tensor] | None) -> Tensor | None:
            return None if values is None else torch.stack([values[image] for image in members])

        more: dict[str, Any] = {name: stacked(values) for name, values in shown.more.items()}
        image_B3hw = stacked(shown.pixels)
        if shown.keys is not None and image_B3hw is not None and not torch.is_grad_enabled():
            keys, glance, cell = [shown.keys[n] for n in members], more.pop("glance_BXHW", None), self.geometry.cell
            channels, small = self.selector.channels_for(asked), GLANCE.grid(grid)

            def see(places: list[int], images: Tensor = image_B3hw) -> TexturePyramid:
                some = images if len(places) == len(images) else rows_at(images, places)
                glance_BXHW = self._glance(some, grid, stopwatch) if glance is None else rows_at(glance, places)
                leave_impressions(self.impressions, [keys[place] for place in places], glance_BXHW, small, cell)
                return self.selector.see(some, grid, glance_BXHW, stopwatch, asked)

            how = (self.selector.name, self.selector.first_look, weights_stamp(self.selector))
            more["pyramid"] = self.memory.pyramid(keys, (grid, *how, channels), channels, see)
            image_B3hw = None  # nothing is left to be read from it
        return self.judge(grid, question, stopwatch, image_B3hw, stacked(shown.tokens), **more)

    # ---------------------------------------------------------------- choosing

    def choose(
        self,
        request: Request,
        keeps: Sequence[Keep],
        stopwatch: Stopwatch,
        features: Any = None,
        begun: Begun | None = None,
        foveated: bool = False,
    ) -> Choice:
        """Choose cells of each image, one budget per sample. If choosing fails, every token is kept, and it says why.

        `foveated` leaves room for a small copy of each image in its budget. `strict` (training) lets errors through.
        Mistakes of the caller are found before anything is judged.
        """
        with stopwatch.part("question"):
            question = self.question_of(request)
            asks = question.asked_B.tolist()  # read now: later the device is busy
        shown = self.show(request, features, begun, stopwatch)
        try:
            for played in {request.layout.is_played(image) for image in range(len(shown.grids))}:
                looker = self.over_clips() if played else self
                if looker.looks_first:
                    with stopwatch.part("first look"):
                        seen = looker._look_first(request, shown)
                    shown = replace(shown, views={**shown.views, played: seen.view}, first=seen)
            return self._choose(shown, question, asks, request.layout, keeps, stopwatch, foveated)
        except Exception as error:
            if self.strict or self.raises:
                raise
            reason = f"choosing failed ({type(error).__name__}), so every token was kept"
            _fell_back(reason, exc_info=True)
            return keep_everything(request.layout.grids, request.input_ids.device, "keep_all", reason, True)

    def _choose(
        self,
        shown: Shown,
        question: QuestionTokens,
        asks: Sequence[bool],
        layout: Layout,
        keeps: Sequence[Keep],
        stopwatch: Stopwatch,
        foveated: bool,
    ) -> Choice:
        groups, lookers = shown.groups(layout), {False: self, True: self.over_clips()}
        judged: dict[int, tuple[Judgement, int]] = {}
        for (grid, played, _), members in groups.items():
            samples = [layout.sample_of[image] for image in members]
            own = QuestionTokens(rows_at(question.tokens_BLD, samples), rows_at(question.mask_BL, samples))
            asked = all(asks[sample] for sample in samples)
            more = replace(shown, more={**shown.more, **shown.views.get(played, {})})
            judgement = lookers[played]._judge_group(more, grid, members, own, asked, stopwatch)
            judged |= {image: (judgement, row) for row, image in enumerate(members)}
        with stopwatch.part("attending"):
            selectors = {played: looker.selector for played, looker in lookers.items()}
            k_I, judged, cuts = over_time(selectors, layout, judged, keeps, shown.pixels)
            chosen: dict[int, tuple[ImageSelection, Tensor, Tensor | None, Grid]] = {}
            for (grid, played, _), members in groups.items():
                (judgement, _), k_B = judged[members[0]], rows_at(k_I, members)
                beside: list[Grid | None] = [None] * len(members)
                if foveated and members[0] < layout.images:
                    beside, windows = self.beside(grid, k_B.tolist())
                    k_B = k_B.new_tensor(windows)
                allocation = selectors[played].choose(judgement, k_B)
                # Read from the device once for all: a clip has many moments.
                cells_BK, mask_BK = kept_indices(allocation.keep_BHW.flatten(1))
                covered_BK = allocation.covered_BHW.flatten(1).gather(1, cells_BK)
                counts, thought = mask_BK.sum(-1).tolist(), thoughts(judgement)
                allocation = replace(allocation, strategy_B=allocation.strategy_B.cpu())
                for row, image in enumerate(members):
                    kept, covered = cells_BK[row, : counts[row]], covered_BK[row, : counts[row]]
                    whole = counts[row] == grid[0] * grid[1]  # as where scores cannot be trusted
                    strategy = allocation.strategy(row)
                    if self.raises and strategy == STRATEGIES[NOT_FINITE]:
                        raise FloatingPointError(strategy[1])
                    selection = explain(grid, kept, covered, thought[row], strategy)
                    selection = replace(selection, periphery=None if whole else beside[row], cut=image in cuts)
                    made_of = _made_of(allocation, row, selection)
                    chosen[image] = (selection, allocation.soft_BHW[row].flatten(), *made_of)
        images, soft, weights, grids = map(list, zip(*(chosen[n] for n in range(len(shown.grids))), strict=True))
        merges = any(weight is not None for weight in weights)
        return Choice([one.kept for one in images], soft, images, weights if merges else None, grids, shown)


def _made_of(allocation: Any, row: int, selection: ImageSelection) -> tuple[Tensor | None, Grid]:
    """What the kept tokens of an image are merged from (None: nothing, as where all are kept), and its new grid."""
    if not isinstance(allocation, Taken):
        return None, selection.grid
    merges = allocation.weights is not None and selection.tokens_kept < selection.tokens_total
    weights = allocation.weights[row] if merges and allocation.weights is not None else None
    return weights, selection.grid if allocation.grids is None else allocation.grids[row]


def explain(
    grid: Grid, kept_K: Tensor, covered_K: Tensor | None, thought: dict[str, Any] | None, strategy: tuple[str, str]
) -> ImageSelection:
    """The explanation of one image, of its `thoughts` if it was judged, a name and a reason; tensors are not copied."""
    is_fallback = strategy == STRATEGIES[NOT_FINITE]
    if is_fallback:
        _fell_back(strategy[1])
    if thought is None:
        return ImageSelection(grid, kept_K, None, {}, {}, {}, *strategy)
    named: dict[str, Any] = {"strategy": strategy[0], "reason": strategy[1], "is_fallback": is_fallback}
    return ImageSelection(grid=grid, kept=kept_K, covered=covered_K, **thought, **named)


def _fell_back(reason: str, **how: Any) -> None:
    """Told in the log, and counted."""
    with _counting:
        fallbacks[reason] += 1
    logger.warning("%s", reason, **how)
