"""One door to all examples: a short text says where they come from.

    scenes                                             drawn on the fly
    coco:ANNOTATIONS.json:IMAGES_FOLDER                instances: "Where is the dog?", with boxes
    vqa:QUESTIONS.json:ANNOTATIONS.json:IMAGES_FOLDER  VQAv2: questions with answers, boxes not known
    docvqa:QUESTIONS.json:IMAGES_FOLDER                DocVQA: questions about pages, with answer boxes where given
    chartqa:QUESTIONS.json:IMAGES_FOLDER               ChartQA: questions about charts, boxes not known
    jsonl:FILE.jsonl                                   one object per line, images beside the file

Files are checked when they are read, images by their headers, so `len` is known. Broken rows are counted, listed in
`broken` and left out, up to a limit. An image whose header is good and whose pixels are not raises BrokenExample when
it is asked for: `readable_example` goes on to the next one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arr_coc.data.coco import read_coco
from arr_coc.data.detections import MIN_SCORE, attach_boxes
from arr_coc.data.examples import Examples, SceneExamples
from arr_coc.data.files import FileExamples
from arr_coc.data.questions import read_chartqa, read_docvqa, read_jsonl, read_vqa
from arr_coc.data.rows import MAX_BROKEN

FORMS = {
    "scenes": "scenes",
    "coco": "coco:ANNOTATIONS.json:IMAGES_FOLDER",
    "vqa": "vqa:QUESTIONS.json:ANNOTATIONS.json:IMAGES_FOLDER",
    "docvqa": "docvqa:QUESTIONS.json:IMAGES_FOLDER",
    "chartqa": "chartqa:QUESTIONS.json:IMAGES_FOLDER",
    "jsonl": "jsonl:FILE.jsonl",
}
READERS: dict[str, Callable[..., FileExamples]] = {
    "coco": read_coco,
    "vqa": read_vqa,
    "docvqa": read_docvqa,
    "chartqa": read_chartqa,
    "jsonl": read_jsonl,
}


def read_source(
    spec: str,
    *,
    max_broken: int | float = MAX_BROKEN,
    detections: str | Path | None = None,
    min_score: float = MIN_SCORE,
    replace_boxes: bool = False,
    categories: str | Path | None = None,
    count: int = 1_000_000,
    split: str = "train",
    first_seed: int = 0,
    size: tuple[int, int] | None = None,
    difficulty: str | None = None,
) -> Examples:
    """The examples that `spec` names.

    Args:
        spec: one of the forms above. Paths with a colon do not fit in it: call the reader itself.
        max_broken: for files. An int is a number of broken rows, a float the fraction of the rows of a table.
        detections: for files. A detector's COCO-results-style output, whose boxes are attached.
        min_score, replace_boxes, categories: as in `attach_boxes`.
        count, split, first_seed, size, difficulty: for scenes, as in `SceneExamples`.
    """
    kind, *places = spec.split(":")
    if kind not in FORMS:
        raise ValueError(f"unknown source {spec!r}: use {', '.join(FORMS.values())}")
    if len(places) != FORMS[kind].count(":") or not all(places):
        raise ValueError(f"source {spec!r} does not fit the form {FORMS[kind]}")
    if kind == "scenes":
        if detections is not None:
            raise ValueError("scenes know their boxes: leave detections out")
        return SceneExamples(count, split, first_seed, size, difficulty)
    examples = READERS[kind](*map(Path, places), max_broken=max_broken)
    if detections is None:
        return examples
    how: dict[str, Any] = {"min_score": min_score, "replace_boxes": replace_boxes, "categories": categories}
    return attach_boxes(examples, detections, max_broken=max_broken, **how)
