"""ARRCOCQwen: a stock Qwen3-VL that is shown only the visual tokens that matter for the question.

The stock model is held, neither subclassed nor patched. A request is served in one of two ways: eager (inputs are
prepared and handed to the stock model's own `forward` and `generate`), or over recordings (`arr_coc.qwen.graphs`).
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arr_coc.config import ARRCOCConfig, Keep, check_generation, check_keep, check_keeps
from arr_coc.images.reader import ImageLike, read_images
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import eager
from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.qwen.break_even import break_even_tokens, keep_small_whole, say_small
from arr_coc.qwen.eager import Prepared, Preparer
from arr_coc.qwen.first_look import Memory
from arr_coc.qwen.graphs import rules
from arr_coc.qwen.graphs.layout import NotFast
from arr_coc.qwen.graphs.picking import Picking, picking_of
from arr_coc.qwen.graphs.runner import FastResult, FastRunner, Job
from arr_coc.qwen.loading import check_family, load_parts
from arr_coc.qwen.looking import Looker
from arr_coc.qwen.processor import chat_tokens, check_question, encode_asked, pad_id_of
from arr_coc.qwen.request import Hints, Request
from arr_coc.qwen.storage import save_adapter
from arr_coc.qwen.streaming import PromptRestorer, look_until_sure, noting, restorer_of, stream_text
from arr_coc.qwen.tuned import tuned_selector
from arr_coc.qwen.vision import Geometry
from arr_coc.selectors import Selector, make_selector

logger = logging.getLogger(__name__)

Images = ImageLike | Sequence[ImageLike]
History = Sequence[tuple[str, str]]


class ARRCOCQwen(nn.Module):
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
        super().__init__()
        check_family(model.config.model_type)
        width = model.config.text_config.hidden_size
        self.config = config or ARRCOCConfig(hidden_dim=width, base_model=model.config._name_or_path or "")
        if self.config.hidden_dim != width:
            raise ValueError(f"the adapter is for a width of {self.config.hidden_dim}, this model has {width}")
        self.model = model
        self.layer = (layer or ARRCOCLayer.from_config(self.config)).to(model.device)
        made = selector if isinstance(selector, Selector) else make_selector(selector, self.config, self.layer)
        self.selector = made.to(model.device)
        self.keep = check_keep(keep)
        self.processor = processor
        self.geometry = Geometry.of(model.config.vision_config, processor)
        self.fast, self.break_even, self.strict = fast, break_even, False
        self.fast_runner: FastRunner | None = None  # made by the first request that it serves
        self.memory = Memory()  # of images, for further questions about them
        self._chat = None if processor is None else chat_tokens(processor.tokenizer)
        self._pad_id = pad_id_of(model, processor)
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
        parts = load_parts(source, device, dtype, encoding, position_policy, **model_kwargs)
        selector = tuned_selector(selector, source, *parts[1:3], **model_kwargs)
        return cls(*parts, keep=keep, selector=selector, fast=fast, break_even=break_even).eval()

    def save_pretrained(self, folder: str | Path, *, save_base: bool = False) -> None:
        """Write the adapter (config JSON, safetensors, card); with `save_base`, the model and its processor as well."""
        if save_base:
            self.model.save_pretrained(folder)
            if self.processor is not None:
                self.processor.save_pretrained(folder)
        save_adapter(Path(folder), self.config, self.layer)

    # ---------------------------------------------------------------- asking

    def ask(
        self,
        images: Images,
        question: str,
        *,
        keep: Any = None,
        history: History = (),
        max_new_tokens: int = 128,
        streamer: Any = None,
        look_again: bool = False,
        **generate_kwargs: Any,
    ) -> Answer:
        """Answer a question about one or several images.

        `history` are (question, answer) pairs about the same images; each new question chooses anew. With `look_again`
        an answer that is not sure is asked for again with twice the tokens, and streamed only once it is final.
        `streamer` and the other keywords go to transformers' generate.
        """
        options = {"max_new_tokens": max_new_tokens, **generate_kwargs}
        inputs = self.encode_question(images, question, history, keep, **options)
        if look_again:
            return look_until_sure(partial(self._look, inputs, options), keep, streamer)
        return self._look(inputs, options, keep, streamer)

    def _look(self, inputs: dict[str, Any], options: dict[str, Any], keep: Any, streamer: Any) -> Answer:
        """One answer, over recordings or eager."""
        fast, prompt = self.fast, inputs["input_ids"]
        restorer = restorer_of(self.model, prompt, options, streamer)
        served = self.serve(inputs, keep, options, restorer) if fast else None
        if served is not None:
            return self._answer(served.new_BT[0], served.images[0], served.as_timed(), served.confidence(0))
        noted, options = noting(options)
        with torch.no_grad():
            prepared = self.prepare(**inputs, keep=keep)
            with prepared.stopwatch.part("generate"):
                output = eager.generate(self.model, prompt, prepared, restorer, **options)
        new_BT = (output if isinstance(output, Tensor) else output.sequences)[:, prompt.shape[1] :]
        sure, timings = noted.confidence(new_BT), prepared.stopwatch.milliseconds()
        if restorer is not None:
            timings["prefill"] = 1e3 * restorer.prefill_seconds
        return self._answer(new_BT[0], prepared.images[0], timings, sure)

    def stream(self, images: Images, question: str, **kwargs: Any) -> Iterator[str]:
        """As `ask`, yielding the text as it comes. Leaving the loop early ends the generation."""
        criteria = list(kwargs.pop("stopping_criteria", None) or [])

        def run(streamer: Any, stop: Any) -> None:
            self.ask(images, question, streamer=streamer, stopping_criteria=[*criteria, stop], **kwargs)

        return stream_text(self.processor.tokenizer, run)

    @torch.no_grad()
    def choose(self, images: Images, question: str, keep: Any = None) -> list[ImageSelection]:
        """What would be kept of each image for a question. Costs the choice and the vision encoder, no generation."""
        return self.prepare(**self.encode_question(images, question, keep=keep), keep=keep).images[0]

    def encode_question(
        self, images: Images, question: str, history: History = (), keep: Any = None, **generate_kwargs: Any
    ) -> dict[str, Any]:
        """Read and encode one conversation, with its images as they were resized; users' mistakes end here."""
        if self.processor is None:
            raise ValueError("asking needs a processor: load the model with from_pretrained, or pass processor=")
        check_question(question, history)
        check_keeps(self.keep if keep is None else keep, 1)
        check_generation(generate_kwargs)
        return encode_asked(self.processor, read_images(images), question, history)

    def _answer(self, new_T: Tensor, *about: Any) -> Answer:
        decode = self.processor.tokenizer.decode
        return Answer.of(decode(new_T, skip_special_tokens=True, clean_up_tokenization_spaces=False), *about)

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
        **kwargs: Any,
    ) -> Any:
        """As the stock forward, on the compact sequence: one row of logits per token that was kept.

        `keep` is one dial or one per sample; `original_image` the image(s) before resizing, to read textures from;
        `output_arr_coc_info` adds `output.arr_coc`: the selections, the compact mask, and each column's source.
        `hints` is for experiments: what the selectors "oracle" and "random" must be told.
        """
        videos: dict[str, Any] = {"pixel_values_videos": pixel_values_videos, "video_grid_thw": video_grid_thw}
        sequence: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if pixel_values is None:
            if keep is not None and input_ids is not None:
                check_keeps(keep, input_ids.shape[0])
            if position_ids is None:
                position_ids = eager.next_positions(past_key_values, attention_mask, input_ids)
            self._tell_of_video(pixel_values_videos)
            run = getattr(past_key_values, "arr_coc_runner", self.model)
            places = {"position_ids": position_ids, "mm_token_type_ids": mm_token_type_ids}
            return eager.pass_through(run, **sequence, **places, past_key_values=past_key_values, **videos, **kwargs)
        eager.refuse_positions(position_ids)
        eager.refuse_cache(past_key_values)
        images: dict[str, Any] = {"pixel_values": pixel_values, "image_grid_thw": image_grid_thw}
        asked = {"question_mask": question_mask, "keep": keep, "original_image": original_image, "hints": hints}
        prepared = self.prepare(**sequence, **images, **videos, **asked)
        return eager.forward(self.model, prepared, past_key_values, output_arr_coc_info, **kwargs)

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

        `keep`, `original_image` and `hints` as in `forward`.
        """
        check_generation(kwargs)
        eager.refuse_cache(kwargs.get("past_key_values"), only_marked=pixel_values is None)
        sequence: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if pixel_values is None:
            self._tell_of_video(pixel_values_videos)
            videos = {"pixel_values_videos": pixel_values_videos, "video_grid_thw": video_grid_thw}
            types = {"mm_token_type_ids": mm_token_type_ids}
            return eager.pass_through(self.model.generate, **sequence, **videos, **types, streamer=streamer, **kwargs)
        eager.refuse_positions(kwargs.pop("position_ids", None))
        images = {"pixel_values": pixel_values, "image_grid_thw": image_grid_thw, "original_image": original_image}
        others = {"pixel_values_videos": pixel_values_videos, "question_mask": question_mask, "hints": hints}
        inputs: dict[str, Any] = {**sequence, **images, **others}
        served = self.serve(inputs, keep, kwargs, streamer) if self.fast and input_ids is not None else None
        if served is not None:
            return torch.cat([inputs["input_ids"].to(self.device), served.new_BT.to(self.device)], dim=1)
        prepared = self.prepare(**inputs, keep=keep, video_grid_thw=video_grid_thw)
        restorer = None if streamer is None else PromptRestorer(inputs["input_ids"], streamer)
        return eager.generate(self.model, inputs["input_ids"], prepared, restorer, **kwargs)

    # ---------------------------------------------------------------- the two ways

    def prepare(
        self,
        input_ids: Tensor | None,
        pixel_values: Tensor,
        image_grid_thw: Tensor | None,
        attention_mask: Tensor | None = None,
        *,
        keep: Any = None,
        original_image: Any = None,
        hints: Hints | None = None,
        **tensors: Any,
    ) -> Prepared:
        """Everything before the language model: which cells, their tokens, and the sequence without the rest."""
        keep, why_whole = self._dials(keep, input_ids, recorded=False)
        self._tell_of_video(tensors.get("pixel_values_videos"))
        given = (input_ids, pixel_values, image_grid_thw, attention_mask, keep, original_image, hints)
        prepared = self.preparer()(Request.of(self.model.config, self.device, *given, **tensors))
        if any(why_whole):
            say_small(prepared.images, why_whole)
        return prepared

    def serve(
        self, inputs: dict[str, Any], keep: Any, options: dict[str, Any], streamer: Any = None
    ) -> FastResult | None:
        """The answer over recordings; None where the eager path must give it, as where all tokens are kept.

        `inputs` are all that generate was given beside its `options`; `keep` is one dial, or one per row.
        """
        keeps, why_whole = self._dials(keep, inputs["input_ids"], recorded=True)
        if all(dial == 1.0 for dial in keeps):
            return None
        looker, encoding = self.looker(), self.encoding
        picking: Picking | str = rules.why_not(looker, encoding, inputs) or picking_of(self.model, options)
        if isinstance(picking, str):
            self.tell(f"the fast path is left: {picking}")
            return None
        runner = self.fast_runner
        if runner is None or runner.made_for != (self.model, self.device, self.compiled):
            runner = self.fast_runner = FastRunner(self.model, compiled=self.compiled)
        try:
            served = runner.run(looker, encoding, Job.of(inputs, keeps), picking, streamer)
        except NotFast as why:
            self.tell(f"the fast path is left: {why}")
            return None
        if any(why_whole):
            say_small(served.images, why_whole)
        return served

    def _dials(self, keep: Any, input_ids: Tensor | None, recorded: bool) -> tuple[Any, list[str]]:
        """One checked dial per row, and why a row is kept whole where choosing would not pay, else "".

        Before the first choice it is told what makes it, where that is not a trained layer.
        """
        keep = self.keep if keep is None else keep
        if input_ids is None:
            return keep, []
        keeps, why_whole = check_keeps(keep, input_ids.shape[0]), [""] * input_ids.shape[0]
        if "auto" in keeps:
            tokens = (input_ids == self.model.config.image_token_id).sum(-1).tolist()
            looks = 1 if self.selector.first_look is None else 2
            least = break_even_tokens(self.device, recorded, looks, self.break_even)
            keeps, why_whole = keep_small_whole(keeps, tokens, least)
        if self.selector.untrained_notice and not self.config.trained and any(dial != 1.0 for dial in keeps):
            self.tell(self.selector.untrained_notice)
        return keeps, why_whole

    # ---------------------------------------------------------------- settings, as they are now

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

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

    @property
    def encoding(self) -> str:
        """The encoding in force: "auto" is sparse where the selector does without the ViT's output."""
        if self.config.encoding != "auto":
            return self.config.encoding
        return "dense" if self.selector.reads_tokens else "sparse"

    def looker(self) -> Looker:
        """What chooses."""
        own = (self.model, self.selector, self.config, self.geometry, self._chat, self.training)
        return Looker(*own, self.memory, self._pad_id, self.strict)

    def preparer(self) -> Preparer:
        """What chooses, encodes and compacts."""
        return Preparer(self.looker(), self.encoding, self._pad_id)

    @property
    def notices(self) -> list[str]:
        """What has been told so far, each line once."""
        return list(self._told)

    def tell(self, notice: str) -> None:
        """One line, once per model."""
        if notice not in self._told:
            self._told[notice] = None
            logger.warning("%s", notice)

    def _tell_of_video(self, pixel_values_videos: Tensor | None) -> None:
        if pixel_values_videos is not None:
            self.tell("video passes through untouched: all of its tokens are kept")
