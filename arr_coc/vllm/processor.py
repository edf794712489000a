"""vLLM's multimodal processor with a choice in it: what is dropped reaches neither the engine nor its ViT.

The choice is made before vLLM's caches are asked, for all images of a request together, and an image is then known to
them by its content and its kept cells: the same image under another question is another image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing import current_process
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.model_executor.models.qwen3_vl import Qwen3VLMultiModalProcessor
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing import PromptReplacement

from arr_coc.config import Keep
from arr_coc.vllm.choosing import FrontChooser, Windows, front_chooser, read_dial

logger = init_logger("vllm.arr_coc")
CHOSEN = "arr_coc_chosen"  # among a request's processor kwargs: key in vLLM's caches and windows of each image
Chosen = list[tuple[str, Windows]]


class ARRCOCProcessor(Qwen3VLMultiModalProcessor):
    """Takes `keep` from a request's mm_processor_kwargs; all of all is the stock path, under the stock keys."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = getattr(self.info.get_hf_config(), "arr_coc", None) or {}
        self.keep: Keep = read_dial({"keep": settings.get("keep", "auto")}, "auto")
        source = settings.get("source") or self.info.ctx.model_config.model
        self.wanted = (source, settings.get("selector", "auto"), settings.get("encoding"), settings.get("device"))
        if not current_process().name.startswith(("EngineCore", "VllmWorker")):  # those measure, and never choose
            logger.info_once("%s", self.front.about())

    @property
    def front(self) -> FrontChooser:
        return front_chooser(*self.wanted)

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """The most that a request can take: nothing is dropped."""
        return replace(super().get_dummy_inputs(*args, **kwargs), hf_processor_mm_kwargs={"keep": 1.0})

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        keep = read_dial(inputs.hf_processor_mm_kwargs, self.keep)
        inputs = replace(inputs, hf_processor_mm_kwargs={})
        chosen = None if keep == 1.0 else self._chosen(inputs, keep)
        if chosen is not None:
            inputs = replace(inputs, hf_processor_mm_kwargs={CHOSEN: chosen})
        return super().apply(inputs, timing_ctx)

    def _chosen(self, inputs: Any, keep: Keep) -> Chosen | None:
        """Of each image; None where nothing is dropped, or there is none."""
        counts, items = inputs.mm_data_items.get_all_counts(), inputs.mm_data_items.get("image")
        if not counts.get("image"):
            return None
        if counts.get("video"):
            raise ValueError("images beside a video cannot be chosen from: give keep 1.0")
        if items.get_passthrough_data():
            raise ValueError("embeddings of images cannot be chosen from: send the images, or give keep 1.0")

        def patches(image: int) -> tuple[torch.Tensor, torch.Tensor]:
            if items[image] is None:
                raise ValueError("an image is named but not sent: send it, or give keep 1.0")
            alone = self.info.parse_mm_data({"image": [items[image]]}, validate=False)
            made = super(ARRCOCProcessor, self)._apply_hf_processor_main(alone, {})
            return made["pixel_values"].cpu(), made["image_grid_thw"].cpu()

        names = super()._get_mm_hashes(inputs)["image"]
        windows = self.front.windows(list(inputs.prompt), names, patches, keep)
        if windows is None:
            return None
        return [(self._key(name, one), one) for name, one in zip(names, windows, strict=True)]

    def _key(self, name: str, windows: Windows) -> str:
        """What an image is known by to vLLM's caches: its own key, and the cells that are kept."""
        algorithm = self.info.ctx.get_mm_config().mm_hasher_algorithm
        key: str = MultiModalHasher.hash_kwargs(algorithm, image=name, arr_coc_kept=windows.kept.numpy())
        return key

    # ---------------------------------------------------------------- what vLLM asks of a processor, for a choice

    def _get_mm_hashes(self, inputs: Any) -> Any:
        chosen = inputs.hf_processor_mm_kwargs.get(CHOSEN)
        return super()._get_mm_hashes(inputs) if chosen is None else {"image": [key for key, _ in chosen]}

    def _get_cache_missing_processor_kwargs(self, inputs: Any, mm_is_cached: Mapping[str, list[bool]]) -> Any:
        chosen = inputs.hf_processor_mm_kwargs.get(CHOSEN)
        if chosen is None:
            return super()._get_cache_missing_processor_kwargs(inputs, mm_is_cached)
        return {CHOSEN: [one for one, hit in zip(chosen, mm_is_cached["image"], strict=True) if not hit]}

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, Any]) -> Any:
        if CHOSEN not in hf_kwargs:
            return super()._apply_hf_processor_main(mm_items, hf_kwargs)
        images = [windows for _, windows in hf_kwargs[CHOSEN]]
        made: dict[str, Any] = {}
        if images:
            made = {
                "pixel_values": torch.cat([one.rows for one in images]),
                "image_places": [one.places for one in images],
                "image_grid_thw": torch.stack([one.grid for one in images]),
                "image_kept": [one.kept for one in images],
            }
        return self._finalize_hf_mm_data({}, {}, made)

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, Any]) -> Any:
        if CHOSEN not in hf_processor_mm_kwargs:
            return super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs)
        rows = torch.tensor([len(windows.rows) for _, windows in hf_processor_mm_kwargs[CHOSEN]], dtype=torch.long)
        each = MultiModalFieldConfig.batched("image", keep_on_cpu=True)
        flat = MultiModalFieldConfig.flat_from_sizes("image", rows)
        return {"pixel_values": flat, "image_places": each, "image_grid_thw": each, "image_kept": each}

    def _get_prompt_updates(
        self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, Any], out_mm_kwargs: Any
    ) -> Sequence[Any]:
        chosen: Chosen | None = hf_processor_mm_kwargs.get(CHOSEN)
        if chosen is None:
            found: Sequence[Any] = super()._get_prompt_updates(mm_items, hf_processor_mm_kwargs, out_mm_kwargs)
            return found
        token = self.info.get_hf_config().image_token_id
        return [PromptReplacement("image", [token], lambda image: [token] * len(chosen[image][1].kept))]
