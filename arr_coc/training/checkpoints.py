"""Checkpoints that are complete or absent.

A checkpoint is a folder `step-00001234` with safetensors files, `state.json`, and `manifest.json` that holds
the sha256 of each. It is written under a temporary name, synced to disk and renamed; the newest complete one
is found again. No pickle anywhere, so a checkpoint can be read without trusting whoever wrote it.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

MANIFEST = "manifest.json"
STATE = "state.json"


def save_checkpoint(
    folder: Path, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int = 2
) -> Path:
    """Write `tensors` (file name without ending -> named tensors) and `state`; older ones than `keep` go."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}"
    work = folder / f".tmp-{os.getpid()}-{step:08d}"
    for stale in folder.glob(".tmp-*"):  # left by a run that was killed inside a save
        shutil.rmtree(stale, ignore_errors=True)
    work.mkdir()
    for name, group in tensors.items():
        save_file(
            {key: value.detach().cpu().contiguous() for key, value in group.items()},
            work / f"{name}.safetensors",
        )
    (work / STATE).write_text(json.dumps(state, indent=2) + "\n")
    manifest = {path.name: sha256(path) for path in sorted(work.iterdir())}
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in work.iterdir():
        _sync(path)
    _sync(work)
    shutil.rmtree(final, ignore_errors=True)
    work.rename(final)
    _sync(folder)
    for old in sorted(folder.glob("step-*"))[:-keep]:
        shutil.rmtree(old)
    return final


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in `folder` whose files all have the sums of its manifest, or None."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        if is_complete(path):
            return path
    return None


def is_complete(checkpoint: Path) -> bool:
    """Whether every file of the manifest is there and unharmed."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        return bool(manifest) and all(sha256(checkpoint / name) == digest for name, digest in manifest.items())
    except (OSError, ValueError):
        return False


def load_checkpoint(
    checkpoint: Path, device: torch.device | str
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """(tensors by file, state), as given to `save_checkpoint`."""
    tensors = {path.stem: load_file(path, device=str(device)) for path in sorted(checkpoint.glob("*.safetensors"))}
    return tensors, json.loads((checkpoint / STATE).read_text())


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> dict[str, Tensor]:
    """AdamW's state as named tensors, `parameter/exp_avg` and so on."""
    return {
        f"{names[parameter]}/{key}": torch.as_tensor(value)
        for parameter, entry in optimizer.state.items()
        for key, value in entry.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, names: dict[Tensor, str], tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took out."""
    for parameter, name in names.items():
        prefix = f"{name}/"
        entry = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if entry:
            optimizer.state[parameter] = entry


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
