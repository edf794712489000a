"""ARRCOCQwen: a stock Qwen3-VL that is shown only the visual tokens that matter for the question.

The stock model is held, neither subclassed nor patched: inputs are prepared (choose, encode, compact) and handed to its
own `forward` and `generate`.
"""

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arr_coc.config import ARRCOCConfig, Keep, check_keep, check_keeps
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import asking
from arr_coc.qwen.adapting import ADAPTED, has_adapted, load_adapted
from arr_coc.qwen.answers import Answer
from arr_coc.qwen.fast import switch
from arr_coc.qwen.fast.break_even import break_even_tokens, keep_small_whole, say_small
from arr_coc.qwen.fast.rules import is_default
from arr_coc.qwen.fast.runner import FastRunner
from arr_coc.qwen.images import ImageLike
from arr_coc.qwen.loading import (
    HUB_KEYWORDS,
    check_family,
    find_adapter,
    load_stock,
    pick_device,
    pick_dtype,
    resolve,
)
from arr_coc.qwen.positions import mark
from arr_coc.qwen.preparing import Prepared, Preparer
from arr_coc.qwen.processor import chat_tokens, load_processor
from arr_coc.qwen.requests import Request
from arr_coc.qwen.storage import save_adapter
from arr_coc.qwen.streaming import PromptRestorer
from arr_coc.selectors import Selector, make_selector

logger = logging.getLogger(__name__)


class ARRCOCQwen(nn.Module):
    """Qwen3-VL with ARR-COC in front. `keep=1.0` is the stock model, bit for bit.

    `fast` (on by default on CUDA) answers over recorded graphs where that is possible, and says once where it is not;
    "compiled" fuses the selector's kernels as well, for servers that see the same image sizes again and again.
    `break_even` is the number of visual tokens below which keep="auto" keeps all; None: what is known of the device.
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
        super().__init__()
        check_family(model.config.model_type)
        width = model.config.text_config.hidden_size
        self.config = config or ARRCOCConfig(hidden_dim=width, base_model=model.config._name_or_path or "")
        if self.config.hidden_dim != width:
            raise ValueError(f"the adapter is for a width of {self.config.hidden_dim}, this model has {width}")
        self.model = model
        self.layer = (layer or ARRCOCLayer.from_config(self.config)).to(model.device)
        if not isinstance(selector, Selector):
            selector = make_selector(selector, self.config, self.layer)
        self.selector = selector.to(model.device)
        self.keep = check_keep(keep)
        self.processor = processor
        self.fast = fast
        self.fast_runner: FastRunner | None = None  # made by the first request that it serves
        self._break_even = break_even
        self._chat = None if processor is None else chat_tokens(processor.tokenizer)
        self._told: dict[str, None] = {}

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
        **model_kwargs: Any,
    ) -> "ARRCOCQwen":
        """Load a Qwen3-VL by id or folder, or a folder made by `save_pretrained`, ready to be asked.

        `device` defaults to the GPU where there is one; `dtype` "auto" is bf16 where the GPU has it, fp16 on older
        ones, fp32 on the CPU. Other keywords go to transformers. Only safetensors are read and no remote code is run.
        """
        check_keep(keep)
        base, config, layer = find_adapter(source)
        device = pick_device(device)
        model = load_stock(base, device, pick_dtype(dtype, device), **model_kwargs)
        if has_adapted(Path(resolve(source)) / ADAPTED):
            load_adapted(model, Path(resolve(source)) / ADAPTED).requires_grad_(False)
        config = config or ARRCOCConfig(hidden_dim=model.config.text_config.hidden_size, base_model=base)
        config = replace(
            config,
            encoding=encoding or config.encoding,
            position_policy=position_policy or config.position_policy,
        )
        hub = {name: model_kwargs[name] for name in HUB_KEYWORDS if name in model_kwargs}
        processor = load_processor(base, **hub)
        return cls(
            model, config, layer, processor, keep=keep, selector=selector, fast=fast, break_even=break_even
        ).eval()

    def save_pretrained(self, folder: str | Path, *, save_base: bool = False) -> None:
        """Write the adapter (config JSON, safetensors, card); with `save_base`, the model and its processor as well."""
        if save_base:
            self.model.save_pretrained(folder)
            if self.processor is not None:
                self.processor.save_pretrained(folder)
        save_adapter(Path(folder), self.config, self.layer)

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def fast(self) -> bool:
        """Whether the fast path is tried."""
        return is_default(self.device) if self._fast is None else bool(self._fast)

    @fast.setter
    def fast(self, wanted: bool | str | None) -> None:
        if isinstance(wanted, str) and wanted != "compiled":
            raise ValueError(f'fast={wanted!r}: expected True, False, None (on where there is CUDA), or "compiled"')
        self._fast = wanted

    @property
    def compiled(self) -> bool:
        """Whether the fast path fuses the selector's kernels, which takes about a minute per image size and batch."""
        return self._fast == "compiled"

    @property
    def break_even(self) -> int:
        """Visual tokens below which keep="auto" keeps all; 0: never. Evaluations set it to 0."""
        return break_even_tokens(self.device) if self._break_even is None else self._break_even

    @break_even.setter
    def break_even(self, tokens: int | None) -> None:
        self._break_even = tokens

    @property
    def encoding(self) -> str:
        """The encoding in force: "auto" is sparse where the selector does without the ViT's output."""
        if self.config.encoding != "auto":
            return self.config.encoding
        return "dense" if self.selector.reads_tokens else "sparse"

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
        evidence: Any = None,
        image_numbers: Any = None,
        output_arr_coc_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As the stock forward, on the compact sequence: one row of logits per token that was kept.

        `keep` is one dial or one per sample; `original_image` the image(s) before resizing, to read textures from;
        `output_arr_coc_info` adds `output.arr_coc`: the selections, the compact mask, and each column's source.
        `evidence` (boxes of each image: left, top, right, bottom as shares of it) is for selector="oracle",
        `image_numbers` (one of each image) for selector="random".
        """
        if pixel_values is None:
            if keep is not None and input_ids is not None:
                check_keeps(keep, input_ids.shape[0])
            if position_ids is None and input_ids is not None and hasattr(past_key_values, "arr_coc"):
                position_ids = past_key_values.arr_coc.positions(
                    attention_mask, past_key_values.get_seq_length(), input_ids
                )
            return self._pass_through(
                getattr(past_key_values, "arr_coc_runner", self.model),
                pixel_values_videos,
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                labels=labels,
                video_grid_thw=video_grid_thw,
                mm_token_type_ids=mm_token_type_ids,
                **kwargs,
            )
        if position_ids is not None:
            raise ValueError("position_ids with an image: leave them out, they follow from the whole sequence")
        _refuse_cache(past_key_values)
        prepared = self.prepare(
            input_ids,
            pixel_values,
            image_grid_thw,
            attention_mask,
            keep=keep,
            original_image=original_image,
            evidence=evidence,
            image_numbers=image_numbers,
            labels=labels,
            pixel_values_videos=pixel_values_videos,
            video_grid_thw=video_grid_thw,
            question_mask=question_mask,
        )
        if isinstance(kwargs.get("logits_to_keep"), Tensor) and prepared.compact.dropped:
            raise ValueError("logits_to_keep as indices counts full columns, but tokens were dropped: give an int")
        return_dict = kwargs.pop("return_dict", None)
        runner = prepared.runner(self.model)
        output = runner(
            **prepared.model_inputs(),
            past_key_values=past_key_values,
            labels=prepared.compact.labels,
            return_dict=True,
            **kwargs,
        )
        if output.past_key_values is not None:
            mark(output.past_key_values, prepared.compact)
            output.past_key_values.arr_coc_runner = runner
        if return_dict is False:
            return (*output.to_tuple(), prepared) if output_arr_coc_info else output.to_tuple()
        if output_arr_coc_info:
            output.arr_coc = prepared
        return output

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
        evidence: Any = None,
        image_numbers: Any = None,
        streamer: Any = None,
        **kwargs: Any,
    ) -> Any:
        """As the stock generate: the caller's own prompt ids come back in front of the new tokens.

        `keep`, `original_image`, `evidence` and `image_numbers` as in `forward`.
        """
        _refuse_cache(kwargs.get("past_key_values"), only_marked=pixel_values is None)
        if pixel_values is None:
            return self._pass_through(
                self.model.generate,
                pixel_values_videos,
                input_ids=input_ids,
                attention_mask=attention_mask,
                video_grid_thw=video_grid_thw,
                mm_token_type_ids=mm_token_type_ids,
                streamer=streamer,
                **kwargs,
            )
        if kwargs.pop("position_ids", None) is not None:
            raise ValueError("position_ids with an image: leave them out, they follow from the whole sequence")
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "pixel_values": pixel_values,
            "image_grid_thw": image_grid_thw,
            "question_mask": question_mask,
            "pixel_values_videos": pixel_values_videos,
            "original_image": original_image,
        }
        served = self.serve_fast(inputs, keep, kwargs, streamer)
        if served is not None:
            assert input_ids is not None
            return switch.with_prompt(served, input_ids, self.device)
        prepared = self.prepare(
            input_ids,
            pixel_values,
            image_grid_thw,
            attention_mask,
            keep=keep,
            original_image=original_image,
            evidence=evidence,
            image_numbers=image_numbers,
            pixel_values_videos=pixel_values_videos,
            video_grid_thw=video_grid_thw,
            question_mask=question_mask,
        )
        assert input_ids is not None
        restorer = None if streamer is None else PromptRestorer(input_ids, streamer)
        return self.generate_prepared(input_ids, prepared, restorer, **kwargs)

    def prepare(
        self,
        input_ids: Tensor | None,
        pixel_values: Tensor,
        image_grid_thw: Tensor | None,
        attention_mask: Tensor | None = None,
        *,
        keep: Any = None,
        original_image: Any = None,
        evidence: Any = None,
        image_numbers: Any = None,
        **tensors: Tensor | None,
    ) -> Prepared:
        """Everything before the language model: which cells, their tokens, and the sequence without the rest."""
        keep, small = self._dials(keep, input_ids)
        if tensors.get("pixel_values_videos") is not None:
            self._tell("video passes through untouched: all of its tokens are kept")
        request = Request.of(
            self.device,
            input_ids,
            pixel_values,
            image_grid_thw,
            attention_mask,
            keep,
            original_image,
            evidence,
            image_numbers,
            **tensors,
        )
        if any(dial != 1.0 for dial in request.keeps):
            self._tell_of_selector()
        prepared = self._preparer()(request)
        say_small(prepared.images, small, self.break_even)
        return prepared

    def serve_fast(
        self, inputs: dict[str, Any], keep: Any, options: dict[str, Any], streamer: Any
    ) -> switch.FastResult | None:
        """What the fast path makes of a request; None where it is off or the plain path must serve."""
        if not self.fast or inputs["input_ids"] is None:
            return None
        keeps, small = self._dials(keep, inputs["input_ids"])
        if any(dial != 1.0 for dial in keeps):
            self._tell_of_selector()
        served = switch.serve(self, inputs, keeps, options, streamer)
        if served is not None:
            say_small(served.images, small, self.break_even)
        return served

    def _dials(self, keep: Any, input_ids: Tensor | None) -> tuple[Any, list[bool]]:
        """One checked dial per row, and the rows that are kept whole because choosing would not pay."""
        keep = self.keep if keep is None else keep
        if input_ids is None:
            return keep, []
        keeps = check_keeps(keep, input_ids.shape[0])
        if "auto" not in keeps or not self.break_even:
            return keeps, [False] * len(keeps)
        tokens = (input_ids == self.model.config.image_token_id).sum(-1).tolist()
        return keep_small_whole(keeps, tokens, self.break_even)

    def _tell_of_selector(self) -> None:
        """Before the first choice: what it is made by, where that is not a trained layer."""
        if self.selector.name == "training_free" and not self.config.trained:
            self._tell("no trained adapter: tokens are chosen by the question's words, after the ViT")
        elif self.selector.name == "arr_coc" and not self.config.trained:
            self._tell("the ARR-COC layer is untrained: its choice hardly depends on the question")

    def _preparer(self) -> Preparer:
        tokenizer = getattr(self.processor, "tokenizer", None)
        pads = (
            getattr(tokenizer, "pad_token_id", None),
            self.model.generation_config.pad_token_id,
            self.model.config.text_config.pad_token_id,
        )
        images = getattr(self.processor, "image_processor", None)
        return Preparer(
            model=self.model,
            selector=self.selector,
            config=self.config,
            encoding=self.encoding,
            chat=self._chat,
            image_mean=tuple(getattr(images, "image_mean", None) or (0.5, 0.5, 0.5)),
            image_std=tuple(getattr(images, "image_std", None) or (0.5, 0.5, 0.5)),
            pad_id=next((int(pad) for pad in pads if pad is not None), 0),
            strict=self.training,
        )

    def generate_prepared(
        self, input_ids: Tensor, prepared: Prepared, streamer: PromptRestorer | None, **kwargs: Any
    ) -> Any:
        """The stock generate on prepared inputs; `input_ids` is the caller's prompt, which comes back in front."""
        length = prepared.compact.input_ids.shape[1]
        shift_lengths(kwargs, length - input_ids.shape[1])
        runner = prepared.runner(self.model)
        output = runner.generate(**prepared.model_inputs(), streamer=streamer, **kwargs)
        if isinstance(output, Tensor):
            return _restore_prompt(output, input_ids, length)
        output.sequences = _restore_prompt(output.sequences, input_ids, length)
        if getattr(output, "past_key_values", None) is not None:
            mark(output.past_key_values, prepared.compact)
            output.past_key_values.arr_coc_runner = runner
        return output

    def _pass_through(self, run: Any, pixel_values_videos: Tensor | None, **inputs: Any) -> Any:
        """No image: the stock model as it is."""
        if pixel_values_videos is not None:
            self._tell("video passes through untouched: all of its tokens are kept")
            inputs["pixel_values_videos"] = pixel_values_videos
        return run(**{name: value for name, value in inputs.items() if value is not None})

    def _tell(self, notice: str) -> None:
        """One line, once per model."""
        if notice not in self._told:
            self._told[notice] = None
            logger.warning("%s", notice)

    @property
    def notices(self) -> list[str]:
        """What has been told so far, each line once."""
        return list(self._told)

    # ---------------------------------------------------------------- asking

    def ask(
        self,
        images: ImageLike | Sequence[ImageLike],
        question: str,
        *,
        keep: Any = None,
        history: Sequence[tuple[str, str]] = (),
        max_new_tokens: int = 128,
        streamer: Any = None,
        **generate_kwargs: Any,
    ) -> Answer:
        """Answer a question about one or several images.

        `history` are (question, answer) pairs about the same images; each new question chooses anew. `streamer` and the
        other keywords go to transformers' generate.
        """
        options = {"keep": keep, "history": history, "max_new_tokens": max_new_tokens, "streamer": streamer}
        return asking.ask(self, images, question, **options, **generate_kwargs)

    def stream(self, images: ImageLike | Sequence[ImageLike], question: str, **kwargs: Any) -> Iterator[str]:
        """As `ask`, yielding the text as it comes. Leaving the loop early ends the generation."""
        return asking.stream(self, images, question, **kwargs)


def shift_lengths(kwargs: dict[str, Any], shift: int) -> None:
    """Callers count max_length and min_length on their own, full prompt: count them on the compact one."""
    for name in ("max_length", "min_length"):
        if kwargs.get(name) is not None:
            kwargs[name] = max(0, kwargs[name] + shift)
    config = kwargs.get("generation_config")
    if config is not None and shift:
        config = copy.deepcopy(config)
        for name in ("max_length", "min_length"):
            if getattr(config, name, None):
                setattr(config, name, max(0, getattr(config, name) + shift))
        kwargs["generation_config"] = config


def _refuse_cache(cache: Any, only_marked: bool = False) -> None:
    """A prompt with images is prepared as a whole; a cache that was shortened cannot be matched with full ids."""
    if cache is None or (only_marked and not hasattr(cache, "arr_coc")):
        return
    if cache.get_seq_length():
        raise ValueError("a new question chooses anew: pass the whole conversation instead of past_key_values")


def _restore_prompt(sequences: Tensor, prompt_BL: Tensor, compact_length: int) -> Tensor:
    """Put the caller's prompt in place of the compact one; several sequences of one prompt are next to each other."""
    per_prompt = sequences.shape[0] // prompt_BL.shape[0]
    prompt = prompt_BL.to(sequences.device).repeat_interleave(per_prompt, dim=0)
    return torch.cat([prompt, sequences[:, compact_length:]], dim=1)
