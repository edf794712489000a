"""arr-coc batch --ray: the same records as without, whatever dies on the way. Run by `make ray-test`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from arr_coc_scenes import draw_scene, make_scene

QUESTIONS = ("What colour is the hand?", "Describe the scene.", "Which word is blue?")
SAME = (
    "id",
    "image",
    "question",
    "model",
    "keep",
    "answer",
    "tokens_kept",
    "tokens_total",
    "grid",
    "kept_mask",
    "error",
)


@pytest.fixture(scope="module", params=[60, pytest.param(500, marks=pytest.mark.soak)])
def desk(tmp_path_factory, request):
    """Rows with dials of their own, some of which cannot be answered."""
    folder = tmp_path_factory.mktemp("ray")
    for number in range(4):
        Image.fromarray(draw_scene(make_scene(number, "seen", (256, 256)))).save(folder / f"{number}.png")
    rows = [
        {"id": n, "image": "none.png" if n % 50 == 7 else f"{n % 4}.png", "question": QUESTIONS[n % 3]}
        | ({"keep": (0.25, "auto", 32)[n % 3]} if n % 2 else {})
        for n in range(request.param)
    ]
    (folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def start(desk: Path, out: str, *words: str) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "arr_coc",
        "batch",
        str(desk / "in.jsonl"),
        str(desk / out),
        "--batch",
        "4",
        *words,
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def finish(process: subprocess.Popen) -> str:
    _, said = process.communicate(timeout=1700)
    assert process.returncode == 0, said
    return said


def records(path: Path) -> dict[str, dict]:
    """By id, each of which is there once."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({one["id"] for one in found}) == len(found)
    return {one["id"]: {name: one[name] for name in SAME} for one in found}


@pytest.fixture(scope="module")
def plain(desk):
    """What is written without Ray."""
    finish(start(desk, "plain.jsonl"))
    return records(desk / "plain.jsonl")


def workers_of(driver: int) -> list[int]:
    """Processes of Ray's that hold a model, started by that process."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = (int(stat[1]), (folder / "cmdline").read_bytes())
        except OSError:
            continue

    def is_ours(one: int) -> bool:
        while one > 1:
            one = parents.get(one, (0, b""))[0]
            if one == driver:
                return True
        return False

    return [one for one, (_, words) in parents.items() if b"MapWorker" in words and is_ours(one)]


def wait_for_lines(path: Path, lines: int, process: subprocess.Popen) -> None:
    until = time.monotonic() + 300
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.timeout(1800)
def test_a_killed_worker_costs_no_row(desk, plain):
    """Nor does it double one, and the records are those of the loop without Ray."""
    process = start(desk, "worker.jsonl", "--ray", "--workers", "2")
    wait_for_lines(desk / "worker.jsonl", 1, process)
    victims = workers_of(process.pid)
    assert victims, "no worker was found"
    os.kill(victims[0], signal.SIGKILL)
    finish(process)
    assert records(desk / "worker.jsonl") == plain


@pytest.mark.timeout(1800)
def test_what_was_killed_with_ray_goes_on(desk, plain):
    """The process that writes, killed -9: with Ray or without, the same command goes on from its lines."""
    process = start(desk, "driver.jsonl", "--ray", "--workers", "2")
    wait_for_lines(desk / "driver.jsonl", 8, process)
    process.kill()
    process.communicate()
    before = (desk / "driver.jsonl").read_bytes()
    assert "rows are there already" in finish(start(desk, "driver.jsonl", "--ray"))
    assert (desk / "driver.jsonl").read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert records(desk / "driver.jsonl") == plain
