"""The stages of a request as recordings: each finds its recording by its sizes, or has it made, and runs it.

B rows, M places of a prompt, S places of the cache, I images, K slots of an image, V = I * K, G images of one grid,
E = 1 + DeepStack levels, D language-model width.
"""

import logging
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from arr_coc.config import GLANCE
from arr_coc.qwen import tower
from arr_coc.qwen.graphs import forward
from arr_coc.qwen.graphs.choosing import as_judgement, as_tensors, choose_padded, judge_seen, see_canvas, tables_of
from arr_coc.qwen.graphs.layout import PaddedSequences
from arr_coc.qwen.graphs.recording import Function, Recording, Recordings, Tensors
from arr_coc.qwen.vision import Grid, glance_maps

logger = logging.getLogger(__name__)


def fused(function: Function, tensors: Tensors) -> Function:
    """The function with its small kernels made one where possible; as it is where this machine cannot compile."""
    compiled: Function = torch.compile(function, fullgraph=True, dynamic=False)
    try:
        compiled(tensors)
    except Exception as error:  # a compiler, its cache or a C compiler may be missing in any way
        logger.warning("the selector runs without being compiled: %s", str(error).strip().splitlines()[0])
        return function
    return compiled


def _laid_out(t: Tensors, policy: str) -> tuple[Tensor, ...]:
    """Ids, slots, positions and lengths of padded prompts, and their visual tokens, as the forwards take them."""
    places_3BM = forward.places_of(t["base"], t["visual"], t["cells"], t["widths"], policy)
    return t["ids"], t["visual"], places_3BM, t["lengths"], t["features"]


class Stages:
    """The stages of one stock model. `compiled` fuses the selector's many small kernels, once per grid and batch."""

    def __init__(self, model: Any, recordings: Recordings, compiled: bool = False) -> None:
        self.model, self.recordings, self.compiled = model, recordings, compiled
        self.visual = model.model.visual
        self.device = model.lm_head.weight.device
        axes = forward.axis_of_frequency(model.model.language_model.rotary_emb)
        self.axis_f = torch.tensor(axes, device=self.device)
        self._caches: WeakValueDictionary[tuple[int, int], forward.StaticCache] = WeakValueDictionary()

    def put(self, tensor: Tensor) -> Tensor:
        """To the device without waiting for it."""
        return tensor.to(self.device, non_blocking=True)

    def _run(self, key: tuple[Any, ...], run: Function, given: Tensors, kept_alive: Any = None) -> Tensors:
        """What `run` makes of `given`, over the recording of that key."""
        return self.recordings.get(key, lambda: (run, given), kept_alive)(**given)

    # ---------------------------------------------------------------- choosing

    def glance(self, rows_GPx: Tensor, grid: Grid) -> Tensor:
        """What the ViT makes of the small images, `[G, X, H, W]`; `rows_GPx` are their patches."""
        merge = self.visual.spatial_merge_size
        small = GLANCE.grid(grid)
        images = rows_GPx.shape[0]

        def make() -> tuple[Function, Tensors]:
            cells_IK = torch.arange(small[0] * small[1], device=self.device).expand(images, -1).contiguous()
            grid_I2 = torch.tensor([small] * images, device=self.device)

            def run(tensors: Tensors) -> Tensors:
                hidden = tower.last_hidden(self.visual, tensors["rows"], tensors["cells"], tensors["grid"])
                return {"maps": glance_maps(hidden, small, merge, grid)}

            return run, {"rows": rows_GPx.to(self.visual.dtype), "cells": cells_IK, "grid": grid_I2}

        return self.recordings.get(("glance", grid, images), make)(rows=rows_GPx)["maps"]

    def textures(self, selector: Any, grid: Grid, canvas_G5hw: Tensor) -> Tensors:
        """What a selector sees in pooled images of one grid; made beside what follows: `join` before it is read."""

        def make() -> tuple[Function, Tensors]:
            given = {"canvas": canvas_G5hw}
            function = partial(see_canvas, selector)
            return self._fused(function, given), given

        key = ("textures", grid, canvas_G5hw.shape[0])
        return self.recordings.get(key, make, tables_of(grid, self.device), beside=True)(canvas=canvas_G5hw)

    def _fused(self, function: Function, tensors: Tensors) -> Function:
        """Compiled, if that is wanted; where it cannot be done once, it is not tried again."""
        made = fused(function, tensors) if self.compiled else function
        self.compiled = made is not function
        return made

    def join(self) -> None:
        """What follows waits for what was made beside."""
        self.recordings.recorder.join()

    def judge(self, selector: Any, grid: Grid, tensors: Tensors, slots: int | None = None) -> Tensors:
        """The judgement of images from what was seen, `question`, `asked`, and `glance` and `looked` where read.

        Where budgets are known (`k`, and their `slots`), the choice comes with it.
        """
        words = self.model.get_input_embeddings().weight
        key = ("judge", grid, *tensors["question"].shape, slots, "looked" in tensors)

        def run(given: Tensors) -> Tensors:
            judgement = judge_seen(selector, words, grid, given)
            if slots is None:
                return as_tensors(judgement) | {"automatic": selector.automatic_budget(judgement)}
            return as_tensors(judgement) | choose_padded(selector, judgement, given["k"], slots)

        def make() -> tuple[Function, Tensors]:
            return self._fused(run, tensors), tensors

        return self.recordings.get(key, make, tables_of(grid, self.device))(**tensors)

    def choose(self, selector: Any, grid: Grid, judged: Tensors, k_G: Tensor, slots: int) -> Tensors:
        """The kept cells of images of one grid."""
        names = ("relevance", "weights", "tensions", "mass", "rest")
        given = {name: judged[name] for name in names if name in judged} | {"k": k_G}

        def run(tensors: Tensors) -> Tensors:
            return choose_padded(selector, as_judgement(tensors), tensors["k"], slots)

        return self._run(("choose", grid, k_G.shape[0], slots), run, given, tables_of(grid, self.device))

    # ---------------------------------------------------------------- encoding

    def see(
        self,
        rows_IPx: Tensor,
        cells_IK: Tensor,
        grid_I2: Tensor,
        mask_IK: Tensor | None,
        heard: tower.Heard | None = None,
        hidden: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Visual tokens of all slots `[E, V, D]`; the mask is left out where every slot is real.

        And, where that is wanted, what the ViT saw in them, `[I, P, X]`.
        """
        given = {"rows": rows_IPx, "cells": cells_IK, "grid": grid_I2}
        if mask_IK is not None:
            given["mask"] = mask_IK
        if heard is not None:
            given |= heard._asdict()

        def make() -> tuple[Function, Tensors]:
            def run(tensors: Tensors) -> Tensors:
                own = tensors["rows"], tensors["cells"], tensors["grid"], tensors.get("mask")
                beside = None if heard is None else tower.Heard(*(tensors[name] for name in tower.Heard._fields))
                features, last = tower.see(self.visual, *own, beside)
                return {"features": features, "hidden": last} if hidden else {"features": features}

            return run, {name: one.to(self.visual.dtype) if "rows" in name else one for name, one in given.items()}

        key = ("see", *cells_IK.shape, mask_IK is not None, 0 if heard is None else heard.mask_IC.shape[1], hidden)
        made = self.recordings.get(key, make)(**given)
        return made["features"], made.get("hidden")

    # ---------------------------------------------------------------- reading and speaking

    def read_first(
        self, layout: PaddedSequences, features_EVD: Tensor, cells_V: Tensor, width_V: Tensor, layers: int
    ) -> Tensor:
        """Attention of each row's last token to every slot, by head of the first `layers` layers, `[V, M]` fp32."""
        given = self._sequence(layout, features_EVD, cells_V, width_V)
        given["places"] = self.put(layout.places(cells_V.shape[0]))

        def run(t: Tensors) -> Tensors:
            looked_BKM = forward.read_first(self.model, layers, self.axis_f, *_laid_out(t, "original"))
            return {"looked": looked_BKM.transpose(1, 2).flatten(0, 1)[t["places"]]}

        key = ("read first", *layout.ids_BM.shape, features_EVD.shape[1], layers)
        return self._run(key, run, given)["looked"]

    def _sequence(self, layout: PaddedSequences, features_EVD: Tensor, cells_V: Tensor, width_V: Tensor) -> Tensors:
        """Padded prompts on the device, by the names that recordings give them."""
        made = {"ids": layout.ids_BM, "visual": layout.visual_BM, "base": layout.base_BM, "lengths": layout.lengths_B}
        placed = {name: self.put(tensor) for name, tensor in made.items()}
        return placed | {"features": features_EVD, "cells": cells_V, "widths": width_V}

    def cache(self, batch: int, capacity: int) -> forward.StaticCache:
        """The cache of that size. It lives as long as a recording that uses it."""
        found = self._caches.get((batch, capacity))
        if found is None:
            found = self._caches[batch, capacity] = forward.StaticCache.empty(self.model, batch, capacity)
        return found

    def prefill(
        self,
        layout: PaddedSequences,
        features_EVD: Tensor,
        cells_V: Tensor,
        width_V: Tensor,
        capacity: int,
        policy: str,
    ) -> Tensors:
        """Run the prompts: `logits` and the most likely `token` of each row."""
        cache = self.cache(layout.ids_BM.shape[0], capacity)

        def run(t: Tensors) -> Tensors:
            logits = forward.prefill(self.model, cache, self.axis_f, *_laid_out(t, policy))
            return {"logits": logits, "token": logits.argmax(-1)}

        key = ("prefill", *layout.ids_BM.shape, features_EVD.shape[1], capacity, policy)
        return self._run(key, run, self._sequence(layout, features_EVD, cells_V, width_V), cache)

    def decoder(self, batch: int, capacity: int) -> Recording:
        """One step: reads `token`, `position` and `length`, and moves them on to the most likely next token.

        Have it before the prefill: making it writes to the cache.
        """
        cache = self.cache(batch, capacity)

        def make() -> tuple[Function, Tensors]:
            def run(t: Tensors) -> Tensors:
                logits = forward.step(self.model, cache, self.axis_f, t["token"], t["position"], t["length"])
                t["token"].copy_(logits.argmax(-1))
                t["position"].add_(1)
                t["length"].add_(1)
                return {"logits": logits, "token": t["token"]}

            zeros = torch.zeros(batch, dtype=torch.long, device=self.device)
            return run, {"token": zeros, "position": zeros, "length": zeros}

        return self.recordings.get(("decode", batch, capacity), make, cache)
