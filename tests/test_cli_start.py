"""How a command starts: what it imports, what it takes from stdin, where it looks for a model, what it prints."""

import inspect
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from training_runs import jsonl_folder, settings, tiny_model
from training_runs import run as train

from arr_coc.cli import checks, compare, quick, typed
from arr_coc.cli.answers import summary
from arr_coc.cli.run import run
from arr_coc.comparing import Variant
from arr_coc.data.sources import read_source
from arr_coc.qwen import Answer, finding
from arr_coc.qwen.finding import ModelNotFound, check_there
from arr_coc.selectors import SELECTORS

ROOT = Path(__file__).parent.parent
NEEDLESS = ("accelerate", "matplotlib", "sympy.core", "torch._dynamo.eval_frame", "torch.distributed.tensor")
WATCHED = f"""
import atexit, sys
from arr_coc.cli import quick, run
found = lambda: [one for one in {NEEDLESS!r} if one in sys.modules] + woken
woken, wake = [], quick.wake
quick.wake = lambda package: (woken.append(package.__name__), wake(package))
atexit.register(lambda: print(found(), file=sys.stderr))
run.main()
"""


def typed_out(program: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_an_answer_imports_nothing_that_it_does_not_use():
    """The sample and its question, where nothing is typed. A name of transformers that wakes it belongs into HOMES."""
    done = typed_out(WATCHED, "ask")
    assert (done.returncode, done.stdout) == (0, "ZEVORE\n"), done.stderr
    told, line, last = done.stderr.splitlines()
    assert told == f"the bundled sample was asked: {typed.SAMPLE_QUESTION}"
    assert line.endswith(" s in all")
    assert last == "[]"


def test_what_was_put_off_is_there_when_it_is_asked_for():
    program = """
from arr_coc.cli import quick
quick.hold_back("ask")
import torch, transformers
from transformers import BertConfig, Qwen3VLProcessor
assert BertConfig().model_type == "bert"
assert transformers.models.qwen3_vl.Qwen3VLConfig().model_type == "qwen3_vl"
assert torch._dynamo.config.suppress_errors is False
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]
from sympy import Symbol
assert str(Symbol("x") + 1) == "x + 1"
from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false
assert guard_or_false(ShapeEnv().create_unbacked_symint() == 3) is False
try:
    transformers.no_such_name
except AttributeError:
    print("done")
"""
    done = typed_out(program)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_what_stage_2_taught_the_model_is_asked_too(tmp_path):
    """PEFT needs a part of torch that is put off, and does not import it."""
    model = tiny_model(tmp_path / "tiny")
    train(settings(model, stage=2, steps=1, data=jsonl_folder(tmp_path / "data", 2)), tmp_path / "out")
    words = ("ask", str(tmp_path / "data" / "0.png"), "what?", "--max-new-tokens", "1", "--keep", "0.5")
    done = typed_out("from arr_coc.cli import run; run.main()", *words, "--model", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr


def test_only_a_process_of_its_own_puts_anything_off():
    before = list(sys.meta_path)
    quick.hold_back("ask")  # torch is imported here
    quick.hold_back("train")
    assert sys.meta_path == before


def test_selectors_are_written_down_as_they_are():
    wanted = {
        name: {key: one.annotation for key, one in list(inspect.signature(made).parameters.items())[2:]}
        for name, made in SELECTORS.items()
        if made.__module__.startswith("arr_coc.")  # a study may have added its own
    }
    assert {"auto": {}, **wanted} == checks.SELECTORS
    after = {name for name, made in SELECTORS.items() if getattr(made, "reads_tokens", False)}
    assert set(checks.AFTER_VIT) <= after


# ---------------------------------------------------------------- images


@pytest.fixture
def piped(monkeypatch):
    """What stdin holds."""

    def pipe(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return pipe


def test_an_image_comes_from_stdin(piped, capsys):
    piped(typed.sample_image().read_bytes())
    assert run(["ask", "-", typed.SAMPLE_QUESTION, "--quiet"]) == 0
    assert capsys.readouterr().out == "ZEVORE\n"
    piped(b"no image at all")
    assert run(["ask", "-", typed.SAMPLE_QUESTION]) == 3
    assert "arr-coc: stdin: not a readable JPEG" in capsys.readouterr().err


def test_a_gif_is_asked_about_and_the_model_told_how_to_be(tmp_path, capsys):
    file = tmp_path / "sample.gif"
    with Image.open(typed.sample_image()) as sample:
        sample.save(file)
    words = ["ask", str(file), "What colour is the hand?", "--temperature", "0", "--system", "Be brief."]
    assert run([*words, "--device", "cpu", "--dtype", "float32", "--keep", "50%", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keep"] == 0.5


def test_images_that_are_shown_together_are_said_to_be(capsys):
    sample = str(typed.sample_image())
    assert run(["ask", sample, sample, typed.SAMPLE_QUESTION]) == 0
    assert "2 images were shown together; arr-coc batch" in capsys.readouterr().err


def test_the_overlay_is_opened(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr("typer.launch", lambda path: opened.append(path) or 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(["ask", "--open", "--quiet"]) == 0
    assert [Path(one).name for one in opened] == ["overlay.png"]
    assert Path(opened[0]).is_file()


# ---------------------------------------------------------------- models


def test_a_hub_out_of_reach_is_told_in_time(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    monkeypatch.delenv(finding.OFFLINE, raising=False)
    assert run(["ask", typed.SAMPLE_QUESTION, "--model", "nobody/nothing"]) == 4
    said = capsys.readouterr().err
    assert "the hub cannot be reached" in said
    assert "check the network" in said
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(finding, "PATIENCE", 0.2)
        with pytest.raises(ModelNotFound, match=r"does not answer within|timed out"):
            check_there("nobody/nothing")


def test_what_is_cached_is_taken_where_the_hub_is_out_of_reach(monkeypatch):
    monkeypatch.setattr(finding, "why_out_of_reach", lambda: "no route")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names: "here")
    monkeypatch.setattr(finding, "go_offline", lambda: None)
    monkeypatch.delenv(finding.OFFLINE, raising=False)
    assert check_there("somebody/something") == (
        "the hub cannot be reached (no route): somebody/something is taken from the cache"
    )
    assert check_there("mini") == ""


# ---------------------------------------------------------------- what is printed


def answered(text: str) -> Answer:
    times = {"select": 2.0, "vision": 30.0, "prefill": 4.0, "generate": 9.0}
    return Answer(text=text, tokens_total=256, tokens_kept=64, selection=(), timings_ms=times, looks=())


def test_compare_fits_40_columns(monkeypatch, capsys):
    rows = [Variant("arr_coc", 0.25, answer=answered("green")), Variant("plain", 1.0, error="out of memory")]
    lines = compare.listed(rows, "What colour is the hand?")
    assert max(map(len, lines)) <= 40
    assert lines[1] == "arr_coc, keep 0.25"
    assert lines[2].startswith("  64 of 256 tokens (25 %), ")
    assert lines[3:] == ["  green", "plain, all tokens", "  (out of memory)"]


def test_in_all_is_what_was_waited():
    assert summary(answered("green"), 3.21).endswith("3.2 s in all")
    assert summary(answered("green")).endswith(" ms in all")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_complete(shell):
    program = "from arr_coc.cli.run import main; main()"
    done = typed_out(program, _ARR_COC_COMPLETE=f"source_{shell}")  # whatever shell this runs in
    assert "_ARR_COC_COMPLETE" in done.stdout, done.stderr


def test_verbs_are_completed():
    program = "from arr_coc.cli.run import main; main()"
    line = {"_ARR_COC_COMPLETE": "complete_bash", "COMP_WORDS": "arr-coc com", "COMP_CWORD": "1"}
    assert typed_out(program, **line).stdout.split() == ["compare"]


def test_what_scenes_make_writes_is_what_eval_reads(tmp_path):
    assert run(["scenes", "make", str(tmp_path / "made"), "--count", "2", "--size", "256", "--quiet"]) == 0
    file = tmp_path / "made" / "questions.jsonl"
    wanted = [json.loads(line) for line in file.read_text().splitlines()]
    rows = read_source(f"jsonl:{file}").rows
    assert len(rows) == len(wanted)
    for row, one in zip(rows, wanted, strict=True):
        assert (row.question, row.answer, row.family) == (one["question"], one["answer"], one["family"])
        assert [[x0, y0, x1 - x0, y1 - y0] for x0, y0, x1, y1 in row.boxes] == one["evidence"]
