"""Whole commands, as a person would type them."""

import subprocess
import sys

import pytest
from PIL import Image

from arr_coc.cli.run import run


def test_textures_writes_two_pictures(tmp_path, capsys):
    assert run(["textures", "--out", str(tmp_path)]) == 0
    for name in ("textures.png", "question_blind.png"):
        with Image.open(tmp_path / name) as picture:
            assert min(picture.size) > 200
        assert name in capsys.readouterr().out or name == "question_blind.png"


def test_own_image_of_any_shape(tmp_path):
    Image.new("RGB", (900, 30), "teal").save(tmp_path / "wide.png")
    assert run(["textures", str(tmp_path / "wide.png"), "--out", str(tmp_path / "deep" / "down")]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["textures", "no-such.png"], 3, "no such image"),
        (["textures", __file__], 3, "not a readable"),
        (["texture"], 2, "No such command"),
        (["textures", "--output", "x"], 2, "No such option"),
        ([], 2, "Usage"),
        (["--version"], 0, "arr-coc"),
        (["--help"], 0, "textures"),
    ],
)
def test_exit_codes_and_one_clear_line(arguments, code, says, capfd):
    assert run(arguments) == code
    written = "".join(capfd.readouterr())
    assert says in written
    assert "Traceback" not in written


def test_the_command_is_installed():
    result = subprocess.run([sys.executable, "-m", "arr_coc", "--version"], capture_output=True, text=True, check=False)
    assert result.stdout.startswith("arr-coc ")
