"""Examples from scenes and from files: each format in a small folder, broken rows of every kind included."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from arr_coc.data.coco import attach_boxes, category_finder, read_coco
from arr_coc.data.examples import BrokenExample, readable_example, scene_examples
from arr_coc.data.questions import read_jsonl, read_vqa
from arr_coc.data.sources import read_source
from arr_coc.evaluation.field.data import read_pictures
from arr_coc.training.groups import cell_targets
from arr_coc_scenes import draw_scene, make_scene

LOOSE = 1.0  # any number of broken rows is allowed where a test counts them


def picture(path: Path, width: int = 64, height: int = 48, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ramp = np.linspace(0, 255, width * height * 3).astype(np.uint8).reshape(height, width, 3)
    Image.fromarray(ramp).save(path, **options)
    return path


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def reasons(broken: list[str], expected: dict[str, str]) -> None:
    """Each broken line is the one expected for its place, and there are no others."""
    assert len(broken) == len(expected), broken
    for line, (place, reason) in zip(broken, expected.items(), strict=True):
        assert line.startswith(f"{place}: "), line
        assert reason in line


# Scenes


def test_scene_examples_are_the_questions_of_the_scene():
    scene = make_scene(43, "train", (256, 256), "hard")
    examples = scene_examples(scene)
    for example, question in zip(examples, scene.questions, strict=True):
        assert (example.question, example.answer) == (question.text, question.answer)
        assert (example.family, example.boxes) == (question.family, question.evidence)
        assert np.array_equal(example.image, draw_scene(scene))
        assert example.hard
    assert not scene_examples(make_scene(43, "train", (256, 256), "plain"))[0].hard


@pytest.mark.parametrize(("spec", "side", "says"), [("scenes", 8, "no room"), ("scenes:5", 256, "does not fit")])
def test_wrong_scene_settings_are_told_at_once(spec, side, says):
    with pytest.raises(ValueError, match=says):
        read_pictures(spec, 1, side, 0, None, str)


# COCO


def coco(folder: Path) -> tuple[Path, dict[str, list]]:
    """Two good images with a dog, a hot dog and a crowd; returns the images' folder and the content."""
    for name in ("000000000139.jpg", "000000000285.png"):
        picture(folder / "val2017" / name)
    box = [4.5, 8, 16, 20]
    content = {
        "images": [
            {"id": 139, "file_name": "000000000139.jpg", "width": 64, "height": 48},
            {"id": 285, "file_name": "000000000285.png"},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 58, "name": "hot dog"}, {"id": 1, "name": "person"}],
        "annotations": [
            {"id": 1, "image_id": 139, "category_id": 18, "bbox": box, "iscrowd": 0},
            {"id": 2, "image_id": 285, "category_id": 58, "bbox": [0, 0, 64, 48], "iscrowd": 0},
            {"id": 3, "image_id": 139, "category_id": 18, "bbox": [50, 40, 100, 100], "iscrowd": 0},
            {"id": 4, "image_id": 139, "category_id": 1, "bbox": [0, 0, 30, 30], "iscrowd": 1},
            {"id": 5, "image_id": 139, "category_id": 18, "bbox": [0, 0, 30, 30], "iscrowd": 1},
        ],
    }
    return folder / "val2017", content


def test_coco_asks_where_a_category_is(tmp_path):
    images, content = coco(tmp_path)
    data = read_source(f"coco:{write(tmp_path / 'instances.json', content)}:{images}", max_broken=0.0)
    assert len(data) == 2, "a category that is there only as a crowd is not asked about"
    dog, hot_dog = data[0], data[1]
    assert (dog.name, dog.question) == ("val2017/000000000139.jpg: dog", "Where is the dog?")
    assert (dog.answer, dog.family, dog.hard) == ("", "dog", False)
    assert dog.boxes == ((4.5, 8.0, 20.5, 28.0), (50.0, 40.0, 64.0, 48.0)), "both dogs, clipped to the image"
    assert hot_dog.question == "Where is the hot dog?"
    assert dog.image.shape == (48, 64, 3)
    assert np.array_equal(hot_dog.image, np.asarray(Image.open(images / "000000000285.png")))
    assert data.broken == []


def test_coco_counts_and_lists_every_broken_row(tmp_path):
    images, content = coco(tmp_path)
    (images / "text.jpg").write_text("hello")
    (images / "empty.png").write_bytes(b"")
    picture(images / "picture.gif")
    picture(images / "long.png", 402, 2)
    picture(images / "turned.jpg", exif=turned())
    good_images, good_notes = len(content["images"]), len(content["annotations"])
    bad_images = {
        "missing": ({"id": 7, "file_name": "gone.jpg"}, "gone.jpg is missing"),
        "text": ({"id": 8, "file_name": "text.jpg"}, "not a readable"),
        "empty": ({"id": 9, "file_name": "empty.png"}, "not a readable"),
        "gif": ({"id": 10, "file_name": "picture.gif"}, "not a readable"),
        "long": ({"id": 11, "file_name": "long.png"}, "too long"),
        "turned": ({"id": 12, "file_name": "turned.jpg", "width": 64, "height": 48}, "48x64 px, upright, but"),
        "outside": ({"id": 13, "file_name": "../secret.jpg"}, "not inside the folder"),
        "absolute": ({"id": 14, "file_name": "/secret.jpg"}, "not inside the folder"),
        "same id": ({"id": 139, "file_name": "000000000285.png"}, "duplicate id 139"),
        "no id": ({"file_name": "000000000285.png"}, "id is missing"),
        "no name": ({"id": 15}, "no image"),
        "endless name": ({"id": 16, "file_name": "x" * 5000}, "cannot be read"),
        "zero byte": ({"id": 17, "file_name": "a\0.jpg"}, "not inside the folder"),
        "no object": (17, "a int, not an object"),
    }
    note = {"image_id": 139, "category_id": 18, "bbox": [1, 1, 5, 5]}
    bad_notes = {
        "no area": (note | {"bbox": [1, 1, 0, 5]}, "no area"),
        "negative": (note | {"bbox": [9, 9, -5, 5]}, "no area"),
        "outside": (note | {"bbox": [64, 0, 5, 5]}, "outside the image of 64x48"),
        "nan": (note | {"bbox": [1, 1, float("nan"), 5]}, "finite"),
        "infinite": (note | {"bbox": [1, 1, float("inf"), 5]}, "finite"),
        "huge": (note | {"bbox": [1, 1, 10**400, 5]}, "finite"),
        "texts": (note | {"bbox": ["1", "1", "5", "5"]}, "finite"),
        "truths": (note | {"bbox": [True, True, True, True]}, "finite"),
        "three": (note | {"bbox": [1, 1, 5]}, "not 4 numbers"),
        "none": ({"image_id": 139, "category_id": 18}, "bbox is missing"),
        "category": (note | {"category_id": 99}, "unknown category id 99"),
        "image": (note | {"image_id": 99}, "unknown image id 99"),
        "truth": (note | {"image_id": True}, "image_id is True"),
        "list": (note | {"category_id": [18]}, "category_id is [18]"),
        "crowd": (note | {"iscrowd": 2}, "iscrowd is 2"),
        "same id": (note | {"id": 1}, "duplicate id 1"),
        "null": (None, "not an object"),
    }
    content["images"] += [row for row, _ in bad_images.values()]
    content["annotations"] += [row for row, _ in bad_notes.values()]
    content["annotations"].append({"image_id": 7, "category_id": 18, "bbox": [1, 1, 5, 5]})
    content["categories"] += [{"id": 18, "name": "cat"}, {"id": 19}]
    file = write(tmp_path / "instances.json", content)
    data = read_coco(file, images, max_broken=LOOSE)
    expected = {f"{file.name}: categories[3]": "duplicate id 18", f"{file.name}: categories[4]": "no name"}
    expected |= {f"{file.name}: images[{good_images + k}]": why for k, (_, why) in enumerate(bad_images.values())}
    expected |= {f"{file.name}: annotations[{good_notes + k}]": why for k, (_, why) in enumerate(bad_notes.values())}
    reasons(data.broken, expected)
    assert [example.question for example in data] == ["Where is the dog?", "Where is the hot dog?"]
    assert len(data[0].boxes or ()) == 2


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_images_stand_upright_in_size_and_pixels(tmp_path):
    picture(tmp_path / "a.jpg", exif=turned())
    picture(tmp_path / "b.png", exif=turned())
    rows = [{"image": name, "question": "what?", "boxes": [[0, 0, 999, 999]]} for name in ("a.jpg", "b.png")]
    data = read_jsonl(write(tmp_path / "q.jsonl", "\n".join(map(json.dumps, rows))))
    for example in data:
        assert example.image.shape == (64, 48, 3)
        assert example.boxes == ((0.0, 0.0, 48.0, 64.0),)


def test_a_half_copied_folder_is_told_in_one_line(tmp_path):
    images, content = coco(tmp_path)
    content["images"] += [{"id": number, "file_name": f"{number:012d}.jpg"} for number in range(500, 506)]
    few = write(tmp_path / "few.json", content)
    assert len(read_coco(few, images, max_broken=0.75)) == 2, "each table has its own share"
    # Many good annotations must not hide missing images.
    content["annotations"] += [{"image_id": 139, "category_id": 18, "bbox": [1, 1, 5, 5]}] * 500
    file = write(tmp_path / "instances.json", content)
    with pytest.raises(ValueError, match=re.escape("2 of 8 images are there")) as caught:
        read_source(f"coco:{file}:{images}", max_broken=0.5)
    message = str(caught.value)
    assert "6 of 8 rows are broken" in message
    assert "first missing one is 000000000500.jpg" in message
    assert "\n" not in message
    assert message.count("is missing") == 3, "the first few only"
    assert len(read_source(f"coco:{file}:{images}", max_broken=0.75)) == 2


# VQA


def vqa(folder: Path) -> tuple[Path, dict, dict]:
    picture(folder / "val2014" / "COCO_val2014_000000000042.jpg")
    picture(folder / "val2014" / "COCO_val2014_000000000073.PNG")
    picture(folder / "val2014" / "._COCO_val2014_000000000042.jpg")
    people = [
        {"answer": text, "answer_confidence": "yes", "answer_id": k} for k, text in enumerate(("no", "yes", "yes"))
    ]
    questions = [
        {"question_id": 42000, "image_id": 42, "question": "What color is the dog?"},
        {"question_id": 73001, "image_id": 73, "question": " Is it raining? "},
    ]
    annotations = [
        {"question_id": 73001, "image_id": 73, "answers": people, "answer_type": "yes/no"},
        {"question_id": 42000, "image_id": 42, "multiple_choice_answer": "white", "answers": people},
    ]
    return folder / "val2014", {"questions": questions}, {"annotations": annotations}


def test_vqa_finds_images_by_their_number(tmp_path):
    images, asked, answered = vqa(tmp_path)
    spec = f"vqa:{write(tmp_path / 'q.json', asked)}:{write(tmp_path / 'a.json', answered)}:{images}"
    first, second = read_source(spec, max_broken=0.0)
    assert (first.question, first.answer, first.family) == ("What color is the dog?", "white", "")
    assert (second.question, second.answer, second.family) == ("Is it raining?", "yes", "yes/no")
    assert first.name == "val2014/COCO_val2014_000000000042.jpg: question 42000"
    assert first.boxes is None
    assert np.array_equal(second.image, np.asarray(Image.open(images / "COCO_val2014_000000000073.PNG")))


def test_vqa_counts_and_lists_every_broken_row(tmp_path):
    images, asked, answered = vqa(tmp_path)
    picture(images / "COCO_val2014_000000000080.jpg")
    picture(images / "COCO_val2014_000000000080.png")
    (images / "COCO_val2014_000000000081.jpg").write_text("hello")
    question, note = {"question": "What?"}, {"multiple_choice_answer": "a"}
    bad_questions = {
        "same id": ({"question_id": 42000, "image_id": 73}, "duplicate question id 42000"),
        "empty": ({"question_id": 1, "image_id": 42, "question": "  "}, "no question"),
        "number": ({"question_id": 2, "image_id": 42, "question": 5}, "question is 5, not a text"),
        "half a letter": ({"question_id": 3, "image_id": 42, "question": "a\ud800"}, "Unicode"),
        "text id": ({"question_id": 4, "image_id": "42"}, "not a number of at most 12 digits"),
        "unanswered": ({"question_id": 5, "image_id": 42}, "no usable annotation"),
        "missing": ({"question_id": 6, "image_id": 900}, "image COCO_val2014_000000000900.jpg is missing"),
        "two files": ({"question_id": 7, "image_id": 80}, "more than once"),
        "unreadable": ({"question_id": 8, "image_id": 81}, "not a readable"),
        "other image": ({"question_id": 9, "image_id": 42}, "its answer about 73"),
        "no id": ({"image_id": 42}, "question_id is missing"),
    }
    bad_notes = {
        "same id": ({"question_id": 42000, "image_id": 42}, "duplicate question id 42000"),
        "unasked": ({"question_id": 77, "image_id": 42}, "no question with id 77"),
        "no answers": ({"question_id": 5, "image_id": 42, "multiple_choice_answer": None}, "no answers"),
        "empty": ({"question_id": 10, "image_id": 42, "multiple_choice_answer": ""}, "no multiple_choice_answer"),
        "list": ([], "a list, not an object"),
    }
    asked["questions"] += [question | row for row, _ in bad_questions.values()]
    asked["questions"].append(question | {"question_id": 10, "image_id": 42})
    answered["annotations"] += [note | row if isinstance(row, dict) else row for row, _ in bad_notes.values()]
    for number, image in ((6, 900), (7, 80), (8, 81), (9, 73)):
        answered["annotations"].append(note | {"question_id": number, "image_id": image})
    files = write(tmp_path / "q.json", asked), write(tmp_path / "a.json", answered)
    data = read_vqa(*files, images, max_broken=LOOSE)
    expected = {f"a.json: annotations[{2 + k}]": why for k, (_, why) in enumerate(bad_notes.values())}
    expected |= {f"q.json: questions[{2 + k}]": why for k, (_, why) in enumerate(bad_questions.values())}
    reasons(data.broken, expected | {"q.json: questions[13]": "question 10 has no usable annotation"})
    assert [example.answer for example in data] == ["white", "yes"]
    with pytest.raises(
        ValueError, match=r"3 of 4 images are there, the first missing one is COCO_val2014_000000000900"
    ):
        read_vqa(*files, images, max_broken=0.5)


# JSONL


def test_jsonl_gives_what_is_written(tmp_path):
    picture(tmp_path / "photos" / "1.webp")
    rows = [
        {"image": "photos/1.webp", "question": "What is it?", "answer": "a cup", "boxes": [[-5, 2, 9.5, 99]]},
        {
            "image": "photos/../photos/1.webp",
            "question": "Is there a cat?",
            "boxes": [],
            "family": "exists",
            "hard": True,
        },
        {"image": "photos/1.webp", "question": "Où est-ce ?", "boxes": None, "answer": None, "hard": None, "more": 1},
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "q.jsonl").write_text("\ufeff" + lines[0] + "\r\n\n" + "\n".join(lines[1:]), encoding="utf-8")
    data = read_source(f"jsonl:{tmp_path / 'q.jsonl'}", max_broken=0.0)
    assert [e.boxes for e in data] == [((0.0, 2.0, 9.5, 48.0),), (), None]
    assert [(e.answer, e.family, e.hard) for e in data] == [("a cup", "", False), ("", "exists", True), ("", "", False)]
    assert [e.name for e in data] == [f"q.jsonl:{line} photos/1.webp" for line in (1, 3, 4)]
    assert data[2].question == "Où est-ce ?"


def test_jsonl_counts_and_lists_every_broken_line(tmp_path):
    picture(tmp_path / "data" / "1.png")
    picture(tmp_path / "2.png")
    row = {"image": "1.png", "question": "What?"}
    bad: list[tuple[bytes, str]] = [
        (b'{"image": "1.png", "question"', "not valid JSON"),
        (b'{"image": "1.png", "question": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"image": 1' + b"0" * 5000 + b"}", "not valid JSON"),
        (b"[1, 2]", "a list, not an object"),
    ]
    changes = [
        ({"question": None}, "no question"),
        ({"question": ["What?"]}, "question is ['What?'], not a text"),
        ({"answer": 3}, "answer is 3, not a text"),
        ({"family": {}}, "family is {}, not a text"),
        ({"hard": "yes"}, "hard is a str"),
        ({"image": None}, "no image"),
        ({"image": 5}, "not a text"),
        ({"image": "2.png"}, "2.png is missing"),
        ({"image": "../2.png"}, "not inside the folder"),
        ({"image": "x/../../2.png"}, "not inside the folder"),
        ({"image": str(tmp_path / "2.png")}, "not inside the folder"),
        ({"image": "C:\\2.png"}, "not inside the folder"),
        ({"image": "."}, "is missing"),
        ({"image": "two\nlines\ud800.png"}, "image two lines\\ud800.png is missing"),
        ({"boxes": {}}, "boxes is a dict"),
        ({"boxes": [[1, 2, 3]]}, "not 4 numbers"),
        ({"boxes": [[5, 5, 5, 9]]}, "no area"),
        ({"boxes": [[1, 1, 9, 9], [70, 5, 75, 9]]}, "outside the image"),
        ({"boxes": [[1, 1, 9, float("nan")]]}, "finite"),
        ({"boxes": [[0, 0, 1, 1], [0.25, 0.5, 0.75, 1.0]]}, "boxes are shares of the image, not pixels"),
        ({"fixations": [[0.25, 0.5], [1, 0]]}, "fixations are shares of the image, not pixels"),
        ({"fixations": [[9999, 3], [3, -1]]}, "no fixation lies in the image"),
    ]
    bad += [(json.dumps(row | change).encode(), why) for change, why in changes]
    lines = [json.dumps(row).encode(), *(line for line, _ in bad)]
    file = tmp_path / "data" / "q.jsonl"
    file.write_bytes(b"\n".join(lines))
    data = read_jsonl(file, max_broken=LOOSE)
    reasons(data.broken, {f"q.jsonl:{number}": why for number, (_, why) in enumerate(bad, start=2)})
    assert len(data) == 1
    with pytest.raises(ValueError, match=r"27 of 28 rows are broken, over max_broken=0\.01: q\.jsonl:2: not valid"):
        read_jsonl(file)


def test_files_of_the_home_folder_are_found(monkeypatch, tmp_path):
    """Behind a colon no shell writes its name out."""
    monkeypatch.setenv("HOME", str(tmp_path))
    picture(tmp_path / "1.png")
    (tmp_path / "q.jsonl").write_text(json.dumps({"image": "1.png", "question": "What?"}))
    assert len(read_source("jsonl:~/q.jsonl")) == 1


def test_a_list_of_rows_is_told_how_it_is_written(tmp_path):
    picture(tmp_path / "1.png")
    file = tmp_path / "q.jsonl"
    for indent in (None, 1):
        file.write_text(json.dumps([{"image": "1.png", "question": "What?"}], indent=indent))
        with pytest.raises(ValueError, match="It is one list: write an object a line"):
            read_jsonl(file)


# Images that break later, loaders


def test_an_image_that_does_not_decode_is_named_and_passed_over(tmp_path):
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        picture(tmp_path / name, 256, 256)
    rows = [json.dumps({"image": name, "question": "what?"}) for name in ("a.jpg", "b.jpg", "c.jpg")]
    data = read_jsonl(write(tmp_path / "q.jsonl", "\n".join(rows)), max_broken=0.0)
    whole = (tmp_path / "b.jpg").read_bytes()
    (tmp_path / "b.jpg").write_bytes(whole[: len(whole) // 2])
    assert len(read_jsonl(tmp_path / "q.jsonl", max_broken=0.0)) == 3, "its header is good"
    picture(tmp_path / "c.jpg", 128, 256)
    with pytest.raises(BrokenExample, match=r"q\.jsonl:2 b\.jpg: b\.jpg: the image is damaged"):
        data[1]
    with pytest.raises(BrokenExample, match="128x256 decoded, its header said 256x256"):
        data[2]
    example, passed = readable_example(data, 1)
    assert example.name == data[0].name, "from the end on to the start"
    assert [message.split(":")[1] for message in passed] == ["2 b.jpg", "3 c.jpg"]
    assert readable_example(data, 0)[1] == []
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(ValueError, match=r"3 images in a row do not decode, first .*b\.jpg"):
        readable_example(data, 1)


def test_file_examples_work_in_a_loader_with_workers(tmp_path):
    images, content = coco(tmp_path)
    data = read_coco(write(tmp_path / "instances.json", content), images)
    (batch,) = DataLoader(data, batch_size=2, num_workers=1, collate_fn=list)
    assert [example.family for example in batch] == ["dog", "hot dog"]
    (images / "000000000285.png").write_bytes(b"")
    with pytest.raises(BrokenExample, match="hot dog"):
        list(DataLoader(data, batch_size=2, num_workers=1, collate_fn=list))


# Specs and whole files


def test_mistakes_with_whole_files_are_told_in_one_line(tmp_path):
    images, content = coco(tmp_path)
    good = write(tmp_path / "instances.json", content)
    cut = write(tmp_path / "cut.json", json.dumps(content)[:200])
    odd = write(tmp_path / "odd.json", [])
    empty = write(tmp_path / "empty.jsonl", "")
    cases = {
        "photos:x": "unknown source 'photos:x': use scenes, coco:ANNOTATIONS",
        f"coco:{good}": "does not fit the form coco:ANNOTATIONS.json:IMAGES_FOLDER",
        f"coco::{images}": "does not fit the form",
        "scenes:5": "does not fit the form scenes",
        f"coco:{good}:{tmp_path}/none": "no such folder of images",
        f"coco:{tmp_path}/none.json:{images}": "no such readable file",
        f"coco:{cut}:{images}": "not valid JSON",
        f"coco:{odd}:{images}": "no list 'categories'",
        f"vqa:{good}:{good}:{images}": "no list 'questions'",
        f"jsonl:{tmp_path}/none.jsonl": "no such JSONL file",
        f"jsonl:{empty}": "no example is left",
    }
    for spec, says in cases.items():
        with pytest.raises(ValueError, match=re.escape(says)) as caught:
            read_source(spec)
        assert "\n" not in str(caught.value)
    for wrong in (-1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="max_broken is"):
            read_source(f"coco:{good}:{images}", max_broken=wrong)


# Pseudo-boxes


def asked(folder: Path, *questions: str, image: str = "000000000042.jpg", boxes: list | None = None) -> Path:
    if not (folder / image).exists():
        picture(folder / image)
    rows = [{"image": image, "question": question, "boxes": boxes} for question in questions]
    return write(folder / "q.jsonl", "\n".join(map(json.dumps, rows)))


def detected(category: str, left: float, image: object = 42, score: float = 0.9) -> dict:
    return {"image_id": image, "category": category, "bbox": [left, 0, 10, 10], "score": score}


def lefts(boxes: tuple | None) -> list[float] | None:
    return None if boxes is None else [box[0] for box in boxes]


def test_pseudo_boxes_follow_the_category_that_the_question_names(tmp_path):
    cases = {
        "Where is the dog?": [1],
        "How many DOGS are there?": [1],
        "Where is the hot dog?": [2],
        "Are the people left of the bus?": [3, 4],
        "What colour is the traffic light?": [5],
        "What is the hotdogger doing?": [1, 2, 3, 4, 5],
        "Where is the cat?": None,
        "Is a knife here?": [1, 2, 3, 4, 5],
    }
    rows = [detected(name, k) for k, name in enumerate(("dog", "hot dog", "Person", "bus", "traffic_light"), 1)]
    rows.append(detected("cat", 6, score=0.2))
    rows.append(detected("dog", 7, image="elsewhere.jpg"))
    results = write(tmp_path / "found.json", rows)
    data = read_source(f"jsonl:{asked(tmp_path, *cases)}", detections=results, max_broken=0.0)
    assert {e.question: lefts(e.boxes) for e in data} == cases
    assert data[0].boxes == ((1.0, 0.0, 11.0, 10.0),)


def test_pseudo_boxes_never_replace_known_ones(tmp_path):
    data = read_jsonl(asked(tmp_path, "Where is the dog?", "Where is the cat?", boxes=[[30, 0, 40, 10]]))
    results = write(tmp_path / "found.json", [detected("dog", 1), detected("cat", 2, score=0.1)])
    assert [lefts(e.boxes) for e in attach_boxes(data, results)] == [[30], [30]]


def test_category_numbers_take_their_names_from_a_coco_file(tmp_path):
    images, content = coco(tmp_path)
    names = write(tmp_path / "instances.json", content)
    row = {"image_id": 139, "category_id": 58, "bbox": [3, 0, 10, 10], "score": 1}
    results = write(tmp_path / "found.json", [row, row | {"category_id": 18, "bbox": [5, 0, 10, 10]}])
    known = read_coco(names, images)
    asked_again = replace(known, rows=[replace(row, boxes=None) for row in known.rows])
    assert lefts(attach_boxes(asked_again, results)[0].boxes) == [5]
    plain = asked(tmp_path, "a hot dog?", image="000000000139.jpg")
    with pytest.raises(ValueError, match="categories are numbers"):
        read_source(f"jsonl:{plain}", detections=results)


def test_images_of_detections_are_found_by_number_path_name_or_stem(tmp_path):
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "b" / "1.png")
    picture(tmp_path / "b" / "COCO_val2014_000000000042.jpg")
    names = ("a/1.png", "b/1.png", "b/COCO_val2014_000000000042.jpg")
    lines = "\n".join(json.dumps({"image": name, "question": "what?"}) for name in names)
    data = read_jsonl(write(tmp_path / "q.jsonl", lines))
    keys = ("a/1.png", 42, "COCO_val2014_000000000042", "COCO_val2014_000000000042.jpg", "1.png")
    rows = [detected("dog", k, image=key) for k, key in enumerate(keys)]
    rows[1]["file_name"] = "a/1.png"  # the id goes first
    rows.append({"file_name": "b/1.png", "category": "dog", "bbox": [9, 0, 5, 5], "score": 1})
    found = attach_boxes(data, write(tmp_path / "found.json", rows), max_broken=0.2)
    assert [lefts(e.boxes) for e in found] == [[0], [9], [1, 2, 3]]
    reasons(found.broken, {"found.json[4]": "could be a/1.png or b/1.png"})


def test_broken_detections_are_counted_and_listed(tmp_path):
    data = read_jsonl(asked(tmp_path, "What?"))
    good = detected("dog", 1)
    changes = [
        ({"bbox": [64, 0, 5, 5]}, "outside the image"),
        ({"bbox": [1, 1, 0, 0]}, "no area"),
        ({"bbox": None}, "bbox is missing"),
        ({"score": None}, "score is [None]"),
        ({"score": float("nan")}, "finite"),
        ({"category": ""}, "no category"),
        ({"category": 4}, "category is 4"),
        ({"image_id": None}, "image_id is missing"),
        ({"image_id": 4.5}, "image_id is 4.5"),
    ]
    rows = [good, *(good | change for change, _ in changes), "dog"]
    results = write(tmp_path / "found.json", rows)
    found = attach_boxes(data, results, max_broken=LOOSE)
    expected = {f"found.json[{number}]": why for number, (_, why) in enumerate(changes, start=1)}
    reasons(found.broken, expected | {"found.json[10]": "a str, not an object"})
    assert lefts(found[0].boxes) == [1]
    with pytest.raises(ValueError, match="10 of 11 rows are broken"):
        attach_boxes(data, results)
    with pytest.raises(ValueError, match="none of its 1 detections"):
        attach_boxes(data, write(tmp_path / "other.json", [detected("dog", 1, image=43)]))
    with pytest.raises(ValueError, match="not a list of detections"):
        attach_boxes(data, write(tmp_path / "other.json", {}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("person", ["person", "people", "persons"]),
        ("bus", ["bus", "buses"]),
        ("knife", ["knife", "knives"]),
        ("scissors", ["scissors"]),
        ("skis", ["ski", "skis"]),
        ("wine glass", ["wine glass", "wine  glasses", "Wine Glass"]),
        ("puppies", ["puppy", "puppies"]),
        ("mice", ["mouse", "mice"]),
        ("bench", ["bench", "benches"]),
    ],
)
def test_singular_and_plural_name_the_same(name, words):
    named_in = category_finder([name, "cup"])
    for word in words:
        assert named_in(f"Where (or what) is the {word}?") == {name}
    assert named_in(f"x{name} {name}x un{name}ly") == set()
    assert category_finder([])("dog") == set()


def test_the_longest_name_wins():
    named_in = category_finder(["dog", "hot dog", "bear", "bear trap"])
    assert named_in("a hot dog and a bear trap") == {"hot dog", "bear trap"}
    assert named_in("hot dogs, dogs and bears") == {"hot dog", "dog", "bear"}


def test_two_letters_left_of_a_plural_mean_nothing():
    assert category_finder(["bus"])("Is it to bu?") == set()


# Cells


@st.composite
def boxes_on_grids(draw, most_boxes: int = 3):
    """Whole-pixel boxes inside an image, and a grid that need not divide it."""
    width, height = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    grid = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    boxes = []
    for _ in range(draw(st.integers(1, most_boxes))):
        x0, y0 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        boxes.append((x0, y0, draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))))
    return boxes, (width, height), grid


def pixels_of_cells(boxes, image_size, grid) -> np.ndarray:
    """`[H, W, height, width]` by brute force: every pixel cut into W x H parts, every cell made of whole parts."""
    (width, height), (rows, columns) = image_size, grid
    parts = np.zeros((height * rows, width * columns), bool)
    for x0, y0, x1, y1 in boxes:
        parts[y0 * rows : y1 * rows, x0 * columns : x1 * columns] = True
    return parts.reshape(rows, height, columns, width).transpose(0, 2, 1, 3)


@settings(deadline=None)
@given(boxes_on_grids())
def test_targets_are_exactly_the_cells_that_boxes_touch(case):
    truth = pixels_of_cells(*case)
    targets = cell_targets(*case)
    assert targets.dtype == torch.float32
    assert np.array_equal(targets.numpy(), truth.any((2, 3)))
    assert targets.sum() >= 1


@settings(deadline=None)
@given(
    st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2),
    st.tuples(*[st.floats(1e-12, 1)] * 2),
    st.tuples(*[st.integers(1, 2000)] * 2),
    st.tuples(*[st.integers(1, 64)] * 2),
)
def test_any_box_inside_the_image_marks_a_cell_and_no_cell_beyond(start, extent, image_size, grid):
    width, height = image_size
    x0, y0 = min(start[0] * width, np.nextafter(width, 0)), min(start[1] * height, np.nextafter(height, 0))
    x1 = min(max(x0 + extent[0] * width, np.nextafter(x0, np.inf)), width)
    y1 = min(max(y0 + extent[1] * height, np.nextafter(y0, np.inf)), height)
    marked = cell_targets([(x0, y0, x1, y1)], image_size, grid).nonzero().tolist()
    assert marked
    slack = Fraction(1, 10**9)
    for row, column in marked:
        assert Fraction(float(x0)) * grid[1] <= (column + 1 + slack) * width
        assert Fraction(float(x1)) * grid[1] >= (column - slack) * width
        assert Fraction(float(y0)) * grid[0] <= (row + 1 + slack) * height
        assert Fraction(float(y1)) * grid[0] >= (row - slack) * height


def test_a_box_thinner_than_rounding_marks_one_cell():
    border = 129 / 65  # between the first two of 65 cells
    x0 = next(x for x in (border, float(np.nextafter(border, 0))) if Fraction(x) * 65 < 129)
    x1 = float(np.nextafter(x0, 2))
    assert x0 * 65 / 129 == x1 * 65 / 129 == 1.0, "both ends are the border, as far as float64 tells"
    assert cell_targets([(x0, 0, x1, 1)], (129, 1), (1, 65)).sum() == 1
    last = float(np.nextafter(129, 0))
    assert cell_targets([(last, 0, 129, 1)], (129, 1), (1, 65)).nonzero().tolist() == [[0, 64]]


def test_targets_of_nothing_and_of_boxes_beyond_the_image():
    assert cell_targets([], (64, 32), (2, 4)).tolist() == [[0.0] * 4] * 2
    outside = [(64, 0, 80, 10), (-9, 0, 0, 10), (5, 5, 5, 9)]
    assert cell_targets(outside, (64, 32), (2, 4)).sum() == 0
    assert cell_targets([(60, 16, 900, 900)], (64, 32), (2, 4)).tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]
