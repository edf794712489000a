"""arr-coc env: what this machine has, fit for a bug report: no paths, no names of users or machines."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import typer

from arr_coc.cli import typed
from arr_coc.qwen.finding import is_offline

PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "pillow", "numpy")
EXTRAS = {
    **{"train": ("peft", "datasets"), "demo": ("gradio",), "text": ("rapidocr", "onnxruntime")},
    "serve": ("fastapi", "h11", "uvicorn", "python-multipart"),
}


def env(
    as_json: typed.AsJson = False,
    quiet: typed.Quiet = False,
) -> None:
    """Say what this machine has, to be pasted into a bug report. It holds no paths and no names of people.

    arr-coc env

    arr-coc env --json
    """
    found = environment()
    if as_json:
        typer.echo(json.dumps(found))
        return
    width = max(map(len, found))
    for name, value in found.items():
        typer.echo(f"{name:<{width}}  {as_words(value)}")


def environment() -> dict[str, Any]:
    """Everything, by name: numbers as numbers, MB of 2**20 bytes."""
    from arr_coc import __version__

    return {
        "arr-coc": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{name: installed(name) for name in PACKAGES},
        **{f"extra {name}": {package: installed(package) for package in several} for name, several in EXTRAS.items()},
        **hardware(),
        "models MB": models_megabytes(Path(str(files("arr_coc") / "models"))),
        "offline": is_offline(),
    }


def installed(package: str) -> str | None:
    """The version, or None where the package is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def hardware() -> dict[str, Any]:
    """The device that a model would be loaded on, its memory, and what that means."""
    import psutil  # type: ignore[import-untyped]
    import torch

    from arr_coc.qwen.graphs.rules import is_default
    from arr_coc.qwen.loading import pick_device, pick_dtype

    device = pick_device(None)
    found: dict[str, Any] = {"cpu cores": os.cpu_count(), "cpu memory MB": megabytes(psutil.virtual_memory().total)}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        found |= {"gpu": torch.cuda.get_device_name(device), "gpus": torch.cuda.device_count()}
        found |= {"gpu memory MB": megabytes(total), "gpu memory free MB": megabytes(free), "cuda": torch.version.cuda}
    return found | {
        "device": device.type,
        "dtype auto": str(pick_dtype("auto", device)).removeprefix("torch."),
        "fast path": "on" if is_default(device) else "off: it is for CUDA",
    }


def megabytes(amount: int) -> int:
    return round(amount / 2**20)


def models_megabytes(folder: Path) -> dict[str, int]:
    """The size of each model inside the package, by its name."""
    models = sorted(path for path in folder.iterdir() if (path / "config.json").is_file())
    return {
        model.name: megabytes(sum(part.stat().st_size for part in model.rglob("*") if part.is_file()))
        for model in models
    }


def as_words(value: Any) -> str:
    """One value of the listing for people."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {as_words(one)}" for name, one in value.items())
    if value is None:
        return "not there"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
