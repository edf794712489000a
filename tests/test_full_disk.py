"""Disks that are full or take no changes: every command that writes ends with one line, and nothing is lost or half.

A full disk is made by the system: no file may grow over so many bytes (RLIMIT_FSIZE), whoever writes it. That what was
written does not reach the disk, and that nothing may be changed at all, is made by functions that fail as the system's.
"""

import builtins
import contextlib
import dataclasses
import errno
import io
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from PIL import Image
from safetensors import safe_open
from training_runs import settings, tiny_model

from arr_coc import files
from arr_coc.cli.run import run
from arr_coc.evaluation import advice
from arr_coc.qwen import ARRCOCQwen
from arr_coc.training.checkpoints import is_complete

Arguments = list[str]
SOAK = pytest.mark.soak
COMMANDS: dict[str, Callable[[Path, Path], Arguments]] = {
    "ask": lambda home, out: ["ask", f"{home}/a.png", "what?", *tiny_of(home), "--overlay", f"{out}/why.png"],
    "show": lambda home, out: ["show", f"{home}/a.png", "what?", *tiny_of(home), "--keep", "4", "--out", f"{out}"],
    "compare": lambda home, out: [
        "compare",
        f"{home}/a.png",
        "what?",
        *tiny_of(home),
        "--keep",
        "4",
        "--out",
        f"{out}",
    ],
    "textures": lambda home, out: ["textures", f"{home}/a.png", "--quiet", "--out", f"{out}"],
    "eval": lambda home, out: [
        *("eval", "--model", f"{home}/model", "--questions", "2", "--side", "128", "--keep", "4", "--quiet"),
        *("--selector", "even_grid", "--encoding", "sparse", "--device", "cpu", "--out", f"{out}/field.json"),
    ],
    "report": lambda home, out: ["report", "--results", f"{home}/results", "--out", f"{out}", "--quiet"],
    "bench": lambda home, out: [
        *("bench", "--model", f"{home}/model", "--side", "64", "--kept", "2", "--repeats", "1", "--device", "cpu"),
        *("--mode", "eager", "--encoding", "sparse", "--quiet"),
        *("--out", f"{out}/speed.json", "--plot", f"{out}/plots", "--profile", f"{out}/trace.json"),
    ],
    "tune": lambda home, out: [
        *("tune", "--model", f"{home}/model", "--minutes", "0.7", "--device", "cpu", "--quiet"),
        *("--out", f"{out}/tuning.json"),
    ],
    "train": lambda home, out: [
        *("train", "selector", "--config", f"{home}/train.json", "--out", f"{out}", "--quiet"),
    ],
    "scenes": lambda home, out: ["scenes", "make", f"{out}", "--count", "2", "--size", "128", "--quiet"],
}


def tiny_of(home: Path) -> Arguments:
    return ["--model", f"{home}/model", "--max-new-tokens", "1", "--quiet"]


@contextlib.contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """What the system says of a disk that is full after so many bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def failing(folder: Path, number: int, *names: str) -> Iterator[None]:
    """Functions of `os` fail with that number where they are called for a file of the folder, or for an open one.

    With open among them, whatever would write fails.
    """

    def instead_of(real: Callable[..., Any]) -> Callable[..., Any]:
        def fails(place, *more, **options):
            is_path = not isinstance(place, int)
            if is_path and not Path(place).is_relative_to(folder):
                return real(place, *more, **options)
            if real is open and not set(next(iter(more), options.get("mode", "r"))) & set("wax+"):
                return real(place, *more, **options)
            raise OSError(number, os.strerror(number), str(place) if is_path else None)

        return fails

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            for owner in (io, builtins) if name == "open" else (os,):
                patch.setattr(owner, name, instead_of(getattr(owner, name)))
        yield


DISKS: dict[str, Callable[[Path], contextlib.AbstractContextManager[None]]] = {
    "full": lambda folder: no_file_over(0),
    "nearly full": lambda folder: no_file_over(700),
    "full when synced": lambda folder: failing(folder, errno.ENOSPC, "fsync"),
    "full when moved": lambda folder: failing(folder, errno.ENOSPC, "replace", "rename"),
    "read-only": lambda folder: failing(folder, errno.EROFS, "open", "mkdir", "replace", "rename", "unlink"),
}
PAIRS = [  # what goes through the same few lines is tried at length where there is time
    pytest.param(command, disk, marks=[] if command in ("eval", "train") or disk in ("full", "read-only") else SOAK)
    for command in COMMANDS
    for disk in DISKS
    if (command, disk) != ("scenes", "full when synced")  # scenes can be drawn again: they are not waited for
]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A tiny model, an image, results to report on, settings of a run."""
    torch.manual_seed(0)
    made = tmp_path_factory.mktemp("home")
    tiny_model(made / "model")
    tiny.processor().save_pretrained(made / "model")
    tiny.picture(128, 128).save(made / "a.png")
    config = dataclasses.asdict(settings(made / "model", steps=1, evaluate_questions=2))
    (made / "train.json").write_text(json.dumps(config))
    assert run(COMMANDS["eval"](made, made / "results")) == 0
    return made


@pytest.fixture
def tuned(monkeypatch) -> None:
    """Tuning takes long, and is tested elsewhere: here it has ended."""
    report = {"table": [{"n": 1}], "complete": True, "fingerprint": "0" * 16, "more": "." * 1000}
    monkeypatch.setattr(advice, "run_tuning", lambda *_: report)
    monkeypatch.setattr(advice, "lines_of", lambda report: ["tuned"])


@pytest.fixture(scope="module")
def made_before(home, tmp_path_factory) -> dict[str, Path]:
    """Folders of what commands made while there was room, filled as they are asked for."""
    return {}


def seen(folder: Path) -> dict[str, bytes]:
    """All files below a folder, but the lock of a run, which says who holds it."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name != ".lock"}


def check_whole(folder: Path) -> None:
    """No file is half, and none is left that was on its way."""
    for path in (folder / name for name in seen(folder)):
        assert not path.name.startswith("."), path
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            assert path.read_text()[-1:] in ("", "\n")
            assert all(json.loads(line) for line in path.read_text().splitlines())
        elif path.suffix in (".png", ".jpg"):
            with Image.open(path) as picture:
                picture.load()
        elif path.suffix == ".safetensors":
            safe_open(path, framework="pt")
        elif path.suffix == ".html":
            assert path.read_text().rstrip().endswith("</html>")
        else:
            assert path.suffix in (".md", ".csv"), path
            assert path.read_text().endswith("\n")
    assert all(is_complete(path) for path in folder.glob("checkpoints/*"))
    assert not list(folder.rglob(".tmp-*"))


def fails_in_one_line(arguments: Arguments, disk: str, folder: Path, capsys) -> str:
    """What the command says; its exit code is that of something wrong with what it was given."""
    capsys.readouterr()
    with DISKS[disk](folder):
        code = run(arguments)
    _, said = capsys.readouterr()
    assert code == 3, said
    assert said.startswith("arr-coc: ")
    assert said.count("\n") == 1, said
    return said


@pytest.mark.parametrize(("command", "disk"), PAIRS)
def test_a_command_that_cannot_write(command, disk, home, made_before, tmp_path, tmp_path_factory, capsys, tuned):
    """Into a new folder and over what was there: one line, nothing half; and with room again, all of it."""
    arguments = COMMANDS[command]
    if command not in made_before:
        made_before[command] = tmp_path_factory.mktemp("before") / "out"
        assert run(arguments(home, made_before[command])) == 0
    before, new, old = seen(made_before[command]), tmp_path / "new", tmp_path / "old"

    said = fails_in_one_line(arguments(home, new), disk, tmp_path, capsys)
    assert any(word in said for word in ("has room", "make room")), said
    assert any(part in said for part in ("new", *(Path(name).name for name in before), "adapter", "step-", ".lock"))
    if new.exists():
        check_whole(new)
    if command == "scenes":
        return  # it asks for a new folder every time

    shutil.copytree(made_before[command], old)
    fails_in_one_line(arguments(home, old), disk, tmp_path, capsys)
    check_whole(old)
    assert seen(old).keys() == before.keys()
    assert run(arguments(home, new)) == 0
    assert seen(new).keys() == before.keys()
    check_whole(new)


@pytest.mark.parametrize("disk", DISKS)
def test_an_adapter_is_the_old_one_or_the_new_one(disk, tmp_path):
    """Config and weights of different adapters would load, and answer anything."""
    model = tiny.wrapped(tiny.stock(), keep=0.5, selector="arr_coc")
    model.save_pretrained(tmp_path)
    before = seen(tmp_path)
    with torch.no_grad():
        for parameter in model.layer.parameters():
            parameter += 1
    with DISKS[disk](tmp_path), pytest.raises(Exception, match=r"arr_coc|README|No space|File too large|Read-only"):
        model.save_pretrained(tmp_path)
    assert seen(tmp_path) == before
    assert isinstance(model, ARRCOCQwen)


def test_lines_are_added_whole_or_not_at_all(tmp_path):
    path = tmp_path / "lines.jsonl"
    files.append_whole(path, "one\n")
    with no_file_over(10), pytest.raises(OSError, match=r"lines\.jsonl"):
        files.append_whole(path, "a line that is longer\n")
    files.append_whole(path, "two\n")
    assert path.read_text() == "one\ntwo\n"


def test_what_is_no_file_is_not_replaced(tmp_path):
    """A device by its name is moved over by nobody, whoever may."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(ValueError, match="a folder or a device; give the name of a file"):
            files.write_json(tmp_path / name, {})
    assert (tmp_path / "pipe").is_fifo()
