"""Weights as bfloat16 safetensors in small shards, the way `from_pretrained` reads them.

Nothing larger than 15 MiB goes into the package or over the wire. An export is swapped in file by
file, the index last: a kill between two renames can leave shards of two exports. What a run goes on from are its
checkpoints, which are complete or absent.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

SHARD_BYTES = 14 * 2**20
INDEX = "model.safetensors.index.json"


def export_weights(model: Any, folder: Path) -> list[Path]:
    """Write the model's weights, tied ones once, as bfloat16 shards with their index; returns the shards."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    return save_shards({name: value for name, value in model.state_dict().items() if name not in tied}, folder)


def save_shards(tensors: Mapping[str, Tensor], folder: Path) -> list[Path]:
    """Write named weights as bfloat16 shards with their index; returns the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().to(torch.bfloat16).cpu().contiguous() for name, value in tensors.items()}
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, value in weights.items():
        if size + value.nbytes > SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = value
        size += value.nbytes
    files = [f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors" for n in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        save_file(shard, folder / f".{file}", metadata={"format": "pt"})
        (folder / f".{file}").chmod(0o644)  # safetensors writes for the owner alone; a package is for everybody
    index = {
        "metadata": {"total_size": sum(value.nbytes for value in weights.values())},
        "weight_map": {name: file for file, shard in zip(files, shards, strict=True) for name in shard},
    }
    (folder / f".{INDEX}").write_text(json.dumps(index, indent=2) + "\n")
    for file in (*files, INDEX):
        os.replace(folder / f".{file}", folder / file)
    return [folder / file for file in files]


def load_weights(model: Any, folder: Path) -> None:
    """Load exported shards into `model` (any dtype); every weight must be there."""
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder} holds no {INDEX}: give a folder that `python -m studies.mini.train` wrote")
    weights: dict[str, Tensor] = {}
    for file in sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values())):
        weights |= load_file(folder / file)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    missing = [name for name in missing if name != "lm_head.weight"]
    if missing or unexpected:
        raise ValueError(f"{folder} does not fit the model: missing {missing[:3]}, unexpected {unexpected[:3]}")
