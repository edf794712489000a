"""Files of questions, boxes and results that somebody has changed: read, or refused in one line; nothing else happens.

A good file is changed in a place of its JSON (a value that nobody expects there, or none), or in its bytes. A reader
must take what is left of it, or raise ValueError with one line.
"""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.data.coco import attach_boxes, read_coco
from arr_coc.data.examples import FileExamples
from arr_coc.data.questions import read_chartqa, read_docvqa, read_jsonl, read_vqa
from arr_coc.evaluation.bench.main import read_rows
from arr_coc.evaluation.field.run import Samples
from arr_coc.evaluation.report import main as report
from arr_coc.files import read_json_object

IMAGE = "COCO_val2014_000000000042.png"
ABOUT = {"dataset": "scenes", "side": 128, "questions": 2}
ROW = {
    **{"dataset": "scenes", "side": 128, "selector": "arr_coc", "trained": True, "encoding": "sparse", "keep": 0.25},
    **{"n": 2, "accuracy": 0.5, "ci95": [0.25, 0.75], "tokens": 4.0, "tokens_total": 16.0, "recall": 0.5},
    **{"time_ms": {"first_token": 3.0, "select": 1.0, "vision": 1.0, "prefill": 1.0}, "families": {"colour": 0.5}},
    **{"gain_vs_arr_coc": {"mean": 0.0}, "p_vs_arr_coc": 0.5, "equivalent_tokens": 4.0, "above_oracle": False},
}
SPEED = {
    **{"model": "m", "side": 64, "batch": 1, "kept": 2, "encoding": "sparse", "mode": "eager", "sight": "stem"},
    **{"select_ms": 1.0, "vision_ms": 1.0, "prefill_ms": 1.0, "ttft_ms": 3.0, "wall_ttft_ms": 3.0, "decode_ms": 2.0},
    **{"peak_mb": 10.0, "peak_above_mb": 1.0, "spread_ms": 0.1, "tokens": 4, "text_tokens": 12},
}


def line(question: str, method: str = "arr_coc sparse 0.25") -> dict[str, Any]:
    return {
        **{"method": method, "question": question, "image": 0, "family": "colour", "groups": [], "text": "what?"},
        **{"expected": "a", "answer": "a", "score": 1.0, "tokens": 4, "total": 16, "grid": [4, 4], "cells": "000f"},
        **{"recall": 0.5, "precision": 0.5, "prompt": "0", "time_ms": {"first_token": 3.0}, "memory_mb": None},
    }


GOOD: dict[str, Any] = {  # a list of tuples: JSON lines
    "own.jsonl": (
        {"image": IMAGE, "question": "what?", "answer": "a", "boxes": [[1, 2, 30, 40]], "family": "f", "hard": True},
        {"image": IMAGE, "question": "where?", "boxes": []},
    ),
    "questions.json": {"questions": [{"question_id": 1, "image_id": 42, "question": "what?"}]},
    "answers.json": {
        "annotations": [
            {"question_id": 1, "image_id": 42, "answer_type": "other", "answers": [{"answer": "a"}, {"answer": "b"}]}
        ]
    },
    "pages.json": {
        "data": [
            {
                **{"questionId": 1, "question": "what?", "image": IMAGE, "answers": ["a", "b"]},
                **{"answer_boxes": [[1, 2, 30, 40]], "question_types": ["table"]},
            }
        ]
    },
    "charts.json": [{"imgname": IMAGE, "query": "what?", "label": 3}, {"imgname": IMAGE, "query": "?", "label": "a"}],
    "boxes.json": {
        "images": [{"id": 42, "file_name": IMAGE, "width": 64, "height": 64}],
        "categories": [{"id": 1, "name": "dog"}],
        "annotations": [{"id": 1, "image_id": 42, "category_id": 1, "bbox": [1, 2, 30, 40], "iscrowd": 0}],
    },
    "found.json": [
        {"image_id": 42, "category": "dog", "bbox": [1, 2, 30, 40], "score": 0.9},
        {"file_name": IMAGE, "category_id": 1, "bbox": [1, 2, 30, 40], "score": 0.2},
    ],
    "field.json": {"rows": [ROW, ROW | {"selector": "plain", "keep": 1.0}], "runs": {"field.scenes-128": ABOUT}},
    "field.scenes-128.jsonl": ({"about": ABOUT}, line("0-0"), line("0-1"), line("0-0", "plain dense 1.0")),
    "speed.json": {"rows": [SPEED, SPEED | {"mode": "graphs"}], "device": "cpu"},
}


def read_report(folder: Path) -> None:
    """Without its plots, which take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "_plot_blocks", lambda measured: [])
        report.page_of(folder, str, {})


def read_found(folder: Path, most: float) -> FileExamples:
    return attach_boxes(read_coco(folder / "boxes.json", folder, most), folder / "found.json", most)


READERS: dict[str, tuple[tuple[str, ...], Callable[[Path, float], Any]]] = {  # the files that each reads
    "jsonl": (("own.jsonl",), lambda folder, most: read_jsonl(folder / "own.jsonl", most)),
    "vqa": (
        ("questions.json", "answers.json"),
        lambda folder, most: read_vqa(folder / "questions.json", folder / "answers.json", folder, most),
    ),
    "docvqa": (("pages.json",), lambda folder, most: read_docvqa(folder / "pages.json", folder, most)),
    "chartqa": (("charts.json",), lambda folder, most: read_chartqa(folder / "charts.json", folder, most)),
    "coco": (("boxes.json",), lambda folder, most: read_coco(folder / "boxes.json", folder, most)),
    "detections": (("boxes.json", "found.json"), read_found),
    "report": (("field.json", "field.scenes-128.jsonl"), lambda folder, most: read_report(folder)),
    "samples": (("field.scenes-128.jsonl",), lambda folder, most: Samples(folder / "field.scenes-128.jsonl", ABOUT)),
    "eval": (("field.json",), lambda folder, most: read_json_object(folder / "field.json")),
    "bench": (("speed.json",), lambda folder, most: read_rows(folder / "speed.json")),
}
GONE = object()
ODD = st.sampled_from(
    [
        *(GONE, None, True, "", "x", "\ud800", "a\0b", "../../etc/passwd", "/etc/passwd", "\n\x1b[31m", "9" * 5000),
        *(-1, 0, 2, 42, 10**40, 10**400, 1e308, -1e308, 0.5, float("nan"), float("inf")),
        *([], {}, [[]], [None], {"a": 1}, [1, 2, 3, 4], [4, 3, 2, 1], ["a"], [[1, 2, 3, 4], "x"], {"mean": "x"}),
    ]
)
DEEP = b"[" * 100_000
BYTES = st.tuples(st.integers(0, 700), st.binary(max_size=6) | st.none(), st.integers(0, 40))  # None: DEEP


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, one in inner:
        yield from paths_in(one, (*path, key))


def changed(document: Any, place: int, odd: Any) -> Any:
    """The document with one of its places changed."""
    made = list(copy.deepcopy(document)) if isinstance(document, tuple) else copy.deepcopy(document)
    paths = list(paths_in(made))[1:]
    *path, last = paths[place % len(paths)]
    inner = made
    for key in path:
        inner = inner[key]
    if odd is GONE:
        del inner[last]
    else:
        inner[last] = odd
    return tuple(made) if isinstance(document, tuple) else made


def written(document: Any) -> bytes:
    if isinstance(document, tuple):
        return b"".join(json.dumps(one).encode() + b"\n" for one in document)
    return json.dumps(document).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("rows")
    tiny.picture(64, 64).save(made / IMAGE)
    return made


@pytest.mark.parametrize("reader", READERS)
def test_what_is_good_is_read(reader, folder):
    names, read = READERS[reader]
    for name in names:
        (folder / name).write_bytes(written(GOOD[name]))
    read(folder, 0.0)


@pytest.mark.parametrize("examples", [150, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize("reader", READERS)
def test_no_change_of_a_file_breaks_its_reader(reader, examples, folder, record_property):
    record_property("tried", examples)
    names, read = READERS[reader]

    @settings(deadline=None, max_examples=examples, database=None)
    @given(
        st.sampled_from(names),
        st.lists(st.tuples(st.integers(0, 200), ODD), max_size=3),
        st.lists(BYTES, max_size=2),
        st.sampled_from([0.01, 1.0]),
    )
    def one(which, odd, noise, most):
        for name in names:
            document = GOOD[name]
            for place, value in odd if name == which else ():
                document = changed(document, place, value) if document else document
            data = written(document)
            for place, new, old in noise if name == which else ():
                data = data[:place] + (DEEP if new is None else new) + data[place + old :]
            (folder / name).write_bytes(data)
        said = "read"
        try:
            read(folder, most)
        except ValueError as why:
            said = str(why) if type(why) is ValueError else ""
        assert said.strip(), "it says why, in words of ours"
        assert "\n" not in said

    one()
