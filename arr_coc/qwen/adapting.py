"""What of the base model learns in stage 2, and how that is kept.

    none    nothing: every weight stays as it is
    lora    low-rank additions (PEFT) beside the attention and MLP matrices of both towers; the base stays as it is
    last4   the last four decoder layers and the final norm, in the model's own dtype
    all     everything

The model is changed in place and stays a stock Qwen3VLForConditionalGeneration, so all that reaches into it
(`model.model.visual`, `model.model.language_model`) goes on working. LoRA is kept in PEFT's own files, which PEFT reads
too; the others in one safetensors file with the full new tensors of what was trained.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from arr_coc.files import whole_file, write_whole
from arr_coc.qwen.family import is_hybrid
from arr_coc.qwen.storage import read_shapes, read_tensors

HOWS = ("none", "lora", "last4", "all")
LAST_LAYERS = 4
DELTA_FILE = "delta.safetensors"
ADAPTED = "base"  # folder, beside an adapter, of what stage 2 taught the model itself
LORA_FILE, LORA_CONFIG = "adapter_model.safetensors", "adapter_config.json"  # PEFT's names
LORA_TARGETS = (
    r"model\.visual\.blocks\.\d+\.(attn\.(qkv|proj)|mlp\.linear_fc[12])"
    r"|model\.language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
)
HYBRID_TARGETS = (  # of Qwen3.5: the layers that pass a state along, and the expert that every token meets
    rf"{LORA_TARGETS}|model\.language_model\.layers\.\d+\."
    r"(linear_attn\.(in_proj_qkv|in_proj_z|out_proj)|mlp\.shared_expert\.(gate|up|down)_proj)"
)
_ADAPTER = ".lora_"  # part of the names of LoRA's own weights
_WRAPPED = ".base_layer."  # part of the names of the matrices that LoRA stands beside
_PEFT_PREFIX = "base_model.model."  # what PEFT puts before every name in its files
_NOTES = ("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type")


def adapt(
    model: Any, how: str, *, rank: int = 16, alpha: float = 32.0, dropout: float = 0.0
) -> tuple[Any, dict[str, nn.Parameter]]:
    """Set what learns; returns the model and its trainable parameters by name.

    `rank`, `alpha` (the additions are scaled by alpha / rank) and `dropout` are LoRA's. Its weights are in fp32,
    whatever the model's dtype: steps of 1e-4 would be lost in bf16. New ones come from torch's global generator, and
    add zero.
    """
    check_adapting(how, rank, alpha, dropout)
    if has_adapters(model):
        raise ValueError("the model has LoRA adapters already: merge them first, or load the model again")
    model.requires_grad_(how == "all")
    if how == "lora":
        _inject(model, _lora_config(model, rank, alpha, dropout))
    if how == "last4":
        language = model.model.language_model
        for part in (*language.layers[-LAST_LAYERS:], language.norm):
            part.requires_grad_(True)
    return model, trainable(model)


def check_adapting(how: str, rank: int, alpha: float, dropout: float) -> None:
    """Refuse settings that cannot be meant."""
    if how not in HOWS:
        raise ValueError(f"adapting {how!r}: expected one of {', '.join(HOWS)}")
    if rank < 1 or not 0 < alpha < math.inf or not 0 <= dropout < 1:
        raise ValueError(
            f"rank={rank}, alpha={alpha}, dropout={dropout}: expected rank >= 1, alpha > 0, 0 <= dropout < 1"
        )


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def has_adapters(model: nn.Module) -> bool:
    """Whether LoRA stands in this model."""
    return any(_ADAPTER in name for name, _ in model.named_parameters())


def enable_checkpointing(model: Any) -> None:
    """Recompute each block of both towers in the backward pass; acts in training mode only. Costs a third more time."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def weights_hash(model: nn.Module, skip_adapters: bool = True) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of the weights; one tensor at a time is on the CPU.

    Adding adapters does not change it: their weights are left out (unless asked for), and wrapped matrices go by the
    names that they had before.
    """
    digest = hashlib.sha256()
    tensors = {name.replace(_WRAPPED, "."): tensor for name, tensor in model.state_dict().items()}
    for name in sorted(tensors):
        if skip_adapters and _ADAPTER in name:
            continue
        tensor = tensors[name].detach()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


# ---------------------------------------------------------------- files


def save_adapted(model: Any, how: str, folder: str | Path) -> None:
    """Write what was trained, and nothing of the rest, into `folder`."""
    check_adapting(how, 1, 1.0, 0.0)
    folder = Path(folder)
    if (how == "lora") != has_adapters(model):
        raise ValueError(
            f"adapting {how!r} does not fit a model with{'' if has_adapters(model) else 'out'} LoRA adapters"
        )
    if how == "lora":
        weights = _peft().get_peft_model_state_dict(model)
        _write(folder / LORA_FILE, {_PEFT_PREFIX + name: tensor for name, tensor in weights.items()}, how)
        settings = model.peft_config["default"].to_dict()
        write_whole(folder / LORA_CONFIG, json.dumps(settings, default=list, indent=2, sort_keys=True) + "\n")
    else:
        _write(folder / DELTA_FILE, trainable(model), how)


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights with LoRA's additions in them, under the names of the stock model; the model is left alone."""
    weights = {name: one for name, one in model.state_dict().items() if _ADAPTER not in name}
    weights = {name.replace(_WRAPPED, "."): one.detach() for name, one in weights.items()}
    for name, part in model.named_modules():
        if hasattr(part, "get_delta_weight") and not part.merged:
            matrix = weights[f"{name}.weight"]
            added = torch.stack([part.get_delta_weight(adapter) for adapter in part.active_adapters]).sum(0)
            weights[f"{name}.weight"] = (matrix + added.to(matrix.device)).to(matrix.dtype)
    return weights


def load_adapted(model: Any, folder: str | Path) -> Any:
    """Put back what `save_adapted` wrote, into the same base model; LoRA is added where it is missing."""
    folder = Path(folder)
    if (folder / LORA_CONFIG).is_file():
        return _load_lora(model, folder)
    if not (folder / DELTA_FILE).is_file():
        raise ValueError(
            f"{folder.name}: neither {LORA_CONFIG} nor {DELTA_FILE} is there; give the folder it was saved in"
        )
    parameters = dict(model.named_parameters())
    shapes = read_shapes(folder / DELTA_FILE)
    expected = {name: tuple(parameters[name].shape) for name in shapes if name in parameters}
    with torch.no_grad():
        for name, tensor in read_tensors(folder / DELTA_FILE, expected).items():
            parameters[name].copy_(tensor)
    return model


def has_adapted(folder: str | Path) -> bool:
    """Whether `save_adapted` wrote into this folder."""
    return any((Path(folder) / file).is_file() for file in (LORA_CONFIG, DELTA_FILE))


def _load_lora(model: Any, folder: Path) -> Any:
    peft = _peft()
    if not has_adapters(model):
        config = _read_lora_config(model, folder)
        model.requires_grad_(False)
        _inject(model, config)
    expected = {name: tuple(tensor.shape) for name, tensor in peft.get_peft_model_state_dict(model).items()}
    peft.set_peft_model_state_dict(model, read_tensors(folder / LORA_FILE, expected, _PEFT_PREFIX))
    return model


def lora_targets(config: Any) -> str:
    """Names of the matrices that LoRA stands beside, as a pattern; `config` is the stock model's."""
    return HYBRID_TARGETS if is_hybrid(config.text_config) else LORA_TARGETS


def _lora_config(model: Any, rank: int, alpha: float, dropout: float) -> Any:
    targets = {"target_modules": lora_targets(model.config), "r": rank, "lora_alpha": alpha, "lora_dropout": dropout}
    return _peft().LoraConfig(bias="none", **targets)


def _read_lora_config(model: Any, folder: Path) -> Any:
    """Three numbers of the file. All else must be as we write it: some of PEFT's settings name modules to import."""
    try:
        said = json.loads((folder / LORA_CONFIG).read_text())
        rank, alpha, dropout = int(said["r"]), float(said["lora_alpha"]), float(said["lora_dropout"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{LORA_CONFIG}: not settings of LoRA ({error}); copy it again") from None
    check_adapting("lora", rank, alpha, dropout)
    ranks = {min(shape) for shape in read_shapes(folder / LORA_FILE).values() if shape}
    if rank > max(ranks, default=0):
        raise ValueError(f"{LORA_CONFIG}: key 'r' is {rank:,}, but {LORA_FILE} holds at most {max(ranks, default=0):,}")
    config = _lora_config(model, rank, alpha, dropout)
    ours = json.loads(json.dumps(config.to_dict(), default=list))
    for key, value in said.items():
        if value != ours.get(key) and value and key not in _NOTES:
            raise ValueError(f"{LORA_CONFIG}: key {key!r} is not as this version writes it; train the adapter anew")
    return config


def _write(path: Path, tensors: Mapping[str, Tensor], how: str) -> None:
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with whole_file(path) as place:
        save_file(copies, str(place), metadata={"format": "pt", "adapted": how})


def _inject(model: Any, config: Any) -> None:
    """LoRA's layers around the matrices, in place, its weights in fp32."""
    _peft().inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        if _ADAPTER in name:
            parameter.data = parameter.data.float()


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise ValueError('LoRA needs PEFT: pip install "arr-coc[train]"') from None
    if torch.distributed.is_available():
        import_module("torch.distributed.tensor")  # PEFT looks into it, and leaves it to others to import it
    return peft
