"""What a selector's training is made of: the model, the layer on it, what learns, and the batches it learns from."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import AutoConfig

from arr_coc.config import CELL, ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.loading import find_adapter, load_stock, pick_dtype, resolve
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.processor import load_processor
from arr_coc.qwen.shapes import build_shape
from arr_coc.qwen.storage import load_adapter
from arr_coc.selectors import ARRCOCSelector
from arr_coc.training.adapting import adapt, enable_checkpointing
from arr_coc.training.examples import Example, Examples
from arr_coc.training.memory import describe, estimate
from arr_coc.training.selector_config import SelectorTrainConfig
from arr_coc.training.selector_data import FileBatches, Group, SceneBatches, held_scenes, make_encoder, pixel_limits
from arr_coc.training.selector_step import AnswerLearner, MapLearner
from arr_coc.training.sources import read_source
from arr_coc.training.strategies import StrategySelector, make_strategy

SHAPE = "shape:"  # models of random weights at a real shape, to see whether a run fits


@dataclass(frozen=True, slots=True)
class Makings:
    """A learner, the model around it, and an optimizer over what learns."""

    owner: ARRCOCQwen
    learner: nn.Module
    optimizer: torch.optim.Optimizer
    names: dict[Tensor, str]  # of the parameters that learn, as in the owner's state_dict

    @property
    def trained(self) -> set[str]:
        return set(self.names.values())

    def strategy_state(self) -> dict[str, float]:
        selector = self.owner.selector
        return selector.strategy.state() if isinstance(selector, StrategySelector) else {}

    def restore_strategy(self, state: dict[str, float]) -> None:
        selector = self.owner.selector
        if isinstance(selector, StrategySelector):
            selector.strategy.restore(state)


def make_learner(
    config: SelectorTrainConfig, init_from: Path | None, device: torch.device, say: Callable[[str], None]
) -> Makings:
    """Load the base, put a fresh layer or that of `init_from` on it, and make ready what the stage trains."""
    model, processor, base = _load_base(config, device)
    model.requires_grad_(False)
    settings, layer = _make_layer(config, model, base, init_from)
    say(_memory(config, model, layer))
    owner = ARRCOCQwen(model, settings, layer, processor, selector="arr_coc")
    learner: nn.Module
    if config.stage == 2:
        adapt(model, config.adapt, rank=config.lora_rank)
        if config.checkpointing:
            enable_checkpointing(model)
        strategy = make_strategy(config.strategy)
        owner.config = replace(owner.config, straight_through=strategy.gated, encoding=config.encoding)
        owner.selector = StrategySelector(ARRCOCSelector(owner.layer), strategy)
        learner = AnswerLearner(owner.train(), config)
    else:
        learner = MapLearner(owner, config)
    named = [(name, p) for name, p in owner.named_parameters() if p.requires_grad]
    own = [p for name, p in named if name.startswith("layer.")]
    other = [p for name, p in named if not name.startswith("layer.")]
    groups = [{"params": own, "peak": config.learning_rate}, {"params": other, "peak": config.base_rate}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=1.0, weight_decay=config.weight_decay)
    return Makings(owner, learner, optimizer, {p: name for name, p in named})


def _load_base(config: SelectorTrainConfig, device: torch.device) -> tuple[Any, Any, str]:
    """(stock model, processor, its name)."""
    dtype = pick_dtype(config.precision, device)
    if not config.model.startswith(SHAPE):
        base = find_adapter(config.model)[0]
        return load_stock(base, device, dtype), load_processor(base), config.model
    model = build_shape(config.model.removeprefix(SHAPE), device, dtype, config.seed)
    # Random weights know no words: mini's tokenizer serves, and its marks of an image take the place of Qwen's.
    marks = AutoConfig.from_pretrained(resolve("mini"))
    for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
        setattr(model.config, name, getattr(marks, name))
    return model, load_processor(resolve("mini")), config.model


def _make_layer(
    config: SelectorTrainConfig, model: Any, base: str, init_from: Path | None
) -> tuple[ARRCOCConfig, ARRCOCLayer]:
    """The adapter to go on from, or a fresh one with the sight that the config asks for."""
    if init_from is not None:
        settings, layer = load_adapter(init_from)
        for name in ("sight", "sight_channels", "pooling"):
            if getattr(settings, name) != getattr(config, name):
                raise ValueError(
                    f"{name}={getattr(config, name)!r}, but the adapter to start from has {getattr(settings, name)!r}: "
                    "use its setting, or start from nothing"
                )
        return replace(settings, base_model=base), layer
    settings = ARRCOCConfig(
        hidden_dim=model.config.text_config.hidden_size,
        sight=config.sight,
        sight_channels=config.sight_channels,
        glance_dim=model.config.vision_config.hidden_size if config.sight == "glance" else 0,
        pooling=config.pooling,
        base_model=base,
    )
    return settings, ARRCOCLayer.from_config(settings)


def _memory(config: SelectorTrainConfig, model: Any, layer: ARRCOCLayer) -> str:
    """What the run will need, in words, before it starts."""
    width, height, _ = max(config.sizes)
    expected = estimate(
        model.config,
        how=config.adapt if config.stage == 2 else "none",
        stage=config.stage,
        batch=config.rows_of((height // CELL, width // CELL)) if config.data == "scenes" else config.examples,
        image_side=max(width, height) if config.data == "scenes" else config.longest_side,
        keep=config.keeps[1],
        text_tokens=64,
        dtype=model.dtype,
        checkpointing=config.checkpointing,
        selector_parameters=sum(p.numel() for p in layer.parameters()),
    )
    return describe(expected)


def rate_groups(optimizer: torch.optim.Optimizer, config: SelectorTrainConfig, step: int, progress: float) -> None:
    """Set the learning rates: linear warm-up over steps times a cosine over progress."""
    cosine = 0.5 + 0.5 * math.cos(math.pi * min(1.0, progress))
    level = config.final_rate + (1 - config.final_rate) * cosine
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * min(1.0, (step + 1) / max(1, config.warmup_steps)) * level


class Part(Dataset[Example]):
    """The examples from `first` to `last` - 1 of a dataset."""

    def __init__(self, examples: Examples, first: int, last: int) -> None:
        self.examples, self.first, self.last = examples, first, last
        self.broken: list[str] = []

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, index: int) -> Example:
        return self.examples[self.first + index]


HELD_SHARE = 0.1  # most of a dataset that is held back to watch the training with


def make_batches(
    config: SelectorTrainConfig, owner: ARRCOCQwen, say: Callable[[str], None]
) -> tuple[Dataset[list[Group]], list[Group]]:
    """(the batches to learn from, groups held back to watch with)."""
    encode = make_encoder(owner.processor.tokenizer)
    if config.data == "scenes":
        return SceneBatches(config, encode), held_scenes(config, encode)
    examples = read_source(
        config.data,
        max_broken=config.max_broken,
        detections=Path(config.pseudo_boxes) if config.pseudo_boxes else None,
    )
    for line in examples.broken[:20]:
        say(f"left out: {line}")
    if examples.broken:
        say(f"{len(examples.broken)} broken rows were left out, {len(examples)} examples are left")
    held = min(config.evaluate_questions, int(len(examples) * HELD_SHARE))
    cut = len(examples) - held
    limits = pixel_limits(owner.processor)
    watched = FileBatches(replace(config, examples=max(1, held)), encode, Part(examples, cut, len(examples)), limits)
    return FileBatches(config, encode, Part(examples, 0, cut), limits), watched[0] if held else []
