"""Files of questions about images, with answers: VQAv2, DocVQA, ChartQA, and a JSONL of one's own.

    VQAv2    {"questions": [{"question_id", "image_id", "question"}]} and {"annotations": [{"question_id", ...}]}
    DocVQA   {"data": [{"questionId", "question", "image", "answers": [...]}]}, and where it is known `answer_boxes`
    ChartQA  [{"imgname": "x.png", "query": "...", "label": "..."}]
    JSONL    one object per line; null counts as absent, other keys are ignored:

    {"image": "photos/1.jpg", "question": "What is on the table?", "answer": "a cup", "boxes": [[10, 20, 60, 90]]}

    image      path relative to the folder of the JSONL file, and inside it
    question   a text
    answer     optional text
    boxes      optional list of [x0, y0, x1, y1] in pixels, ends exclusive; [] nothing is there; absent: not known
    family     optional text, the group in reports
    choices    optional list of 2 to 26 texts to choose from; `answer` is one of them, or its letter
    fixations  optional list of [x, y] in pixels: where people looked. With it the question may be left out
    hard       optional true or false: double weight in stage 3

Every reader gives one example per question, in the order of the file; broken rows are listed and left out.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from arr_coc.data import rows
from arr_coc.data.examples import FileExamples, FileImage, FileRow, ImageFolder
from arr_coc.data.rows import MAX_BROKEN, BadRow, BrokenRows, Id, as_id, as_object, as_text

# ---------------------------------------------------------------- VQAv2

# COCO_val2014_000000000042.jpg, or 000000000042.jpg. Names that start with a dot are leftovers of file managers.
_NUMBERED = re.compile(r"(?P<prefix>(?:[^.].*)?)(?<!\d)(?P<number>\d{12})\.(?:jpe?g|png)", re.IGNORECASE)

Answer = tuple[Id, Id, str, str, tuple[str, ...]]  # question id, image id, answer, family, all that people gave


def image_number(name: str) -> int | None:
    """42 for "COCO_val2014_000000000042.jpg"; None where the file name carries no number of 12 digits."""
    found = _NUMBERED.fullmatch(name)
    return int(found["number"]) if found else None


def read_vqa(questions: Path, annotations: Path, images: Path, max_broken: float = MAX_BROKEN) -> FileExamples:
    """One example per question that has an annotation.

    The answer is `multiple_choice_answer`, where that is absent the commonest of `answers`; the family is
    `answer_type`, where the file has it.
    """
    asked, answered = rows.read_json(questions), rows.read_json(annotations)
    folder, broken = NumberedFolder(images), BrokenRows(max_broken)
    listed = rows.table(asked, "questions", questions)
    named = (row.get("question_id") for _, row in listed if isinstance(row, dict))
    asked_ids = {name for name in named if isinstance(name, int | str)}
    given = broken.sift(rows.table(answered, "annotations", annotations), partial(_answer, asked_ids, set()))
    parse_question = partial(_question, folder, {answer[0]: answer for answer in given}, set())
    return FileExamples(broken.sift(listed, parse_question, folder.files.hint), broken.lines)


class NumberedFolder:
    """Images found by the 12-digit number at the end of their names, whatever stands before it."""

    def __init__(self, folder: Path) -> None:
        self.files = ImageFolder(folder)
        self._names: dict[int, list[str]] = {}
        prefixes: Counter[str] = Counter()
        for name in sorted(os.listdir(folder)):
            if found := _NUMBERED.fullmatch(name):
                self._names.setdefault(int(found["number"]), []).append(name)
                prefixes[found["prefix"]] += 1
        self._prefix = prefixes.most_common(1)[0][0] if prefixes else ""

    def image(self, number: int) -> FileImage:
        """The image with this number; BadRow where there is none, more than one, or an unreadable one."""
        names = self._names.get(number, [])
        if not names:
            raise self.files.note_missing(f"{self._prefix}{number:012d}.jpg")
        if len(names) > 1:
            raise BadRow(f"image {number} is there more than once: {names[0]}, {names[1]}")
        return self.files.image(names[0])


def _answer(asked_ids: set[Id], seen: set[Id], row: object) -> Answer:
    """Row of `annotations` -> answer; the commonest stands for all that people gave where none was chosen."""
    note = as_object(row)
    question_id = rows.new_id(note, "question_id", seen, "question id")
    if question_id not in asked_ids:
        raise BadRow(f"no question with id {question_id!r}")
    listed = [] if note.get("answers") is None else rows.as_list(note["answers"], "answers")
    given = tuple(as_text(as_object(one), "answer") for one in listed)
    image_id, chosen = as_id(note, "image_id"), note.get("multiple_choice_answer")
    if chosen is None and not given:
        raise BadRow("no multiple_choice_answer and no answers")
    common = Counter(given).most_common(1)[0][0] if chosen is None else as_text(note, "multiple_choice_answer")
    return question_id, image_id, common, as_text(note, "answer_type", ""), given


def _question(folder: NumberedFolder, answers: dict[Id, Answer], seen: set[Id], row: object) -> FileRow:
    """Row of `questions` -> example with its answer."""
    asked = as_object(row)
    question_id = rows.new_id(asked, "question_id", seen, "question id")
    question, number = as_text(asked, "question"), as_id(asked, "image_id")
    if not isinstance(number, int) or not 0 <= number < 10**12:
        raise BadRow(f"image_id {number!r} is not a number of at most 12 digits")
    if question_id not in answers:
        raise BadRow(f"question {question_id!r} has no usable annotation")
    _, answered_image, answer, family, given = answers[question_id]
    if answered_image != number:
        raise BadRow(f"question {question_id!r} is about image {number}, its answer about {answered_image!r}")
    image = folder.image(number)
    name = f"{folder.files.folder.name}/{image.name}: question {question_id}"
    return FileRow(name, image, question, answer, family=family, image_id=number, answers=given)


# ---------------------------------------------------------------- DocVQA


def read_docvqa(questions: Path, images: Path, max_broken: float = MAX_BROKEN) -> FileExamples:
    """One example per question with answers; the family is the first of its `question_types`."""
    content, seen = rows.read_json(questions), set[Id]()
    folder, broken = ImageFolder(images), BrokenRows(max_broken)

    def parse(row: object) -> FileRow:
        asked = as_object(row)
        question_id, question = as_id(asked, "questionId"), as_text(asked, "question")
        rows.new_id(asked, "questionId", seen, "question id")
        if not isinstance(asked.get("answers"), list) or not asked["answers"]:
            raise BadRow("no answers")
        answers = tuple(as_text({"answer": one}, "answer") for one in asked["answers"])
        image = page_image(folder, asked.get("image"))
        boxes = rows.corner_boxes(asked, "answer_boxes", image.size)
        kinds = asked.get("question_types")
        family = str(kinds[0]) if isinstance(kinds, list) and kinds else ""
        name = f"{folder.folder.name}/{image.name}: question {question_id}"
        return FileRow(name, image, question, answers[0], boxes, family, answers=answers)

    pages = rows.table(content, "data", questions)
    return FileExamples(broken.sift(pages, parse, folder.hint), broken.lines)


def page_image(folder: ImageFolder, name: Any) -> FileImage:
    """The image by its path, or by the last part of it where the file lies in the folder itself."""
    if isinstance(name, str) and not os.path.isfile(folder.folder / name):  # isfile bears what no file can be called
        last = Path(name).name
        name = last if os.path.isfile(folder.folder / last) else name
    return folder.image(name)


# ---------------------------------------------------------------- ChartQA


def read_chartqa(questions: Path, images: Path, max_broken: float = MAX_BROKEN) -> FileExamples:
    """One example per question; the family is the file's name."""
    content = rows.read_json(questions)
    if not isinstance(content, list):
        raise ValueError(f"{questions}: not a list of questions; give a ChartQA file such as test_human.json")
    folder, broken = ImageFolder(images), BrokenRows(max_broken)

    def parse(row: object) -> FileRow:
        asked = as_object(row)
        label = asked.get("label")
        if isinstance(label, int | float) and not isinstance(label, bool):
            asked = {**asked, "label": str(label) if isinstance(label, int) else f"{label:g}"}
        image = folder.image(asked.get("imgname"))
        question, answer = as_text(asked, "query"), as_text(asked, "label")
        name = f"{folder.folder.name}/{image.name}: {question}"
        return FileRow(name, image, question, answer, family=questions.stem)

    return FileExamples(broken.sift(rows.places(content, questions.name), parse, folder.hint), broken.lines)


# ---------------------------------------------------------------- JSONL

Line = tuple[int, bytes]


def read_jsonl(file: Path, max_broken: float = MAX_BROKEN) -> FileExamples:
    """One example per line; blank lines are no rows."""
    if not file.is_file():
        raise ValueError(f"{file}: no such JSONL file; check the path")
    folder, broken = ImageFolder(file.parent), BrokenRows(max_broken)

    def parse(numbered: Line) -> FileRow:
        number, line = numbered
        row = json_row(line)
        question = as_text(row, "question", None if row.get("fixations") is None else "")
        answer, family = as_text(row, "answer", ""), as_text(row, "family", "")
        hard = row.get("hard")
        if hard is not None and not isinstance(hard, bool):
            raise BadRow(f"hard is a {type(hard).__name__}, not true or false")
        image = folder.image(row.get("image"))
        boxes = rows.corner_boxes(row, "boxes", image.size)
        more: dict[str, Any] = {"choices": _choices(row), "fixations": _fixations(row, image.size)}
        return FileRow(f"{file.name}:{number} {image.name}", image, question, answer, boxes, family, bool(hard), **more)

    def hint() -> str:
        with file.open("rb") as start:
            listed = start.read(1) == b"["
        return f"{folder.hint()}{'. It is one list: write an object a line, without commas between' if listed else ''}"

    return FileExamples(broken.sift(numbered_lines(file), parse, hint), broken.lines)


def _choices(row: dict[str, Any]) -> tuple[str, ...]:
    """What there is to choose from."""
    if row.get("choices") is None:
        return ()
    found = tuple(as_text({"choice": one}, "choice") for one in rows.as_list(row["choices"], "choices"))
    if not 2 <= len(found) <= 26:
        raise BadRow(f"choices are {len(found)}, not 2 to 26")
    return found


def _fixations(row: dict[str, Any], size: tuple[int, int]) -> tuple[tuple[float, float], ...] | None:
    """Where people looked, without those that lie outside the image; BadRow where all do."""
    if row.get("fixations") is None:
        return None
    pairs = rows.in_pixels(row, "fixations", 2, "fixation")
    inside = tuple((x, y) for x, y in pairs if 0 <= x < size[0] and 0 <= y < size[1])
    if pairs and not inside:
        raise BadRow(f"no fixation lies in the image of {rows.sides(size)} px")
    return inside


def json_row(line: bytes) -> dict[str, Any]:
    """The JSON object of a line."""
    try:
        return as_object(json.loads(line.decode("utf-8-sig")))
    except BadRow:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRow(f"not valid JSON ({error})") from None


def numbered_lines(file: Path) -> Iterator[tuple[str, Line]]:
    """(place, (line number from 1, bytes)); undecoded, so that one bad byte costs one line."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{file.name}:{number}", (number, line)
