"""DocVQA-style questions about pages: {"data": [{"questionId", "question", "image", "answers": [...]}, ...]}.

`image` is a path below the images' folder; where only its last part is there ("documents/x.png" as "x.png"), that is
taken. `answer_boxes`, optional, is a list of [x0, y0, x1, y1] in pixels of the page.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arr_coc.data.files import FileExamples, FileImage, FileRow, ImageFolder
from arr_coc.data.rows import (
    MAX_BROKEN,
    BadRow,
    BrokenRows,
    Id,
    as_id,
    as_numbers,
    as_object,
    as_text,
    clipped,
    read_json,
    table,
)


def read_docvqa(questions: Path, images: Path, max_broken: int | float = MAX_BROKEN) -> FileExamples:
    """One example per question with answers, in the order of the file."""
    content = read_json(questions)
    folder = ImageFolder(images)
    broken = BrokenRows(max_broken)
    rows = broken.sift(table(content, "data", questions), _parser(folder), folder.hint)
    return FileExamples(rows, broken.lines)


def _parser(folder: ImageFolder) -> Callable[[object], FileRow]:
    seen: set[Id] = set()

    def parse(row: object) -> FileRow:
        asked = as_object(row)
        question_id, question = as_id(asked, "questionId"), as_text(asked, "question")
        if question_id in seen:
            raise BadRow(f"duplicate question id {question_id!r}")
        seen.add(question_id)
        answers = _texts(asked.get("answers"))
        image = page_image(folder, asked.get("image"))
        boxes = asked.get("answer_boxes")
        if boxes is not None and not isinstance(boxes, list):
            raise BadRow(f"answer_boxes is a {type(boxes).__name__}, not a list")
        corners = [as_numbers(box, 4, "box") for box in boxes or ()]
        kinds = asked.get("question_types")
        family = str(kinds[0]) if isinstance(kinds, list) and kinds else ""
        return FileRow(
            name=f"{folder.folder.name}/{image.name}: question {question_id}",
            image=image,
            question=question,
            answer=answers[0],
            boxes=None if boxes is None else tuple(clipped(x0, y0, x1, y1, image.size) for x0, y0, x1, y1 in corners),
            family=family,
            answers=answers,
        )

    return parse


def page_image(folder: ImageFolder, name: Any) -> FileImage:
    """The image by its path, or by the last part of it where the file lies in the folder itself."""
    if isinstance(name, str) and not (folder.folder / name).is_file() and (folder.folder / Path(name).name).is_file():
        name = Path(name).name
    return folder.image(name)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise BadRow("no answers")
    return tuple(as_text({"answer": one}, "answer") for one in value)
