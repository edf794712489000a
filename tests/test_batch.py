"""arr-coc batch: every id once, whatever is in the rows and whenever it is killed; answers as `ask` gives them."""

import base64
import csv
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from slow_batch import Slow, slowly

from arr_coc.batch.asked import AskedRow, read_asked
from arr_coc.batch.job import AHEAD, LEAST, BatchJob, Desk, Worker, shared_out
from arr_coc.batch.results import Results, record_of
from arr_coc.cli import batch, run
from arr_coc.qwen import ARRCOCQwen
from arr_coc_scenes import draw_scene, make_scene

SCHEMA = json.loads((Path(str(files("arr_coc"))) / "cli" / "batch.schema.json").read_text())
QUESTIONS = ("What colour is the hand?", "Describe the scene.", "Which word is blue?")


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder to work in, with two images, and an engine that needs no model."""
    for name, side in (("one.png", 32), ("deep/two.png", 64)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (side, side), "teal").save(tmp_path / name)
    (tmp_path / "torn.png").write_bytes((tmp_path / "one.png").read_bytes()[:60])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batch, "load_engine", slowly(0))
    return tmp_path


def write_rows(path: Path, rows: list) -> None:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))


def records(path: Path) -> dict[str, dict]:
    """By id, each of which must be there once."""
    found = parquet.read_table(path).to_pylist() if path.suffix == ".parquet" else jsonl(path)
    assert len({one["id"] for one in found}) == len(found)
    return {one["id"]: one for one in found}


def jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def do(*words: str, code: int = 0) -> None:
    assert run.run(["batch", *words]) == code


# ---------------------------------------------------------------- rows

BAD = {
    "not JSON": ("{", "not valid JSON"),
    "a list": ("[1]", "not an object"),
    "no question": ({"image": "one.png"}, "no question"),
    "no image": ({"question": "what?"}, "no image"),
    "none of several": ({"question": "what?", "image": []}, "no image"),
    "image is a number": ({"question": "what?", "image": 7}, "not a text"),
    "image is not there": ({"question": "what?", "image": "none.png"}, "no such image file"),
    "image is torn": ({"question": "what?", "image": "torn.png"}, "torn.png"),
    "image is elsewhere": ({"question": "what?", "image": "../one.png"}, "not inside the folder"),
    "image of the system": ({"question": "what?", "image": "/etc/hostname"}, "not inside the folder"),
    "too many": ({"question": "what?", "image": ["one.png"] * 9}, "give 1 to 8"),
    "a wrong dial": ({"question": "what?", "image": "one.png", "keep": 7.5}, "keep=7.5"),
    "a dial in words": ({"question": "what?", "image": "one.png", "keep": "most"}, "keep='most'"),
    "id is a list": ({"question": "what?", "image": "one.png", "id": []}, "id is"),
    "half a character": ('{"question": "\\ud800", "image": "one.png"}', "not valid Unicode"),
    "a fault": ({"question": "fault?", "image": "one.png"}, "RuntimeError: something broke"),
}


@pytest.mark.parametrize("end", [".jsonl", ".parquet"])
def test_a_bad_row_is_a_row_with_its_error(desk, end, capsys):
    good = {"image": "one.png", "question": "what?"}
    write_rows(desk / "in.jsonl", [good, *(row for row, _ in BAD.values()), good | {"id": "last", "keep": 1}])
    out = desk / f"out{end}"
    do("in.jsonl", str(out))
    found = records(out)
    assert len(found) == len(BAD) + 2
    for number, (kind, (_, told)) in enumerate(BAD.items(), start=2):
        assert told in found[f"row {number}"]["error"], kind
        assert found[f"row {number}"]["answer"] is None
        assert "\n" not in found[f"row {number}"]["error"]
    assert (found["row 1"]["answer"], found["row 1"]["error"]) == ("what? auto", None)
    assert found["last"]["answer"] == "what? 1.0"
    assert f"{len(found)} rows answered, {len(BAD)} of them with an error" in capsys.readouterr().err
    before = out.read_bytes()
    do("in.jsonl", str(out))
    assert "nothing is left to ask" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_every_form_of_file_gives_the_same_rows(desk):
    rows = [
        {"id": "a", "image": "one.png", "question": 'what?, "where"', "keep": 0.25},
        {"id": "b", "image": ["one.png", "deep/two.png"], "question": "größer?", "keep": "auto"},
        {"id": "c", "image": "one.png", "question": "how\nmany?", "keep": 64},
        {"id": "c", "image": "one.png", "question": "again?", "keep": None},
    ]
    write_rows(desk / "in.jsonl", rows)
    with (desk / "in.csv").open("w", newline="", encoding="utf-8-sig") as file:
        table = csv.DictWriter(file, ["id", "other", "image", "question", "keep"])
        table.writeheader()
        for row in rows:
            table.writerow(row | {"image": row["image"] if row["id"] != "b" else json.dumps(row["image"])})
    texts = [row | {"image": row["image"] if isinstance(row["image"], list) else [row["image"]]} for row in rows]
    texts = [row | {"keep": None if row["keep"] is None else str(row["keep"])} for row in texts]
    parquet.write_table(pyarrow.Table.from_pylist(texts), desk / "in.parquet")
    (desk / "folder").mkdir()
    (desk / "folder" / "questions.csv").write_text((desk / "in.csv").read_text())
    expected = list(read_asked(desk / "in.jsonl"))
    assert [row.keep for row in expected] == [0.25, "auto", 64, None]
    assert expected[1].image == ("one.png", "deep/two.png")
    assert (expected[3].id, expected[3].error) == ("c (row 4)", "the id c was there before")
    for name in ("in.csv", "in.parquet", "folder"):
        assert list(read_asked(desk / name)) == expected, name


def test_a_row_without_an_id_takes_nobody_elses(desk):
    """Ids are numbers more often than not, and begin with 0."""
    rows = [{"id": number, "image": "one.png", "question": "what?"} for number in range(5)]
    write_rows(desk / "in.jsonl", [rows[0], "{", rows[2] | {"id": None}, rows[3], rows[4], rows[2]])
    found = [(row.id, bool(row.error)) for row in read_asked(desk / "in.jsonl")]
    assert found == [("0", False), ("row 2", True), ("row 3", False), ("3", False), ("4", False), ("2", False)]


def test_cells_of_a_csv_are_read_whole_or_not_at_all(desk):
    """A question is never cut at its comma; a space after one belongs to nothing."""
    rows = (
        "id,image,question",
        "1, one.png, what?",
        '2, one.png, "what, then?"',
        "3,one.png,what, then?",
        "4,one.png,what?,,",
    )
    (desk / "in.csv").write_text("\n".join(rows))
    found = {row.id: (row.image, row.question, row.error) for row in read_asked(desk / "in.csv")}
    for name, question in {"1": "what?", "2": "what, then?", "4": "what?"}.items():
        assert found[name] == (("one.png",), question, "")
    assert "more cells than columns" in found["3"][2]
    (desk / "in.csv").write_text("image;question\none.png;what?\n")
    with pytest.raises(ValueError, match=r"but 'image;question'; name them so, parted by commas"):
        next(read_asked(desk / "in.csv"))


def test_text_of_a_parquet_that_is_no_unicode_costs_its_row_alone(desk):
    ends = pyarrow.py_buffer(np.array([0, 5, 6, 11], dtype=np.int32).tobytes())
    asked = pyarrow.Array.from_buffers(pyarrow.string(), 3, [None, ends, pyarrow.py_buffer(b"what?\xffwhat?")])
    parquet.write_table(pyarrow.table({"image": ["one.png"] * 3, "question": asked}), desk / "in.parquet")
    first, second, third = read_asked(desk / "in.parquet")
    assert (first.question, first.error, third.question) == ("what?", "", "what?")
    assert "cannot be read" in second.error


def test_a_quote_that_is_never_closed_is_told(desk):
    """And the rows after it are not a part of its question."""
    rows = ("image,question", 'one.png,"what?"', 'one.png,"where?', "one.png,when?", "one.png,who?")
    (desk / "in.csv").write_text("\n".join(rows))
    first, second = read_asked(desk / "in.csv")
    assert (first.question, first.error) == ("what?", "")
    assert "not a row of a CSV" in second.error


def test_a_folder_of_images_is_asked_the_same_or_what_lies_beside_them(desk):
    (desk / "deep" / "two.txt").write_text("first?\n\nsecond?\n")
    (desk / ".hidden.png").write_bytes(b"")
    (desk / "[new] three.png").write_bytes((desk / "one.png").read_bytes())
    found = {row.id: (row.question, row.error) for row in read_asked(desk, ("what?",))}
    assert found == {
        "deep/two.png": ("first?", ""), "deep/two.png#2": ("second?", ""), "one.png": ("what?", ""),
        "torn.png": ("what?", ""), "[new] three.png": ("what?", ""),
    }  # fmt: skip
    assert {row.id: row.error for row in read_asked(desk)}["one.png"] == "no question"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none.jsonl", "out.jsonl"], "no such file"),
        (["in.jsonl", "out.txt"], "ends in .jsonl or .parquet"),
        (["in.jsonl", "in.jsonl"], "the file of questions"),
        (["in.csv", "out.jsonl"], "no column question"),
        (["long.csv", "out.jsonl"], "long.csv: not a CSV"),
        (["in.txt", "out.jsonl"], "ends in .jsonl, .csv, .parquet"),
        (["broken.parquet", "out.jsonl"], "not a Parquet file"),
        (["damaged.parquet", "out.jsonl"], "not a Parquet file"),
        (["empty", "out.jsonl"], "no image in it"),
        (["empty.jsonl", "out.jsonl"], "no rows"),
        (["in.jsonl", "theirs.jsonl"], "holds other lines"),
        (["in.jsonl", "words.jsonl"], "holds other lines"),
        (["in.jsonl", "broken.parquet"], "no table of this command"),
        (["in.jsonl", "empty.jsonl/out.jsonl"], "empty.jsonl"),
        (["in.jsonl", "out.jsonl", "--question", "what?"], "for a folder"),
        (["in.jsonl", "out.jsonl", "--keep", "1"], "keep=1"),
        (["in.jsonl", "out.jsonl", "--engine", "steam"], "give plain or vllm"),
        (["in.jsonl", "out.jsonl", "--engine", "vllm"], "pip install 'arr-coc[vllm]'"),
        (["in.jsonl", "out.jsonl", "--ray"], "pip install 'arr-coc[ray]'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(desk, words, told, capsys):
    write_rows(desk / "in.jsonl", [{"image": "one.png", "question": "what?"}])
    (desk / "in.csv").write_text("image,query\none.png,what?\n")
    (desk / "long.csv").write_text("x" * 200_000)
    for name in ("in.txt", "empty.jsonl"):
        (desk / name).touch()
    (desk / "empty").mkdir()
    (desk / "broken.parquet").write_bytes(b"PAR1")
    parquet.write_table(pyarrow.table({"image": ["one.png"], "question": ["what?"]}), desk / "damaged.parquet")
    with (desk / "damaged.parquet").open("r+b") as file:
        file.write(b"PAR1" + b"\xff" * 40)  # its first page
    write_rows(desk / "theirs.jsonl", [{"id": 7, "answer": "42"}])
    (desk / "words.jsonl").write_text("a diary without a last line break")
    kept = {path: path.read_bytes() for path in desk.rglob("*") if path.is_file()}
    do(*words, code=3)
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert {path: path.read_bytes() for path in kept} == kept, "nobody's files are touched"


@pytest.mark.parametrize(
    ("typed", "read"),
    [(["--ray"], "local"), (["--ray", "auto"], "auto"), (["--ray", "10.0.0.1:6379"], "10.0.0.1:6379"),
     (["--ray=ray://head:10001"], "ray://head:10001"), (["--ray", "--workers", "2"], "local")],
)  # fmt: skip
def test_an_address_may_follow(typed, read):
    from test_docs import read_command

    assert read_command(["batch", "in.jsonl", "out.jsonl", *typed])["ray"] == read
    assert read_command(["batch", *typed, "in.jsonl", "out.jsonl"])["ray"] == read


# ---------------------------------------------------------------- going on

ROWS = [AskedRow(str(number), ("one.png",), f"what? {number}") for number in range(6)]


@settings(deadline=None)  # of files on a disk that others use too
@given(cut=st.integers(0, 2000), table=st.booleans())
def test_whatever_is_cut_off_is_asked_again(tmp_path_factory, cut, table):
    """A file that ends anywhere, as after a kill: whole lines stay, the rest is written once more."""
    folder = tmp_path_factory.mktemp("cut")
    whole, out = folder / "whole.jsonl", Results(folder / ("out.parquet" if table else "out.jsonl"))
    with Results(whole).held() as results:
        results.add(record_of(row, "mini", "auto", "none") for row in ROWS)
    out.lines.write_bytes(whole.read_bytes()[:cut])
    with out.held():
        left = [row for row in ROWS if not out.is_done(record_of(row, "mini", "auto", ""))]
        assert len(left) == len(ROWS) - whole.read_bytes()[:cut].count(b"\n")
        for _ in range(2):  # as when a worker is asked again
            out.add(record_of(row, "mini", "auto", "none") for row in left)
    assert records(out.path).keys() == {row.id for row in ROWS}
    assert not table or not out.lines.exists()


def test_a_table_is_added_to_and_a_second_end_adds_nothing(desk):
    out = Results(desk / "out.parquet")
    for several in (ROWS[:2], ROWS):
        with out.held():
            out.add(record_of(row, "mini", 0.25, "none") for row in several if row.id not in out.done)
            lines = out.lines.read_bytes()
    out.lines.write_bytes(lines)  # killed after the table was written, before the lines were removed
    with out.held():
        assert out.done.keys() == {row.id for row in ROWS}
    assert records(out.path).keys() == {row.id for row in ROWS}


def test_a_table_that_others_wrote_again_is_added_to(desk):
    """As when rows with an error were taken out of it: names and values are ours, types perhaps not."""
    out = Results(desk / "out.parquet")
    with out.held():
        out.add(record_of(row, "mini", 0.25, "none") for row in ROWS[:3])
    table = parquet.read_table(out.path)
    types = {"string": pyarrow.large_string(), "int32": pyarrow.float64()}
    table = table.cast(pyarrow.schema([one.with_type(types.get(str(one.type), one.type)) for one in table.schema]))
    parquet.write_table(table[:2], out.path)
    with out.held():
        assert out.done.keys() == {"0", "1"}
        out.add(record_of(row, "mini", 0.25, "none") for row in ROWS[2:])
    assert records(out.path).keys() == {row.id for row in ROWS}


def test_whoever_breaks_off_does_not_wait_for_what_nobody_will_write(desk):
    batches = []

    class Patient(Slow):
        def answer(self, tickets):
            until = time.monotonic() + 10
            while len(left.line.waiting) < AHEAD - 1 and not left.line._closed and time.monotonic() < until:
                time.sleep(0.001)
            batches.append(tickets)
            super().answer(tickets)

    left = Desk(BatchJob(lambda: Patient(0), "mini", "auto", desk, batch=1))
    assert next(left.answer(ROWS))["id"] == "0"
    left.close()  # the second batch has begun, or will not
    assert len(batches) <= 2


def test_a_model_is_known_by_the_name_of_its_folder(desk):
    write_rows(desk / "in.jsonl", [{"image": "one.png", "question": "what?"}])
    do("in.jsonl", "out.jsonl", "--model", ".")
    assert records(desk / "out.jsonl")["row 1"]["model"] == desk.name


def test_an_id_stands_for_one_question(desk, capsys):
    write_rows(desk / "in.jsonl", [{"image": "one.png", "question": "what?"}])
    do("in.jsonl", "out.jsonl")
    for words in (["--keep", "0.5"], ["--model", "other"]):
        do("in.jsonl", "out.jsonl", *words, code=3)
        assert "'row 1' with another question, image, dial or model" in capsys.readouterr().err
    write_rows(desk / "in.jsonl", [{"image": "one.png", "question": "where?"}])
    do("in.jsonl", "out.jsonl", code=3)


def test_one_run_at_a_time(desk, capsys):
    write_rows(desk / "in.jsonl", [{"image": "one.png", "question": "what?"}])
    with Results(desk / "out.jsonl").held():
        do("in.jsonl", "out.jsonl", code=3)
    assert "another run writes out.jsonl" in capsys.readouterr().err


def test_a_lost_device_ends_the_run_and_costs_no_row(desk, monkeypatch):
    class Lost(Slow):
        def answer(self, tickets):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(batch, "load_engine", lambda *_: Lost(0))
    write_rows(desk / "in.jsonl", [{"image": "one.png", "question": "what?"}] * 3)
    do("in.jsonl", "out.jsonl", code=1)
    assert (desk / "out.jsonl").read_bytes() == b""


def kill_and_go_on(start: Callable[[], Any], out: Path, kills: int, rows: int) -> None:
    """Killed -9 so many times, each time after some more lines; then left alone."""
    lines = out.with_name(f"{out.name}.part.jsonl") if out.suffix == ".parquet" else out
    for kill in range(1, kills + 1):
        process = start()
        while process.is_alive() and (not lines.exists() or len(lines.read_bytes().splitlines()) < kill * rows):
            time.sleep(0.005)
        assert process.is_alive(), "it ended before it was killed"
        process.kill()
        process.join()
    process = start()
    process.join()
    assert process.exitcode == 0


def test_killed_twice_every_id_is_there_once(desk, monkeypatch):
    """In forks of this process, which need not load anything again."""
    bad = {"image": "none.png", "question": "what?"}
    write_rows(desk / "in.jsonl", [bad if n % 10 == 3 else bad | {"image": "one.png"} for n in range(40)])
    monkeypatch.setattr(batch, "load_engine", slowly(60))
    words = ["batch", "in.jsonl", "out.parquet", "--batch", "2", "--quiet"]

    def start() -> Any:
        fork = get_context("fork").Process(target=lambda: os._exit(run.run(words)))
        fork.start()
        return fork

    kill_and_go_on(start, desk / "out.parquet", 2, 12)
    found = records(desk / "out.parquet")
    assert found.keys() == {f"row {number}" for number in range(1, 41)}
    assert sum(one["error"] is not None for one in found.values()) == 4


def go(words: list[str]) -> None:
    sys.exit(run.run(words))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_five_hundred_rows_killed_five_times(tmp_path):
    """mini, ten rows of which cannot be answered."""
    for number in range(20):
        Image.fromarray(draw_scene(make_scene(number, "seen", (256, 256)))).save(tmp_path / f"{number}.png")
    rows = [
        {"id": n, "image": f"{n % 20}.png", "question": QUESTIONS[n % 3], "keep": (0.25, "auto", 32)[n % 3]}
        for n in range(500)
    ]
    rows = [row | ({"image": "none.png"} if row["id"] % 50 == 7 else {}) for row in rows]
    write_rows(tmp_path / "in.jsonl", rows)
    words = ["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--quiet"]

    def start() -> Any:
        process = get_context("spawn").Process(target=go, args=(words,))
        process.start()
        return process

    kill_and_go_on(start, tmp_path / "out.jsonl", 5, 80)
    found = records(tmp_path / "out.jsonl")
    assert found.keys() == {str(number) for number in range(500)}
    assert sum(one["error"] is not None for one in found.values()) == 10


# ---------------------------------------------------------------- answers


def test_rows_are_answered_as_ask_answers(tmp_path):
    """Through mini, dials of their own, two images in one row; the mask says what was kept."""
    owner = ARRCOCQwen.from_pretrained("mini")
    pictures = [Image.fromarray(draw_scene(make_scene(seed, "seen", (256, 224)))) for seed in range(2)]
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    dials = ("auto", 0.25, 1.0, 9, None)
    rows = [AskedRow(str(n), (f"{n % 2}.png",), QUESTIONS[n % 3], dial) for n, dial in enumerate(dials)]
    rows.append(AskedRow("two", ("0.png", "1.png"), QUESTIONS[0], 0.5))
    from arr_coc.serving.engine import InProcessEngine

    desk = Desk(BatchJob(lambda: InProcessEngine(owner), "mini", 0.5, tmp_path, batch=4))
    found = {record["id"]: record for record in desk.answer(rows)}
    desk.close()
    assert found.keys() == {row.id for row in rows}
    for row in rows:
        record = found[row.id]
        jsonschema.validate(record, SCHEMA)
        images = [pictures[int(name[0])] for name in row.image]
        answer = owner.ask(images, row.question, keep=row.keep or 0.5)
        assert record["answer"] == answer.text
        assert (record["tokens_kept"], record["tokens_total"]) == (answer.tokens_kept, answer.tokens_total)
        assert record["grid"] == [list(image.grid) for image in answer.selection]
        for mask, image in zip(record["kept_mask"], answer.selection, strict=True):
            bits = np.unpackbits(np.frombuffer(base64.b64decode(mask), np.uint8), count=image.tokens_total)
            assert torch.equal(torch.from_numpy(bits).bool().view(image.grid), image.mask)


@given(st.integers(1, 700), st.integers(1, 16), st.integers(1, 8))
def test_workers_are_given_every_row_once_and_less_at_the_end(rows, batch, workers):
    parts = shared_out(rows, batch, workers)
    assert [row for part in parts for row in range(rows)[part]] == list(range(rows))
    sizes = [len(range(rows)[part]) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) <= batch
    assert sizes[-1] <= max(1, -(-batch // LEAST))


def test_a_worker_with_one_core_takes_one_whatever_its_shell_says(desk):
    taken = []

    class Counting(Slow):
        def answer(self, tickets):
            taken.append(torch.get_num_threads())  # in the thread that answers
            super().answer(tickets)

    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        worker = Worker(BatchJob(lambda: Counting(0), "mini", "auto", desk), threads=1)
        worker(pyarrow.table({"row": [json.dumps(asdict(row)) for row in ROWS]}))
        worker.desk.close()
    finally:
        torch.set_num_threads(before)
    assert set(taken) == {1}
