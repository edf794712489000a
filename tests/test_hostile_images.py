"""600 hostile and odd image files: each is taken or refused in one line, and nothing is left behind.

A few of each kind run here, all of them in `make soak`.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from attacks import images as attacks
from PIL import Image

from arr_coc.cli.run import run
from arr_coc.images.box import GIVE_BACK
from arr_coc.images.headers import orientation_of
from arr_coc.qwen.processor import Conversation

ROOT = Path(__file__).parent.parent
SOME, ALL = (0, 7, 14, 19), range(attacks.SEEDS)  # some: those that differ most in how they are made
MEGA = 2**20
BYTES_A_PIXEL = 8  # what taking an image may cost: itself, and as much again while it is made
FIXED = 12 * MEGA  # what any image may cost beyond that, however large it is
QUESTION = "what is this?"
SMALLER = dict.fromkeys(("lossy-clear.webp", "animated.webp"), (1_300, 1_020))  # px; of other WebP (2_000, 1_500)


def judge(folder: Path, seeds) -> list[tuple[attacks.Hostile, dict]]:
    """Every file of these seeds, and what became of it in a process of its own."""
    files = [attacks.make(kind, seed) for kind in attacks.KINDS for seed in seeds]
    for file in files:
        (folder / file.name).write_bytes(file.data)
    return list(zip(files, judged([folder / file.name for file in files]), strict=True))


def judged(paths: list[Path]) -> list[dict]:
    command = [sys.executable, str(ROOT / "tests" / "attacks" / "judge.py"), *map(str, paths)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"} | GIVE_BACK
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=280)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def allowed(pixels: int) -> int:
    return pixels * BYTES_A_PIXEL + FIXED


def check_verdict(file: attacks.Hostile, found: dict) -> None:
    assert found["file"] == file.name
    taken = "pixels" in found
    assert file.verdict in (attacks.EITHER, attacks.TAKEN if taken else attacks.REFUSED), (file.name, found)
    if taken:
        assert found["bytes"] <= allowed(found["pixels"]) + len(file.data), (file.name, found)
        assert found["own_bytes"] <= allowed(found["pixels"]) + 2 * len(file.data), (file.name, found)
        return
    assert found["own_bytes"] <= 64 * MEGA, (file.name, found)
    assert found["message"].startswith(file.name + ": ")
    assert "; " in found["message"], "a way forward"
    assert "\n" not in found["message"]
    assert not re.search(r"\b0x[0-9a-f]{4}|Traceback|/", found["message"])


def check_next_answer(folder: Path, files: list[attacks.Hostile]) -> None:
    """After each file, the same good question has the same tokens and the same logits, bit for bit."""
    ours = tiny.wrapped(tiny.stock(), keep=0.5)
    good = tiny.inputs(Conversation([tiny.picture()], QUESTION))
    with torch.no_grad():
        logits, tokens = ours(**good).logits, ours.generate(**good, max_new_tokens=3)
        for file in files:
            try:
                answer = ours.ask(folder / file.name, QUESTION, max_new_tokens=2)
            except ValueError:
                became = attacks.REFUSED
            else:
                became = attacks.TAKEN
                assert 1 <= answer.tokens_kept <= answer.tokens_total
            assert file.verdict in (attacks.EITHER, became), file.name
            assert torch.equal(ours(**good).logits, logits), file.name
            assert torch.equal(ours.generate(**good, max_new_tokens=3), tokens), file.name


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def some(folder) -> list[tuple[attacks.Hostile, dict]]:
    return judge(folder, SOME)


@pytest.mark.parametrize("kind", attacks.KINDS)
def test_each_is_taken_or_refused_within_its_memory(kind, some):
    judged = [(file, found) for file, found in some if file.kind == kind]
    assert len(judged) == len(SOME)
    for file, found in judged:
        check_verdict(file, found)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_next_question_has_the_same_answer_bit_for_bit(some, folder):
    check_next_answer(folder, [file for file, _ in some])


def test_ask_tells_in_one_line(some, folder, capfd):
    refused = [file for file, _ in some if file.verdict == attacks.REFUSED]
    assert len(refused) >= 20
    for file in refused:
        assert run(["ask", str(folder / file.name), QUESTION]) == 3
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("arr-coc: ")
        assert f"{file.name}: " in err
        assert err.count("\n") == 1


def test_there_are_600_and_they_are_the_same_every_time():
    assert len(attacks.KINDS) * attacks.SEEDS == 600
    for kind in attacks.KINDS:
        first = attacks.make(kind, 7)
        attacks.make.cache_clear()
        assert attacks.make(kind, 7).data == first.data


def test_the_attacks_are_what_they_say():
    """The picture whose tables take hundreds of megabytes is a good one to Pillow; the tags hold an orientation."""
    import io

    with Image.open(io.BytesIO(attacks.make("lossless", 1).data)) as image:
        assert image.convert("RGB").getpixel((9, 9)) == (0, 0, 0)
    exif = attacks.make("exif", 1).data
    assert orientation_of(exif[exif.index(b"MM\0*") :]) == 6


def large_files(folder: Path) -> list[Path]:
    """12 megapixels (WebP: 1.3 or 3) in every way that decoders take most memory for; the files weigh little."""
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
        "animated.webp": (
            rgba,
            {"method": 0, "save_all": True, "append_images": [rgba.resize((1_300, 1_020)).rotate(180)]},
        ),
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
        smaller = image.resize(SMALLER.get(name, (2_000, 1_500))) if name.endswith(".webp") else image
        smaller.save(folder / name, **options)
    cmyk.resize((1_600, 1_300)).save(folder / "cmyk-progressive-small.jpg", **progressive)
    return [folder / name for name in (*ways, "cmyk-progressive-small.jpg")]


def test_no_way_to_store_an_image_costs_more(tmp_path):
    """And the measure itself: an image cannot cost less than its pixels."""
    for found in judged(large_files(tmp_path)):
        if found["file"] == "cmyk-progressive.jpg":  # its coefficients alone are 8 bytes a pixel
            assert "4000x3000 needs too much memory; save it as RGB" in found["message"]
            assert found["bytes"] < FIXED
        else:
            assert 4 * found["pixels"] < found["bytes"] <= allowed(found["pixels"]), found
            assert 4 * found["pixels"] < found["own_bytes"] <= allowed(found["pixels"]), found


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_all_of_them(tmp_path):
    for first in range(0, attacks.SEEDS, 10):
        for file, found in judge(tmp_path, range(first, first + 10)):
            check_verdict(file, found)
            assert found["seconds"] <= 2.1, (file.name, found)  # of CPU time, which the system counts and ends


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_all_of_them_leave_the_next_answer_as_it_was(tmp_path):
    files = [attacks.make(kind, seed) for kind in attacks.KINDS for seed in ALL]
    for file in files:
        (tmp_path / file.name).write_bytes(file.data)
    check_next_answer(tmp_path, files)
