"""Whole commands, as a person would type them."""

import contextlib
import dataclasses
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from jsonschema import Draft202012Validator
from PIL import Image

from arr_coc.cli.answers import summary
from arr_coc.cli.app import app
from arr_coc.cli.loading import load
from arr_coc.cli.run import run
from arr_coc.cli.terminal import may_colour
from arr_coc.cli.typed import parse_keep, sample_image
from arr_coc.images.reader import read_image
from arr_coc.qwen import Answer, ARRCOCQwen
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.language import answer_attention
from arr_coc.qwen.processor import Conversation, encode, text_ids
from arr_coc.viewing.paper import MARGIN
from arr_coc_scenes import draw_scene, make_scene
from studies.figures import write

ROOT = Path(__file__).parent.parent


def test_textures_writes_two_pictures(tmp_path, capsys):
    assert run(["textures", "--out", str(tmp_path), "--quiet"]) == 0
    printed, said = capsys.readouterr()
    assert said == ""
    for name in ("textures.png", "question_blind.png"):
        with Image.open(tmp_path / name) as picture:
            assert min(picture.size) > 200
        assert name in printed


def test_textures_spares_what_others_made(tmp_path, capsys):
    mine = tmp_path / "textures.png"
    Image.new("RGB", (64, 64), "teal").save(mine)
    before = mine.read_bytes()
    assert run(["textures", "--out", str(tmp_path)]) == 3
    assert "arr-coc did not make" in capsys.readouterr().err
    assert run(["textures", str(mine), "--out", str(tmp_path), "--force"]) == 3  # never the image itself
    assert mine.read_bytes() == before
    assert run(["textures", "--out", str(tmp_path), "--force"]) == 0
    assert run(["textures", "--out", str(tmp_path)]) == 0  # our own is written over
    assert mine.read_bytes() != before


def test_own_image_of_any_shape(tmp_path):
    Image.new("RGB", (900, 30), "teal").save(tmp_path / "wide.png")
    assert run(["textures", str(tmp_path / "wide.png"), "--out", str(tmp_path / "deep" / "down")]) == 0


def test_ask_prints_the_answer_alone(capsys):
    assert run(["ask", "What colour is the hand?"]) == 0
    out, err = capsys.readouterr()
    assert out == "green\n"
    assert "visual tokens 256 -> 16" in err
    assert err.count("\n") == 1


def test_the_summary_counts_all_that_comes_before_the_first_token():
    times = {"glance": 90.0, "texture": 10.0, "vision": 30.0, "generate": 45.0, "prefill": 25.0}
    line = summary(Answer("green", [], 256, 16, times))
    assert line.endswith("select 100 ms · vision 30 ms · first token after 155 ms · 175 ms in all")
    made = ImageSelection((2, 2), torch.arange(3), None, {}, {}, {}, "", "", covered=torch.tensor([True, False, True]))
    assert "4 -> 3 (75 % kept, 2 of them for coverage)" in summary(Answer("green", [made], 4, 3, {}))


def test_ask_as_json_with_fewer_tokens_and_a_picture(capsys, tmp_path):
    overlay = tmp_path / "why.png"
    arguments = ["ask", "What colour is the airplane?", "--json", "--keep", "64", "--overlay", str(overlay), "--quiet"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["tokens_kept"] == len(document["images"][0]["kept"]) == 64
    assert document["tokens_total"] == 256
    assert document["notices"] == []
    (image,) = document["images"]
    left = f"the other {len(image['covered'])} of the budget are spread over the rest, for coverage"
    assert image["reason"].endswith(left if image["covered"] else "the 64 most relevant cells")
    assert document["answer"] == "brown"
    assert err == ""
    with Image.open(overlay) as picture:
        assert picture.width == 512 + 2 * MARGIN
        assert picture.height > 512 + 5 * MARGIN, "question, answer and legend"


def test_several_images_are_shown_side_by_side(tmp_path):
    overlay, sample = tmp_path / "both.png", str(sample_image())
    assert run(["ask", sample, sample, "What colour is the hand?", "--keep", "80", "--overlay", str(overlay)]) == 0
    with Image.open(overlay) as picture, Image.open(sample) as one:
        assert picture.width > 2 * one.width > 1.2 * picture.height


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
    assert run(["scenes", "make", str(tmp_path / "other"), "--count", "1", "--size", "256", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    lines = (tmp_path / "world" / "questions.jsonl").read_text().splitlines()
    assert {"question", "answer", "family"} <= set(json.loads(lines[0]))
    assert run(["scenes", "make", str(tmp_path / "world"), "--count", "1"]) == 3
    assert "not empty" in capsys.readouterr().err


def test_train_mini_says_where_it_went(capsys):
    assert run(["train", "mini", "--out", "runs/mini", "--seconds", "540"]) == 2
    assert "python -m studies.mini.train --out runs/mini --seconds 540" in capsys.readouterr().err
    assert run(["train", "mini", "--help"]) == 2
    assert "python -m studies.mini.train --help" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        (["eval", "--questions", "5", "--equal-tokens"], "studies.equal_tokens"),
        (["bench", "--promised"], "studies.speed.bench --promised"),
        (["bench", "--startup"], "studies.speed.startup"),
        (["report", "--failures=3"], "studies.report"),
    ],
)
def test_options_that_moved_say_where_they_went(typed, place, capsys):
    assert run(typed) == 2
    assert f"python -m {place};" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["textures", "no-such.png"], 3, "no such image"),
        (["textures", __file__], 3, "not a readable"),
        (["textures", "--output", "x"], 2, "--out"),
        ([], 2, "Usage"),
        (["ask", __file__], 3, "without a question"),
        (
            ["ask", "what?", "--selector", "oracle"],
            3,
            "which a question does not say: leave it out, or run `arr-coc eval`",
        ),
        (["ask", "what?", "--selector", "plain"], 3, "--keep 1.0"),
        (["chat", "--selector", "oracle"], 3, "arr-coc eval"),
        (["ask", "what?", "--overlay", "/proc/nowhere/why.png"], 3, "/proc/nowhere"),
        (["scenes", "make", __file__, "--count", "1"], 3, "test_cli.py"),
        (["scenes", "make", "x", "--split", "all"], 3, "unknown split"),
        (["--version"], 0, "arr-coc"),
        (["--help"], 0, "5 out of memory"),
    ],
)
def test_exit_codes_of_other_verbs(arguments, code, says, capfd):
    assert run(arguments) == code
    written = "".join(capfd.readouterr())
    assert says in written
    assert "Traceback" not in written


CUDA = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.77 GiB"
HOST = "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (
            RuntimeError("no\nsuch\tthing"),
            1,
            "unexpected RuntimeError: no such thing (a fault of ours: ARR_COC_DEBUG=1",
        ),
        (KeyError("x" * 9_000), 1, "unexpected KeyError"),
        (torch.OutOfMemoryError(CUDA), 5, "--keep 0.1"),
        (RuntimeError(HOST), 5, "--keep 0.1"),
        (MemoryError(), 5, "--keep 0.1"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "out/why.png"), 3, "out/why.png: No space left on device"),
        (BrokenPipeError(32, "Broken pipe"), 0, None),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(error, code, says, monkeypatch, capfd):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr("arr_coc.cli.loading.load", broken)
    assert run(["ask", "what?"]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == (says is not None)
    assert len(err) < 700
    assert (says or "") in err
    monkeypatch.setenv("ARR_COC_DEBUG", "1")
    run(["ask", "what?"])
    assert ("Traceback" in capfd.readouterr().err) == (type(error) not in (KeyboardInterrupt, BrokenPipeError))


def test_a_fault_while_choosing_is_a_line_and_the_answer_comes(monkeypatch, capsys):
    def broken(*_, **__):
        raise TypeError("no")

    monkeypatch.setattr("arr_coc.selectors.base.ARRCOCSelector.judge", broken)
    assert run(["ask", "What colour is the hand?"]) == 0
    out, err = capsys.readouterr()
    assert out == "green\n"
    assert "choosing failed (TypeError)" in err
    assert "Traceback" not in err


def every_verb(group, path=()):
    for name, verb in group.commands.items():
        yield (*path, name), verb
        yield from every_verb(verb, (*path, name)) if hasattr(verb, "commands") else ()


def test_every_help_begins_with_examples_and_none_imports_torch():
    """In one process: what one help had imported, the check after it would see."""
    names = [(), *(path for path, _ in every_verb(typer.main.get_command(app)))]
    code = (
        "import contextlib, io, json, sys\nfrom arr_coc.cli.run import run\n"
        f"for name in {names!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as shown:\n        assert run([*name, '--help']) == 0\n"
        "    assert not {'torch', 'transformers', 'numpy', 'PIL'} & set(sys.modules), name\n"
        "    print(json.dumps([name, shown.getvalue()]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    helps = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(helps) == len(names) >= 12
    for name, text in helps:
        usage, examples = text.split("\n\n")[:2]
        assert usage.startswith(f"Usage: {' '.join(['arr-coc', *name])}")
        assert examples.startswith("Examples:\n  "), name
        assert all("arr-coc " in line or "arr_coc " in line for line in examples.splitlines()[1:]), name
        assert "..." not in text.split("Verbs:")[-1] or name, "a sentence was cut"


def test_every_verb_that_speaks_can_be_quiet():
    spoken = {name: verb for name, verb in every_verb(typer.main.get_command(app)) if not hasattr(verb, "commands")}
    without = {name for name, verb in spoken.items() if not any("--quiet" in one.opts for one in verb.params)}
    assert without == set()


def test_long_runs_are_told_to_nobody_when_quiet(monkeypatch, tmp_path, capsys):
    """Nothing lands in results/ unasked, no line and no bar is shown."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def evaluate(options, say, show):
        say("a line")
        (show or say)("a row")
        asked.append((str(options.out), options.bar))
        return {}

    monkeypatch.setattr("arr_coc.evaluation.field.main.evaluate_field", evaluate)
    for options in (["--quiet"], [], ["--out", "mine.json"]):
        assert run(["eval", *options]) == 0
        where = f"a line\nthe report is in {asked[-1][0]}\n"
        assert capsys.readouterr() == ("a row\n", "" if asked[-1][1] is False else where)
    assert run(["eval", "--json"]) == 0
    assert capsys.readouterr() == ("{}\n", "a line\na row\n")
    assert asked == [
        ("out/field.json", False),
        ("out/field.json", True),
        ("mine.json", True),
        ("out/field.json", True),
    ]


SCHEMA = json.loads((ROOT / "arr_coc" / "cli" / "ask.schema.json").read_text())


@pytest.mark.parametrize(
    "options", [[], ["--keep", "1.0"], ["--keep", "7", "--selector", "random"], ["--encoding", "foveated"]]
)
def test_json_is_as_the_schema_says(options, capsys):
    Draft202012Validator.check_schema(SCHEMA)
    assert run(["ask", "Which automobile?", "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(document)
    assert all(set(image["covered"]) <= set(image["kept"]) for image in document["images"])
    assert document["notices"]
    for wrong in ({"keep": 1.5}, {"keep": 1}, {"answer": None}, {"images": []}, {"more": 1}, {"timings_ms": {"a": -1}}):
        valid = Draft202012Validator(SCHEMA).is_valid({**document, **wrong})
        assert valid == (wrong == {"keep": 1}), wrong  # JSON does not tell 1 from 1.0
    assert not Draft202012Validator(SCHEMA).is_valid({"answer": "green"})


def test_selector_encoding_and_seed(capsys):
    def kept(*options: str) -> list[int]:
        assert run(["ask", "What colour is the hand?", "--json", "--keep", "16", *options]) == 0
        return json.loads(capsys.readouterr().out)["images"][0]["kept"]

    first = kept("--selector", "random", "--seed", "3")
    assert first == kept("--selector", "random:seed=3", "--encoding", "dense")
    assert first != kept("--selector", "random", "--seed", "4")
    assert kept() == kept("--selector", "arr_coc", "--encoding", "sparse") != first


def test_a_long_question_is_no_file_name(capsys):
    assert run(["ask", "What colour is the hand?" + " Say it." * 60, "--max-new-tokens", "1"]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_colour_is_for_terminals_without_no_color(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert may_colour(Terminal())
    assert not may_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not may_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not may_colour(Terminal())


@pytest.mark.parametrize("at_terminal", [True, False])
def test_bars_are_for_terminals(monkeypatch, at_terminal, tmp_path):
    """Of models that take a while: mini is there before a bar could be drawn."""
    asked = []
    monkeypatch.setattr("arr_coc.cli.loading.quieten_libraries", lambda bars: asked.append(bars))
    monkeypatch.setattr("arr_coc.cli.loading.is_terminal", lambda stream: at_terminal)
    (tmp_path / "config.json").write_text("{}")
    for model, quiet in (("mini", False), (str(tmp_path), False), (str(tmp_path), True)):
        with contextlib.suppress(ValueError):
            load(model, quiet=quiet)
    assert asked == [False, at_terminal, False]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.25", 0.25),
        ("1.0", 1.0),
        ("64", 64),
        ("auto", "auto"),
        ("2e-1", 0.2),
        ("25%", 0.25),
        ("100%", 1.0),
        ("6.25%", 0.0625),
    ],
)
def test_the_dial_as_typed(text, value):
    assert parse_keep(text) == value


NO_NETWORK = "import socket\ndef refuse(*a, **k): raise OSError('no network')\nsocket.socket.connect = refuse\n"


def typed(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """A command line of a shell, from another folder; sockets that cannot be opened stand for a cut network."""
    (folder / "sitecustomize.py").write_text(NO_NETWORK)
    arr_coc = f"{shlex.quote(sys.executable)} -m arr_coc"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), **environment}
    line = f"set -o pipefail; {command.replace('arr-coc', arr_coc)}"
    return subprocess.run(["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_long_runs_draw_no_bars_in_a_pipe(tmp_path):
    result = typed("arr-coc eval --selector best --out e.json", tmp_path)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (3, "", 1), result.stderr


def test_the_command_runs_from_another_folder_without_a_network(tmp_path):
    """Also where the terminal cannot spell everything."""
    result = typed("arr-coc ask 'What colour is the hand?'", tmp_path, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stdout) == (0, "green\n"), result.stderr


def test_offline_is_said_before_anything_is_imported(tmp_path):
    """The hub's own switch is off here; a socket would be refused slowly, with many tries."""
    result = typed("arr-coc ask what? --model Qwen/Qwen3-VL-2B-Instruct --offline", tmp_path, HF_HUB_OFFLINE="0")
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.count("\n") == 1
    assert "'Qwen/Qwen3-VL-2B-Instruct' in the cache" in result.stderr


def test_a_reader_who_leaves_early_is_no_error(tmp_path):
    commands = "arr-coc --help | head -0; echo $?; (arr-coc ask no.png what? 2>&1 1>&3 | head -0) 3>&1"
    result = typed(f"{commands}; echo $?; arr-coc --help >/dev/full; echo $?", tmp_path)
    assert result.stdout.split() == ["0", "3", "3"]
    assert result.stderr.count("\n") == 1
    assert "No space left" in result.stderr


LEAVES = """
import threading, time, torch
from arr_coc.cli.quick import leave
def answer(numbers):
    while True:
        numbers.matmul(numbers)
threading.Thread(target=answer, args=[torch.ones(700, 700)], daemon=True).start()
time.sleep(0.2)
leave(130, at_once=True)
"""


def test_who_interrupts_a_thread_that_answers_ends_it_without_an_abort():
    """Its code is 130, and nothing is said beside what the command line says."""
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("words", [["ask", "--quiet"], ["compare", "--quiet", "--keep", "0.5"]])
def test_an_answer_does_not_steer_the_terminal(words, capsys, monkeypatch):
    honest = ARRCOCQwen.ask

    def steering(self, *arguments, **options):
        return dataclasses.replace(honest(self, *arguments, **options), text="\x1b[2Jgr\x07een\x9b")

    monkeypatch.setattr(ARRCOCQwen, "ask", steering)
    assert run([*words, "What colour is the hand?"]) == 0
    said = capsys.readouterr().out
    assert "[2Jgreen" in said
    assert not {"\x1b", "\x07", "\x9b"} & set(said)


def test_the_readme_is_true(monkeypatch):
    """Its Python runs, and its figures are those of results/."""
    readme = (ROOT / "README.md").read_text()
    (block,) = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    code = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False)
    assert code.returncode == 0, code.stderr
    assert "128 of 256" in code.stdout
    monkeypatch.setattr("sys.argv", ["write", "--check"])
    assert write.main() == 0, "run python -m studies.figures.write"
