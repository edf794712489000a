"""Questions about images, drawn or from files: what training learns from and evaluation asks.

How sources of them are written down stands here: importing this loads no torch.
"""

from pathlib import Path

FORMS = {
    "scenes": "scenes",  # drawn on the fly
    "coco": "coco:ANNOTATIONS.json:IMAGES_FOLDER",  # instances: "Where is the dog?", with boxes
    "vqa": "vqa:QUESTIONS.json:ANNOTATIONS.json:IMAGES_FOLDER",  # VQAv2: questions with answers, boxes not known
    "docvqa": "docvqa:QUESTIONS.json:IMAGES_FOLDER",  # DocVQA: questions about pages, with answer boxes where given
    "chartqa": "chartqa:QUESTIONS.json:IMAGES_FOLDER",  # ChartQA: questions about charts, boxes not known
    "jsonl": "jsonl:FILE.jsonl",  # one object per line, images beside the file
}


def parse_source(spec: str) -> tuple[str, list[Path]]:
    """The kind of a source and its places; ValueError where the text has none of FORMS."""
    kind, *places = spec.split(":")
    if kind not in FORMS:
        raise ValueError(f"unknown source {spec!r}: use {', '.join(FORMS.values())}")
    if len(places) != FORMS[kind].count(":") or not all(places):
        raise ValueError(f"source {spec!r} does not fit the form {FORMS[kind]}")
    return kind, [Path(place).expanduser() for place in places]  # no shell does so behind a colon
