"""The adapter on disk: JSON, safetensors, and a model card. Nothing that could run code is ever opened."""

import json
from importlib.resources import files
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arr_coc import __version__
from arr_coc.config import CONFIG_FILE, ARRCOCConfig
from arr_coc.layer import ARRCOCLayer

WEIGHTS_FILE = "arr_coc.safetensors"
CARD_FILE = "README.md"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


def has_adapter(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file()


def save_adapter(folder: Path, config: ARRCOCConfig, layer: ARRCOCLayer) -> None:
    """Write config, weights and card. The weights come last, so a folder without them is visibly unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save(folder)
    (folder / CARD_FILE).write_text(model_card(config, layer))
    weights = {name: tensor.detach().float().cpu().contiguous() for name, tensor in layer.state_dict().items()}
    save_file(weights, str(folder / WEIGHTS_FILE), metadata={"format": "pt", "library": f"arr-coc {__version__}"})


def load_adapter(folder: Path) -> tuple[ARRCOCConfig, ARRCOCLayer]:
    """Read an adapter. Anything that does not fit is refused with the file's and the key's name."""
    config = ARRCOCConfig.load(folder)
    layer = ARRCOCLayer.from_config(config)
    layer.load_state_dict(_read_weights(folder, layer.state_dict()))
    return config, layer


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, by name; one that is not whole is refused."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{path.name}: not a whole safetensors file ({error}); copy it again") from None


def _read_weights(folder: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickles = [file.name for pattern in PICKLES for file in sorted(folder.glob(pattern))]
        hint = f"; {pickles[0]} is not opened, because a pickle can run code" if pickles else ""
        raise ValueError(f"{WEIGHTS_FILE}: not in the adapter's folder{hint}; save the adapter again")
    found = read_tensors(path)
    for key in sorted(set(found) ^ set(expected)):
        what = "unknown" if key in found else "missing"
        raise ValueError(f"{WEIGHTS_FILE}: key {key!r} is {what}; the adapter was saved by another version")
    for key, tensor in found.items():
        if tensor.shape != expected[key].shape:
            shapes = f"{tuple(tensor.shape)}, expected {tuple(expected[key].shape)}"
            raise ValueError(f"{WEIGHTS_FILE}: key {key!r} has shape {shapes}; it belongs to another config")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{WEIGHTS_FILE}: key {key!r} holds values that are not finite; copy or train it again")
    return found


def model_card(config: ARRCOCConfig, layer: ARRCOCLayer) -> str:
    """The adapter's README, with the front matter that model hubs read."""
    count = sum(parameter.numel() for parameter in layer.parameters())
    base = f"base_model: {config.base_model}\nbase_model_relation: adapter\n" if config.base_model else ""
    state = "trained" if config.trained else "untrained: the model looks twice instead"
    return (
        (files("arr_coc") / "assets" / "adapter-card.md")
        .read_text()
        .format(
            base=base,
            state=state,
            base_model=config.base_model or "not recorded",
            count=f"{count:,}",
            megabytes=f"{4 * count / 2**20:.1f}",
            channels=config.texture_channels,
            least=config.min_tokens,
            most=config.max_tokens,
            encoding=config.encoding,
            version=__version__,
            settings=json.dumps({name: getattr(config, name) for name in config.__slots__}, indent=2),
        )
    )
