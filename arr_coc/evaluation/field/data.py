"""What the field is asked: images with their questions, drawn or from local files, read when they are needed.

scenes                       the `seen` split, of one size in px
coco:... vqa:... docvqa:... chartqa:... jsonl:...     see `arr_coc.data.sources`
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from arr_coc.data.files import FileExamples, FileImage
from arr_coc.data.sources import FORMS, read_source
from arr_coc.evaluation.asked import PER_IMAGE, READING
from arr_coc.evaluation.field.scores import METRICS
from arr_coc.evaluation.metrics import DESCRIBE
from arr_coc.images.reader import read_image
from arr_coc.scenes import Question, Scene, draw_scene, make_scene

Share = tuple[float, float, float, float]  # left, top, right, bottom as shares of the image
METRIC_OF = {"coco": "none", "vqa": "vqa", "docvqa": "anls", "chartqa": "relaxed", "jsonl": "exact"}
SMALL_TEXT_PX = 20  # font size in px of the drawn scene up to which a text is small
MANY_THINGS = 8
SMALL_TEXT, MANY = "small text", "many things"


@dataclass(frozen=True, slots=True)
class Query:
    """One question about an image."""

    text: str
    answers: tuple[str, ...]
    metric: str
    family: str
    boxes: tuple[Share, ...] | None  # where the answer is; () nothing is there, None not known
    groups: tuple[str, ...] = ()  # further groups of reports, such as small text


@dataclass(frozen=True, slots=True)
class Picture:
    """An image, which is read only when asked for, and what is asked about it."""

    number: int  # the cluster of the statistics, and the image number of random draws
    size: tuple[int, int]  # (width, height) px
    read: Callable[[], np.ndarray]  # uint8 [height, width, 3]
    queries: tuple[Query, ...]


def scene_pictures(questions: int, side: int, seed: int, difficulty: str | None = None) -> list[Picture]:
    """Scenes of the `seen` split with `questions` questions in all, at most six of a scene, drawn at random.

    The same scenes and questions as `evaluation.mini.ask_about` asks.
    """
    pictures: list[Picture] = []
    left, number = questions, 0
    while left > 0:
        scene = make_scene(seed * 1_000_000 + number, "seen", (side, side), difficulty)
        order = np.random.default_rng([seed, number]).permutation(len(scene.questions))
        chosen = [scene.questions[i] for i in order[: min(PER_IMAGE, left)].tolist()]
        if chosen:
            queries = tuple(_scene_query(scene, question) for question in chosen)
            pictures.append(Picture(number, (side, side), partial(draw_scene, scene), queries))
            left -= len(chosen)
        number += 1
    return pictures


def _scene_query(scene: Scene, question: Question) -> Query:
    shares = tuple(
        (x0 / scene.width, y0 / scene.height, x1 / scene.width, y1 / scene.height)
        for x0, y0, x1, y1 in question.evidence
    )
    metric = "f1" if question.family == DESCRIBE else "exact"
    groups = [scene.difficulty]
    if question.family in READING and is_small_text(scene, question):
        groups.append(SMALL_TEXT)
    if sum(element.kind == "thing" for element in scene.elements) >= MANY_THINGS:
        groups.append(MANY)
    return Query(question.text, (question.answer,), metric, question.family, shares, tuple(groups))


def is_small_text(scene: Scene, question: Question) -> bool:
    """Whether the evidence of a question holds text, and no larger one than SMALL_TEXT_PX."""
    held = [
        element.px
        for element in scene.elements
        if element.kind == "text" and any(_touch(element.box, box) for box in question.evidence)
    ]
    return bool(held) and max(held) <= SMALL_TEXT_PX


def _touch(a: Sequence[int], b: Sequence[int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def file_pictures(
    spec: str, questions: int, seed: int, metric: str | None, say: Callable[[str], None]
) -> list[Picture]:
    """About `questions` questions of local files: whole images in a shuffled order, the last one cut short."""
    kind = spec.partition(":")[0]
    if metric is not None and metric not in METRICS:
        raise ValueError(f"metric {metric!r}: expected one of {', '.join(METRICS)}")
    examples = read_source(spec)
    assert isinstance(examples, FileExamples)
    if examples.broken:
        say(f"{len(examples.broken)} broken rows were left out, first {examples.broken[0]}")
    by_image: dict[FileImage, list[Query]] = {}
    for row in examples.rows:
        answers = row.answers or ((row.answer,) if row.answer else ())
        boxes = None if row.boxes is None else tuple(_share(box, row.image.size) for box in row.boxes)
        query = Query(row.question, answers, metric or METRIC_OF[kind], row.family, boxes)
        by_image.setdefault(row.image, []).append(query)
    images = list(by_image)
    pictures: list[Picture] = []
    left = questions
    for number in np.random.default_rng(seed).permutation(len(images)).tolist():
        if left <= 0:
            break
        image = images[number]
        queries = tuple(by_image[image][:left])
        pictures.append(Picture(number, image.size, partial(_read, image), queries))
        left -= len(queries)
    return pictures


def _share(box: Sequence[float], size: tuple[int, int]) -> Share:
    return box[0] / size[0], box[1] / size[1], box[2] / size[0], box[3] / size[1]


def _read(image: FileImage) -> np.ndarray:
    return np.array(read_image(image.path))


def read_pictures(
    spec: str, questions: int, side: int, seed: int, metric: str | None, say: Callable[[str], None]
) -> list[Picture]:
    """The pictures that a dataset's text names; `side` is of scenes alone."""
    if questions < 1:
        raise ValueError(f"{questions} questions: ask at least one")
    kind = spec.partition(":")[0]
    if kind not in FORMS:
        raise ValueError(f"unknown dataset {spec!r}: use {', '.join(FORMS.values())}")
    if kind == "scenes":
        read_source(spec, count=1, split="seen", size=(side, side))  # its mistakes are told as those of files are
        return scene_pictures(questions, side, seed)
    return file_pictures(spec, questions, seed, metric, say)


def batches(pictures: Sequence[Picture], cells: int, cell: int) -> Iterator[list[Picture]]:
    """Pictures of one size in batches whose questions have at most so many cells in all, in a settled order."""
    sizes: dict[tuple[int, int], list[Picture]] = {}
    for picture in pictures:
        sizes.setdefault(picture.size, []).append(picture)
    for size, members in sizes.items():
        each = max(1, size[0] // cell) * max(1, size[1] // cell)
        batch: list[Picture] = []
        held = 0
        for picture in members:
            if batch and held + each * len(picture.queries) > cells:
                yield batch
                batch, held = [], 0
            batch.append(picture)
            held += each * len(picture.queries)
        yield batch


def ids_of(pictures: Sequence[Picture]) -> list[tuple[str, Picture, Query]]:
    """(id, picture, query) of every question, in order."""
    return [(f"{p.number}/{place}", p, query) for p in pictures for place, query in enumerate(p.queries)]


Record = dict[str, Any]
