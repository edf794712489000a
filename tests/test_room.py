"""What fits is found, what does not is refused before anything is loaded, and a killed run leaves nobody behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import tiny
import torch
from test_memory_estimate import KEEP, SIDE, LiveTensors, small_config, two_billion
from test_questions_alone import questions_alone
from training_runs import run, settings, start, tiny_model

from arr_coc.cli import run as command
from arr_coc.config import ARRCOCConfig
from arr_coc.data.examples import Example, FileImage, FileRow
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.shapes import build_random
from arr_coc.training import room as rooms
from arr_coc.training.checkpoints import newest_checkpoint
from arr_coc.training.data import make_encoder
from arr_coc.training.groups import make_group
from arr_coc.training.learning import Learning
from arr_coc.training.main import Places, train_selector
from arr_coc.training.making import find_base, most_text, planner
from arr_coc.training.memory import Plan, estimate_plan, teacher_bytes
from arr_coc.training.room import NoRoom, Room, fit, free_on_host, needed
from arr_coc.training.step import teacher_attention


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def test_long_questions_and_answers_are_planned_for(model, tmp_path):
    """The longest in the file, by tokens; short ones count as those of scenes do."""
    tokenizer, image = tiny.tokenizer(), FileImage("1.png", Path("1.png"), (64, 64))
    rows = [FileRow(str(n), image, "why? " * n, "x" * (n % 3)) for n in range(100)]
    assert most_text(tokenizer, rows[:3]) == (64, 32)
    rows.append(FileRow("long", image, "what?", "青" * 50))  # three tokens each
    assert most_text(tokenizer, rows) == (16 + 495 + 151, 151)
    config = settings(model, stage=2, data="jsonl:x")
    few, many = (planner(config, find_base(config), torch.device("cpu"), part, False)(80) for part in (rows[:3], rows))
    assert estimate_plan(many[0]).logits == pytest.approx(151 / 32 * estimate_plan(few[0]).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_teachers_peak_is_the_estimate(dtype):
    """The model reads whole images without gradients: live tensors beside its weights."""
    config, count = small_config(), 3
    model = build_random(config, "cpu", dtype).requires_grad_(False)
    owner = ARRCOCQwen(model, ARRCOCConfig(hidden_dim=256, trained=True), processor=tiny.processor()).eval()
    images = [np.asarray(tiny.picture(SIDE, SIDE, seed)) for seed in range(count)]
    asked = [(n, Example(f"row {n}", images[n], "w" * (40 - n), "", None)) for n in range(count)]
    group = make_group(images, asked, make_encoder(tiny.tokenizer()), 1.0)
    with LiveTensors() as live:
        for tensor in (*owner.parameters(), *owner.buffers()):
            live.count(tensor)
        before = live.now
        live.count(group.images_Bhw3)
        teacher_attention(owner, group)
    plan = Plan(config, "none", 1, count, SIDE, KEEP, 55, dtype, False, 0, taught=True)
    assert live.peak - before == pytest.approx(teacher_bytes(plan), rel=0.15)


def test_a_teacher_costs_what_it_reads_at_once_and_never_all_rows():
    few = two_billion("none", 1, batch=16, image_side=1024, taught=True)
    assert few.moment == "teacher"
    assert few.total > two_billion("none", 1, batch=16, image_side=1024).total
    many = two_billion("none", 1, batch=64, image_side=1024, taught=True)
    assert many.total - few.total < 0.2 * few.total


def planned(cells: int) -> list[Plan]:
    plan = two_billion("lora").plan
    return [replace(plan, image_side=side, batch=max(1, cells // (side // 32) ** 2)) for side in (512, 1024)]


def test_batch_and_workers_follow_from_the_room(monkeypatch):
    monkeypatch.setattr(rooms, "most_workers", lambda: 14)
    cells, need = fit(planned, Room(64e9, 24e9), 0, -1)
    assert need.step.total <= 24e9 < max(estimate_plan(plan).total for plan in planned(2 * cells))
    assert need.workers == 14
    assert need.host <= 64e9
    assert fit(planned, Room(5e9, 24e9), 0, -1)[1].workers < 14
    assert fit(planned, Room(64e9, 80e9), 0, -1)[0] > cells
    assert fit(planned, Room(64e9, 24e9), 2048, 3)[1].workers == 3
    on_host = fit(planned, Room(20e9), 0, 0)[1]
    assert on_host.step.total < on_host.host <= 20e9


def test_what_does_not_fit_is_refused_with_what_would():
    with pytest.raises(NoRoom, match=r"of the GPU's memory, 12\.0 GB are free; --cells-per-batch \d+ fits$") as refused:
        fit(planned, Room(64e9, 12e9), 262_144, 0)
    found = int(str(refused.value).split("--cells-per-batch ")[1].split()[0])
    assert fit(planned, Room(64e9, 12e9), found, 0)[0] == found
    with pytest.raises(NoRoom, match=r"of the machine's memory, .*no setting makes it fit"):
        fit(planned, Room(2e9), 0, 0)
    large = planned(1)[1]
    tight = estimate_plan(replace(large, image_side=512)).total + 1e8
    with pytest.raises(NoRoom, match=r"the smallest step needs .*; --max-pixels \d+ fits"):
        fit(lambda cells: [large], Room(64e9, tight), 0, 0)
    assert needed(planned(1), 0, True).lacks(Room(1e12)) == ""


def test_a_container_is_smaller_than_its_machine(tmp_path, monkeypatch):
    for name, value in (("memory.max", 4e9), ("memory.current", 3e9)):
        (tmp_path / name).write_text(f"{value:.0f}\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 500000000\n")
    monkeypatch.setattr(rooms, "CGROUPS", ((tmp_path / "memory.max", tmp_path / "memory.current"),))
    assert free_on_host() == min(1.5e9, psutil.virtual_memory().available)
    (tmp_path / "memory.max").write_text("max\n")
    assert free_on_host() > 1.5e9


def test_a_run_that_cannot_fit_ends_before_its_model_is_loaded_with_exit_5(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rooms, "free_on_host", lambda: 1e8)
    data = questions_alone(tmp_path / "data")
    words = ["train", "selector", "--model", str(model), "--data", data, "--out", str(tmp_path / "out")]
    assert command.run([*words, "--steps", "1", "--quiet"]) == command.EXIT_NO_MEMORY
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0
    assert "needs" in told
    assert "GB of the machine's memory" in told


def test_a_run_of_scenes_that_went_on_in_less_room_is_told_to_wait(model, tmp_path, monkeypatch):
    run(settings(model, steps=1), tmp_path)
    monkeypatch.setattr(rooms, "free_on_host", lambda: 1e8)
    with pytest.raises(NoRoom, match=r"needs .* GB are free; this run began so: free some, or give another --out"):
        run(settings(model, steps=2), tmp_path)


def test_a_step_without_memory_is_saved_and_told(model, tmp_path, monkeypatch):
    learn, steps = Learning.learn, iter(range(9))

    def short(self, *arguments):
        if next(steps) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return learn(self, *arguments)

    monkeypatch.setattr(Learning, "learn", short)
    config = settings(model, data=questions_alone(tmp_path / "data"), examples=4, max_pixels=128 * 128, steps=4)
    with pytest.raises(NoRoom, match=r"step 2 is saved: repeat the command with --cells-per-batch 40$"):
        run(config, tmp_path / "out")
    assert any("from step 2" in line for line in run(replace(config, cells_per_batch=40), tmp_path / "out"))


def train_and_say(config, out, told) -> None:
    """Tells the processes that a run has started."""

    def say(line: str) -> None:
        if line.startswith("step 2 "):
            told.write_text(json.dumps([child.pid for child in psutil.Process().children(recursive=True)]))

    train_selector(config, Places(out), say, device="cpu")


def lose_a_worker(config, out, told) -> None:
    """One of two workers is killed while the third step is made."""
    learn, steps = Learning.learn, iter(range(10**6))

    def learn_without(self, *arguments):
        if next(steps) == 2:
            os.kill(psutil.Process().children()[-1].pid, signal.SIGKILL)
            time.sleep(0.5)
        return learn(self, *arguments)

    Learning.learn = learn_without
    try:
        train_selector(config, Places(out), str, device="cpu")
    except NoRoom as why:
        told.write_text(str(why))


def test_a_run_whose_worker_is_killed_ends_the_step_saves_and_ends(model, tmp_path):
    told = tmp_path / "told"
    process = start(lose_a_worker, settings(model, steps=10**6, workers=2), tmp_path / "out", told, daemon=False)
    process.join(120)
    assert not process.is_alive()
    said = re.fullmatch(r"a worker was killed, .*; step (\d+) is saved: repeat .*--workers 1", told.read_text())
    newest = newest_checkpoint(tmp_path / "out" / "checkpoints")
    assert int(newest.name.removeprefix("step-")) == int(said[1]) >= 3


def test_images_that_workers_cannot_read_end_a_run_in_one_line(model, tmp_path):
    """And the process with it: a worker that is left over would be waited for."""
    data = questions_alone(tmp_path / "data")
    for image in (tmp_path / "data").glob("*.png"):
        image.write_bytes(image.read_bytes()[:200])  # a good header
    words = [
        "train",
        "selector",
        "--model",
        str(model),
        "--data",
        data,
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "1",
    ]
    words = [sys.executable, "-m", "arr_coc", *words, "--steps", "2", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == command.EXIT_BAD_INPUT
    assert re.fullmatch(
        r"arr-coc: \d+ images in a row do not decode, first .*; check the disk or copy them again\n", done.stderr
    )


def test_a_run_that_is_killed_takes_its_workers_along(model, tmp_path):
    told = tmp_path / "told"
    config = settings(model, steps=10**6, workers=2, checkpoint_every=0.0)
    process = start(train_and_say, config, tmp_path / "out", told, daemon=False)
    ends = time.monotonic() + 120
    while not told.exists() or not told.read_text():
        assert process.is_alive()
        assert time.monotonic() < ends
        time.sleep(0.02)
    workers = json.loads(told.read_text())
    assert len(workers) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in workers):
        assert time.monotonic() < ends, "workers outlived their run"
        time.sleep(0.02)
    assert newest_checkpoint(tmp_path / "out" / "checkpoints") is not None
