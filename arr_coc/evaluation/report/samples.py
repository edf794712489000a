"""Answers from the files of samples that lie beside the table: scores of every method, and whole lines of ARR-COC's.

A file holds a line per method and question, easily a few hundred thousand, so only what the report needs is kept.
M methods, Q questions.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.evaluation.field.data import Record
from arr_coc.evaluation.field.main import samples_path
from arr_coc.evaluation.field.methods import REFERENCE
from arr_coc.evaluation.report.results import FIELD, Results
from arr_coc.evaluation.report.rows import Entry, Place


@dataclass(frozen=True, slots=True)
class Answers:
    """What was answered at one place."""

    about: dict[str, Any]  # what was asked of which model
    questions: list[str]
    images_Q: np.ndarray
    scores: dict[str, np.ndarray]  # by a method's key, a score per question; NaN where nobody knows the right answer
    ours: dict[str, dict[str, Record]]  # lines of ARR-COC by key and question

    def of(self, entry: Entry) -> np.ndarray | None:
        """Scores of an entry `[Q]`, the mean over its seeds; None where a part of it is not there."""
        if any(key not in self.scores for key in entry.keys):
            return None
        scores_Q: np.ndarray = np.mean([self.scores[key] for key in entry.keys], axis=0)
        return scores_Q


def read_answers(results: Results, places: Sequence[Place]) -> tuple[dict[Place, Answers], list[str]]:
    """The answers of every place whose samples are there and belong to the table, and a line for each that is not."""
    found: dict[Place, Answers] = {}
    notes: list[str] = []
    for place in places:
        path = samples_path(results.folder / FIELD, *place)
        if not path.is_file():
            notes.append(f"`{path.name}` is not here")
            continue
        answers = read_file(path)
        if answers.about != results.at(FIELD, "runs", path.stem):
            notes.append(f"`{path.name}` belongs to another run than the table")
            continue
        found[place] = answers
    return found, notes


def read_file(path: Path) -> Answers:
    """One file of samples; methods that did not come to their end are left out."""
    images: dict[str, int] = {}
    scores: dict[str, dict[str, float]] = {}
    ours: dict[str, dict[str, Record]] = {}
    with path.open("rb") as file:
        try:
            about = json.loads(file.readline())["about"]
            for line in file:
                if not line.endswith(b"\n"):
                    break  # cut short by a kill
                record = json.loads(line)
                method, question = record["method"], record["question"]
                images[question] = record["image"]
                scores.setdefault(method, {})[question] = np.nan if record["score"] is None else record["score"]
                if method.startswith(f"{REFERENCE} "):
                    ours.setdefault(method, {})[question] = record
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path}: not a file of samples ({error}); move it away or make it again") from None
    questions = list(images)
    whole = {method: given for method, given in scores.items() if len(given) == len(questions)}
    return Answers(
        about,
        questions,
        np.array([images[question] for question in questions], int),
        {method: np.array([given[question] for question in questions], float) for method, given in whole.items()},
        {method: records for method, records in ours.items() if method in whole},
    )
