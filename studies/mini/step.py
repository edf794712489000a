"""One optimizer step of mini: forward, the two losses, backward, AdamW.

B images, N cells, K kept cells, T text tokens, A answer tokens, D hidden, C classes of the dense targets.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.answering import patchify, turn_mask
from studies.batched.forward import (
    GridTables,
    PrefixCache,
    encode_vision,
    grid_tables,
    logits,
    run_prefix,
    run_text,
    text_start,
)
from studies.batched.kernels import Weights, linear
from studies.cells import CELL
from studies.mini.compiled import Kernels, compile_flat
from studies.mini.config import MiniTrainConfig
from studies.mini.data import Batch
from studies.mini.dense_head import new_head
from studies.mini.seeing import ViewTables, clip_patches, encode_views, image_patches, run_views, view_tables
from studies.mini.targets import CLASSES, FIRST_LINK
from studies.mini.view_batches import shown_form, view_images
from studies.mini.views import Grid
from studies.turns import IGNORE, Turns


@dataclass(slots=True)
class Losses:
    """Scalars of one step, on the device (reading one waits for the GPU)."""

    answers: Tensor  # cross-entropy per answer token
    dense: Tensor  # binary cross-entropy per cell, summed over classes
    right: Tensor  # share of answer tokens predicted right


class Learner:
    """Model, dense head and optimizer on one device."""

    def __init__(self, config: MiniTrainConfig, model: Any, turns: Turns, device: torch.device) -> None:
        self.config, self.device, self.turns = config, device, turns
        self.model = model.to(device).train()
        self.dtype = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
        self.head = new_head(model.config.text_config.hidden_size, config.seed).to(device)
        self.kernels = Kernels(compiled=config.compile)
        # Which classes count: in a sparse step a value cannot know a label that was not kept.
        everything = torch.ones(CLASSES, device=device)
        unlinked = (torch.arange(CLASSES, device=device) < FIRST_LINK).float()
        self._counted = {"dense": everything, "sparse": unlinked}
        self.label_loss = compile_flat(label_loss) if config.compile else label_loss
        self.lead = torch.tensor(turns.lead_ids, device=device)
        self._tables: dict[tuple[int, int], GridTables] = {}
        self._view_tables: dict[tuple[Grid, ...], ViewTables] = {}
        named = [*self.model.named_parameters(), *self.head.named_parameters("dense_head")]
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in named}
        self.optimizer = torch.optim.AdamW(
            [*_groups(self.model, 1.0), *_groups(self.head, config.head_rate)],
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=device.type == "cuda",
        )

    def losses(self, batch: Batch, use: str) -> Losses:
        """Losses of a batch on the device; `use` is "dense" or "sparse"."""
        cells = batch["cells"] if use == "sparse" else None
        targets = batch["targets"]
        if cells is not None:
            targets = targets.gather(1, cells[..., None].expand(-1, -1, targets.shape[2]))
        look = self._look_at_views if f"{use}_prompt" in batch else self._look
        tokens_BKD, cache, start = look(batch, use, cells)
        head = (self.head.weight, self.head.bias, self._counted[use])
        dense = self.label_loss(tokens_BKD.flatten(0, 1), targets.flatten(0, 1), head, self.dtype)
        ids_BT, turns_BT, offsets_BT = batch[f"{use}_text"].long().unbind(0)
        sources_BA, labels_BA = batch[f"{use}_answers"].long().unbind(0)
        mask = turn_mask(turns_BT, cache[0][0].shape[2])
        positions = start + offsets_BT
        hidden = run_text(self.model, ids_BT, positions, mask, cache, self.kernels)
        hidden = hidden.gather(1, sources_BA[..., None].expand(-1, -1, hidden.shape[2]))
        scores = logits(self.model, hidden, self.dtype).flatten(0, 1)
        labels = labels_BA.flatten()
        asked = (labels != IGNORE).sum().clamp(min=1)
        answers = F.cross_entropy(scores, labels, ignore_index=IGNORE, reduction="sum") / asked
        right = (scores.argmax(-1) == labels).sum() / asked
        return Losses(answers, dense / targets.shape[:2].numel(), right)

    def _look(self, batch: Batch, use: str, cells_BK: Tensor | None) -> tuple[Tensor, PrefixCache, int]:
        """Visual tokens [B, K, D] of one image per row, what the prefix leaves, and where the text starts."""
        patches = patchify(batch["images"], self.dtype)
        seen = encode_vision(self.model, patches, self._grid(batch["images"]), cells_BK, self.kernels)
        cache = run_prefix(self.model, seen, self.lead, self.turns.end_id, self.kernels)
        return seen.merged_BKD, cache, text_start(seen.grid, len(self.lead))

    def _look_at_views(self, batch: Batch, use: str, cells_BK: Tensor | None) -> tuple[Tensor, PrefixCache, int]:
        """As `_look`, with several views per row. A small copy before the image stays whole, and has no targets."""
        form = shown_form(batch)
        frames = batch.get("frames")
        images = [] if frames is not None else view_images(batch)
        patches = image_patches(images, self.dtype) if frames is None else clip_patches(frames, self.dtype)
        if form.grids not in self._view_tables:
            self._view_tables[form.grids] = view_tables(self.model, form.grids, self.device)
        small = form.grids[0][0] * form.grids[0][1] if "small" in batch else 0
        if small and cells_BK is not None:
            copy = torch.arange(small, device=self.device).expand(len(cells_BK), -1)
            cells_BK = torch.cat([copy, small + cells_BK], dim=1)
        seen = encode_views(self.model, patches, self._view_tables[form.grids], cells_BK, self.kernels)
        prompt, slots = batch[f"{use}_prompt"].long(), batch[f"{use}_slots"].long()
        cache = run_views(self.model, seen, prompt, slots, self.kernels)
        # In one piece, as the tokens of other forms are: the loss would be compiled once more for a slice.
        return seen.merged_BKD[:, small:].contiguous(), cache, 0  # the offsets of their text are positions already

    def step(self, batch: Batch, use: str, rate: float) -> Losses:
        """One update with learning rate `rate`; returns the losses before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        found = self.losses(batch, use)
        (found.answers + self.config.auxiliary * found.dense).backward()
        nn.utils.clip_grad_norm_(list(self.names), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Losses(found.answers.detach(), found.dense.detach(), found.right)

    def warm_up(self, batch: Batch) -> str:
        """Compile the kernels on a real batch, without an update; plain kernels if that fails."""
        if not self.config.compile:
            return "plain kernels"
        try:
            for use in ("dense", "sparse"):
                found = self.losses(batch, use)
                (found.answers + self.config.auxiliary * found.dense).backward()
                self.optimizer.zero_grad(set_to_none=True)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # a compiler can fail in any way; the run must not
            self.optimizer.zero_grad(set_to_none=True)
            self.kernels, self.label_loss = Kernels(), label_loss
            return f"plain kernels, the compiler failed: {type(error).__name__}: {str(error)[:500]}"
        return "compiled kernels"

    def _grid(self, images_BHWC: Tensor) -> GridTables:
        grid = (images_BHWC.shape[1] // CELL, images_BHWC.shape[2] // CELL)
        if grid not in self._tables:
            self._tables[grid] = grid_tables(self.model, *grid, self.device)
        return self._tables[grid]


def label_loss(merged_TD: Tensor, targets_TC: Tensor, head: Weights, dtype: torch.dtype) -> Tensor:
    """Binary cross-entropy of the head's guesses, summed over cells (T) and classes.

    `head` holds weight [C, D], bias [C] and how much each class counts [C]. One function, so that it compiles into
    one pass: its operations one by one would move gigabytes.
    """
    weight_CD, bias_C, counted_C = head
    guesses_TC = linear(merged_TD, weight_CD, bias_C, dtype).float()
    return F.binary_cross_entropy_with_logits(guesses_TC, targets_TC.float(), counted_C, reduction="sum")


def _groups(module: nn.Module, scale: float) -> list[dict[str, Any]]:
    """Parameter groups of a module: only matrices decay. `scale` multiplies the learning rate."""
    matrices = [p for p in module.parameters() if p.ndim > 1]
    vectors = [p for p in module.parameters() if p.ndim <= 1]
    return [{"params": matrices, "scale": scale}, {"params": vectors, "scale": scale, "weight_decay": 0.0}]
