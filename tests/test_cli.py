"""Whole commands, as a person would type them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.cli.ask import load, parse_keep
from arr_coc.cli.run import run
from arr_coc.cli.sample import sample_image
from arr_coc.qwen.attention import answer_attention
from arr_coc.qwen.images import read_image
from arr_coc.qwen.processor import Conversation, encode, text_ids
from arr_coc.scenes import draw_scene, make_scene

ROOT = Path(__file__).parent.parent


def test_textures_writes_two_pictures(tmp_path, capsys):
    assert run(["textures", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in ("textures.png", "question_blind.png"):
        with Image.open(tmp_path / name) as picture:
            assert min(picture.size) > 200
        assert name in printed


def test_own_image_of_any_shape(tmp_path):
    Image.new("RGB", (900, 30), "teal").save(tmp_path / "wide.png")
    assert run(["textures", str(tmp_path / "wide.png"), "--out", str(tmp_path / "deep" / "down")]) == 0


def test_ask_prints_the_answer_alone(capsys):
    assert run(["ask", "What colour is the hand?"]) == 0
    out, err = capsys.readouterr()
    assert out == "green\n"
    assert "visual tokens 256 -> 16" in err
    assert err.count("\n") == 1


def test_ask_as_json_with_fewer_tokens_and_a_picture(capsys, tmp_path):
    overlay = tmp_path / "why.png"
    arguments = ["ask", "What colour is the airplane?", "--json", "--keep", "64", "--overlay", str(overlay), "--quiet"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["tokens_kept"] == len(document["images"][0]["kept"]) == 64
    assert document["tokens_total"] == 256
    assert document["notices"] == []
    assert document["answer"] == "brown"
    assert err == ""
    with Image.open(overlay) as picture:
        assert picture.size == (512, 512)


def test_several_images_are_shown_side_by_side(tmp_path):
    overlay, sample = tmp_path / "both.png", str(sample_image())
    assert run(["ask", sample, sample, "What colour is the hand?", "--keep", "80", "--overlay", str(overlay)]) == 0
    with Image.open(overlay) as picture, Image.open(sample) as one:
        assert picture.height == one.height
        assert picture.width > 2 * one.width


def test_the_overlay_of_a_full_answer_shows_where_it_looked(tmp_path):
    """The answer's attention is highest on the thing that was asked about, or on a cell beside it."""
    model, question = load("mini"), "What colour is the airplane?"
    inputs = encode(model.processor, [Conversation([read_image(sample_image())], question)])
    (heat,) = answer_attention(model.model, inputs, torch.tensor(text_ids(model.processor.tokenizer, "brown")))
    row, column = divmod(int(heat.argmax()), heat.shape[1])
    (box,) = [e.box for e in make_scene(529, "seen", (512, 512)).elements if e.name == "airplane"]
    assert box[0] // 32 - 1 <= column <= box[2] // 32 + 1
    assert box[1] // 32 - 1 <= row <= box[3] // 32 + 1
    (silent,) = answer_attention(model.model, inputs, torch.tensor([], dtype=torch.long))
    assert silent.isfinite().all()
    assert run(["ask", question, "--keep", "1.0", "--overlay", str(tmp_path / "heat.webp"), "--quiet"]) == 0


def test_the_sample_is_a_scene_that_training_never_draws():
    drawn = draw_scene(make_scene(529, "seen", (512, 512)))
    assert np.array_equal(np.asarray(read_image(sample_image())), drawn)


def test_words_outside_the_world_are_named(capsys):
    assert run(["ask", "Which automobile is parked here?"]) == 0
    assert "mini only knows drawn scenes, and not the words: automobile, parked" in capsys.readouterr().err


def test_special_tokens_are_not_unknown_words(capsys):
    assert run(["ask", "What colour is the hand?<|im_end|>"]) == 0
    assert "only knows" not in capsys.readouterr().err


def test_the_automatic_budget_follows_the_question():
    """Its bounds are 16 and 100 of 256 tokens: one thing needs the least, all things more than twice as many."""
    model = load("mini")
    questions = ("What colour is the hand?", "Which word is blue?", "Describe the scene.")
    one, word, everything = (model.ask(sample_image(), question, keep="auto").tokens_kept for question in questions)
    assert 16 <= one <= word < everything <= 100
    assert everything >= 2 * one


def test_scenes_make(tmp_path, capsys):
    assert run(["scenes", "make", str(tmp_path / "world"), "--count", "2", "--split", "seen", "--size", "256"]) == 0
    assert "2 images" in capsys.readouterr().err
    lines = (tmp_path / "world" / "questions.jsonl").read_text().splitlines()
    assert {"question", "answer", "family"} <= set(json.loads(lines[0]))
    assert run(["scenes", "make", str(tmp_path / "world"), "--count", "1"]) == 3
    assert "not empty" in capsys.readouterr().err


def test_train_mini(tmp_path):
    settings = {"hidden": 64, "layers": [1, 1], "sizes": [[128, 128, 1.0]], "early_sizes": [], "cells_per_batch": 32,
                "workers": 0, "compile": False, "precision": "float32", "evaluate_questions": 0}  # fmt: skip
    (tmp_path / "tiny.json").write_text(json.dumps(settings))
    arguments = ["--out", str(tmp_path / "run"), "--config", str(tmp_path / "tiny.json"), "--steps", "2"]
    assert run(["train", "mini", *arguments]) == 0
    assert list((tmp_path / "run").glob("model-*.safetensors"))
    assert run(["ask", "What colour is the hand?", "--model", str(tmp_path / "run"), "--max-new-tokens", "2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["textures", "no-such.png"], 3, "no such image"),
        (["textures", __file__], 3, "not a readable"),
        (["texture"], 2, "No such command"),
        (["textures", "--output", "x"], 2, "No such option"),
        ([], 2, "Usage"),
        (["ask"], 2, "Missing argument"),
        (["ask", "no-such.png", "what?"], 3, "no such image"),
        (["ask", ""], 3, "empty"),
        (["ask", "what?", "--keep", "0"], 3, "keep=0"),
        (["ask", "what?", "--keep", "1"], 3, "could mean"),
        (["ask", "what?", "--keep", "lots"], 3, "keep='lots'"),
        (["ask", "what?", "--model", "nothing"], 4, "give mini"),
        (["ask", "what?", "--model", "nobody/nothing"], 4, "give mini"),
        (["ask", "what?", "--overlay", "why.txt"], 3, "end its name in"),
        (["ask", "what?", "--max-new-tokens", "0"], 2, "max-new-tokens"),
        (["ask", "photo.png"], 3, "without a question"),
        (["ask", __file__], 3, "without a question"),
        (["ask", ".", "what?"], 3, "no such image"),
        (["ask", "what?", "--overlay", "/proc/nowhere/why.png"], 3, "/proc/nowhere"),
        (["scenes", "make", __file__, "--count", "1"], 3, "test_cli.py"),
        (["scenes", "make", "x", "--split", "all"], 3, "unknown split"),
        (["train", "mini", "--config", "no-such.json"], 2, "no-such.json"),
        (["--version"], 0, "arr-coc"),
        (["--help"], 0, "textures"),
    ],
)
def test_exit_codes_and_one_clear_line(arguments, code, says, capfd):
    assert run(arguments) == code
    written = "".join(capfd.readouterr())
    assert says in written
    assert "Traceback" not in written


@pytest.mark.parametrize(("text", "value"), [("0.25", 0.25), ("1.0", 1.0), ("64", 64), ("auto", "auto"), ("2e-1", 0.2)])
def test_the_dial_as_typed(text, value):
    assert parse_keep(text) == value


def test_the_command_runs_from_another_folder_without_a_network(tmp_path):
    """A socket that cannot be opened stands for a cut network."""
    (tmp_path / "sitecustomize.py").write_text(
        "import socket\ndef refuse(*a, **k): raise OSError('no network')\nsocket.socket.connect = refuse\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "arr_coc", "ask", "What colour is the hand?"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "green\n"), result.stderr


def test_the_readme_is_true():
    """Its Python runs, and its figures are those of results/."""
    readme = (ROOT / "README.md").read_text()
    (block,) = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    code = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False)
    assert code.returncode == 0, code.stderr
    assert "128 of 256" in code.stdout
    check = subprocess.run([sys.executable, "scripts/figures.py", "--check"], cwd=ROOT, check=False)
    assert check.returncode == 0, "run scripts/figures.py"
