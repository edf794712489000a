"""From an id or a folder to a stock model on a device, and what belongs to it: safetensors only, no remote code.

A folder is checked before anything is built from it: its files are whole, and hold what its config claims.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download, try_to_load_from_cache
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, GenerationConfig, PretrainedConfig
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from arr_coc.config import CONFIG_FILE, ARRCOCConfig, check_generation
from arr_coc.files import quick_fingerprint
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import storage
from arr_coc.qwen.adapting import ADAPTED, has_adapted, load_adapted
from arr_coc.qwen.family import check_family, deepstack_levels
from arr_coc.qwen.finding import EMBEDDED, ModelNotFound, could_be_on_a_hub, not_found, resolve
from arr_coc.qwen.processor import load_processor
from arr_coc.qwen.sizes import limit_pixels

__all__ = ["EMBEDDED", "ModelNotFound", "resolve"]  # found here too

WEIGHTS = "model*.safetensors"
ADAPTER_PARTS = (CONFIG_FILE, storage.WEIGHTS_FILE, "config.json")  # what is fetched of one
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_KEYWORDS = ("revision", "token", "cache_dir", "local_files_only", "subfolder")
MOST_SETTINGS = 2**26  # bytes of a file that holds no weights; the largest is a tokenizer of 11 MB
MOST_LAYERS = 128  # of a tower; the largest Qwen3-VL has 94
MOST_NUMBER = 10_000_000  # in a config; the largest are a base of angles and a vocabulary
MOST_LISTED = 1_000  # entries of a list, and labels of a classifier, which are made into one
DECODER = "language_model.layers."  # part of the name of a weight
DRAFT = "mtp."  # how names of weights begin that draft several tokens at once: published with Qwen3.5, and not read
CODE = ("auto_map", "attn_implementation", "experts_implementation")  # settings that can name code to be run


def local_folder(base: str, **hub: Any) -> Path | None:
    """Where a base model lies on this machine, as a folder or in the cache of the hub; None where it does not."""
    if Path(base).is_dir():
        return Path(base)
    place = {name: hub[name] for name in ("cache_dir", "revision") if name in hub}
    held = try_to_load_from_cache(base, "config.json", **place) if could_be_on_a_hub(base) else None
    return Path(held).parent if isinstance(held, str) else None


def check_keywords(given: dict[str, Any], device: Any, dtype: Any) -> tuple[dict[str, Any], str | torch.dtype]:
    """Keywords for transformers and the dtype, from what people give to `from_pretrained`; none is passed over."""
    given = {name: value for name, value in given.items() if name not in ("_from_auto", "adapter_kwargs")}
    named = given.pop("torch_dtype", None)
    if named is not None and dtype not in ("auto", named):
        raise ValueError(f"dtype={dtype} and torch_dtype={named} are two names of one thing: give dtype")
    if given.pop("trust_remote_code", None):
        raise ValueError("trust_remote_code=True: no code that comes with a model is run; leave it out")
    if given.pop("use_safetensors", None) is False:
        raise ValueError("use_safetensors=False: other weights than safetensors can run code; leave it out")
    if getattr(given.pop("config", None), "model_type", storage.MODEL_TYPE) != storage.MODEL_TYPE:
        raise ValueError("config: a model's settings are read from its folder or id; leave it out")
    if given.pop("output_loading_info", None):
        raise ValueError("output_loading_info: a weight that is missing is an error here; leave it out")
    if given.get("device_map") is not None and device is not None:
        raise ValueError("device and device_map both say where the model goes: give one of them")
    return given, dtype if named is None else named


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


def load_parts(
    source: str | Path,
    device: str | torch.device | None,
    dtype: str | torch.dtype,
    encoding: str | None,
    position_policy: str | None,
    layers: Callable[[ARRCOCConfig, ARRCOCLayer | None, Any], int] | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    adapter: str | Path | None = None,
    **model_kwargs: Any,
) -> tuple[Any, ARRCOCConfig, ARRCOCLayer | None, Any]:
    """The model with what stage 2 taught it, the config, the adapter's layer if there is one, and the processor.

    `encoding`, `position_policy` and the limits of pixels take the place of the config's own where they are given.
    `layers` says from settings, the layer and the stock model's config how many decoder layers are needed; without, the
    model is whole.
    """
    hub = {name: model_kwargs[name] for name in HUB_KEYWORDS if name in model_kwargs}
    base, config, layer = find_adapter(source, adapter)
    device = pick_device(device)
    apart = adapter is not None or base != resolve(source)  # else the model came with its adapter
    check_base(config if apart else None, base, **hub)

    def needed(stock: Any) -> int:
        assert layers is not None
        return layers(config or ARRCOCConfig(hidden_dim=stock.text_config.hidden_size, base_model=base), layer, stock)

    adapted = (adapter_folder(source if adapter is None else adapter) or Path(resolve(source))) / ADAPTED
    light = needed if layers and not has_adapted(adapted) else None  # what stage 2 taught is put into the whole
    model = load_stock(base, device, pick_dtype(dtype, device), light, **model_kwargs)
    if has_adapted(adapted):
        load_adapted(model, adapted).requires_grad_(False)
    if layers is not None:
        model.model.language_model.layers = model.model.language_model.layers[: needed(model.config)]
        model.lm_head = nn.Identity()
    config = config or ARRCOCConfig(hidden_dim=model.config.text_config.hidden_size, base_model=base)
    config = replace(
        config,
        encoding=encoding or config.encoding,
        position_policy=position_policy or config.position_policy,
        min_pixels=config.min_pixels if min_pixels is None else min_pixels,
        max_pixels=config.max_pixels if max_pixels is None else max_pixels,
    )
    check_base(config if apart else None, base, **hub)  # what had to be fetched first
    with _one_line(base):
        processor = limit_pixels(load_processor(base, **hub), config.min_pixels, config.max_pixels)
    return model, config, layer, processor


def find_adapter(
    source: str | Path, adapter: str | Path | None = None
) -> tuple[str, ARRCOCConfig | None, ARRCOCLayer | None]:
    """The base model's id or folder, and the adapter that lies with it, or that `adapter` names, folder or id."""
    folder = adapter_folder(source if adapter is None else adapter)
    if folder is None:
        if adapter is not None:
            raise ValueError(f"{Path(adapter).name}: no adapter; give the folder or the hub id that it was saved under")
        return resolve(source), None, None
    config, layer = storage.load_adapter(folder)
    if adapter is not None:
        return find_adapter(source)[0], config, layer
    if storage.has_base(folder):
        return resolve(source), config, layer
    if not config.base_model:
        raise ValueError(f"{folder.name}: an adapter that does not name its base_model; save it with save_base=True")
    base = resolve(config.base_model)
    if not Path(base).exists() and not could_be_on_a_hub(base):
        raise ModelNotFound(
            f"{folder.name}: the base of this adapter, {Path(base).name!r}, is not where it was: write where it is as "
            f"base_model in {CONFIG_FILE}, or give both, as from_pretrained(base, adapter=...)"
        )
    return base, config, layer


def adapter_folder(source: str | Path) -> Path | None:
    """Where an adapter lies, by its folder or hub id, from which it is fetched; None where there is none."""
    folder = Path(resolve(source))
    if folder.exists() or not could_be_on_a_hub(str(source)):
        return folder if storage.has_adapter(folder) else None
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    try:
        found = cached_file(str(source), CONFIG_FILE, **quiet)
    except OSError:  # nor is there such a model, which loading tells
        return None
    if found is None:
        return None
    return Path(snapshot_download(str(source), allow_patterns=[*ADAPTER_PARTS, f"{ADAPTED}/*"]))


def check_base(config: ARRCOCConfig | None, base: str, **hub: Any) -> None:
    """Refuse a base that is not the one that an adapter was made for, as far as both are known."""
    folder = local_folder(base, **hub)
    if config is None or not config.base_fingerprint or folder is None:
        return
    if quick_fingerprint(folder, WEIGHTS) != config.base_fingerprint:
        made_for, here = (Path(one).name if Path(one).is_dir() else one for one in (config.base_model, base))
        raise ValueError(f"the adapter was made for {made_for!r}, and {here!r} has other weights: give that model")


def travelling(config: ARRCOCConfig) -> ARRCOCConfig:
    """As an adapter's config is saved: its base by id or absolute folder, and by its weights where they are here."""
    base = config.base_model
    folder = local_folder(resolve(base)) if base else None
    if folder is None:
        return config
    named = base if base in EMBEDDED or not Path(base).is_dir() else str(Path(base).resolve())
    return replace(config, base_model=named, base_fingerprint=quick_fingerprint(folder, WEIGHTS))


def find_unadapted(source: str | Path) -> str:
    """The base model for an engine that reads its weights by itself: as they are in its files, or not at all."""
    if has_adapted(Path(resolve(source)) / ADAPTED):
        raise ValueError(f"{Path(source).name}: stage 2 taught the model itself; save it whole, with save_base=True")
    return find_adapter(source)[0]


def family_of(base: str) -> str:
    """One of `family.FAMILIES`, from a model's config."""
    with _one_line(base):
        said, _ = PretrainedConfig.get_config_dict(base)
        check_family(said.get("model_type", ""))
    return str(said["model_type"])


def is_sampled(base: str) -> bool:
    """Whether a model's own settings draw its answers; without any, the likeliest token is taken."""
    try:
        return bool(GenerationConfig.from_pretrained(base).do_sample)
    except OSError:
        return False


def load_stock(
    base: str, device: torch.device, dtype: torch.dtype, layers: Callable[[Any], int] | None = None, **kwargs: Any
) -> Any:
    """The unmodified Qwen3-VL, in evaluation mode; `layers` gives from its config how many decoder layers are read."""
    shapes = _check_files(Path(base))
    if not (Path(base) / "config.json").is_file() and (Path(base).is_dir() or not could_be_on_a_hub(base)):
        raise not_found(_shown(base))
    hub = {name: kwargs[name] for name in HUB_KEYWORDS if name in kwargs}
    with _one_line(base):
        config = _read_config(base, hub)
        if shapes:
            _check_sizes(config, shapes)
        depth = config.text_config.num_hidden_layers
        config.text_config.num_hidden_layers = depth if layers is None else max(1, layers(config))
        how = {"dtype": dtype, "use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
        said = transformers_logging.get_verbosity()
        if layers is not None:
            transformers_logging.set_verbosity_error()  # it would list the layers that are left out
        model, info = AutoModelForImageTextToText.from_pretrained(base, config=config, **how, **kwargs)
        transformers_logging.set_verbosity(said)
        left = {name for name in info["unexpected_keys"] if name.startswith(DRAFT) or (layers and DECODER in name)}
        for what in ("missing", "unexpected", "mismatched"):
            for name in sorted(set(map(str, info[f"{what}_keys"])) - left):
                raise ValueError(f"{_shown(base)}: the weight {name!r} is {what}; copy the model again")
        check_generation(model.generation_config.to_dict())
    model.config.text_config.num_hidden_layers = depth  # shares of it are counted
    model = (model if kwargs.get("device_map") is not None else model.to(device)).eval()
    weights = {name: weight for name, weight in model.named_parameters() if not weight.is_meta}  # the rest is offloaded
    storage.check_finite(_shown(base), weights)
    return model


def read_config(base: str) -> Any:
    """The stock model's config, checked; nothing else of the model is read."""
    with _one_line(base):
        return _read_config(base, {})


def _read_config(base: str, hub: dict[str, Any]) -> Any:
    """The model's config without what could name code, and without numbers that nobody means."""
    said, _ = PretrainedConfig.get_config_dict(base, **hub)
    check_family(said.get("model_type", ""))
    if said.get("quantization_config"):
        raise ValueError("config.json: quantised weights are not read; give the model in bfloat16")
    config = CONFIG_MAPPING[said["model_type"]].from_dict(_harmless(said))
    depths = (config.text_config.num_hidden_layers, config.vision_config.depth)
    if not all(1 <= depth <= MOST_LAYERS for depth in depths):
        raise ValueError(f"config.json: {max(depths):,} layers, expected 1 to {MOST_LAYERS}; copy it again")
    levels = config.vision_config.deepstack_visual_indexes if deepstack_levels(config) else ()
    if not set(levels) <= set(range(config.vision_config.depth)):
        raise ValueError("config.json: key 'deepstack_visual_indexes' names layers that are not there; copy it again")
    return config


def _harmless(said: Any, key: str = "config.json") -> Any:
    """What a config says, checked and pruned at any depth."""
    if isinstance(said, dict):
        return {name: _harmless(one, name) for name, one in said.items() if name not in CODE and name[0:1] != "_"}
    size, most = (len(said), MOST_LISTED) if isinstance(said, list) else (said, MOST_NUMBER)
    if isinstance(size, int) and abs(size) > (MOST_LISTED if key == "num_labels" else most):
        raise ValueError(f"config.json: key {key!r} holds {size:,}, which cannot be meant; copy it again")
    return [_harmless(one, key) for one in said] if isinstance(said, list) else said


def _check_sizes(config: Any, shapes: dict[str, storage.Shape]) -> None:
    """A model that is larger than its files would be filled up at random: refused before it is made."""
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    wanted = sum(parameter.numel() for parameter in model.parameters())
    if wanted > sum(math.prod(shape) for shape in shapes.values()):
        here = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
        wrong = next((name for name, shape in here.items() if shapes.get(name) != shape), "")
        has = f"{shapes[wrong]}" if wrong in shapes else "missing"
        raise ValueError(f"the weight {wrong!r} is {has}, its config wants {here.get(wrong)}; copy the model again")


@contextlib.contextmanager
def _one_line(base: str) -> Iterator[None]:
    """Whatever a library says of a folder that it cannot read is told in one line, without its path."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, ModelNotFound):
        raise
    except BaseException as error:
        if isinstance(error, OSError) and "JSON" not in str(error):
            raise not_found(_shown(base)) from error
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # as tokenizers raise it
            raise
        said = str(error).replace(base, _shown(base)).strip().partition("\n")[0][:300]
        told = said if type(error) is ValueError else f"cannot be read ({type(error).__name__}: {said}); copy it again"
        raise ValueError(f"{_shown(base)}: {told.removeprefix(f'{_shown(base)}: ')}") from error


def _shown(base: str) -> str:
    """A hub id whole, a folder by its name alone."""
    return base if base.count("/") == 1 and not Path(base).exists() else Path(base).name


def _check_files(folder: Path) -> dict[str, storage.Shape]:
    """Shapes of all weights of a folder. What is damaged, missing or no file is refused by name."""
    if not folder.is_dir():
        return {}
    for path in sorted(path for path in folder.iterdir() if path.suffix in (".json", ".jinja", ".safetensors")):
        if not path.is_file():
            raise ValueError(f"{path.name}: a folder, a pipe, a device or a link to nothing; copy it again")
        if path.suffix != ".safetensors" and path.stat().st_size > MOST_SETTINGS:
            raise ValueError(f"{path.name}: over {MOST_SETTINGS >> 20} MB of settings; copy the model again")
    listed = {path.name for path in folder.glob(WHOLE)}
    if (folder / INDEX).is_file():
        try:
            listed = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{INDEX}: not an index of weights ({error}); copy it again") from None
    shapes: dict[str, storage.Shape] = {}
    for name in sorted(map(str, listed)):
        if Path(name).name != name:
            raise ValueError(f"{INDEX}: {name!r} is not a file of the model's folder; copy it again")
        if not (folder / name).is_file():
            raise ValueError(f"{name}: not in the model's folder, but its index names it; copy it again")
        shapes |= storage.read_shapes(folder / name)
    return shapes
