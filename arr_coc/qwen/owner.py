"""What ARRCOCQwen owns: a stock Qwen3-VL, the selector in front of it, and the dials. It prepares requests.

The stock model is held, neither subclassed nor patched. Running it, asking it, and the fast path are written against
this class alone.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from arr_coc.config import ARRCOCConfig, Keep, check_keep, check_keeps
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.graphs.break_even import break_even_tokens, keep_small_whole, say_small
from arr_coc.qwen.graphs.rules import is_default
from arr_coc.qwen.graphs.runner import FastRunner
from arr_coc.qwen.loading import check_family
from arr_coc.qwen.preparing import Prepared, Preparer
from arr_coc.qwen.processor import chat_tokens
from arr_coc.qwen.requests import Request
from arr_coc.selectors import Selector, make_selector

logger = logging.getLogger(__name__)


class Owner(nn.Module):
    """A stock model with a selector in front; `ARRCOCQwen` says what the arguments are."""

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

    # ---------------------------------------------------------------- preparing

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
        keep, small = self.dials(keep, input_ids)
        self.tell_of_video(tensors.get("pixel_values_videos"))
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
            self.tell_of_selector()
        prepared = self.preparer()(request)
        say_small(prepared.images, small, self.break_even)
        return prepared

    def dials(self, keep: Any, input_ids: Tensor | None) -> tuple[Any, list[bool]]:
        """One checked dial per row, and the rows that are kept whole because choosing would not pay."""
        keep = self.keep if keep is None else keep
        if input_ids is None:
            return keep, []
        keeps = check_keeps(keep, input_ids.shape[0])
        if "auto" not in keeps or not self.break_even:
            return keeps, [False] * len(keeps)
        tokens = (input_ids == self.model.config.image_token_id).sum(-1).tolist()
        return keep_small_whole(keeps, tokens, self.break_even)

    def preparer(self) -> Preparer:
        """The settings that preparing depends on, as they are now."""
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

    # ---------------------------------------------------------------- notices

    @property
    def notices(self) -> list[str]:
        """What has been told so far, each line once."""
        return list(self._told)

    def tell(self, notice: str) -> None:
        """One line, once per model."""
        if notice not in self._told:
            self._told[notice] = None
            logger.warning("%s", notice)

    def tell_of_selector(self) -> None:
        """Before the first choice: what it is made by, where that is not a trained layer."""
        if self.selector.name == "training_free" and not self.config.trained:
            self.tell("no trained adapter: tokens are chosen by the question's words, after the ViT")
        elif self.selector.name == "arr_coc" and not self.config.trained:
            self.tell("the ARR-COC layer is untrained: its choice hardly depends on the question")

    def tell_of_video(self, pixel_values_videos: Tensor | None) -> None:
        if pixel_values_videos is not None:
            self.tell("video passes through untouched: all of its tokens are kept")
