"""ARRCOCQwen: a stock Qwen3-VL that is shown only the visual tokens that matter for the question.

The stock model is held, neither subclassed nor patched; `dropin` has the manners of one. A request is served in one of
two ways: eager (inputs are prepared and handed to the stock model's own `forward` and `generate`), or over recordings
(`arr_coc.qwen.graphs`).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig, Keep, check_generation, check_keep, check_keeps
from arr_coc.images.clips import FPS, check_sampling
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import eager
from arr_coc.qwen.adapting import has_adapters, merged_weights
from arr_coc.qwen.answers import Answer, answers_of
from arr_coc.qwen.chooser import Chooser, History, Images, say_small
from arr_coc.qwen.dropin import StockManners, register
from arr_coc.qwen.eager import Prepared
from arr_coc.qwen.graphs import rules
from arr_coc.qwen.graphs.layout import NotFast
from arr_coc.qwen.graphs.runner import FastResult, FastRunner
from arr_coc.qwen.loading import check_keywords, load_parts, local_folder, resolve, travelling
from arr_coc.qwen.processor import check_question
from arr_coc.qwen.request import Hints, refuse_cache, refuse_placeholders, refuse_positions
from arr_coc.qwen.storage import is_as_saved, save_adapter, save_whole
from arr_coc.qwen.streaming import PromptRestorer, look_until_sure, restorer_of, stream_text
from arr_coc.qwen.tuned import tuned_selector
from arr_coc.qwen.watching import FIRM, WINDOW, Onlooker
from arr_coc.selectors import Selector


class ARRCOCQwen(Chooser, StockManners):
    """Qwen3-VL with ARR-COC in front. `keep=1.0` is the stock model, bit for bit.

    `fast` (on by default on CUDA) answers over recorded graphs where that is possible, and says once where it is not;
    "compiled" fuses the selector's kernels as well, for servers that see the same image sizes again and again. Where
    choosing goes wrong, all is kept and the answer's notices say so; with `strict = True` set, it raises.
    `break_even` is the number of visual tokens below which keep="auto" keeps all; None: what is known of the device. 0
    is never, as evaluations want it.
    """

    def __init__(
        self,
        model: Any,
        config: ARRCOCConfig | None = None,
        layer: ARRCOCLayer | None = None,
        processor: Any = None,
        *,
        keep: Keep = "auto",
        selector: str | Selector = "auto",
        fast: bool | str | None = None,
        break_even: int | None = None,
    ) -> None:
        super().__init__(model, config, layer, processor, keep=keep, selector=selector, break_even=break_even)
        self.fast = fast
        self.fast_runner: FastRunner | None = None  # made by the first request that it serves

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        keep: Keep = "auto",
        encoding: str | None = None,
        selector: str | Selector = "auto",
        position_policy: str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        fast: bool | str | None = None,
        break_even: int | None = None,
        adapter: str | Path | None = None,
        **model_kwargs: Any,
    ) -> "ARRCOCQwen":
        """Load a model by id or folder, or what `save_pretrained` made, ready to be asked.

        `adapter` is the folder or the hub id of an adapter to put on it; one made for another model is refused.

        `device` defaults to the GPU where there is one; `dtype` "auto" is bf16 where the GPU has it, fp16 on older
        ones, fp32 on the CPU. `min_pixels` and `max_pixels` bound images as the model sees them: those of training by
        default, else the processor's own. Other keywords, as device_map, go to transformers. Only safetensors are read
        and no remote code is run.
        """
        check_keep(keep)
        model_kwargs, dtype = check_keywords(model_kwargs, device, dtype)
        parts = load_parts(source, device, dtype, encoding, position_policy, adapter=adapter, **model_kwargs)
        selector = tuned_selector(selector, source, *parts[1:3], **model_kwargs)
        return cls(*parts, keep=keep, selector=selector, fast=fast, break_even=break_even).eval()

    def save_pretrained(
        self, folder: str | Path, *, save_base: bool | None = None, state_dict: Any = None, **how: Any
    ) -> None:
        """Write the adapter (config JSON, safetensors, card); with `save_base`, the model and its processor as well.

        By default the model goes along where the adapter alone would not bring it back: its weights are no longer those
        of the base that the adapter names, as after training. Stock transformers can load such a folder. `state_dict`
        are weights by the names that they have here; `how` goes to transformers.
        """
        if how.pop("push_to_hub", False):
            raise ValueError("push_to_hub=True saves and sends in one: call push_to_hub with the repository's name")
        if save_base is None:
            base = local_folder(resolve(self.arr_coc_config.base_model)) if self.arr_coc_config.base_model else None
            save_base = state_dict is not None or base is None or not is_as_saved(self.model, base)
        if save_base:
            given = {name.removeprefix("model."): weight for name, weight in (state_dict or {}).items()}
            own = merged_weights(self.model) if has_adapters(self.model) else None
            stock = {name: given[name] for name in self.model.state_dict() if name in given} if given else own
            parts = [partial(self.model.save_pretrained, state_dict=stock, **how)]
            parts += [] if self.processor is None else [self.processor.save_pretrained]
            save_whole(Path(folder), parts)
        if how.get("is_main_process", True):
            kept = self.arr_coc_config if save_base else travelling(self.arr_coc_config)
            save_adapter(Path(folder), kept, self.layer)

    # ---------------------------------------------------------------- asking

    def ask(
        self,
        images: Images | None = None,
        question: str = "",
        *,
        video: Any = None,
        fps: float | None = None,
        frames: int | None = None,
        keep: Any = None,
        history: History = (),
        max_new_tokens: int = 128,
        streamer: Any = None,
        look_again: bool = False,
        system: str = "",
        **generate_kwargs: Any,
    ) -> Answer:
        """Answer a question about one or several images or clips.

        `video` is a file, a folder or list of frames, an array, or several of these; a file that is named like a video
        may stand among the images. Of it `fps` frames a second are looked at, 2 if left out, or so many `frames`.
        `system` is what the model is told before all else. `history` are (question, answer) pairs about the same
        images; each new question chooses anew. With `look_again` an answer that is not sure is asked for again with
        twice the tokens, and streamed only once it is final. `streamer` and the other keywords go to transformers'
        generate.
        """
        options = {"max_new_tokens": max_new_tokens, **generate_kwargs}
        sampling = {"video": video, "fps": fps, "frames": frames}
        inputs = self.encode_question(images, question, history, keep, system, **sampling, **options)
        look = partial(self.answer_rows, inputs, options)
        made = look_until_sure(look, keep, streamer) if look_again else look(keep, streamer)[0]
        return replace(made, notices=(*made.notices, *self.unfamiliar(inputs, question)))

    def answer_rows(
        self, inputs: dict[str, Any], options: dict[str, Any], keep: Any = None, streamer: Any = None
    ) -> list[Answer]:
        """The answer to each row of encoded questions, over recordings or eager; `keep` is one dial or one per row.

        `options` go to transformers' generate. How sure an answer is, is known where there is one row.
        """
        prompt, tokenizer = inputs["input_ids"], self.processor.tokenizer
        restorer = restorer_of(self.model, prompt, options, streamer)
        served = self.serve(inputs, keep, options, restorer) if self.fast else None
        if served is not None:
            sure = served.confidence(0) if len(prompt) == 1 else None
            return answers_of(tokenizer, served.new_BT, served.images, served.as_timed(), sure)
        with torch.no_grad():
            prepared = self.prepare(**inputs, keep=keep)
            new_BT, timings, sure = eager.answer(self.model, prompt, prepared, restorer, options)
        return answers_of(tokenizer, new_BT, prepared.images, timings, sure)

    def stream(self, images: Images | None = None, question: str = "", **kwargs: Any) -> Iterator[str]:
        """As `ask`, yielding the text as it comes. Leaving the loop early ends the generation."""
        criteria = list(kwargs.pop("stopping_criteria", None) or [])

        def run(streamer: Any, stop: Any) -> None:
            self.ask(images, question, streamer=streamer, stopping_criteria=[*criteria, stop], **kwargs)

        return stream_text(self.processor.tokenizer, run)

    def watch(
        self,
        question: str,
        *,
        keep: Any = None,
        fps: float = FPS,
        window: int = WINDOW,
        system: str = "",
        firm: float = FIRM,
    ) -> Onlooker:
        """Frames one by one, and the answer whenever it is wanted: `see(frame)`, `answer()`.

        `window` pairs of frames are held, those that are worth most for the question; memory does not grow beyond. An
        answer that was given changes where another is `firm` times as likely, or less the more is new; 1: made anew.
        """
        check_question(question, (), system)
        check_keep(self.keep if keep is None else keep)
        check_sampling(fps, None)
        return Onlooker(self, question, self.keep if keep is None else keep, fps, window, system, firm)

    # ---------------------------------------------------------------- the stock model's own methods

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        pixel_values: Tensor | None = None,
        pixel_values_videos: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        video_grid_thw: Tensor | None = None,
        mm_token_type_ids: Tensor | None = None,
        *,
        question_mask: Tensor | None = None,
        keep: Any = None,
        original_image: Any = None,
        hints: Hints | None = None,
        output_arr_coc_info: bool = False,
        align_logits: bool = False,
        head: bool = True,
        **kwargs: Any,
    ) -> Any:
        """As the stock forward. Without `keep` every token is kept, so that logits line up with the caller's labels.

        With `keep`, one dial or one per sample, there is one row of logits per token that was kept, and the loss is
        that of the caller's labels; `align_logits` gives a row for every column again, for a dropped one that of the
        last before it that was kept. `original_image` is the image(s) before resizing, to read textures from;
        `output_arr_coc_info` adds `output.arr_coc`: the selections, the compact mask, and each column's source.
        Without its `head` the model gives hidden states, one for every column. `hints` is for experiments: what the
        selectors "oracle" and "random" must be told.
        """
        videos: dict[str, Any] = {"pixel_values_videos": pixel_values_videos, "video_grid_thw": video_grid_thw}
        sequence: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if pixel_values is None and pixel_values_videos is None:
            refuse_placeholders(self.config, input_ids, past_key_values)
            if keep is not None and input_ids is not None:
                check_keeps(keep, input_ids.shape[0])
            if position_ids is None:
                position_ids = eager.next_positions(past_key_values, attention_mask, input_ids)
            run = getattr(past_key_values, "arr_coc_runner", self.model if head else self.model.model)
            places = {"position_ids": position_ids, "mm_token_type_ids": mm_token_type_ids}
            return eager.pass_through(run, **sequence, **places, past_key_values=past_key_values, **kwargs)
        refuse_positions(position_ids)
        refuse_cache(past_key_values)
        images: dict[str, Any] = {"pixel_values": pixel_values, "image_grid_thw": image_grid_thw}
        asked = {"question_mask": question_mask, "original_image": original_image, "hints": hints}
        prepared = self.prepare(**sequence, **images, **videos, **asked, keep=1.0 if keep is None else keep)
        if not head:
            return eager.trunk(self.model, prepared, **kwargs)
        return eager.forward(self.model, prepared, past_key_values, output_arr_coc_info, align_logits, **kwargs)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        pixel_values_videos: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        video_grid_thw: Tensor | None = None,
        mm_token_type_ids: Tensor | None = None,
        *,
        question_mask: Tensor | None = None,
        keep: Any = None,
        original_image: Any = None,
        hints: Hints | None = None,
        streamer: Any = None,
        **kwargs: Any,
    ) -> Any:
        """As the stock generate: the caller's own prompt ids come back in front of the new tokens.

        Without `keep` the model's own dial holds; `original_image` and `hints` as in `forward`.
        """
        check_generation(kwargs)
        sees = pixel_values is not None or pixel_values_videos is not None
        refuse_cache(kwargs.get("past_key_values"), only_marked=not sees)
        sequence: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if not sees:
            refuse_placeholders(self.config, input_ids, kwargs.get("past_key_values"))
            types = {"mm_token_type_ids": mm_token_type_ids}
            return eager.pass_through(self.model.generate, **sequence, **types, streamer=streamer, **kwargs)
        refuse_positions(kwargs.pop("position_ids", None))
        images = {"pixel_values": pixel_values, "image_grid_thw": image_grid_thw, "original_image": original_image}
        videos = {"pixel_values_videos": pixel_values_videos, "video_grid_thw": video_grid_thw}
        inputs: dict[str, Any] = {**sequence, **images, **videos, "question_mask": question_mask, "hints": hints}
        served = self.serve(inputs, keep, kwargs, streamer) if self.fast and input_ids is not None else None
        if served is not None:
            return torch.cat([inputs["input_ids"].to(self.device), served.new_BT.to(self.device)], dim=1)
        prepared = self.prepare(**inputs, keep=keep)
        restorer = None if streamer is None else PromptRestorer(inputs["input_ids"], streamer)
        return eager.generate(self.model, inputs["input_ids"], prepared, restorer, **kwargs)

    # ---------------------------------------------------------------- the two ways

    def prepare(self, *args: Any, **inputs: Any) -> Prepared:
        """Everything before the language model: which cells, their tokens, and the sequence without the rest.

        Under torch.compile it runs as it is: what is chosen depends on the values, and the rest is worth compiling.
        """
        prepare = torch.compiler.disable(self._prepare) if torch.compiler.is_compiling() else self._prepare
        return prepare(*args, **inputs)

    def _prepare(self, *args: Any, **inputs: Any) -> Prepared:
        request, why_whole = self._request(*args, **inputs)
        prepared = self.preparer()(request)
        say_small(prepared.images, why_whole)
        return prepared

    def serve(
        self, inputs: dict[str, Any], keep: Any, options: dict[str, Any], streamer: Any = None
    ) -> FastResult | None:
        """The answer over recordings; None where the eager path must give it, as where all tokens are kept.

        `inputs` are all that generate was given beside its `options`; `keep` is one dial, or one per row.
        """
        keeps, why_whole = self._dials(keep, inputs["input_ids"], recorded=True)
        compact = self.arr_coc_config.position_policy == "compact"  # where a row that keeps all is left as it was
        if all(dial == 1.0 for dial in keeps) or (compact and 1.0 in keeps):
            return None
        looker, encoding = self.looker(), self.encoding
        picking = rules.why_not(looker, encoding, inputs) or rules.picking_of(self.model, options)
        if isinstance(picking, str):
            self.tell(f"the fast path is left: {picking}")
            return None
        runner = self.fast_runner
        if runner is None or runner.made_for != (self.model, self.device, self.compiled):
            runner = self.fast_runner = FastRunner(self.model, compiled=self.compiled)
        try:
            served = runner.run(looker, encoding, inputs, keeps, picking, streamer)
        except NotFast as why:
            self.tell(f"the fast path is left: {why}")
            return None
        say_small(served.images, why_whole)
        return served

    # ---------------------------------------------------------------- settings, as they are now

    @property
    def fast(self) -> bool:
        """Whether the recorded path is tried."""
        return rules.is_default(self.device) if self._fast is None else bool(self._fast)

    @fast.setter
    def fast(self, wanted: bool | str | None) -> None:
        if isinstance(wanted, str) and wanted != "compiled":
            raise ValueError(f'fast={wanted!r}: expected True, False, None (on where there is CUDA), or "compiled"')
        self._fast = wanted

    @property
    def compiled(self) -> bool:
        """Whether the recorded path fuses the selector's kernels: about a minute per image size and batch."""
        return self._fast == "compiled"


register(ARRCOCQwen)
