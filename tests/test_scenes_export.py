"""Scenes as files."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arr_coc_scenes import draw_scene, make_scene
from arr_coc_scenes.export import export


def test_jsonl_round_trip(tmp_path: Path) -> None:
    counts = export(tmp_path, "seen", 5, first_seed=20, size=(256, 320))
    lines = (tmp_path / "questions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert counts["questions"] == len(rows)
    assert counts["images"] == len(list((tmp_path / "images").iterdir())) == 5
    for seed in range(20, 25):
        scene = make_scene(seed, "seen", (256, 320))
        mine = [r for r in rows if r["seed"] == seed]
        assert [r["question"] for r in mine] == [q.text for q in scene.questions]
        assert [r["answer"] for r in mine] == [q.answer for q in scene.questions]
        for row, question in zip(mine, scene.questions, strict=True):
            boxes = tuple((x, y, x + w, y + h) for x, y, w, h in row["evidence"])
            assert boxes == question.evidence
            assert (row["width"], row["height"], row["family"]) == (256, 320, question.family)
        assert np.array_equal(np.asarray(Image.open(tmp_path / mine[0]["image"])), draw_scene(scene))
    assert len({r["id"] for r in rows}) == len(rows)


def test_coco_boxes(tmp_path: Path) -> None:
    counts = export(tmp_path, "train", 4, size=(384, 384))
    coco = json.loads((tmp_path / "annotations.json").read_text())
    assert len(coco["annotations"]) == counts["boxes"]
    assert {c["name"] for c in coco["categories"]} == {"thing", "text", "bar"}
    assert [a["id"] for a in coco["annotations"]] == list(range(1, counts["boxes"] + 1))
    images = {i["id"]: i for i in coco["images"]}
    for note in coco["annotations"]:
        x, y, w, h = note["bbox"]
        image = images[note["image_id"]]
        assert 0 <= x < x + w <= image["width"]
        assert 0 <= y < y + h <= image["height"]
        assert note["area"] == w * h
    assert (tmp_path / coco["images"][0]["file_name"]).is_file()


def test_difficulty_reaches_the_scenes(tmp_path: Path) -> None:
    export(tmp_path, "train", 2, size=(256, 256), difficulty="hard")
    rows = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    assert {r["difficulty"] for r in rows} == {"hard"}


def test_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    counts = export(tmp_path, "train", 2, format="parquet", size=(256, 256))
    assert parquet.read_table(tmp_path / "questions.parquet").num_rows == counts["questions"]


def test_parquet_without_pyarrow_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="pip install pyarrow"):
        export(tmp_path / "new", "train", 1, format="parquet")
    assert not (tmp_path / "new").exists(), "nothing is written before the mistake is found"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"format": "csv"}, "jsonl"),
        ({"count": 0}, "at least one"),
        ({"split": "all"}, "unknown split"),
        ({"size": (8, 8)}, "no room"),
        ({"difficulty": "odd"}, "unknown difficulty"),
    ],
)
def test_mistakes_leave_nothing_behind(tmp_path: Path, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        export(tmp_path / "new", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
