"""One door to all examples: a short text says where they come from (`FORMS`).

Files are checked when they are read, images by their headers, so `len` is known. Broken rows are counted, listed in
`broken` and left out, up to a limit. An image whose header is good and whose pixels are not raises BrokenExample when
it is asked for: `readable_example` goes on to the next one.
"""

from collections.abc import Callable
from pathlib import Path

from arr_coc.data import FORMS, parse_source
from arr_coc.data.coco import attach_boxes, read_coco
from arr_coc.data.examples import FileExamples
from arr_coc.data.questions import read_chartqa, read_docvqa, read_jsonl, read_vqa
from arr_coc.data.rows import MAX_BROKEN

__all__ = ["FORMS", "METRIC_OF", "READERS", "parse_source", "read_source"]

READERS: dict[str, Callable[..., FileExamples]] = {
    "coco": read_coco,
    "vqa": read_vqa,
    "docvqa": read_docvqa,
    "chartqa": read_chartqa,
    "jsonl": read_jsonl,
}
# Unless another is asked for.
METRIC_OF = {"coco": "none", "vqa": "vqa", "docvqa": "anls", "chartqa": "relaxed", "jsonl": "contains"}


def read_source(spec: str, max_broken: float = MAX_BROKEN, detections: Path | None = None) -> FileExamples:
    """The examples of the files that `spec` names; scenes are drawn where they are needed.

    Args:
        spec: one of FORMS. Paths with a colon do not fit in it: call the reader itself.
        max_broken: the share of the rows of a table that may be broken, from 0.0 to 1.0.
        detections: a detector's COCO-results-style output, whose boxes are attached.
    """
    kind, places = parse_source(spec)
    assert kind in READERS, "scenes are in no file"
    examples = READERS[kind](*places, max_broken=max_broken)
    return examples if detections is None else attach_boxes(examples, detections, max_broken)
