"""The eager path: choose, encode, compact, then the stock model's own forward and generate on what is left.

B batch, L full length, M compact length, I images of all samples.

What comes back speaks of the caller's own, full prompt. A cache that comes back is marked with how its prompt was
shortened, so that a later call can go on counting.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import Keep
from arr_coc.layer import straight_through_gate
from arr_coc.qwen import vision
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.compact import Compact, mark, shift_lengths, shorten, with_small_images
from arr_coc.qwen.family import deepstack_levels, refuse_inside
from arr_coc.qwen.first_look import begun_alike
from arr_coc.qwen.language import Begun, begin, go_on
from arr_coc.qwen.looking import ALL_ASKED, Choice, Looker, Shown, keep_everything
from arr_coc.qwen.periphery import widen
from arr_coc.qwen.request import Request
from arr_coc.qwen.streaming import PromptRestorer, noting
from arr_coc.timing import Stopwatch

BEFORE = ("sparse", "foveated")  # encodings that choose before the ViT


@dataclass(frozen=True, slots=True)
class Prepared:
    """Inputs for the stock model, and how they came about."""

    compact: Compact
    features: dict[str, Any]  # of images and of clips, by the stock model's names
    images: list[list[ImageSelection]]  # per sample, per image
    stopwatch: Stopwatch
    begun: Begun | None = None  # what the language model did already, where the choice needed that
    left: Tensor | None = None  # columns that are left of what was begun; None: those of `compact`

    @property
    def attention_mask(self) -> Tensor:
        return self.compact.attention_mask

    def model_inputs(self) -> dict[str, Any]:
        return _model_inputs(self.compact, self.features)

    def runner(self, stock: Any) -> Any:
        """What to run on these inputs: the stock model, or a view of it that goes on where the choice was made."""
        if self.begun is None:
            return stock
        return go_on(stock, self.begun, self.compact.columns if self.left is None else self.left)


@dataclass(frozen=True, slots=True)
class Preparer:
    """Everything between the processor's output and the language model, under the settings as they are now."""

    looker: Looker
    encoding: str  # dense, sparse, foveated or weighted
    pad_id: int
    shared: Callable[[], Any] | None = None  # gives visual tokens that were made before, in place of encoding

    def __call__(self, request: Request) -> Prepared:
        stopwatch = Stopwatch(request.input_ids.device)
        if self.looker.selector.resizes and not request.keeps_all:
            return self._prepare_small(request, stopwatch)
        return self._prepare(request, stopwatch)

    def choose(self, request: Request) -> list[list[ImageSelection]]:
        """The selections alone, per sample, as preparing would make them: nothing is encoded but what they need."""
        device, looker = request.input_ids.device, self.looker
        if request.keeps_all:
            choice = keep_everything(request.layout.grids, device, "keep_all", ALL_ASKED)
        elif self.encoding == "weighted" or looker.selector.reads_tokens:
            return self(request).images
        else:
            self._check()
            foveated = self.encoding == "foveated"
            choice = looker.choose(request, request.keeps, Stopwatch(device), foveated=foveated)
        return request.by_sample(choice.images)

    def _prepare(self, request: Request, stopwatch: Stopwatch) -> Prepared:
        stock = self.looker.model.model
        grids, types_BL = (request.image_grid_thw, request.video_grid_thw), request.layout.types_BL
        positions_3BL, _ = stock.get_rope_index(request.input_ids, types_BL, *grids, request.attention_mask)
        choice, features, begun = self._choose_and_encode(request, positions_3BL, stopwatch)
        if any(image.periphery for image in choice.images):
            return self._with_periphery(request, positions_3BL, choice, features, stopwatch)
        short = shorten(request, positions_3BL, choice.indices, self.looker.config.position_policy, self.pad_id)
        handed = vision.divided(features, request.layout.images)
        return Prepared(short, handed, request.by_sample(choice.images), stopwatch, begun)

    def _prepare_small(self, request: Request, stopwatch: Stopwatch) -> Prepared:
        """Make the images smaller instead of dropping tokens, then prepare all of what they have become."""
        self._check()
        choice = self.looker.choose(request, request.keeps, stopwatch)
        grids = choice.grids or request.layout.grids
        with stopwatch.part("resize"):
            rows = self._small_rows(request, grids)
            small, short = with_small_images(request, grids, self.looker.model.config, self.pad_id, rows)
        prepared = self._prepare(small, stopwatch)
        counted = replace(prepared.compact.told_in(short.columns, short.length), dropped=short.dropped)
        return replace(prepared, compact=counted, images=request.by_sample(choice.images))

    def _with_periphery(
        self, request: Request, positions_3BL: Tensor, choice: Choice, windows: Any, stopwatch: Stopwatch
    ) -> Prepared:
        """Put small copies of the images before the chosen windows, whose visual tokens are given."""
        config, stock = self.looker.config, self.looker.model.model
        grids = [image.periphery for image in choice.images]
        with stopwatch.part("periphery"):
            assert choice.shown is not None
            copies = self._copies(request, choice.shown, grids)
            wide = widen(request, positions_3BL, grids, stock, config.periphery, self.pad_id)
            indices = wide.kept(choice.indices)
            short = shorten(wide.request, wide.positions_3BV, indices, config.position_policy, self.pad_id)
            features = wide.features(windows, copies)
            begun, left = self._read_already(request, choice, short) or (None, None)
        counted = short.told_in(wide.source_BV, request.input_ids.shape[1])
        images = request.by_sample(choice.images)
        handed = vision.divided(features, wide.request.layout.images)
        return Prepared(counted, handed, images, stopwatch, begun, left)

    def _copies(self, request: Request, shown: Shown, grids: list[vision.Grid | None]) -> list[Any]:
        """Visual tokens and DeepStack levels of the small copies: those of the first look where they are the same."""
        wanted = {image: grid for image, grid in enumerate(grids) if grid is not None}
        made: dict[int, tuple[Tensor, ...]] = {}
        training = self.looker.strict  # which wants gradients, and remembers nothing
        if shown.first is not None and not training:
            known = zip(shown.first.grids, shown.first.features, strict=True)
            made = {image: levels for image, (grid, levels) in enumerate(known) if wanted.get(image) == grid}
        new = [image for image in wanted if image not in made]
        if new:
            looker, pixels = replace(self.looker.first_looker(), glances=False), self._pixels(request, shown)
            keys = range(len(grids)) if training else shown.keys or self.looker.keys(request)
            with torch.set_grad_enabled(torch.is_grad_enabled() and training):
                levels = looker.glimpse([wanted[n] for n in new], [pixels[n] for n in new], [keys[n] for n in new])
            made |= dict(zip(new, levels, strict=True))
        return [made.get(image) for image in range(len(grids))]

    def _pixels(self, request: Request, shown: Shown) -> Sequence[Tensor]:
        return self.looker.pixels(request) if shown.pixels is None else shown.pixels

    def _read_already(self, request: Request, choice: Choice, short: Compact) -> tuple[Begun, Tensor] | None:
        """What the first look read of the prompts as they begin now; None where it looked at nothing of the kind."""
        first = None if choice.shown is None else choice.shown.first
        two_images = self.looker.config.periphery == "images"
        if first is None or not two_images or torch.is_grad_enabled() or hasattr(self.looker.model, "_hf_hook"):
            return None
        prefixes = list(first.prefixes)
        for sample, grid, image in zip(request.layout.sample_of, first.grids, choice.images, strict=True):
            if image.periphery != grid:
                prefixes[sample] = None
        return begun_alike(prefixes, short.input_ids, short.attention_mask, short.position_ids[1:])

    def _context(self, request: Request, choice: Choice) -> list[vision.Context | None] | None:
        """Small copies for the windows of each image to attend to; None for an image that is there as a whole.

        Moments of a clip do without: so many copies would cost more than the windows, and tell them nothing new.
        """
        if choice.shown is None:
            return None
        images = choice.images[: request.layout.images]
        grids = [self.looker.context_grid(image.grid, image.cells_kept) for image in images]
        grids += [None] * (len(choice.images) - len(images))
        geometry, pixels = self.looker.geometry, self._pixels(request, choice.shown)
        return [
            None if small is None else (small, vision.glance_rows(picture.unsqueeze(0), small, geometry)[0])
            for picture, small in zip(pixels, grids, strict=True)
        ]

    def _small_rows(self, request: Request, grids: list[vision.Grid]) -> list[Tensor]:
        """The patches of each image at its smaller size; those of an image that keeps its size are left as they are."""
        geometry, rows = self.looker.geometry, request.rows
        images = self.looker.pixels(request)
        return [
            row if new == old else vision.patchify(vision.resize(image, new, geometry.cell).unsqueeze(0), geometry)[0]
            for row, image, old, new in zip(rows, images, request.layout.grids, grids, strict=True)
        ]

    def _choose_and_encode(
        self, request: Request, positions_3BL: Tensor, stopwatch: Stopwatch
    ) -> tuple[Choice, Any, Begun | None]:
        if request.keeps_all:
            choice = keep_everything(request.layout.grids, request.input_ids.device, "keep_all", ALL_ASKED)
            return choice, self._encode(request, choice.indices, stopwatch), None
        self._check()
        if self.encoding in BEFORE:
            choice = self.looker.choose(request, request.keeps, stopwatch, foveated=self.encoding == "foveated")
            with stopwatch.part("periphery"):
                context = self._context(request, choice) if self.looker.gives_context else None
            features = self._encode(request, choice.indices, stopwatch, context)
            return choice, self._gate(features, choice), None
        features = self._encode(request, None, stopwatch)
        begun = self._begin(request, positions_3BL, features, stopwatch)
        # Weighted encoding keeps every token and uses the relevance alone: any budget short of all makes one.
        keeps: list[Keep] = [0.5] * len(request.keeps) if self.encoding == "weighted" else request.keeps
        choice = self.looker.choose(request, keeps, stopwatch, features, begun)
        if self.encoding == "weighted":
            choice = keep_weighted(choice, [request.keeps[sample] == 1.0 for sample in request.layout.sample_of])
        elif choice.weights is not None:
            features = vision.merge(features, choice.weights, choice.indices)
        else:
            features = vision.take(features, choice.indices)
        return choice, self._gate(features, choice), begun

    def _check(self) -> None:
        """Whether the selector can work with these settings."""
        selector, encoding = self.looker.selector, f"encoding={self.encoding!r}"
        who, instead = f"selector {selector.name!r}", "use encoding='dense', or selector='look_twice'"
        if self.encoding in BEFORE and selector.reads_tokens:
            raise ValueError(f"{encoding} chooses before the ViT, but {who} reads its output: {instead}")
        if self.encoding == "foveated" and selector.resizes:
            raise ValueError(f"{encoding} shows windows at full size, but {who} resizes images: {instead}")
        if self.encoding == "weighted" and not selector.gives_relevance:
            why = f"{encoding} scales tokens by their relevance, which {who} does not give"
            raise ValueError(f"{why}: use encoding='dense'")
        if self._full_layers():
            refuse_inside(self.looker.model.config.text_config, who)
        if self.looker.config.position_policy != "original" and self._full_layers():
            why = f"{who} drops tokens inside the language model, where they have their positions already"
            raise ValueError(f"{why}: use position_policy='original'")

    def _full_layers(self) -> int:
        return self.looker.selector.full_layers(deepstack_levels(self.looker.model.config))

    def _begin(self, request: Request, positions_3BL: Tensor, features: Any, stopwatch: Stopwatch) -> Begun | None:
        """The first layers of the language model, where the selector chooses after those."""
        layers = self._full_layers()
        if not layers:
            return None
        whole = shorten(request, positions_3BL, None, self.looker.config.position_policy, self.pad_id)
        with stopwatch.part("first layers"):
            handed = vision.divided(features, request.layout.images)
            return begin(self.looker.model, _model_inputs(whole, handed), layers)

    def _encode(
        self,
        request: Request,
        indices: list[Tensor] | None,
        stopwatch: Stopwatch,
        context: list[vision.Context | None] | None = None,
    ) -> Any:
        if self.shared is not None:
            return self.shared()
        model, made, first = self.looker.model, [], 0
        with stopwatch.part("vision"):
            for pixels, thw in request.parts:
                own = slice(first, first := first + thw.shape[0])
                if self.encoding in BEFORE and indices is not None:
                    around = None if context is None else context[own]
                    made.append(vision.encode_sparse(model, pixels, thw, indices[own], around))
                else:
                    inside = indices is None and self.looker.selector.reads_received
                    made.append(vision.encode_dense(model, pixels, thw, inside))
            return vision.joined(made)

    def _gate(self, features: Any, choice: Choice) -> Any:
        """Scale by relevance (weighted), or pass its gradient on (straight-through); else nothing."""
        if choice.soft is None:
            return features
        if self.encoding == "weighted":
            return vision.scale(features, choice.soft)
        if self.looker.config.straight_through:
            kept = [soft[index] for soft, index in zip(choice.soft, choice.indices, strict=True)]
            return vision.scale(features, [straight_through_gate(scores) for scores in kept])
        return features


def keep_weighted(choice: Choice, untouched: Sequence[bool]) -> Choice:
    """The same relevance with every cell kept, to be scaled by it; not scaled at all where an image is `untouched`."""
    if choice.soft is None:
        return choice
    soft = [torch.ones_like(one) if leave else one for one, leave in zip(choice.soft, untouched, strict=True)]
    indices = [torch.arange(one.shape[0], device=one.device) for one in soft]
    reason = "every token was kept, scaled by its relevance"
    images = [
        replace(image, kept=index, strategy="weighted", reason=reason)
        for image, index in zip(choice.images, indices, strict=True)
    ]
    return Choice(indices, soft, images)


def _model_inputs(sequence: Compact, encoded: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_ids": sequence.input_ids,
        "attention_mask": sequence.attention_mask,
        "position_ids": sequence.position_ids,
        "mm_encoder_outputs": encoded,
    }


# ---------------------------------------------------------------- running the stock model


def pass_through(run: Callable[..., Any], **inputs: Any) -> Any:
    """No image: the stock model as it is, on what was given."""
    return run(**{name: value for name, value in inputs.items() if value is not None})


def next_positions(cache: Any, attention_mask: Tensor | None, input_ids: Tensor | None) -> Tensor | None:
    """Where tokens stand that follow a shortened prompt; None where the stock model counts by itself."""
    if input_ids is None or not hasattr(cache, "arr_coc"):
        return None
    positions: Tensor = cache.arr_coc.positions(attention_mask, cache.get_seq_length(), input_ids)
    return positions


def forward(model: Any, prepared: Prepared, cache: Any, with_info: bool, aligned: bool, **kwargs: Any) -> Any:
    """The stock forward; `with_info` adds `output.arr_coc`. `kwargs` are the stock's own."""
    if aligned and "logits_to_keep" in kwargs:
        raise ValueError("align_logits gives logits of every column: leave out logits_to_keep")
    if isinstance(kwargs.get("logits_to_keep"), Tensor) and prepared.compact.dropped:
        raise ValueError("logits_to_keep as indices counts full columns, but tokens were dropped: give an int")
    return_dict = kwargs.pop("return_dict", None)
    runner = prepared.runner(model)
    output = runner(
        **prepared.model_inputs(),
        past_key_values=cache,
        labels=prepared.compact.labels,
        return_dict=True,
        **kwargs,
    )
    _mark(output.past_key_values, prepared, runner)
    if aligned:
        output.logits = prepared.compact.spread(output.logits)
    if return_dict is False:
        return (*output.to_tuple(), prepared) if with_info else output.to_tuple()
    if with_info:
        output.arr_coc = prepared
    return output


def trunk(model: Any, prepared: Prepared, **kwargs: Any) -> Any:
    """The stock model without its head; hidden states line up with the caller's columns."""
    output = prepared.runner(model).model(**prepared.model_inputs(), **kwargs)
    output.last_hidden_state = prepared.compact.spread(output.last_hidden_state)
    return output


def generate(model: Any, input_ids: Tensor, prepared: Prepared, streamer: PromptRestorer | None, **kwargs: Any) -> Any:
    """The stock generate; `input_ids` is the caller's prompt, which comes back in front."""
    length = prepared.compact.input_ids.shape[1]
    shift_lengths(kwargs, length - input_ids.shape[1])
    runner = prepared.runner(model)
    if streamer is not None:
        streamer.start()
    output = runner.generate(**prepared.model_inputs(), streamer=streamer, **kwargs)
    sequences = output if isinstance(output, Tensor) else output.sequences
    # Several sequences of one prompt are next to each other.
    prompt = input_ids.to(sequences.device).repeat_interleave(sequences.shape[0] // input_ids.shape[0], dim=0)
    restored = torch.cat([prompt, sequences[:, length:]], dim=1)
    if isinstance(output, Tensor):
        return restored
    output.sequences = restored
    _mark(getattr(output, "past_key_values", None), prepared, runner)
    return output


def answer(
    model: Any, prompt: Tensor, prepared: Prepared, restorer: PromptRestorer | None, options: dict[str, Any]
) -> tuple[Tensor, dict[str, float], float | None]:
    """New tokens of each row, times of all parts, and how sure it is; `options` are generate's."""
    noted, options = noting(options)
    with prepared.stopwatch.part("generate"):
        output = generate(model, prompt, prepared, restorer, **options)
    new_BT = (output if isinstance(output, Tensor) else output.sequences)[:, prompt.shape[1] :]
    timings = prepared.stopwatch.milliseconds()
    if restorer is not None:
        timings["prefill"] = 1e3 * restorer.prefill_seconds
    return new_BT, timings, noted.confidence(new_BT)


def _mark(cache: Any, prepared: Prepared, runner: Any) -> None:
    """Note on a cache, if there is one, how to go on from it and with what."""
    if cache is not None:
        mark(cache, prepared.compact)
        cache.arr_coc_runner = runner
