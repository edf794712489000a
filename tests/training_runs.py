"""Short runs of the selector's training, on the tiny model, here or in processes that can be killed."""

import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from PIL import Image
from safetensors.torch import load_file

from arr_coc.training import data as selector_data
from arr_coc.training.checkpoints import newest_checkpoint
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.main import Places, train_selector

Tensors = dict[str, dict[str, torch.Tensor]]

# Children come from a server that has imported everything and has done nothing yet: quick to start, safe to fork.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["arr_coc.training.main", "peft", "matplotlib.cm", "torch._dynamo"])


def tiny_model(folder: Path) -> Path:
    """A folder with the tiny model, its tokenizer and its processor: what `--model` may name."""
    tiny.stock().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    tiny.processor().image_processor.save_pretrained(folder)
    return folder


def settings(model: Path, **changes: Any) -> SelectorTrainConfig:
    """A run of a second: four questions a batch, 16 or 20 cells an image, nothing said or drawn unless asked."""
    chosen = {
        "model": str(model),
        "steps": 4,
        "sizes": ((128, 128, 0.5), (160, 128, 0.5)),
        "cells_per_batch": 80,
        "questions": 2,
        "warmup_steps": 1,
        "precision": "float32",
        "workers": 0,
        "log_every": 0.0,
        "evaluate_every": 0.0,
        "evaluate_questions": 0,
        "checkpoint_every": 1e9,
    }
    return SelectorTrainConfig(**chosen | changes)


def run(config: SelectorTrainConfig, out: Path, init_from: Path | None = None, stop_at: int = 0) -> list[str]:
    """Train here; returns the lines that were said. Ctrl-C is pressed when the line about step `stop_at` is said."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith(f"step {stop_at} "):
            os.kill(os.getpid(), signal.SIGINT)

    train_selector(config, Places(out, init_from), say, device="cpu")
    return lines


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def saved(out: Path) -> tuple[int, Tensors, dict[str, float]]:
    """(step, tensors by file, what the strategy remembers) of the newest complete checkpoint."""
    checkpoint = newest_checkpoint(out / "checkpoints")
    assert checkpoint is not None
    state = json.loads((checkpoint / "state.json").read_text())
    return state["step"], {file.stem: load_file(file) for file in checkpoint.glob("*.safetensors")}, state["strategy"]


def same(one: Path, other: Path) -> bool:
    """Whether two runs ended with the same weights, optimizer and strategy, bit for bit."""
    (step, tensors, strategy), (other_step, other_tensors, other_strategy) = saved(one), saved(other)
    assert tensors.keys() == other_tensors.keys() == {"weights", "optimizer"}
    assert all(tensors[file].keys() == other_tensors[file].keys() for file in tensors)
    equal = all(
        torch.equal(value, other_tensors[file][name]) for file in tensors for name, value in tensors[file].items()
    )
    return equal and step == other_step and strategy == other_strategy


def most_apart(one: Path, other: Path, file: str = "weights") -> float:
    """The largest difference between the tensors of two runs."""
    first, second = saved(one)[1][file], saved(other)[1][file]
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def repeat_one_batch(monkeypatch: Any) -> None:
    """Every batch of scenes is the first one."""
    fresh = selector_data.SceneBatches.__getitem__
    monkeypatch.setattr(selector_data.SceneBatches, "__getitem__", lambda self, index: fresh(self, 0))


# ---------------------------------------------------------------- files


def draw(path: Path, size: tuple[int, int], seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 16, size[0] // 16, 3), dtype=np.uint8)
    Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(path)


def jsonl_folder(folder: Path, count: int, **row: Any) -> str:
    """A source of `count` rows about images of two sizes, boxes known and answers given unless `row` says otherwise."""
    folder.mkdir()
    lines = []
    for number in range(count):
        size = (128, 96) if number % 3 else (96, 128)
        draw(folder / f"{number}.png", size, number)
        x, y = 8 * (number % 5), 8 * (number % 4)
        known = {"image": f"{number}.png", "question": f"what is {number}?", "answer": f"it is {number % 4}"}
        lines.append(json.dumps(known | {"boxes": [[x, y, x + 40, y + 30]]} | row))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return f"jsonl:{folder / 'rows.jsonl'}"


# ---------------------------------------------------------------- other processes


def start(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> Any:
    """A process that runs `target`, a function of an importable module; if not a `daemon`, it may have children."""
    process = SERVER.Process(target=_in_child, args=(target, arguments), daemon=daemon)
    process.start()
    return process


def _in_child(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    target(*arguments)


def two_processes(target: Callable[..., None], *arguments: Any) -> list[int | None]:
    """Exit codes of two connected processes that run `target(number of the process, *arguments)`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [start(_connected, number, port, target, arguments) for number in (0, 1)]
    for process in both:
        process.join(120)
    codes = [process.exitcode for process in both]
    for process in both:
        process.kill()
    return codes


def _connected(number: int, port: int, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """The environment that a launcher gives to its processes."""
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    target(number, *arguments)
