"""ChartQA-style questions about charts: [{"imgname": "x.png", "query": "...", "label": "..."}, ...]."""

from collections.abc import Callable
from pathlib import Path

from arr_coc.data.files import FileExamples, FileRow, ImageFolder
from arr_coc.data.rows import MAX_BROKEN, BrokenRows, as_object, as_text, places, read_json


def read_chartqa(questions: Path, images: Path, max_broken: int | float = MAX_BROKEN) -> FileExamples:
    """One example per question, in the order of the file; boxes are not known. The family is the file's name."""
    content = read_json(questions)
    if not isinstance(content, list):
        raise ValueError(f"{questions}: not a list of questions; give a ChartQA file such as test_human.json")
    folder = ImageFolder(images)
    broken = BrokenRows(max_broken)
    rows = broken.sift(places(content, questions.name), _parser(folder, questions.stem), folder.hint)
    return FileExamples(rows, broken.lines)


def _parser(folder: ImageFolder, family: str) -> Callable[[object], FileRow]:
    def parse(row: object) -> FileRow:
        asked = as_object(row)
        label = asked.get("label")
        if isinstance(label, int | float) and not isinstance(label, bool):
            asked = {**asked, "label": f"{label:g}"}
        image = folder.image(asked.get("imgname"))
        question, answer = as_text(asked, "query"), as_text(asked, "label")
        return FileRow(f"{folder.folder.name}/{image.name}: {question}", image, question, answer, family=family)

    return parse
