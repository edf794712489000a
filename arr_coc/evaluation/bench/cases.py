"""What is measured: models, requests of any size, and the ways to serve them.

B batch, N cells of an image, T text tokens.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import SIGHTS, ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.loading import pick_device, pick_dtype
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.shapes import SHAPES, build_shape, sight_dims
from arr_coc.qwen.vision import Geometry

ENCODINGS = ("dense", "after-vit", "sparse", "foveated")
MODES = ("eager", "graphs", "compiled")
CHOOSERS = (*SIGHTS, "look_twice")  # what chooses: a sight of the ARR-COC layer, or another selector
SHAPE = "shape:"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the bench."""

    side: int  # px of a square image of whole cells
    batch: int
    kept: int  # visual tokens kept of each image; all of them where the encoding is dense
    encoding: str
    """dense (all tokens), after-vit (all are encoded, `kept` go on), sparse (only `kept` are encoded), foveated (so
    too, and some of them are of a small copy)."""
    mode: str  # eager (plain transformers), graphs (the fast path), compiled (with the selector's kernels fused)
    sight: str = "stem"  # what chooses, one of CHOOSERS
    decode: int = 0  # new tokens after the first whose time is taken
    repeats: int = 10
    cell: int = Geometry().cell  # px on a side of the model's cells

    def __post_init__(self) -> None:
        if self.side < self.cell or self.side % self.cell:
            raise ValueError(f"an image of {self.side} px: give a multiple of {self.cell}")
        if self.encoding not in ENCODINGS or self.mode not in MODES:
            raise ValueError(f"{self.encoding!r}, {self.mode!r}: expected one of {ENCODINGS} and one of {MODES}")
        if self.batch < 1 or self.kept < 1 or self.repeats < 1:
            raise ValueError("batch, kept and repeats: expected at least 1")

    @property
    def tokens(self) -> int:
        """Visual tokens of one image in the untouched model."""
        return (self.side // self.cell) ** 2

    @property
    def dial(self) -> float | int:
        """The dial that keeps `kept` tokens."""
        if self.encoding == "dense" or self.kept >= self.tokens:
            return 1.0
        return self.kept if self.kept > 1 else 1 / self.tokens


@dataclass(frozen=True, slots=True)
class Subject:
    """A model under test, with what chooses for it by name."""

    name: str
    stock: Any
    owners: dict[str, ARRCOCQwen] = field(default_factory=dict)

    def owner(self, case: Case) -> ARRCOCQwen:
        owner = self.owners.get(case.sight)
        if owner is None:
            raise ValueError(f"{self.name} has no selector {case.sight!r}: give {', '.join(self.owners)}")
        return owner


def load_subject(
    name: str, device: str | None = None, dtype: str = "auto", sights: tuple[str, ...] = ("stem",)
) -> Subject:
    """mini, a folder, a hub id, or `shape:qwen3-vl-2b` (random weights). A checkpoint brings its own selector."""
    on = pick_device(device)
    kind = pick_dtype(dtype, on)
    if not name.startswith(SHAPE):
        owner = ARRCOCQwen.from_pretrained(name, device=on, dtype=kind, selector="arr_coc", break_even=0)
        parts = (owner.model, owner.arr_coc_config, owner.layer, owner.processor)
        twice = ARRCOCQwen(*parts, selector="look_twice", break_even=0)
        return Subject(name, owner.model, {**dict.fromkeys(SIGHTS, owner), "look_twice": twice.eval()})
    shape = name.removeprefix(SHAPE)
    if shape not in SHAPES:
        raise ValueError(f"shape {shape!r}: known shapes are {', '.join(SHAPES)}")
    stock = build_shape(shape, on, kind, 0)
    return Subject(name, stock, {sight: random_owner(stock, sight) for sight in sights})


def random_owner(stock: Any, sight: str, seed: int = 0) -> ARRCOCQwen:
    """A stock model with an untrained selector, which costs what a trained one does."""
    if sight not in SIGHTS:
        return ARRCOCQwen(stock, selector=sight, break_even=0).eval()
    config = ARRCOCConfig(**sight_dims(stock.config, sight), sight=sight, trained=True, encoding="sparse")
    torch.manual_seed(seed)
    layer = ARRCOCLayer.from_config(config)
    return ARRCOCQwen(stock, config, layer, selector="arr_coc", break_even=0).eval()


def make_inputs(stock: Any, case: Case, text: int, seed: int = 0) -> dict[str, Tensor]:
    """A request with `text` text tokens and one image of noise per row, as a processor makes it, on the device."""
    config, vision = stock.config, stock.config.vision_config
    generator = torch.Generator().manual_seed(seed)
    special = {config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id}
    free = torch.tensor([one for one in range(min(1000, config.text_config.vocab_size)) if one not in special])
    words_BT = free[torch.randint(0, len(free), (case.batch, text - 2), generator=generator)]
    lead = min(4, words_BT.shape[1] // 2)
    image = [config.vision_start_token_id, *[config.image_token_id] * case.tokens, config.vision_end_token_id]
    ids = torch.cat([words_BT[:, :lead], torch.tensor(image).expand(case.batch, -1), words_BT[:, lead:]], dim=1)
    asked = torch.zeros_like(ids, dtype=torch.bool)
    asked[:, lead + case.tokens + 2 :] = True
    patches = case.side // vision.patch_size
    values = 3 * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.rand(case.batch * patches**2, values, generator=generator) * 2 - 1
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "question_mask": asked,
        "mm_token_type_ids": (ids == config.image_token_id).int(),
        "pixel_values": pixels,
        "image_grid_thw": torch.tensor([[1, patches, patches]] * case.batch),
    }
    return {name: tensor.to(stock.device) for name, tensor in inputs.items()}
