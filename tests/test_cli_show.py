"""The verbs show, compare and env, as a person would type them."""

import csv
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from PIL import Image

from arr_coc import __version__
from arr_coc.cli import compare, env, loading, show
from arr_coc.cli.loading import load
from arr_coc.cli.run import run
from arr_coc.cli.typed import sample_image
from arr_coc.comparing import Variant, answer_way, plan
from arr_coc.images.reader import read_image
from arr_coc.viewing import answer_card
from studies.figures import headline

ROOT = Path(__file__).parent.parent
QUESTION = "Which word is blue?"


def schema_of(verb: str) -> Draft202012Validator:
    schema = json.loads((ROOT / "arr_coc" / "cli" / f"{verb}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture(scope="module")
def mini():
    return load("mini")


@pytest.fixture
def loaded(mini, monkeypatch):
    """One model for all commands of this file; it is as it was after each."""
    before = mini.selector
    monkeypatch.setattr(loading, "load", lambda *_, **__: mini)
    yield mini
    mini.selector, mini.break_even = before, None


# ---------------------------------------------------------------- show


def test_show_writes_everything_and_lists_it(loaded, tmp_path, capsys):
    assert run(["show", QUESTION, "--out", str(tmp_path / "why")]) == 0
    out, err = capsys.readouterr()
    names = [show.file_name(name) for name in show.NAMES]
    assert out.splitlines() == [str(tmp_path / "why" / name) for name in names]
    assert "answer: ZEVORE" in err
    image = read_image(sample_image())
    answer = loaded.ask(image, QUESTION, keep="auto")
    selection = answer.selection[0]
    with Image.open(tmp_path / "why" / "kept.png") as kept:
        assert np.array_equal(np.asarray(kept), np.asarray(answer_card([image], QUESTION, answer)))
    page = (tmp_path / "why" / "slider.html").read_text()
    assert all(words in page for words in (QUESTION, "Answer: ZEVORE", selection.why))
    with (tmp_path / "why" / "tokens.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows if row["kept"] == "True"] == selection.kept.tolist()
    assert set(rows[0]) == {"index", "y", "x", "kept", "relevance", "covered", "why", *selection.maps}


def test_show_is_blurred_where_a_small_copy_was_seen(tmp_path, capsys):
    options = ["--encoding", "foveated", "--selector", "look_twice", "--keep", "64", "--only", "kept"]
    assert run(["show", QUESTION, "--out", str(tmp_path), *options]) == 0
    assert "256 -> 64" in capsys.readouterr().err
    ours = load("mini", "look_twice", "foveated")
    image = read_image(sample_image())
    answer = ours.ask(image, QUESTION, keep=64)
    selection = answer.selection[0]
    assert (selection.periphery, selection.cells_kept) == ((5, 5), 39)
    with Image.open(tmp_path / "kept.png") as kept:
        assert np.array_equal(np.asarray(kept), np.asarray(answer_card([image], QUESTION, answer)))


def test_show_writes_over_its_own_files_and_no_others(loaded, tmp_path, capsys):
    arguments = ["show", QUESTION, "--out", str(tmp_path), "--only", "tokens", "--only", "kept", "--quiet"]
    assert run(arguments) == 0
    assert run(arguments) == 0
    Image.new("RGB", (4, 4)).save(tmp_path / "kept.png")
    (tmp_path / "tokens.csv").unlink()
    capsys.readouterr()
    assert run(arguments) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--force" in err
    assert not (tmp_path / "tokens.csv").exists(), "nothing is written where something is refused"
    assert run([*arguments, "--force"]) == 0
    assert capsys.readouterr().err == ""


def test_the_image_that_is_asked_about_is_never_written_over(loaded, tmp_path, capsys):
    image = tmp_path / "kept.png"
    Image.new("RGB", (64, 64), "teal").save(image)
    before = image.read_bytes()
    assert run(["show", str(image), QUESTION, "--out", str(tmp_path), "--force"]) == 3
    assert "asked about" in capsys.readouterr().err
    assert image.read_bytes() == before


@pytest.mark.parametrize("options", [["--keep", "1.0"], ["--selector", "training_free"]])
def test_what_a_choice_does_not_have_is_said(loaded, options, tmp_path, capsys):
    assert run(["show", QUESTION, "--out", str(tmp_path), *options]) == 0
    out, err = capsys.readouterr()
    assert "kept.png" in out
    assert "participatory.png" not in out
    assert "without information, perspectival, participatory" in err
    assert run(["show", QUESTION, "--out", str(tmp_path), *options, "--only", "participatory"]) == 3
    assert "no participatory to show" in capsys.readouterr().err


# ---------------------------------------------------------------- compare


def test_compare_prints_a_table_alone(loaded, capsys):
    assert run(["compare", QUESTION, "--keep", "0.06", "--keep", "1.0", "--selector", "auto", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "arr_coc" in out
    assert "of 256 visual tokens" in out
    assert out.count("ZEVORE") == 2
    assert out.count("plain") == 1


def test_compare_as_json_with_pictures(loaded, tmp_path, capsys):
    selectors = ["--selector", "arr_coc", "--selector", "random:seed=3"]
    arguments = ["compare", QUESTION, "--keep", "0.25", "--keep", "1.0", *selectors, "--out", str(tmp_path), "--json"]
    assert run(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    schema = schema_of("compare")
    schema.validate(document)
    row = document["rows"][0]
    for wrong in ({"answer": None}, {"error": "out of memory"}, {"error": "no"}, {"keep": 1.5}, {"total_ms": -1.0}):
        assert not schema.is_valid({**document, "rows": [{**row, **wrong}]}), wrong
    for wrong in ({"rows": []}, {"format": "arr-coc compare 2"}, {"dtype": "int8"}, {"more": 1}):
        assert not schema.is_valid({**document, **wrong}), wrong
    assert {name: document[name] for name in ("format", "question", "image", "model", "device", "dtype")} == {
        "format": compare.FORMAT,
        "question": QUESTION,
        "image": "sample.png",
        "model": "mini",
        "device": "cpu",
        "dtype": "float32",
    }
    assert [(row["selector"], row["keep"]) for row in document["rows"]] == [
        ("arr_coc", 0.25),
        ("random:seed=3", 0.25),
        ("plain", 1.0),
    ]
    described = json.dumps(schema.schema)  # where every name of the document is told
    for row in document["rows"]:
        assert row["tokens_kept"] == round(row["share_kept"] * row["tokens_total"])
        stages = sum(row[f"{stage}_ms"] for stage in ("select", "vision", "prefill", "decode"))
        assert row["total_ms"] == pytest.approx(stages, abs=0.05)
        assert all(name in described for name in row)
    assert all(name in described for name in document)
    names = {"01-arr_coc-0.25.png", "02-random-seed-3-0.25.png", "03-plain-1.0.png", "sheet.png", "latency.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    with Image.open(tmp_path / "01-arr_coc-0.25.png") as one, Image.open(tmp_path / "sheet.png") as all_of_them:
        assert all_of_them.width > 2.5 * one.width


def test_rows_are_planned_once_each():
    planned = plan([0.1, 1.0, 0.1], ["arr_coc", "divprune"])
    assert [(row.selector, row.keep) for row in planned] == [("arr_coc", 0.1), ("divprune", 0.1), ("plain", 1.0)]


def test_a_row_that_runs_out_of_memory_says_so_and_the_rest_goes_on(loaded, monkeypatch, tmp_path, capsys):
    ask = loaded.ask

    def short(images, question, *, keep, **options):
        if keep == 1.0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return ask(images, question, keep=keep, **options)

    monkeypatch.setattr(loaded, "ask", short)
    arguments = ["compare", QUESTION, "--keep", "1.0", "--keep", "16", "--quiet"]
    assert run([*arguments, "--json", "--out", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    schema_of("compare").validate(document)
    plain, few = document["rows"]
    assert (plain["error"], plain["answer"], plain["total_ms"]) == ("out of memory", None, None)
    assert (few["error"], few["tokens_kept"]) == (None, 16)
    assert not (tmp_path / "01-plain-1.0.png").exists()
    assert run(arguments) == 0
    assert "(out of memory)" in capsys.readouterr().out
    assert run(["compare", QUESTION, "--keep", "1.0", "--quiet"]) == 5


def test_other_failures_are_not_taken_for_memory(loaded, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        answer_way(Variant("arr_coc", 0.1), broken, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "photo.png"], 3, "without a question"),
        (["show", "a.png", "b.png", "what?"], 3, "2 images"),
        (["show", "no-such.png", "what?"], 3, "no such image"),
        (["show", "what?", "--only", "everything"], 3, "expected one of kept"),
        (["show", "what?", "--keep", "0"], 3, "keep=0"),
        (["show", "what?", "--selector", "oracle"], 3, "arr-coc eval"),
        (["show", "what?", "--selector", "plain"], 3, "--keep 1.0"),
        (["show", "what?", "--selector", "best"], 3, "expected one of auto"),
        (["compare", "what?", "--selector", "oracle"], 3, "arr-coc eval"),
        (["compare", "what?", "--selector", "best"], 3, "expected one of auto"),
        (["compare", "what?", "--keep", "1"], 3, "could mean"),
        (["compare", "what?", "--keep", "120%"], 3, "keep='120%'"),
        (["env", "now"], 2, "unexpected"),
    ],
)
def test_mistakes_end_in_one_clear_line(loaded, arguments, code, says, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == code
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- env


def test_env_is_fit_for_a_bug_report(capsys):
    assert run(["env", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    schema = schema_of("env")
    schema.validate(found)
    assert {*env.PACKAGES, *(f"extra {name}" for name in env.EXTRAS)} <= set(schema.schema["required"])
    gpu = {"gpu": "a card", "gpus": 1, "gpu memory MB": 16000, "gpu memory free MB": 9, "cuda": "12.8"}
    schema.validate({**found, **gpu})
    for wrong in (
        {"gpus": 0},
        {"fast path": "maybe"},
        {"offline": "no"},
        {"user": "me"},
        {"models MB": {"mini": "big"}},
    ):
        assert not schema.is_valid({**found, **gpu, **wrong}), wrong
    assert (found["arr-coc"], found["torch"]) == (__version__, torch.__version__)
    assert found["dtype auto"] == ("float32" if found["device"] == "cpu" else found["dtype auto"])
    assert found["models MB"]["mini"] > 20
    assert run(["env"]) == 0
    lines = capsys.readouterr().out
    assert len(lines.splitlines()) == len(found)
    private = {str(Path.home()), str(ROOT), os.environ.get("HOSTNAME") or "/home/"}
    assert not any(one in text for one in private for text in (out, lines) if len(one) > 1)


def test_env_knows_the_extras_of_the_project():
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in env.EXTRAS.items():
        assert [requirement.split(">=")[0] for requirement in optional[extra]] == list(packages)
    assert env.as_words({"gradio": None, "peft": "1.0"}) == "gradio not there, peft 1.0"
    assert env.installed("no-such-package") is None


@pytest.mark.parametrize("verb", ["show", "compare", "env"])
def test_help_begins_with_examples_and_loads_no_torch(verb):
    code = (
        "import sys\nfrom arr_coc.cli.run import run\n"
        f"code = run(['{verb}', '--help'])\nsys.exit(code or 10 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index(f"  arr-coc {verb}") < done.stdout.index("Options")


def test_the_pictures_of_the_front_page_can_be_made_anew(tmp_path):
    for path in headline.make(tmp_path):
        committed = ROOT / "docs" / "pictures" / path.name
        assert committed.stat().st_size < 400_000
        with Image.open(path) as new, Image.open(committed) as old:
            assert new.size == old.size, "run python -m studies.figures.headline"
            apart = np.abs(np.asarray(new, dtype=int) - np.asarray(old, dtype=int)).mean()
            assert apart < 8, "run python -m studies.figures.headline"
