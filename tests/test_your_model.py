"""The page "with your own Qwen3-VL in ten minutes", executed on a stock folder of random weights."""

import json
from pathlib import Path

import pytest
import test_docs
import tiny
from training_runs import tiny_model

from arr_coc import ARRCOCQwen
from arr_coc.cli import run

PAGE = "docs/your-model.md"
SHORTER = (
    ("--minutes 5", "--minutes 0.5"),
    ("--seconds 300", "--steps 2 --workers 0"),
    ("--questions 200", "--questions 4"),
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    tiny_model(folder / "stock")
    (folder / "photos").mkdir()
    tiny.picture(192, 160).save(folder / "photo.jpg")
    (shown,) = test_docs.blocks(PAGE, "text")
    rows = [json.loads(line) for line in shown.splitlines()]
    rows[2]["boxes"] = [[number // 4 for number in box] for box in rows[2]["boxes"]]  # a smaller picture is quicker
    rows = [*rows, *({**rows[1], "question": f"What is on sign {number}?"} for number in range(12))]
    for number in (1, 2, 3):
        tiny.picture(160, 128, number).save(folder / "photos" / f"{number}.jpg")
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def typed() -> list[str]:
    return [line for line in test_docs.shell_lines(PAGE) if " serve " not in line]


def test_the_page_from_top_to_bottom(desk, monkeypatch, capsys):
    """In its order: each command finds what the one before it made."""
    monkeypatch.chdir(desk)
    lines = typed()
    assert [test_docs.words_of(line)[1] for line in lines] == ["ask", "compare", "tune", "train", "eval", "eval"]
    first, second = (block.replace(test_docs.HUB, "stock") for block in test_docs.blocks(PAGE, "python"))
    known = {"__name__": "__main__"}
    exec(compile(first, PAGE, "exec"), known)
    kept, _, total = capsys.readouterr().out.split()
    assert int(kept) < int(total)
    for line in lines:
        line = line.replace(test_docs.HUB, "stock")
        for long, short in SHORTER:
            line = line.replace(long, short)
        assert run.run(test_docs.words_of(line)[1:]) == 0, (line, capsys.readouterr().err)
    assert (desk / "why.png").is_file()
    assert (desk / "runs" / "mine" / "arr_coc_config.json").is_file()
    assert json.loads((desk / "out" / "mine.json").read_text())
    assert json.loads((desk / "out" / "evidence.json").read_text())["evidence"]
    monkeypatch.setattr(ARRCOCQwen, "push_to_hub", lambda self, name: known.update(sent=name))
    exec(compile(second, PAGE, "exec"), known)
    assert known["model"].arr_coc_config.trained
    assert known["sent"] == "me/mine"


def test_the_server_of_the_page_can_be_started(desk):
    (line,) = [line for line in test_docs.shell_lines(PAGE) if " serve " in line]
    assert test_docs.read_command(test_docs.words_of(line)[1:])["port"] == 8001
