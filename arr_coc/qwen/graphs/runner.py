"""FastRunner: select, see, prefill, decode over recordings, one request at a time.

B rows, I images, N cells, K slots of an image, V = I * K, E = 1 + DeepStack levels, D width, T new tokens.
"""

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import Keep
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.graphs import clips, rules
from arr_coc.qwen.graphs.choosing import Asked, Chosen, Explain, Laid, Pixels, choose, everything
from arr_coc.qwen.graphs.copies import context_of, heard_with_copies, look_first, rows_with_copies, with_copies
from arr_coc.qwen.graphs.layout import (
    NotFast,
    PaddedSequences,
    Prompt,
    capacity_bucket,
    padded_length,
    plan,
    read_prompt,
)
from arr_coc.qwen.graphs.recording import CudaRecorder, Recorder, Recording, Recordings, Rerunner, Tensors
from arr_coc.qwen.graphs.rules import Picking, Rows
from arr_coc.qwen.graphs.stages import Stages
from arr_coc.qwen.looking import Looker
from arr_coc.qwen.request import Request, cells_of, find_question, samples_of_images, token_types
from arr_coc.qwen.streaming import confidence, log_probability
from arr_coc.records import NOT_FINITE
from arr_coc.timing import Stopwatch

MOST_SHARE = 0.25  # of a GPU's memory, at most, for recordings
MOST_BYTES_CPU = 2 << 30

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FastResult:
    """What came of a request."""

    new_BT: Tensor  # new tokens on the host, padded after a row's end
    first_logits_BV: Tensor  # of the first new token, fp32, on the device
    images: list[list[ImageSelection]]  # per row, per image
    log_probability_BT: Tensor  # of the new tokens, on the host; of no meaning after a row's end
    timings_ms: dict[str, float]
    """select, vision, prefill, ttft (their sum), wall_ttft (until the token is on the host), decode (per token)."""

    def confidence(self, row: int) -> float:
        """How sure the answer of a row is that did not end before the others."""
        return confidence(self.log_probability_BT[row])

    def as_timed(self) -> dict[str, float]:
        """The times under the eager path's names: "generate" is prefill and all steps together."""
        times = {name: self.timings_ms[name] for name in ("select", "vision", "prefill")}
        steps = max(0, self.new_BT.shape[1] - 1)
        return {**times, "generate": self.timings_ms["prefill"] + self.timings_ms["decode"] * steps}


class FastRunner:
    """Serves requests of one stock model. Recordings stay for the next request; their memory is bounded."""

    def __init__(
        self,
        model: Any,
        recorder: Recorder | None = None,
        most_bytes: int | None = None,
        compiled: bool = False,
    ) -> None:
        self.model, self.device, self.compiled = model, model.lm_head.weight.device, compiled
        on_gpu = self.device.type == "cuda"
        if recorder is None:
            recorder = CudaRecorder(self.device) if on_gpu else Rerunner()
        if most_bytes is None:
            most_bytes = int(torch.cuda.mem_get_info(self.device)[1] * MOST_SHARE) if on_gpu else MOST_BYTES_CPU
        self.recordings = Recordings(recorder, most_bytes)
        self.stages = Stages(model, self.recordings, compiled)
        self._weights: tuple[Any, ...] = ()
        self._lock = threading.RLock()

    @property
    def made_for(self) -> tuple[Any, torch.device, bool]:
        """The model, its device, and whether kernels are fused: another one needs a runner of its own."""
        return self.model, self.device, self.compiled

    @torch.no_grad()
    def run(
        self, looker: Looker, encoding: str, inputs: Inputs, keeps: list[Keep], picking: Picking, streamer: Any = None
    ) -> FastResult:
        """Answer a request. Raises NotFast, before anything was streamed, where the plain path must be taken.

        `inputs` are as the processor makes them, on any device; `keeps` one checked dial per row. `original_image` is
        each image as it was resized, uint8 `[3, h, w]`; without, images are looked at by their patches.
        """
        with self._lock, torch.autocast(self.device.type, enabled=False):
            self._check_weights(looker)
            started = time.perf_counter()
            stopwatch = Stopwatch(self.device)
            if inputs.get("pixel_values_videos") is None:
                shown = self._images(looker, encoding, inputs, keeps, stopwatch)
            else:
                shown = self._clips(looker, inputs, keeps, stopwatch)
            with stopwatch.part("prefill"):
                layout, decoder, said = self._prefill(looker.config.position_policy, shown, picking)
            first_logits = said["logits"].clone()
            if picking.standing is not None:
                picking.standing.begin()
            rows, sure = Rows(picking, inputs["input_ids"].cpu(), streamer), list[Tensor]()
            token = picking.pick(first_logits, rows.new_BT) if picking.reads else said["token"]
            sure.append(log_probability(first_logits, token))
            first = token.tolist()
            wall_ms = 1e3 * (time.perf_counter() - started)
            explain = shown.checked()
            del shown  # its tokens are in the cache now
            rows.add(first)
            with stopwatch.part("decode"):
                sure += self._decode(decoder, layout, token, rows)
            if streamer is not None:
                streamer.end()
            timings = _timings(stopwatch, len(rows.steps), wall_ms)
            return FastResult(rows.new_BT, first_logits, explain(), torch.stack(sure, dim=1).cpu(), timings)

    def _images(self, looker: Looker, encoding: str, inputs: Inputs, keeps: list[Keep], stopwatch: Stopwatch) -> Laid:
        prompt, given = self._read(looker, inputs), inputs.get("original_image")
        images = None if given is None else [self.stages.put(image) for image in given]
        asked = Asked(self.stages, looker, prompt, Pixels(self.stages.put(inputs["pixel_values"]), images))
        chosen, put, slots, features = self._choose_and_see(asked, encoding, keeps, stopwatch)
        widths = torch.tensor([width for _, width in put.grids]).repeat_interleave(slots.slots)
        places = (slots.cells_IK.flatten(), self.stages.put(widths))

        def checked() -> Explain:
            strategies = chosen.strategies()
            if any(NOT_FINITE in codes for codes in strategies.values()):
                raise NotFast("the scores were not finite")
            return partial(chosen.explain, prompt, strategies)

        starts = range(0, len(put.grids) * slots.slots, slots.slots)
        return Laid(put, slots.counts_I, starts, features, *places, checked)

    def _clips(self, looker: Looker, inputs: Inputs, keeps: list[Keep], stopwatch: Stopwatch) -> Laid:
        given = {name: inputs.get(name) for name in (*rules.PLAYED, "pixel_values", "image_grid_thw", "original_image")}
        request = Request.of(self.model.config, self.device, **given, keep=keeps)
        return clips.choose_and_see(self.stages, looker, request, stopwatch)

    def _check_weights(self, looker: Looker) -> None:
        """Recordings read weights where they lay: if weights were moved or the selector exchanged, they are void."""
        language, visual = self.model.model.language_model, self.model.model.visual
        some = [self.model.lm_head, language.layers[0].self_attn.q_proj, language.layers[-1].mlp.down_proj]
        some += [visual.blocks[0].attn.qkv, visual.blocks[-1].mlp.linear_fc2]
        own = next(iter(looker.selector.parameters()), None)
        now = (*(one.weight.data_ptr() for one in some), id(looker.selector), None if own is None else own.data_ptr())
        if now != self._weights:
            self.recordings.clear()
            self._weights = now

    def _read(self, looker: Looker, inputs: Inputs) -> Prompt:
        """The prompts on the host; without a mask, every token is real."""
        config, ids, mask = self.model.config, inputs["input_ids"].cpu(), inputs.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask.cpu()
        grids = cells_of(inputs["image_grid_thw"].cpu(), config.vision_config.spatial_merge_size)
        asked = inputs.get("question_mask")
        asked = find_question(ids, mask, config, looker.chat) if asked is None else asked.cpu()
        if looker.selector.first_look is not None and not asked.any(-1).all():
            raise NotFast("a prompt asks nothing")
        return read_prompt(ids, mask, asked, grids, samples_of_images(token_types(ids, config), grids))

    def _choose_and_see(
        self, asked: Asked, encoding: str, keeps: list[Keep], stopwatch: Stopwatch
    ) -> tuple[Chosen, Prompt, Chosen, Tensor]:
        """The kept cells; prompts and kept cells as they are shown; the visual tokens of their slots `[E, V, D]`."""
        prompt = asked.prompt
        all_kept = all(keep == 1.0 for keep in keeps)
        if encoding != "dense" and not all_kept:
            with stopwatch.part("select"):
                chosen = self._choose(asked, keeps, None, encoding == "foveated")
            with stopwatch.part("vision"):
                return chosen, *self._see_chosen(asked, chosen)
        whole = everything(prompt.grids, self.device)
        with stopwatch.part("vision"):
            rows_IPx = self._rows(asked, whole)
            features, _ = self.stages.see(rows_IPx, whole.cells_IK, self._grids(prompt), whole.mask_IK)
        if all_kept:
            return whole, prompt, whole, features
        features = features.clone()  # a first look may run the same recording
        with stopwatch.part("select"):
            chosen = self._choose(asked, keeps, features)
        with stopwatch.part("vision"):
            first_I1 = self.stages.put(torch.arange(len(prompt.grids)).unsqueeze(1) * whole.slots)
            return chosen, prompt, chosen, features.index_select(1, (first_I1 + chosen.cells_IK).flatten())

    def _choose(self, asked: Asked, keeps: list[Keep], features: Tensor | None, foveated: bool = False) -> Chosen:
        """The choice; where it fails, the plain path keeps every token and says why."""
        try:
            first = partial(look_first, asked) if asked.looker.selector.first_look else None
            return choose(asked, keeps, features, first, foveated)
        except NotFast:
            raise
        except Exception as error:
            raise NotFast(f"choosing failed ({type(error).__name__})") from error

    def _see_chosen(self, asked: Asked, chosen: Chosen) -> tuple[Prompt, Chosen, Tensor]:
        """One call of the ViT over the chosen windows of all images, and their small copies where the prompt has them.

        Prompts and cells as they are shown, and the visual tokens of their slots.
        """
        heard = context_of(asked, chosen.counts_I) if asked.looker.gives_context else None
        rows_IPx, shown, slots = self._rows(asked, chosen), asked.prompt, chosen
        if any(chosen.copies):
            shown, slots, order = with_copies(asked.prompt, chosen, self.model.config)
            rows_IPx = rows_with_copies(asked, chosen, order, rows_IPx, slots.slots)
            heard = None if heard is None else heard_with_copies(heard, order)
        return shown, slots, self.stages.see(rows_IPx, slots.cells_IK, self._grids(shown), slots.mask_IK, heard)[0]

    def _grids(self, prompt: Prompt) -> Tensor:
        return self.stages.put(torch.tensor(prompt.grids))

    def _rows(self, asked: Asked, chosen: Chosen) -> Tensor:
        """Patches of the chosen windows of each image, `[I, P, X]`."""
        grids, pixels_Rx = asked.prompt.grids, asked.pixels.rows_Rx
        window = self.model.config.vision_config.spatial_merge_size**2
        cells_I = torch.tensor([height * width for height, width in grids])
        if chosen.mask_IK is None and chosen.slots == int(cells_I.max()):
            return pixels_Rx.view(len(grids), -1, pixels_Rx.shape[1])
        first_I11 = self.stages.put((cells_I.cumsum(0) - cells_I).view(-1, 1, 1) * window)
        index = first_I11 + chosen.cells_IK.unsqueeze(-1) * window + torch.arange(window, device=self.device)
        return pixels_Rx.index_select(0, index.flatten()).view(len(grids), -1, pixels_Rx.shape[1])

    def _prefill(self, policy: str, shown: Laid, picking: Picking) -> tuple[PaddedSequences, Recording | None, Tensors]:
        """The layout, the step that goes on from it, and what the prompts gave."""
        image_id, prompt = int(self.model.config.image_token_id), shown.prompt
        length = padded_length(prompt, shown.counts_I, image_id)
        layout = plan(prompt, shown.counts_I, shown.starts_I, length, image_id, policy)
        capacity = capacity_bucket(length + picking.most)
        decoder = self.stages.decoder(len(prompt.rows), capacity) if picking.most > 1 else None
        seen = (shown.features_EVD, shown.cells_V, shown.widths_V)
        return layout, decoder, self.stages.prefill(layout, *seen, capacity, policy)

    def _decode(self, decoder: Recording | None, layout: PaddedSequences, token: Tensor, rows: Rows) -> list[Tensor]:
        """Go on from the first token until every row has ended; the host reads one token per row and step.

        Returns how likely each token was, `[B]` per step, on the device.
        """
        starts = {"position": self.stages.put(layout.next_B), "length": self.stages.put(layout.lengths_B)}
        given = {"token": token, **starts}
        reads, sure = rows.picking.reads, []
        while not rows.finished:
            assert decoder is not None
            said = decoder(**given)
            token = rows.picking.pick(said["logits"], rows.new_BT) if reads else said["token"]
            sure.append(log_probability(said["logits"], token))
            given = {"token": token} if reads else {}
            rows.add(token.tolist())
        return sure


def _timings(stopwatch: Stopwatch, tokens: int, wall_ms: float) -> dict[str, float]:
    parts = stopwatch.milliseconds()
    made = {name: parts.get(name, 0.0) for name in ("select", "vision", "prefill")}
    decode = parts.get("decode", 0.0) / max(1, tokens - 1)
    return {**made, "ttft": sum(made.values()), "wall_ttft": wall_ms, "decode": decode}
