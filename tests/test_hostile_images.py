"""300 hostile and odd image files: each is taken or refused in one line, and nothing is left behind.

Four of each kind run here, all of them in `make soak`.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import hostile
import pytest
import tiny
import torch
from PIL import Image

from arr_coc.cli.run import run
from arr_coc.qwen.processor import Conversation

ROOT = Path(__file__).parent.parent
SOME, ALL = (0, 7, 14, 19), range(hostile.SEEDS)  # some: those that differ most in how they are made
MEGA = 2**20
BYTES_A_PIXEL = 8  # what taking an image may cost: itself, and as much again while it is made
WEBP_BYTES_A_PIXEL = 17  # of a WebP, which may have fewer pixels for it
FIXED = 12 * MEGA  # what any image may cost beyond that, however large it is
SLACK = 24 * MEGA  # the same, and the file itself
QUESTION = "what is this?"


def judge(folder: Path, seeds) -> list[tuple[hostile.Hostile, dict]]:
    """Every file of these seeds, and what became of it in a process of its own."""
    files = [hostile.make(kind, seed) for kind in hostile.KINDS for seed in seeds]
    for file in files:
        (folder / file.name).write_bytes(file.data)
    return list(zip(files, judged([folder / file.name for file in files]), strict=True))


def judged(paths: list[Path]) -> list[dict]:
    command = [sys.executable, str(ROOT / "tests" / "hostile_judge.py"), *map(str, paths)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=250)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def bytes_a_pixel(found: dict) -> int:
    return WEBP_BYTES_A_PIXEL if found["file"].endswith(".webp") else BYTES_A_PIXEL


def check_verdict(file: hostile.Hostile, found: dict) -> None:
    assert found["file"] == file.name
    assert found["status"] == 0, f"{file.name} killed the process that read it"
    taken = "pixels" in found
    assert file.verdict in (hostile.EITHER, hostile.TAKEN if taken else hostile.REFUSED), (file.name, found)
    if taken:
        assert found["bytes"] <= bytes_a_pixel(found) * found["pixels"] + SLACK, (file.name, found)
        return
    assert found["bytes"] <= 64 * MEGA, (file.name, found)
    assert found["message"].startswith(file.name + ": ")
    assert "; " in found["message"], "a way forward"
    assert "\n" not in found["message"]
    assert not re.search(r"\b0x[0-9a-f]{4}|Traceback|/", found["message"])


def check_next_answer(folder: Path, files: list[hostile.Hostile]) -> None:
    """After each file, the same good question has the same tokens and the same logits, bit for bit."""
    ours = tiny.wrapped(tiny.stock(), keep=0.5)
    good = tiny.inputs(Conversation([tiny.picture()], QUESTION))
    with torch.no_grad():
        logits, tokens = ours(**good).logits, ours.generate(**good, max_new_tokens=3)
        for file in files:
            try:
                answer = ours.ask(folder / file.name, QUESTION, max_new_tokens=2)
            except ValueError:
                became = hostile.REFUSED
            else:
                became = hostile.TAKEN
                assert 1 <= answer.tokens_kept <= answer.tokens_total
            assert file.verdict in (hostile.EITHER, became), file.name
            assert torch.equal(ours(**good).logits, logits), file.name
            assert torch.equal(ours.generate(**good, max_new_tokens=3), tokens), file.name


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def some(folder) -> list[tuple[hostile.Hostile, dict]]:
    return judge(folder, SOME)


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_each_is_taken_or_refused_within_its_memory(kind, some):
    judged = [(file, found) for file, found in some if file.kind == kind]
    assert len(judged) == len(SOME)
    for file, found in judged:
        check_verdict(file, found)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_next_question_has_the_same_answer_bit_for_bit(some, folder):
    check_next_answer(folder, [file for file, _ in some])


def test_ask_tells_in_one_line(some, folder, capfd):
    refused = [file for file, _ in some if file.verdict == hostile.REFUSED]
    assert len(refused) >= 20
    for file in refused:
        assert run(["ask", str(folder / file.name), QUESTION]) == 3
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith(f"arr-coc: {file.name}: ")
        assert err.count("\n") == 1


def test_there_are_300_and_they_are_the_same_every_time():
    assert len(hostile.KINDS) * hostile.SEEDS == 300
    for kind in hostile.KINDS:
        first = hostile.make(kind, 7)
        hostile.make.cache_clear()
        assert hostile.make(kind, 7).data == first.data


def test_the_judge_sees_memory_and_death(tmp_path):
    """The measure itself: a large image costs what it must, and a child that dies is told."""
    Image.new("RGB", (4_000, 3_000)).save(tmp_path / "large.png")
    code = (
        "import os, sys, hostile_judge as judge\n"
        "print(judge.judged(sys.argv[1])['bytes'])\n"
        "judge.read = lambda path: os.abort()\n"
        "print(judge.judged(sys.argv[1])['status'])\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-c", code, str(tmp_path / "large.png")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    taken, status = map(int, done.stdout.split())
    assert 4 * 12_000_000 < taken < 8 * 12_000_000 + SLACK
    assert status != 0


def large_files(folder: Path) -> list[Path]:
    """12 megapixels in every way that decoders take most memory for, packed small: the files weigh next to nothing."""
    size = (4_000, 3_000)
    rgb = Image.new("RGB", size, (200, 90, 10))
    rgba = rgb.copy()
    rgba.putalpha(Image.linear_gradient("L").rotate(90).resize(size, Image.Resampling.NEAREST))
    cmyk, turned = rgb.convert("CMYK"), Image.Exif()
    turned[0x0112] = 6
    progressive = {"progressive": True, "subsampling": 0}
    ways = {
        "lossy.webp": (rgb, {"method": 0, "exif": turned}),
        "lossy-clear.webp": (rgba, {"method": 4}),
        "lossless.webp": (rgb, {"lossless": True, "method": 0}),
        "lossless-clear.webp": (rgba, {"lossless": True, "method": 0, "exif": turned}),
        "animated.webp": (rgba, {"method": 0, "save_all": True, "append_images": [rgba.rotate(180)]}),
        "halved.jpg": (rgb, {"progressive": True, "subsampling": 2, "exif": turned}),
        "full.jpg": (rgb, progressive),
        "full-rgb.jpg": (rgb, {**progressive, "keep_rgb": True}),
        "cmyk.jpg": (cmyk, {"exif": turned}),
        "cmyk-progressive.jpg": (cmyk, progressive),
        "clear.png": (rgba, {"compress_level": 1}),
        "palette.png": (rgba.quantize(16), {"compress_level": 1}),
        "deep.png": (Image.new("I;16", size, 30_000), {"compress_level": 1}),
    }
    for name, (image, options) in ways.items():
        image.save(folder / name, **options)
    cmyk.resize((1_600, 1_300)).save(folder / "cmyk-progressive-small.jpg", **progressive)
    return [folder / name for name in (*ways, "cmyk-progressive-small.jpg")]


def test_no_way_to_store_an_image_costs_more(tmp_path):
    for found in judged(large_files(tmp_path)):
        assert found["status"] == 0, found
        if found["file"] == "cmyk-progressive.jpg":  # its coefficients alone are 8 bytes a pixel
            assert "4000x3000 needs too much memory; save it as RGB" in found["message"]
            assert found["bytes"] < FIXED
        else:
            assert found["bytes"] <= bytes_a_pixel(found) * found["pixels"] + FIXED, found


@pytest.mark.soak
def test_all_of_them(tmp_path):
    judged = judge(tmp_path, ALL)
    assert len(judged) == 300
    for file, found in judged:
        check_verdict(file, found)
        assert "pixels" in found or found["seconds"] < 1, file.name


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_all_of_them_leave_the_next_answer_as_it_was(tmp_path):
    files = [hostile.make(kind, seed) for kind in hostile.KINDS for seed in ALL]
    for file in files:
        (tmp_path / file.name).write_bytes(file.data)
    check_next_answer(tmp_path, files)
