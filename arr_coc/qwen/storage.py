"""The adapter on disk: JSON, safetensors, and a model card. Nothing that could run code is ever opened."""

import json
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


def _read_weights(folder: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickles = [file.name for pattern in PICKLES for file in sorted(folder.glob(pattern))]
        hint = f"; {pickles[0]} is not opened, because a pickle can run code" if pickles else ""
        raise ValueError(f"{WEIGHTS_FILE}: not in the adapter's folder{hint}; save the adapter again")
    try:
        with safe_open(str(path), framework="pt") as file:
            found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{WEIGHTS_FILE}: not a whole safetensors file ({error}); copy it again") from None
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
    megabytes = 4 * count / 2**20
    base = f"base_model: {config.base_model}\nbase_model_relation: adapter\n" if config.base_model else ""
    state = "trained" if config.trained else "untrained: ARR-COC makes a training-free choice instead"
    return f"""---
library_name: arr-coc
license: apache-2.0
pipeline_tag: image-text-to-text
{base}tags:
- arr-coc
- token-selection
- qwen3-vl
---

# ARR-COC adapter

Chooses, for a question, which visual tokens of an image Qwen3-VL sees. State: {state}.

| | |
|---|---|
| base model | {config.base_model or "not recorded"} |
| parameters added | {count:,} ({megabytes:.1f} MB, fp32) |
| texture channels | {config.texture_channels} |
| automatic budget | {config.min_tokens} to {config.max_tokens} tokens |
| encoding | {config.encoding} |
| library | arr-coc {__version__} |

```python
from arr_coc import ARRCOCQwen

model = ARRCOCQwen.from_pretrained("this folder", keep="auto")
print(model.ask("photo.jpg", "What colour is the door?").text)
```

With `keep=1.0` the base model runs unchanged, bit for bit.

Settings:

```json
{json.dumps({name: getattr(config, name) for name in config.__slots__}, indent=2)}
```
"""
