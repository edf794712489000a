"""VQAv2-style question and annotation files with a folder of images -> questions with answers, boxes not known."""

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arr_coc.data.files import FileExamples, FileImage, FileRow, ImageFolder
from arr_coc.data.rows import MAX_BROKEN, BadRow, BrokenRows, Id, as_id, as_object, as_text, read_json, table

# COCO_val2014_000000000042.jpg, or 000000000042.jpg. Names that start with a dot are leftovers of file managers.
_NUMBERED = re.compile(r"(?P<prefix>(?:[^.].*)?)(?<!\d)(?P<number>\d{12})\.(?:jpe?g|png)", re.IGNORECASE)

Answer = tuple[Id, Id, str, str, tuple[str, ...]]
"""Question id, image id, answer, family, all answers that people gave."""


def image_number(name: str) -> int | None:
    """42 for "COCO_val2014_000000000042.jpg"; None where the file name carries no number of 12 digits."""
    found = _NUMBERED.fullmatch(name)
    return int(found["number"]) if found else None


def read_vqa(questions: Path, annotations: Path, images: Path, max_broken: int | float = MAX_BROKEN) -> FileExamples:
    """One example per question that has an annotation, in the order of the question file.

    The answer is `multiple_choice_answer`, where that is absent the commonest of `answers`; the family is
    `answer_type`, where the file has it.
    """
    asked, answered = read_json(questions), read_json(annotations)
    folder = NumberedFolder(images)
    broken = BrokenRows(max_broken)
    asked_ids = {row.get("question_id") for _, row in table(asked, "questions", questions) if _has_id(row)}
    parse_answer = _answer_parser(asked_ids)
    answers = {found[0]: found for found in broken.sift(table(answered, "annotations", annotations), parse_answer)}
    parse_question = _question_parser(folder, answers)
    rows = broken.sift(table(asked, "questions", questions), parse_question, folder.files.hint)
    return FileExamples(rows, broken.lines)


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


def _answer_parser(asked_ids: set[Any]) -> Callable[[object], Answer]:
    """Row of `annotations` -> answer."""
    seen: set[Id] = set()

    def parse(row: object) -> Answer:
        note = as_object(row)
        question_id = as_id(note, "question_id")
        if question_id in seen:
            raise BadRow(f"duplicate question id {question_id!r}")
        seen.add(question_id)
        if question_id not in asked_ids:
            raise BadRow(f"no question with id {question_id!r}")
        given = _given(note)
        return question_id, as_id(note, "image_id"), _chosen(note, given), as_text(note, "answer_type", ""), given

    return parse


def _given(note: dict[str, Any]) -> tuple[str, ...]:
    """What people answered, one each; nothing where the file does not say."""
    given = note.get("answers")
    if given is None:
        return ()
    if not isinstance(given, list):
        raise BadRow(f"answers is a {type(given).__name__}, not a list")
    return tuple(as_text(as_object(one), "answer") for one in given)


def _chosen(note: dict[str, Any], given: tuple[str, ...]) -> str:
    """The answer that stands for all that people gave."""
    if note.get("multiple_choice_answer") is not None:
        return as_text(note, "multiple_choice_answer")
    if not given:
        raise BadRow("no multiple_choice_answer and no answers")
    return Counter(given).most_common(1)[0][0]


def _question_parser(folder: NumberedFolder, answers: dict[Id, Answer]) -> Callable[[object], FileRow]:
    """Row of `questions` -> example with its answer."""
    seen: set[Id] = set()

    def parse(row: object) -> FileRow:
        asked = as_object(row)
        question_id = as_id(asked, "question_id")
        if question_id in seen:
            raise BadRow(f"duplicate question id {question_id!r}")
        seen.add(question_id)
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

    return parse


def _has_id(row: object) -> bool:
    return isinstance(row, dict) and isinstance(row.get("question_id"), (int, str))
