"""Checkpoints that are complete or absent.

A checkpoint is a folder `step-00001234` with safetensors files, `state.json`, and `manifest.json` that holds
the sha256 of each. It is written under a temporary name, synced to disk and renamed; the newest complete one
is found again. No pickle anywhere, so a checkpoint can be read without trusting whoever wrote it: what the manifest
does not name is not loaded, and what is not as it says is passed over.

One run at a time writes into a folder, and takes away nothing but what it has written itself.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

MANIFEST = "manifest.json"
STATE = "state.json"
RUN = "run"  # in the state: whose checkpoint it is
LOCK = ".lock"
NAME = re.compile(r"step-\d{8,}")
WORK = re.compile(r"\.tmp-\d+-\d{8,}")  # in the making, or on its way out


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
            f"{what} could not be written ({why}), what was saved before is whole: make room, then repeat the command"
        ) from error


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder for one run alone; the second is told who has it. However the process ends, the system frees it."""
    if os.name == "nt":  # no such locks there
        yield
        return
    import fcntl

    with told_if_not_saved(LOCK):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+")
    os.register_at_fork(after_in_child=file.close)  # workers that outlive a killed run do not hold it
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"another run writes into {folder} ({file.read(200).strip()}): wait for its end, or give another --out"
            ) from None
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        with told_if_not_saved(LOCK):
            file.truncate(0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
        yield


def save_checkpoint(
    folder: Path, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any], keep: int = 2
) -> Path:
    """Write `tensors` (file name without ending -> named tensors) and `state`; of this run's, older than `keep` go.

    A complete one of this step stays as it is: a run that goes on exactly would write the same again.
    """
    final = folder / f"step-{step:08d}"
    if is_complete(final, list(tensors)):
        return final
    with told_if_not_saved(final.name):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(".tmp-*"):  # left by a run that was killed inside a save
            if WORK.fullmatch(stale.name):
                shutil.rmtree(stale, ignore_errors=True)
        work = folder / f".tmp-{os.getpid()}-{step:08d}"
        try:
            _write(work, tensors, state)
            if _is_of(final, state.get(RUN)):  # and broken, or it would have stayed
                _take_away(final)
            elif final.exists():
                final.rename(final.with_name(f"{final.name}-aside-{secrets.token_hex(4)}"))
            work.rename(final)
            _sync(folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    found = [path for path in steps_in(folder) if _step(path) <= step]
    for older in found[:-keep]:
        if _is_of(older, state.get(RUN)):
            _take_away(older)
    return final


def steps_in(folder: Path) -> list[Path]:
    """What has the name of a checkpoint, complete or not, the oldest first."""
    return sorted((path for path in folder.glob("step-*") if NAME.fullmatch(path.name)), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _is_of(checkpoint: Path, run: str | None) -> bool:
    """Whether that run wrote all that is in it: nothing else is ever taken away."""
    try:
        manifest, state = (json.loads((checkpoint / name).read_text()) for name in (MANIFEST, STATE))
        return state.get(RUN) == run and {path.name for path in checkpoint.iterdir()} <= {MANIFEST, *manifest}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False


def _take_away(checkpoint: Path) -> None:
    """Under a name that the next save clears away: a kill in between leaves nothing that looks like a checkpoint."""
    work = checkpoint.with_name(f".tmp-0-{_step(checkpoint):08d}")
    with contextlib.suppress(OSError):  # the next save tries again
        checkpoint.rename(work)
        shutil.rmtree(work, ignore_errors=True)


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


def newest_checkpoint(folder: Path, files: Sequence[str] = ()) -> Path | None:
    """The newest checkpoint in `folder` that is complete and has these files of tensors, or None."""
    return next((path for path in reversed(steps_in(folder)) if is_complete(path, files)), None)


def is_complete(checkpoint: Path, files: Sequence[str] = ()) -> bool:
    """Whether the state, the tensors of `files` and all else that the manifest names is there, unharmed and readable.

    The manifest may be anyone's: it names plain files of this folder, or it is none.
    """
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        named = [checkpoint / name for name in manifest]
        plain = all(path.parent == checkpoint and path.is_file() and not path.is_symlink() for path in named)
        if not plain or not {STATE, *(f"{name}.safetensors" for name in files)} <= manifest.keys():
            return False
        if any(sha256(path) != manifest[path.name] for path in named):
            return False
        for path in named:
            if path.suffix == ".safetensors":
                safe_open(path, framework="pt")  # reads the header
        return bool(json.loads((checkpoint / STATE).read_text())["step"] == _step(checkpoint))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, SafetensorError):
        return False


def load_checkpoint(
    checkpoint: Path, device: torch.device | str
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """(tensors by file, state), as given to `save_checkpoint`; of files that the manifest names, no others."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    names = sorted(name for name in manifest if name.endswith(".safetensors"))
    tensors = {Path(name).stem: load_file(checkpoint / name, device=str(device)) for name in names}
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
    before = state.get("config") or {}
    changed = sorted(name for name in wanted if before.get(name) != wanted[name])
    free = FREE_SETTINGS if wanted.get("data") == "scenes" else FREE_SETTINGS | {"cells_per_batch"}  # of files, a pass
    if fixed := [name for name in changed if name not in free]:
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
