"""kill -9 at any time, also in the middle of a save: a run goes on from a complete checkpoint, bit for bit."""

import random
import shutil
import time
from pathlib import Path

import pytest
import torch
from training_runs import run, same, settings, start, tiny_model

from arr_coc.training import checkpoints
from arr_coc.training import run as selector_run
from arr_coc.training.checkpoints import is_complete, newest_checkpoint

SLOWNESS = {"save_file": 0.05, "fsync": 0.02, "rmtree": 0.03}  # seconds more for each call inside a save: 0.3 s in all


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def inside(out: Path) -> Path:
    """A file that is there while a save is under way."""
    return out / "inside-a-save"


def train_with_slow_saves(config, out: Path) -> None:
    """A disk so slow that most of the time is spent in saves, which say when they begin and end."""
    for owner, name in ((checkpoints, "save_file"), (checkpoints.os, "fsync"), (checkpoints.shutil, "rmtree")):
        setattr(owner, name, slowly(getattr(owner, name), SLOWNESS[name]))
    save = selector_run.save_checkpoint

    def told_save(*arguments):
        inside(out).touch()
        save(*arguments)
        inside(out).unlink()

    selector_run.save_checkpoint = told_save
    run(config, out)


def train_and_wait(config, out: Path, last: int) -> None:
    """Train until step `last` is saved, and wait to be killed."""
    save = selector_run.save_checkpoint

    def save_and_wait(folder, step, *others):
        save(folder, step, *others)
        if step == last:
            time.sleep(600)

    selector_run.save_checkpoint = save_and_wait
    run(config, out)


def slowly(call, seconds):
    def slow(*arguments, **keywords):
        time.sleep(seconds)
        return call(*arguments, **keywords)

    return slow


def wait_for(happened, process, what: str) -> None:
    ends = time.monotonic() + 120
    while not happened():
        assert process.is_alive(), f"ended before {what}"
        assert time.monotonic() < ends, f"no {what} in two minutes"
        time.sleep(0.002)


def kill_one(config, out: Path, rng: random.Random, in_a_save: bool) -> bool:
    """Start the run, kill it, and return whether that happened inside a save."""
    inside(out).unlink(missing_ok=True)
    process = start(train_with_slow_saves, config, out)
    if in_a_save:
        for _ in range(rng.randrange(2, 4)):  # the second save, or the third: each start comes further
            wait_for(lambda: not inside(out).exists(), process, "the end of a save")
            wait_for(lambda: inside(out).exists(), process, "a save")
        time.sleep(rng.uniform(0, 0.3))
    else:
        time.sleep(rng.uniform(0, 3))
    assert process.is_alive(), "the run ended before it was killed: plan more steps"
    process.kill()
    process.join()
    return inside(out).exists()


def newest_step(folder: Path) -> int:
    """Of the newest complete checkpoint in a folder of them, 0 without one."""
    newest = newest_checkpoint(folder)
    return int(newest.name.removeprefix("step-")) if newest else 0


def kill_again_and_again(config, out: Path, kills: int, saves: int) -> None:
    """So many kills, so many of them or more inside saves. A complete checkpoint, once there, is never lost."""
    rng, done, in_saves, before = random.Random(0), 0, 0, 0
    out.mkdir()
    while done < kills or in_saves < saves:
        in_saves += kill_one(config, out, rng, in_a_save=done % 2 == 0)
        done += 1
        after = newest_step(out / "checkpoints")
        assert after >= before
        before = after
    assert before > 0


@pytest.mark.parametrize(
    ("kills", "saves", "steps", "changes"),
    [
        (3, 2, 20, {}),
        pytest.param(30, 15, 150, {}, marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
        pytest.param(
            *(30, 15, 150, {"stage": 2, "strategy": "reinforce", "accumulate": 2}),
            marks=[pytest.mark.soak, pytest.mark.timeout(1200)],
        ),
    ],
    ids=["short", "maps", "answers"],
)
def test_a_run_killed_again_and_again_ends_as_if_nothing_had_happened(model, tmp_path, kills, saves, steps, changes):
    config = settings(model, steps=steps, checkpoint_every=0.0, **changes)
    kill_again_and_again(config, tmp_path / "killed", kills, saves)
    lines = run(config, tmp_path / "killed")
    assert not any("from step 0" in line for line in lines)
    run(settings(model, steps=steps, **changes), tmp_path / "whole")
    assert same(tmp_path / "whole", tmp_path / "killed")
    left = [path.name for path in (tmp_path / "killed" / "checkpoints").iterdir()]
    assert len(left) <= 2
    assert not any(name.startswith(".tmp") for name in left)


@pytest.mark.parametrize("half", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_twice_the_half_with_a_kill_between_is_the_whole(model, tmp_path, half):
    config = settings(model, steps=2 * half, checkpoint_every=0.0)
    out = tmp_path / "killed"
    process = start(train_and_wait, config, out, half)
    wait_for(lambda: is_complete(out / "checkpoints" / f"step-{half:08d}"), process, f"step {half}")
    process.kill()
    process.join()
    assert newest_step(out / "checkpoints") == half
    assert any(f"from step {half}" in line for line in run(config, out))
    run(settings(model, steps=2 * half), tmp_path / "whole")
    assert same(tmp_path / "whole", out)


# ---------------------------------------------------------------- what a kill may leave behind


def save_some(folder: Path, *steps: int) -> None:
    for step in steps:
        checkpoints.save_checkpoint(folder, step, {"weights": {"x": torch.full((3,), step)}}, {"step": step})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_leftovers_and_broken_checkpoints_make_way(tmp_path):
    save_some(tmp_path, 1, 2, 3)
    assert names(tmp_path) == ["step-00000002", "step-00000003"]
    (tmp_path / "step-00000003" / "weights.safetensors").unlink()
    (tmp_path / ".tmp-1-00000004").mkdir()
    assert newest_step(tmp_path) == 2
    save_some(tmp_path, 3)  # the same step again, in place of the broken one
    assert names(tmp_path) == ["step-00000002", "step-00000003"]
    assert newest_step(tmp_path) == 3
    (tmp_path / "step-00000009").mkdir()
    (tmp_path / "step-00000009" / "manifest.json").write_text("[1]")
    save_some(tmp_path, 4)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_a_complete_checkpoint_is_never_written_again(tmp_path, monkeypatch):
    """Between taking the old one away and putting the new one there, a kill would leave nothing."""
    save_some(tmp_path, 1)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: pytest.fail("took something away"))
    save_some(tmp_path, 1)
    assert newest_step(tmp_path) == 1
