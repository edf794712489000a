"""What a selector's training is made of: the model, the layer on it, what of them learns, and the optimizer."""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from arr_coc.config import ARRCOCConfig
from arr_coc.data.examples import FileRow
from arr_coc.files import read_json_object
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.adapting import ADAPTED, DELTA_FILE, LORA_CONFIG, adapt, enable_checkpointing, load_adapted
from arr_coc.qwen.loading import find_adapter, load_stock, pick_dtype, read_config, resolve
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.processor import load_processor, text_ids
from arr_coc.qwen.shapes import build_random, shape_config, sight_dims
from arr_coc.qwen.sizes import ImageSizes, limit_pixels
from arr_coc.qwen.storage import load_adapter
from arr_coc.qwen.vision import Geometry
from arr_coc.selectors import ARRCOCSelector
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.memory import TEMPLATE_TOKENS, Plan
from arr_coc.training.step import AnswerLearner, MapLearner
from arr_coc.training.strategies import GRADIENT_STRATEGIES, StrategySelector

SHAPE = "shape:"  # models of random weights at a real shape, to see whether a run fits
WARM = 0.1  # of a run: warm-up takes no longer
TEXT_TOKENS, ANSWER_TOKENS = 64, 32  # of a row beside the image, and of those its answer: the longest of scenes
LONGEST = 64  # texts that are counted in tokens, the longest in bytes: of the others none has as many


@dataclass(frozen=True, slots=True)
class Makings:
    """A learner, the model around it, and an optimizer over what learns."""

    owner: ARRCOCQwen
    learner: nn.Module
    optimizer: torch.optim.Optimizer
    names: dict[Tensor, str]  # of the parameters that learn, as in the owner's state_dict

    def strategy_state(self) -> dict[str, float]:
        selector = self.owner.selector
        return selector.strategy.state() if isinstance(selector, StrategySelector) else {}

    def restore_strategy(self, state: dict[str, float]) -> None:
        selector = self.owner.selector
        if isinstance(selector, StrategySelector):
            selector.strategy.restore(state)


def make_learner(config: SelectorTrainConfig, init_from: Path | None, device: torch.device) -> Makings:
    """Load the base, put a fresh layer or that of `init_from` on it, and make ready what the stage trains."""
    base = find_base(config)
    model = _load_base(config, base, device)
    model.requires_grad_(False)
    settings, layer = _make_layer(config, base.config, init_from)
    owner = ARRCOCQwen(model, settings, layer, base.processor, selector="arr_coc")
    if config.stage == 2:
        adapt(model, config.adapt, rank=config.lora_rank)
    _go_on_adapting(config, model, init_from)
    learner: nn.Module
    if config.stage == 2:
        if config.checkpointing:
            enable_checkpointing(model)
        strategy = GRADIENT_STRATEGIES[config.strategy]()
        owner.arr_coc_config = replace(owner.arr_coc_config, straight_through=strategy.gated, encoding=config.encoding)
        owner.selector = StrategySelector(ARRCOCSelector(owner.layer), strategy)
        learner = AnswerLearner(owner.train(), config)
    else:
        learner = MapLearner(owner.eval(), config)
    names: dict[Tensor, str] = {p: name for name, p in owner.named_parameters() if p.requires_grad}
    slow = config.learning_rate * config.policy_rate
    peaks = {"layer.balancing.": slow, "layer.": config.learning_rate, "": config.base_rate}
    of = {p: next(start for start in peaks if name.startswith(start)) for p, name in names.items()}
    groups = [{"params": [p for p in names if of[p] == start], "peak": peak} for start, peak in peaks.items()]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=1.0, weight_decay=config.weight_decay)
    return Makings(owner, learner, optimizer, names)


def _go_on_adapting(config: SelectorTrainConfig, model: Any, init_from: Path | None) -> None:
    """Put what an earlier stage 2 taught the model into it: to go on learning in stage 2, else frozen."""
    if init_from is None or not (init_from / ADAPTED).is_dir():
        return
    folder = init_from / ADAPTED
    if config.stage == 2:
        how = "lora"
        if not (folder / LORA_CONFIG).is_file():
            with safe_open(str(folder / DELTA_FILE), framework="pt") as file:
                how = file.metadata()["adapted"]
        if how != config.adapt:
            raise ValueError(f"adapt={config.adapt!r}, but the model to start from was adapted with {how!r}: use that")
    load_adapted(model, folder)
    if config.stage != 2:
        model.requires_grad_(False)


@dataclass(frozen=True, slots=True)
class Base:
    """A model before its weights are loaded."""

    place: str  # folder or id; that of a shape is its name
    config: Any  # the stock model's
    processor: Any


def find_base(config: SelectorTrainConfig) -> Base:
    """The model's settings and its processor, within the run's limits of pixels."""
    if not config.model.startswith(SHAPE):
        place, adapter, _ = find_adapter(config.model)
        if adapter is not None and place != resolve(config.model):
            raise ValueError(
                f"{config.model} is an adapter: give its base, {adapter.base_model}, as the model, and go on from the "
                f"adapter with --init-from {config.model}"
            )
        stock, processor = read_config(place), load_processor(place)
    else:
        place = config.model.removeprefix(SHAPE)
        stock, processor = shape_config(place), load_processor(resolve("mini"))
        # Random weights know no words: mini's tokenizer serves, and its marks of an image take the place of Qwen's.
        marks = read_json_object(Path(resolve("mini")) / "config.json")
        for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
            setattr(stock, name, marks[name])
    return Base(place, stock, limit_pixels(processor, config.min_pixels, config.max_pixels))


def _load_base(config: SelectorTrainConfig, base: Base, device: torch.device) -> Any:
    """The stock model."""
    dtype = pick_dtype(config.precision, device)
    if config.model.startswith(SHAPE):
        return build_random(base.config, device, dtype, config.seed)
    return load_stock(base.place, device, dtype)


def _make_layer(config: SelectorTrainConfig, stock: Any, init_from: Path | None) -> tuple[ARRCOCConfig, ARRCOCLayer]:
    """The adapter to go on from, or a fresh one with the sight that the config asks for; `stock` is a config."""
    pixels: dict[str, Any] = {"min_pixels": config.min_pixels, "max_pixels": config.max_pixels}
    names = ("texture_channels", "sight", "sight_channels", "glance_channels", "pooling")
    wanted = {name: getattr(config, name) for name in names}
    if init_from is not None:
        settings, layer = load_adapter(init_from)
        for name, value in wanted.items():
            if getattr(settings, name) != value:
                has = f"but the adapter to start from has {getattr(settings, name)!r}"
                raise ValueError(f"{name}={value!r}, {has}: use its setting, or start from nothing")
        # Maps may unlearn what a stage does not show them; one that teaches answers hardly moves them.
        layer.voids = config.void_share > 0 or (config.stage == 2 and settings.voids)
        return replace(settings, base_model=config.model, voids=layer.voids, **pixels), layer
    wanted |= {"voids": config.void_share > 0, **sight_dims(stock, config.sight)}
    settings = ARRCOCConfig(base_model=config.model, **wanted, **pixels)
    return settings, ARRCOCLayer.from_config(settings)


def planner(
    config: SelectorTrainConfig, base: Base, device: torch.device, rows: Sequence[FileRow], taught: bool
) -> Callable[[int], list[Plan]]:
    """What gives the plans of a run with so many cells of a batch: for the largest images, and for the smallest.

    `rows` are those from files; drawn ones are known. `taught`: the model's attention teaches.
    """
    images, (text, answer) = {row.image.size for row in rows}, most_text(base.processor.tokenizer, rows)
    drawn, geometry = config.data == "scenes", Geometry.of(base.config.vision_config)
    sizes = ImageSizes.of(base.processor)
    shapes = {sizes.nearest(height, width) for width, height in images}
    shapes |= {(height, width) for width, height, share in config.sizes if drawn and share > 0}
    grids = sorted({geometry.grid(*shape) for shape in shapes}, key=math.prod)
    layer = _make_layer(config, base.config, None)[1]
    names = ("stage", "checkpointing", "encoding", "texture_channels", "sight", "glance_channels")
    same = {name: getattr(config, name) for name in names}
    if config.stage != 2:
        same["look_dim"] = sight_dims(base.config, config.sight)["look_dim"]

    def planned(cells: int) -> list[Plan]:
        return [
            Plan(
                base.config,
                how=config.adapt if config.stage == 2 else "none",
                batch=config.rows_of(grid, cells),
                image_side=round(math.sqrt(math.prod(grid))) * geometry.cell,
                keep=float(config.keeps[1]),
                text_tokens=text,
                dtype=pick_dtype(config.precision, device),
                selector_parameters=sum(p.numel() for p in layer.parameters()),
                gated=GRADIENT_STRATEGIES[config.strategy].gated,
                answer_tokens=answer,
                rank=config.lora_rank,
                accumulate=config.accumulate > 1 or not drawn,  # groups of a batch wait for each other
                questions_per_image=config.questions if drawn else 1,
                taught=taught,
                **same,
            )
            for grid in {grids[0], grids[-1]}
        ]

    return planned


def most_text(tokenizer: Any, rows: Sequence[FileRow]) -> tuple[int, int]:
    """Tokens of a row beside its image at most, and of those its answer; no fewer than those of scenes."""

    def most(texts: Iterable[str]) -> int:
        longest = heapq.nlargest(LONGEST, {*texts}, key=lambda text: len(text.encode()))
        return max((len(text_ids(tokenizer, text)) for text in longest), default=0)

    question, answer = most(row.question for row in rows), most(row.answer for row in rows) + 1
    return max(TEXT_TOKENS, TEMPLATE_TOKENS + question + answer), max(ANSWER_TOKENS, answer)


def rate_groups(optimizer: torch.optim.Optimizer, config: SelectorTrainConfig, step: int, progress: float) -> None:
    """Set the learning rates: linear warm-up, over steps or a tenth of the run, times a cosine over progress."""
    cosine = 0.5 + 0.5 * math.cos(math.pi * min(1.0, progress))
    level = config.final_rate + (1 - config.final_rate) * cosine
    warm = min(1.0, max((step + 1) / max(1, config.warmup_steps), progress / WARM))
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * warm * level
