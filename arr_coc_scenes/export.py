"""Scenes as files: PNG images, questions as JSONL or Parquet, and the elements as COCO boxes."""

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc_scenes.drawing import draw_scene
from arr_coc_scenes.making import make_scene
from arr_coc_scenes.types import Box, Scene

FORMATS = ("jsonl", "parquet")
OF_SCENE = ("width", "height", "split", "seed", "layout", "difficulty")  # what a question says of its scene
# COCO categories: every thing by its name would hide what a text or a bar is.
CATEGORIES = {"thing": 1, "text": 2, "bar": 3}


def _xywh(box: Box) -> list[int]:
    """A box as COCO writes it: x, y, width, height."""
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def question_rows(scene: Scene, file_name: str) -> Iterator[dict[str, Any]]:
    """One flat record per question; evidence and distractors as [x, y, width, height].

    `boxes` are the evidence once more, by its corners: what `arr-coc eval --data jsonl:` reads.
    """
    for number, question in enumerate(scene.questions):
        yield {
            "id": f"{scene.split}-{scene.seed}-{number}",
            "image": file_name,
            **{name: getattr(scene, name) for name in OF_SCENE},
            "family": question.family,
            "question": question.text,
            "answer": question.answer,
            "boxes": [list(b) for b in question.evidence],
            "evidence": [_xywh(b) for b in question.evidence],
            "distractors": [_xywh(b) for b in question.distractors],
        }


def coco_annotations(scene: Scene, image_id: int, first_id: int) -> list[dict[str, Any]]:
    """The scene's elements as COCO annotations, numbered from `first_id`."""
    return [
        {
            "id": first_id + k,
            "image_id": image_id,
            "category_id": CATEGORIES[element.kind],
            "bbox": _xywh(element.box),
            "area": _xywh(element.box)[2] * _xywh(element.box)[3],
            "iscrowd": 0,
            "attributes": {"name": element.name, "colour": element.colour, "text": element.text},
        }
        for k, element in enumerate(scene.elements)
    ]


def _write(path: Path, content: bytes) -> None:
    """A file, whole or absent: written beside its place, then moved there. Errors of the disk name it."""
    place = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        place.write_bytes(content)
        place.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            place.unlink()


def _png(scene: Scene) -> bytes:
    made = io.BytesIO()
    Image.fromarray(draw_scene(scene)).save(made, "PNG")
    return made.getvalue()


def _jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _parquet_maker() -> Callable[[list[dict[str, Any]]], bytes]:
    """A maker of Parquet files, asked for before anything is drawn: a missing pyarrow costs no work."""
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError("Parquet needs pyarrow: pip install pyarrow, or export with format 'jsonl'") from error

    def make(rows: list[dict[str, Any]]) -> bytes:
        made = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(rows), made)
        return made.getvalue()

    return make


def export(
    out_dir: str | Path,
    split: str = "train",
    count: int = 100,
    first_seed: int = 0,
    format: str = "jsonl",
    size: tuple[int, int] | None = None,
    difficulty: str | None = None,
) -> dict[str, int]:
    """Write `count` scenes under `out_dir` and return how many images, questions and boxes there are.

    Files: images/SPLIT-SEED.png, questions.jsonl or questions.parquet, annotations.json (COCO).
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
    if count < 1:
        raise ValueError(f"count is {count}: export at least one scene")
    make = _parquet_maker() if format == "parquet" else _jsonl
    folder = Path(out_dir)
    make_scene(first_seed, split, size, difficulty)  # a mistake ends here, before anything is written
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    boxes: list[dict[str, Any]] = []
    for image_id, seed in enumerate(range(first_seed, first_seed + count), start=1):
        scene = make_scene(seed, split, size, difficulty)
        name = f"images/{split}-{seed}.png"
        _write(folder / name, _png(scene))
        images.append({"id": image_id, "file_name": name, "width": scene.width, "height": scene.height})
        boxes += coco_annotations(scene, image_id, len(boxes) + 1)
        rows += question_rows(scene, name)
    _write(folder / f"questions.{format}", make(rows))
    categories = [{"id": number, "name": name} for name, number in CATEGORIES.items()]
    coco = {"images": images, "annotations": boxes, "categories": categories}
    _write(folder / "annotations.json", json.dumps(coco).encode())
    return {"images": len(images), "questions": len(rows), "boxes": len(boxes)}
