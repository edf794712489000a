"""ARRCOCQwen: a stock Qwen3-VL that is shown only the visual tokens that matter for the question.

Inputs are prepared (choose, encode, compact) and handed to the stock model's own `forward` and `generate`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import Keep, check_keep, check_keeps
from arr_coc.images.reader import ImageLike
from arr_coc.qwen import asking, running
from arr_coc.qwen.answers import Answer
from arr_coc.qwen.graphs import switch
from arr_coc.qwen.loading import load_parts
from arr_coc.qwen.owner import Owner
from arr_coc.qwen.storage import save_adapter
from arr_coc.qwen.streaming import PromptRestorer
from arr_coc.selectors import Selector


class ARRCOCQwen(Owner):
    """Qwen3-VL with ARR-COC in front. `keep=1.0` is the stock model, bit for bit.

    `fast` (on by default on CUDA) answers over recorded graphs where that is possible, and says once where it is not;
    "compiled" fuses the selector's kernels as well, for servers that see the same image sizes again and again.
    `break_even` is the number of visual tokens below which keep="auto" keeps all; None: what is known of the device.
    """

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
        return cls(*parts, keep=keep, selector=selector, fast=fast, break_even=break_even).eval()

    def save_pretrained(self, folder: str | Path, *, save_base: bool = False) -> None:
        """Write the adapter (config JSON, safetensors, card); with `save_base`, the model and its processor as well."""
        if save_base:
            self.model.save_pretrained(folder)
            if self.processor is not None:
                self.processor.save_pretrained(folder)
        save_adapter(Path(folder), self.config, self.layer)

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
        videos = {"pixel_values_videos": pixel_values_videos, "video_grid_thw": video_grid_thw}
        if pixel_values is None:
            if keep is not None and input_ids is not None:
                check_keeps(keep, input_ids.shape[0])
            if position_ids is None:
                position_ids = running.next_positions(past_key_values, attention_mask, input_ids)
            self.tell_of_video(pixel_values_videos)
            return running.pass_through(
                getattr(past_key_values, "arr_coc_runner", self.model),
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                labels=labels,
                mm_token_type_ids=mm_token_type_ids,
                **videos,
                **kwargs,
            )
        if position_ids is not None:
            raise ValueError("position_ids with an image: leave them out, they follow from the whole sequence")
        running.refuse_cache(past_key_values)
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
            question_mask=question_mask,
            **videos,
        )
        return running.forward(self.model, prepared, past_key_values, output_arr_coc_info, **kwargs)

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
        running.refuse_cache(kwargs.get("past_key_values"), only_marked=pixel_values is None)
        if pixel_values is None:
            self.tell_of_video(pixel_values_videos)
            return running.pass_through(
                self.model.generate,
                input_ids=input_ids,
                attention_mask=attention_mask,
                pixel_values_videos=pixel_values_videos,
                video_grid_thw=video_grid_thw,
                mm_token_type_ids=mm_token_type_ids,
                streamer=streamer,
                **kwargs,
            )
        if kwargs.pop("position_ids", None) is not None:
            raise ValueError("position_ids with an image: leave them out, they follow from the whole sequence")
        inputs: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "pixel_values": pixel_values,
            "image_grid_thw": image_grid_thw,
            "question_mask": question_mask,
            "pixel_values_videos": pixel_values_videos,
            "original_image": original_image,
        }
        served = switch.serve(self, inputs, keep, kwargs, streamer)
        if served is not None:
            assert input_ids is not None
            return switch.with_prompt(served, input_ids, self.device)
        prepared = self.prepare(
            **inputs, keep=keep, evidence=evidence, image_numbers=image_numbers, video_grid_thw=video_grid_thw
        )
        assert input_ids is not None
        restorer = None if streamer is None else PromptRestorer(input_ids, streamer)
        return running.generate(self.model, input_ids, prepared, restorer, **kwargs)

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
