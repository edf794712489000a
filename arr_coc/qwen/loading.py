"""From an id or a folder to a stock model on a device, and what belongs to it: safetensors only, no remote code."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForImageTextToText

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.adapting import ADAPTED, has_adapted, load_adapted
from arr_coc.qwen.processor import load_processor
from arr_coc.qwen.storage import has_adapter, load_adapter

FAMILIES = ("qwen3_vl", "qwen3_vl_moe")
EMBEDDED = ("mini",)  # models inside the package
INDEX = "model.safetensors.index.json"
HUB_KEYWORDS = ("revision", "token", "cache_dir", "local_files_only", "subfolder")


class ModelNotFound(ValueError):
    """There is no such model here; the message says how to get one."""


def resolve(source: str | Path) -> str:
    """A name of an embedded model -> its folder; any other id or folder as it is."""
    return str(files("arr_coc") / "models" / str(source)) if str(source) in EMBEDDED else str(source)


def pick_device(device: str | torch.device | None) -> torch.device:
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def pick_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """A dtype by name; "auto" is bf16 where the GPU has it, fp16 on older ones, fp32 on the CPU."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    named = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if dtype not in named:
        raise ValueError(f"dtype={dtype!r}: expected auto, {', '.join(named)}")
    return named[dtype]


def check_family(model_type: str) -> None:
    if model_type not in FAMILIES:
        raise ValueError(f"a model of type {model_type!r} is not a Qwen3-VL: expected {' or '.join(FAMILIES)}")


def load_parts(
    source: str | Path,
    device: str | torch.device | None,
    dtype: str | torch.dtype,
    encoding: str | None,
    position_policy: str | None,
    **model_kwargs: Any,
) -> tuple[Any, ARRCOCConfig, ARRCOCLayer | None, Any]:
    """The model with what stage 2 taught it, the config, the adapter's layer if there is one, and the processor.

    `encoding` and `position_policy` take the place of the config's own where they are given.
    """
    base, config, layer = find_adapter(source)
    device = pick_device(device)
    model = load_stock(base, device, pick_dtype(dtype, device), **model_kwargs)
    adapted = Path(resolve(source)) / ADAPTED
    if has_adapted(adapted):
        load_adapted(model, adapted).requires_grad_(False)
    config = config or ARRCOCConfig(hidden_dim=model.config.text_config.hidden_size, base_model=base)
    config = replace(
        config,
        encoding=encoding or config.encoding,
        position_policy=position_policy or config.position_policy,
    )
    hub = {name: model_kwargs[name] for name in HUB_KEYWORDS if name in model_kwargs}
    return model, config, layer, load_processor(base, **hub)


def find_adapter(source: str | Path) -> tuple[str, ARRCOCConfig | None, ARRCOCLayer | None]:
    """The base model's id or folder, and the adapter that lies in the folder, if one does."""
    source = resolve(source)
    folder = Path(source)
    if not has_adapter(folder):
        return source, None, None
    config, layer = load_adapter(folder)
    if (folder / "config.json").is_file():
        return source, config, layer
    if not config.base_model:
        raise ValueError(f"{folder.name}: an adapter that does not name its base_model; save it with save_base=True")
    return resolve(config.base_model), config, layer


def load_stock(base: str, device: torch.device, dtype: torch.dtype, **kwargs: Any) -> Any:
    """The unmodified Qwen3-VL, in evaluation mode."""
    _check_files(Path(base))
    could_be_on_a_hub = base.count("/") == 1 and not base.startswith((".", "/", "~"))
    if not (Path(base) / "config.json").is_file() and (Path(base).is_dir() or not could_be_on_a_hub):
        raise _not_found(base)
    try:
        hub = {name: kwargs[name] for name in HUB_KEYWORDS if name in kwargs}
        check_family(AutoConfig.from_pretrained(base, trust_remote_code=False, **hub).model_type)
        model = AutoModelForImageTextToText.from_pretrained(
            base, dtype=dtype, use_safetensors=True, trust_remote_code=False, **kwargs
        )
    except OSError as error:
        raise _not_found(base) from error
    return model.to(device).eval()


def _shown(base: str) -> str:
    """A hub id whole, a folder by its name alone."""
    return base if base.count("/") == 1 and not Path(base).exists() else Path(base).name


def _not_found(base: str) -> ModelNotFound:
    ways = f"{' or '.join(EMBEDDED)}, a folder with a Qwen3-VL, or a hub id such as Qwen/Qwen3-VL-2B-Instruct"
    return ModelNotFound(f"no model {_shown(base)!r} with safetensors weights: give {ways} (reachable or cached)")


def _check_files(folder: Path) -> None:
    """Damaged and missing weight files are refused by name, before anything is built from them."""
    index = folder / INDEX
    if index.is_file():
        try:
            listed = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{INDEX}: not an index of weights ({error}); copy it again") from None
        for name in listed:
            if not (folder / name).is_file():
                raise ValueError(f"{name}: not in the model's folder, but its index names it; copy it again")
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path.name}: not a whole safetensors file ({error}); copy it again") from None
