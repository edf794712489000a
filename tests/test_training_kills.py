"""kill -9 at any time, also in the middle of a save: a run goes on from a complete checkpoint, bit for bit.

Signals that ask to end lose nothing at all. What is not the run's own stays, and is not believed.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from training_runs import run, same, settings, start, tiny_model

from arr_coc.training import checkpoints
from arr_coc.training import run as selector_run
from arr_coc.training.checkpoints import NotSaved, held, is_complete, load_checkpoint, newest_checkpoint, sha256
from arr_coc.training.main import Places, train_selector

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


def train_and_tell(config, out: Path, told: Path) -> None:
    """As the leader of a group of processes; what is said goes to a file, a line at a time."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have it ignored
    with told.open("a", buffering=1) as lines:
        train_selector(config, Places(out), lambda line: print(line, file=lines), device="cpu")


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
def test_a_run_killed_again_and_again_ends_as_if_nothing_had_happened(
    model, tmp_path, kills, saves, steps, changes, record_property
):
    record_property("tried", kills)
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


# ---------------------------------------------------------------- signals that ask to end


def ask_to_end(model: Path, folder: Path, number: signal.Signals, after: int, workers: int) -> None:
    """Signal a run and all its workers after so many steps; the last step that it told of is in its checkpoint."""
    told = folder / "told"
    process = start(train_and_tell, settings(model, steps=10**6, workers=workers), folder / "run", told, daemon=False)
    wait_for(lambda: told.exists() and f"\nstep {after} " in told.read_text(), process, f"step {after}")
    os.killpg(process.pid, number)
    process.join(60)
    assert process.exitcode == 1  # KeyboardInterrupt
    last = [int(step) for step in re.findall(r"^step (\d+) ", told.read_text(), re.M)][-1]
    assert newest_step(folder / "run" / "checkpoints") == last >= after


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 2), (signal.SIGHUP, 0)])
def test_a_run_that_is_asked_to_end_loses_nothing(model, tmp_path, number, workers):
    ask_to_end(model, tmp_path, number, after=2, workers=workers)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_thirty_runs_that_are_asked_to_end_lose_nothing(model, tmp_path, record_property):
    record_property("tried", 30)
    for count in range(30):
        folder = tmp_path / str(count)
        folder.mkdir()
        number = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)[count % 3]
        ask_to_end(model, folder, number, after=1 + count % 7, workers=count % 2)


# ---------------------------------------------------------------- two runs, one folder


def test_the_second_run_in_a_folder_is_refused_in_one_line(model, tmp_path):
    with held(tmp_path), pytest.raises(ValueError, match="another run writes into") as refused:
        run(settings(model), tmp_path)
    said = str(refused.value)
    assert f"process {os.getpid()} on {socket.gethostname()} since 20" in said
    assert "\n" not in said
    assert names(tmp_path) == [".lock"]
    with held(tmp_path):  # free again
        pass


def test_a_child_that_outlives_a_killed_run_does_not_hold_its_folder(tmp_path):
    reading, writing = os.pipe()
    with held(tmp_path):
        child = os.fork()
        if not child:
            os.write(writing, b"here")
            time.sleep(60)
            os._exit(0)
        os.read(reading, 4)
    try:
        with held(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# ---------------------------------------------------------------- what is not the run's own


def test_nothing_is_deleted_that_the_run_did_not_write(tmp_path):
    save_some(tmp_path, 1000, 1001)
    save_some(tmp_path, 1, run="another's")
    for name in ("step-99999999-my-notes", "step-00000002", ".tmp-mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    before = set(names(tmp_path))
    save_some(tmp_path, 3, 4)
    assert before <= set(names(tmp_path))
    (tmp_path / "step-00000003" / "notes.txt").write_text("mine")
    save_some(tmp_path, 5, 6)
    assert set(names(tmp_path)) == before | {"step-00000003", "step-00000005", "step-00000006"}
    save_some(tmp_path, 2)  # where somebody's folder stands
    (aside,) = tmp_path.glob("step-00000002-aside-*")
    assert (aside / "notes.txt").read_text() == "mine"
    assert is_complete(tmp_path / "step-00000002")


def test_files_that_the_manifest_does_not_name_are_not_loaded(tmp_path):
    save_some(tmp_path, 1)
    shutil.copy(tmp_path / "step-00000001" / "weights.safetensors", tmp_path / "step-00000001" / "more.safetensors")
    tensors, state = load_checkpoint(newest_checkpoint(tmp_path, ["weights"]), "cpu")
    assert tensors.keys() == {"weights"}
    assert state["step"] == 1


def forge(checkpoint: Path, kind: str) -> None:
    """Change a checkpoint, and its manifest so that all sums are right."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    weights, outside = checkpoint / "weights.safetensors", checkpoint.parent / "outside.safetensors"
    if kind == "less":
        del manifest["weights.safetensors"]
    elif kind == "state":
        del manifest["state.json"]
    elif kind == "path":
        (checkpoint.parent / "outside").mkdir()
        shutil.copy(weights, checkpoint.parent / "outside")
        manifest["../outside/weights.safetensors"] = ""
    elif kind == "link":
        weights.rename(outside)
        weights.symlink_to(outside)
    elif kind == "pipe":
        weights.unlink()
        os.mkfifo(weights)
    elif kind == "rubbish":
        weights.write_bytes(b"rubbish")
    elif kind == "step":
        (checkpoint / "state.json").write_text('{"step": 7}')
    elif kind == "list":
        manifest = list(manifest)
    if isinstance(manifest, dict) and kind != "pipe":
        manifest = {name: sha256(checkpoint / name) for name in manifest}
    deep = "[" * 100_000
    (checkpoint / "manifest.json").write_text(deep if kind == "deep" else json.dumps(manifest))


@pytest.mark.parametrize("kind", ["less", "state", "path", "link", "pipe", "rubbish", "step", "list", "deep"])
def test_a_forged_checkpoint_gives_way_to_the_one_before(tmp_path, kind):
    save_some(tmp_path, 1, 2)
    assert newest_checkpoint(tmp_path, ["weights"]).name == "step-00000002"
    forge(tmp_path / "step-00000002", kind)
    assert newest_checkpoint(tmp_path, ["weights"]).name == "step-00000001"


@pytest.mark.parametrize("seed", range(24))
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, seed):
    """Any of its files cut short, gone, or with one bit of one byte turned."""
    save_some(tmp_path, 1, 2)
    rng, files = random.Random(seed), sorted((tmp_path / "step-00000002").iterdir())
    file, kind = files[seed % len(files)], ("cut", "gone", "turned")[seed // len(files) % 3]
    data = bytearray(file.read_bytes())
    place = rng.randrange(len(data))
    if kind == "gone":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(data[:place])
    else:
        data[place] ^= 1 << rng.randrange(7)
        file.write_bytes(data)
    assert newest_checkpoint(tmp_path, ["weights"]).name == "step-00000001"


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(NotSaved, match="could not be written"), held(tmp_path / "run"):
        pass


def test_what_is_saved_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Each file and its folder are synced, then renamed, and then the folder around them."""
    synced, rename = [], Path.rename
    sync = os.fsync

    def noted_sync(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    def noted_rename(self, target):
        synced.append("renamed")
        return rename(self, target)

    monkeypatch.setattr(checkpoints.os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    save_some(tmp_path, 1)
    last = [Path(path).name for path in synced]
    assert set(last[:3]) == {"weights.safetensors", "state.json", "manifest.json"}
    assert last[3].startswith(".tmp-")
    assert last[4:] == ["renamed", tmp_path.name]


# ---------------------------------------------------------------- what a kill may leave behind


def save_some(folder: Path, *steps: int, run: str = "mine") -> None:
    for step in steps:
        state = {"step": step, "run": run}
        checkpoints.save_checkpoint(folder, step, {"weights": {"x": torch.full((3,), step)}}, state)


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
    save_some(tmp_path, 4)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_a_complete_checkpoint_is_never_written_again(tmp_path, monkeypatch):
    """Between taking the old one away and putting the new one there, a kill would leave nothing."""
    save_some(tmp_path, 1)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: pytest.fail("took something away"))
    save_some(tmp_path, 1)
    assert newest_step(tmp_path) == 1
