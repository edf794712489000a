"""Checkpoints that are complete or absent.

A checkpoint is a folder `step-00001234` with safetensors files, `state.json`, and `manifest.json` that holds
the sha256 of each. It is written under a temporary name, synced to disk and renamed; the newest complete one
is found again. No pickle anywhere, so a checkpoint can be read without trusting whoever wrote it.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

MANIFEST = "manifest.json"
STATE = "state.json"


class NotSaved(ValueError):
    """Something could not be written, for want of room as a rule; what had been saved before is whole."""


@contextlib.contextmanager
def told_if_not_saved(what: str) -> Iterator[None]:
    """Errors of the disk become one line. safetensors has a kind of its own for them."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotSaved(
            f"{what} could not be written ({why}), earlier checkpoints are whole: make room, then repeat the command"
        ) from error


def save_checkpoint(
    folder: Path, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int = 2
) -> Path:
    """Write `tensors` (file name without ending -> named tensors) and `state`; older ones than `keep` go.

    A complete one of this step stays as it is: a run that goes on exactly would write the same again.
    """
    final = folder / f"step-{step:08d}"
    if is_complete(final):
        return final
    with told_if_not_saved(final.name):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(".tmp-*"):  # left by a run that was killed inside a save
            shutil.rmtree(stale, ignore_errors=True)
        work = folder / f".tmp-{os.getpid()}-{step:08d}"
        try:
            _write(work, tensors, state)
            shutil.rmtree(final, ignore_errors=True)
            work.rename(final)
            _sync(folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    found = sorted(folder.glob("step-*"))
    place = found.index(final)
    # Those of later steps are broken: the run would have gone on from there.
    for other in found[: max(0, place + 1 - keep)] + found[place + 1 :]:
        shutil.rmtree(other, ignore_errors=True)
    return final


def _write(work: Path, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    """All files of a checkpoint, on the disk when this returns."""
    work.mkdir()
    for name, group in tensors.items():
        save_file(
            {key: value.detach().cpu().contiguous() for key, value in group.items()}, work / f"{name}.safetensors"
        )
    (work / STATE).write_text(json.dumps(state, indent=2) + "\n")
    manifest = {path.name: sha256(path) for path in sorted(work.iterdir())}
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in work.iterdir():
        _sync(path)
    _sync(work)


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
    except (OSError, ValueError, AttributeError):
        return False


def load_checkpoint(
    checkpoint: Path, device: torch.device | str
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """(tensors by file, state), as given to `save_checkpoint`."""
    tensors = {path.stem: load_file(path, device=str(device)) for path in sorted(checkpoint.glob("*.safetensors"))}
    return tensors, json.loads((checkpoint / STATE).read_text())


# Settings that may change when a run goes on: they decide how it runs, not what it learns.
FREE_SETTINGS = {
    *("steps", "seconds", "workers", "compile", "profile", "max_broken"),
    *("log_every", "evaluate_every", "evaluate_questions", "checkpoint_every"),
}


def resumable(checkpoint: Path, config: Any) -> dict[str, Any]:
    """The state of a checkpoint that the settings `config` (a dataclass) may go on from; others are refused by name."""
    state: dict[str, Any] = json.loads((checkpoint / STATE).read_text())
    wanted = json.loads(json.dumps(dataclasses.asdict(config)))
    changed = sorted(name for name in wanted if state["config"].get(name) != wanted[name])
    if fixed := [name for name in changed if name not in FREE_SETTINGS]:
        raise ValueError(
            f"the checkpoints in this folder have other {', '.join(fixed)}: give another --out for a new run"
        )
    return state


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> dict[str, Tensor]:
    """AdamW's state as named tensors, `parameter/exp_avg` and so on."""
    return {
        f"{names[parameter]}/{key}": torch.as_tensor(value)
        for parameter, entry in optimizer.state.items()
        for key, value in entry.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, names: dict[Tensor, str], tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took out. Only a fused AdamW counts its steps on the GPU."""
    counts_there = bool(optimizer.defaults.get("fused"))
    for parameter, name in names.items():
        prefix = f"{name}/"
        entry = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if entry:
            entry["step"] = entry["step"].to(parameter.device if counts_there else "cpu")
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
