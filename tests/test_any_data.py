"""Any data: checked as files before torch loads, batched by grid, judged by any custom, and by evidence alone."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import tiny
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from PIL import Image
from training_runs import run, settings, tiny_model

from arr_coc.cli import run as command
from arr_coc.data.examples import FileExamples, FileImage, FileRow
from arr_coc.data.sources import read_source
from arr_coc.evaluation.field.data import Query, as_asked, chosen, score
from arr_coc.evaluation.field.evidence import shares, truth_cells
from arr_coc.qwen.sizes import ImageSizes
from arr_coc.training.data import FileBatches
from arr_coc.training.making import WARM, rate_groups

# ---------------------------------------------------------------- files


def write_rows(folder: Path, rows: list[object]) -> Path:
    folder.mkdir(exist_ok=True)
    tiny.picture(160, 128).save(folder / "one.png")
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return file


def test_a_whole_file_is_checked_before_torch_loads(tmp_path):
    """Also what a command does first: a run that would fail over its data does so at once."""
    good = {"image": "one.png", "question": "what is it?"}
    broken = ["{", {"image": "two.png", "question": "?"}, {"image": "one.png"}, {"question": "where?"}]
    file = write_rows(tmp_path, [good] * 1000 + broken * 5)
    script = (
        "import sys\nfrom arr_coc.training.config import SelectorTrainConfig\n"
        f"read = SelectorTrainConfig(data='jsonl:{file}', max_broken=0.02).read_files()\n"
        "print(len(read), len(read.broken), 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1000", "20", "False"]
    words = ["train", "selector", "--data", f"jsonl:{file}", "--out", str(tmp_path / "out"), "--max-broken", "0.01"]
    assert command.run(words) == command.EXIT_BAD_INPUT
    assert not (tmp_path / "out").exists()


sizes_of_files = st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9)), min_size=1, max_size=60)


@hypothesis_settings(max_examples=40, deadline=None)
@given(sizes_of_files, st.integers(1, 9), st.integers(0, 3))
def test_a_round_shows_every_row_once_in_batches_of_few_grids(shapes, per_batch, number):
    rows = [
        FileRow(str(place), FileImage(f"{place}.png", Path(f"{place}.png"), (32 * wide, 32 * high)), "what?")
        for place, (wide, high) in enumerate(shapes)
    ]
    config, sizes = settings(Path("m"), data="jsonl:x", examples=per_batch), ImageSizes(32, 1024, 2**20)
    batches = FileBatches(config, lambda text: (1,), FileExamples(rows, []), range(len(rows)), sizes)
    made = [batches._round(number)[one].tolist() for one in range(batches.per_round)]
    assert Counter(place for batch in made for place in batch) == Counter(range(len(rows)))
    assert all(len(batch) <= per_batch for batch in made)
    groups = sum(len({batches.shapes[place] for place in batch}) for batch in made)
    assert groups <= len(made) + len(set(batches.shapes)) - 1  # a grid more only where one ends
    assert made == [batches._round(number)[one].tolist() for one in range(batches.per_round)]


def test_groups_have_no_more_cells_than_there_is_room_for(tmp_path):
    file = write_rows(tmp_path, [{"image": "one.png", "question": f"what is {n}?"} for n in range(7)])
    config = settings(Path("m"), data=f"jsonl:{file}", examples=7, cells_per_batch=45)  # two images of 20 cells
    examples, sizes = read_source(config.data), ImageSizes(32, 1024, 2**20)
    groups = FileBatches(config, lambda text: (1,), examples, range(7), sizes)[0]
    assert [len(group.examples) for group in groups] == [2, 2, 2, 1]


def test_a_short_run_warms_up_in_a_tenth_of_it():
    class Optimizer:
        param_groups = [{"peak": 1.0, "lr": 0.0}]

    def rates(steps: int) -> list[float]:
        found = []
        for step in range(steps):
            rate_groups(Optimizer, settings(Path("m"), warmup_steps=100, final_rate=1.0), step, step / steps)
            found.append(Optimizer.param_groups[0]["lr"])
        return found

    assert rates(20)[2:] == [1.0] * 18  # a run shorter than its warm-up would never have learned at full rate
    long = rates(4000)
    assert long[:100] == pytest.approx([(step + 1) / 100 for step in range(100)])
    assert WARM == 0.1


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "no example is left: the data hold none"),
        ([{"question": "where is it?"}], "no image: give the name of its file"),
        ([{"image": 7, "question": "where is it?"}], "image file name 7 is not a text"),
        ([{"image": "none.png", "question": "where?"}], "image none.png is missing"),
        (["nonsense"], "not valid JSON"),
    ],
)
def test_data_that_nobody_can_learn_from_ends_in_one_line(rows, why, tmp_path, capsys):
    file = write_rows(tmp_path, rows)
    words = ["train", "selector", "--data", f"jsonl:{file}", "--out", str(tmp_path / "out"), "--max-broken", "1"]
    assert command.run(words) == command.EXIT_BAD_INPUT
    told = capsys.readouterr().err
    assert why in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_one_image_with_one_question_is_learned_from(tmp_path):
    """Nothing is held back then, and an answer in any language is taken."""
    model, file = tiny_model(tmp_path / "tiny"), write_rows(tmp_path, [])
    for stage, answer in ((1, ""), (2, "двери синие 青")):
        file.write_text(json.dumps({"image": "one.png", "question": "какого цвета?", "answer": answer}) + "\n")
        config = settings(model, data=f"jsonl:{file}", stage=stage, steps=2, cells_per_batch=64, evaluate_questions=4)
        said = run(config, tmp_path / f"out-{stage}")
        assert sum("too few images to hold one back" in line for line in said) == 1
        assert (tmp_path / f"out-{stage}" / "arr_coc.safetensors").is_file()


# ---------------------------------------------------------------- how right an answer is


@pytest.mark.parametrize(
    ("metric", "given", "answers", "right"),
    [
        ("exact", " red ", ["red"], 1.0),
        ("exact", "Red.", ["red"], 0.0),
        ("normal", "The Red.", ["red"], 1.0),
        ("normal", "it is red", ["red"], 0.0),
        ("normal", "Zwei Hunde", ["zwei hunde"], 1.0),  # in another language
        ("normal", "二匹の犬。", ["二匹の犬"], 1.0),
        ("normal", "", ["A"], 0.0),  # nothing is left of an article, a smiley or a sign: they are not the same
        ("normal", "a", ["A"], 1.0),
        ("vqa", "🐱", ["🐶"], 0.0),
        ("contains", "🐶", ["🐶"], 1.0),
        ("contains", "", [""], 1.0),  # tuning compares with what the model itself says
        ("contains", "The door in the picture is red.", ["red"], 1.0),
        ("contains", "It was discoloured.", ["red"], 0.0),
        ("contains", "There are two dogs.", ["2"], 1.0),
        ("contains", "It cost $1,200.", ["1200"], 1.0),
        ("contains", "答えは赤い車です。", ["赤い車"], 1.0),  # nothing parts words here
        ("contains", "빨간색입니다", ["빨간색"], 1.0),
        ("contains", "答えは青い車です。", ["赤い車"], 0.0),
        ("contains", "C'est un cafe\u0301.", ["caf\u00e9"], 1.0),
        ("anls", "INVOICE 12", ["invoice 13"], 0.9),
        ("anls", "nothing like it", ["invoice 13"], 0.0),
        ("relaxed", "104", ["100"], 1.0),
        ("relaxed", "106", ["100"], 0.0),
        ("relaxed", "104.", ["100"], 1.0),
        ("relaxed", "10.4%.", ["10%"], 1.0),
        ("vqa", "a dog", ["dog", "dog", "dog", "cat"], (3 * 2 / 3 + 1) / 4),
    ],
)
def test_each_metric_with_a_worked_example(metric, given, answers, right):
    assert score(metric, given, answers) == pytest.approx(right)


COLOURS = ("red", "dark red", "blue", "a dog")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("B", 1), ("b", None), ("(B)", 1), ("B. dark red", 1), ("B) because it is", 1), ("**", None), ("A dog", 3),
        ("The answer is C.", 2), ("Answer: (C)", 2), ("the right option is B", 1), ("blue", 2), ("It is dark red.", 1),
        ("red", 0), ("red or blue", None), ("Z", None), ("", None), ("A", 0), ("a DOG!", 3),
        ("**B**", 1), ("The correct answer is **B**.", 1), ("**B.** dark red", 1), ("(b)", 1), ("answer: c", 2),
        ("The answer is a dog.", 3), ("Answer: A dog", 3), ("Option A is right", 0), ("Option A is it, not blue", 0),
        ("I think it's B.", 1), ("\\boxed{C}", 2), ("答案是B。", 1), ("B or C", None), ("A bird", None), ("It's A", 0),
    ],
)  # fmt: skip
def test_a_choice_is_named_by_letter_or_by_text(given, named):
    assert chosen(given, COLOURS) == named
    for answer in ("ABCD"[named], COLOURS[named]) if named is not None else ():
        assert score("choice", given, [answer], COLOURS) == 1.0
    assert score("choice", given, ["C" if named != 2 else "A"], COLOURS) == 0.0


def test_a_question_is_asked_with_its_choices_and_what_to_answer_with():
    assert as_asked("Which?", (), "") == "Which?"
    assert as_asked("Which?", (), "In one word.") == "Which?\nIn one word."
    assert as_asked("Which?", ("red", "blue"), "").splitlines() == ["Which?", "A. red", "B. blue"]
    assert as_asked("Which?", ("red", "blue"), "x").endswith("Answer with the letter of the right choice.")


def test_choices_and_fixations_are_checked_like_all_else(tmp_path):
    good = {"image": "one.png", "question": "which?", "choices": ["a", "b"], "answer": "B"}
    looked = {"image": "one.png", "fixations": [[3, 4.5]]}
    file = write_rows(tmp_path, [good, looked])
    rows = read_source(f"jsonl:{file}").rows
    assert rows[0].choices == ("a", "b")
    assert (rows[1].question, rows[1].fixations) == ("", ((3.0, 4.5),))
    for bad, why in (
        ({**good, "choices": ["a"]}, "choices are 1"),
        ({**good, "choices": "ab"}, "choices is a str"),
        ({**looked, "fixations": [[1]]}, "not 2 numbers"),
        ({"image": "one.png"}, "no question"),
    ):
        with pytest.raises(ValueError, match=why):
            read_source(f"jsonl:{write_rows(tmp_path, [bad])}")


# ---------------------------------------------------------------- the choice alone


def test_truth_is_what_boxes_touch_and_where_people_looked():
    boxes = Query("", (), "none", "", ((0.0, 0.0, 0.5, 0.5),))
    assert truth_cells(boxes, (4, 4)) == {0, 1, 4, 5}
    gaze = Query("", (), "none", "", None, gaze=((0.0, 0.0), (0.99, 0.99), (0.26, 0.0), (1.5, 0.2)))
    assert truth_cells(gaze, (4, 4)) == {0, 1, 15}
    assert shares({0, 1, 2, 3}, {0, 1, 15}) == (2 / 3, 0.5)


def test_evidence_is_scored_without_a_word_and_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    model = tiny_model(tmp_path / "tiny")
    rows = [
        {"image": "one.png", "question": "where?", "boxes": [[0, 0, 64, 64]]},
        {"image": "one.png", "fixations": [[80, 60], [150, 120]]},
        {"image": "one.png", "question": "nobody knows"},
        {"image": "one.png"},  # broken: a quarter of them
    ]
    file = write_rows(tmp_path / "data", rows)
    words = ["eval", "--model", str(model), "--data", f"jsonl:{file}", "--score", "evidence", "--keep", "0.25"]
    words += ["--device", "cpu", "--out", str(tmp_path / "found.json"), "--quiet"]
    assert command.run(words) == command.EXIT_BAD_INPUT
    words[1:1] = ["--max-broken", "0.25"]
    assert command.run(words) == 0
    found = json.loads((tmp_path / "found.json").read_text())["evidence"]
    assert [row["selector"] for row in found] == ["look_twice", "random:seed=0", "even_grid", "variance", "centre"]
    assert all(row["questions"] == 2 and row["tokens"] == 5 for row in found)
    assert all(0 <= row["recall"]["mean"] <= 1 and 0 <= row["precision"]["mean"] <= 1 for row in found)
    assert "tokens    5.0" in capsys.readouterr().out
    from arr_coc.qwen.chooser import Chooser

    monkeypatch.setattr(Chooser, "choose", None)  # nothing is chosen again
    assert command.run(words) == 0
    samples = tmp_path / "found.jsonl-rows-evidence.jsonl"
    lines = samples.read_text().replace('"by": "', '"by": "0')
    samples.write_text(lines)
    assert command.run(words) == command.EXIT_BAD_INPUT
    assert "other weights of" in capsys.readouterr().err
    (tmp_path / "data" / "rows.jsonl").write_text(json.dumps(rows[2]) + "\n")
    monkeypatch.setattr("arr_coc.evaluation.field.evidence.EvidenceBench", None)  # before any model is loaded
    assert command.run([*words[:-2], str(tmp_path / "other.json")]) == command.EXIT_BAD_INPUT
    assert "no row has boxes or fixations" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["coco", "gaze"])
def test_a_choice_is_judged_by_boxes_of_coco_and_by_where_people_looked(kind, tmp_path):
    """The whole command, as it is typed."""
    model, folder = tiny_model(tmp_path / "tiny"), tmp_path / "data"
    looked = write_rows(folder, [{"image": "one.png", "fixations": [[80, 60], [150, 120]]}] * 2)
    things = {
        "images": [{"id": 1, "file_name": "one.png", "width": 160, "height": 128}],
        "categories": [{"id": 3, "name": "dog"}, {"id": 4, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "bbox": [0, 0, 60, 60]},
            {"id": 2, "image_id": 1, "category_id": 4, "bbox": [100, 100, 20, 20]},
        ],
    }
    (folder / "boxes.json").write_text(json.dumps(things))
    data = f"coco:{folder / 'boxes.json'}:{folder}" if kind == "coco" else f"jsonl:{looked}"
    words = ["eval", "--model", str(model), "--data", data, "--score", "evidence", "--keep", "0.25", "--keep", "1.0"]
    words += ["--selector", "look_twice", "--device", "cpu", "--out", str(tmp_path / "found.json")]
    done = subprocess.run([sys.executable, "-m", "arr_coc", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "found.json").read_text())["evidence"]
    assert [row["selector"] for row in rows[:5]] == ["look_twice", "random:seed=0", "even_grid", "variance", "centre"]
    assert all(row["questions"] == 2 and row["images"] == 1 for row in rows)
    assert all(row["recall"]["mean"] == 1 for row in rows[5:])  # all cells hold all of the truth
    truth = {"coco": (4 + 1) / 2, "gaze": 2}[kind]  # cells of 32 px, mean over questions
    assert all(row["precision"]["mean"] == pytest.approx(truth / 20, abs=1e-4) for row in rows[5:])
    assert all(row["tokens"] == 5 for row in rows[:5])
    assert done.stdout.count("recall") == len(rows)


def test_variance_and_centre_choose_what_they_say(tmp_path):
    ours = tiny.wrapped(tiny.stock(), selector="variance")
    flat = Image.new("RGB", (160, 128), "white")
    flat.paste(tiny.picture(64, 64), (96, 64))
    assert ours.choose(flat, "what?", keep=4)[0].kept.tolist() == [13, 14, 18, 19]
    ours = tiny.wrapped(tiny.stock(), selector="centre")
    assert ours.choose(flat, "what?", keep=2)[0].kept.tolist() == [7, 12]
