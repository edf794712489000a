"""What must be true of a fair comparison, checked on what was really run: the same questions, prompts and budgets."""

from collections.abc import Mapping, Sequence

import numpy as np

from arr_coc.config import tokens_to_keep
from arr_coc.evaluation.field.data import Record
from arr_coc.evaluation.field.methods import Method

OFF_BY = 1.0  # tokens that the mean kept count may differ from the budget
OFF_BY_RESIZED = 0.15  # share of the budget, for methods that resize: a rectangle has not just any number of cells

Table = Mapping[str, Mapping[str, Record]]  # per method, per question


def check_counts(method: Method, records: Sequence[Record], resizes: bool) -> None:
    """ValueError where a method kept more or fewer tokens than it was told, so that it is not compared at all."""
    budgets = [tokens_to_keep(method.keep, record["total"]) for record in records]
    wanted = float(np.mean([min(k or 0, record["total"]) for k, record in zip(budgets, records, strict=True)]))
    found = float(np.mean([record["tokens"] for record in records]))
    allowed = max(OFF_BY, OFF_BY_RESIZED * wanted) if resizes else OFF_BY
    if abs(found - wanted) > allowed:
        raise ValueError(
            f"method silently off: {method.key} kept {found:.1f} tokens in the mean where {wanted:.1f} were asked for; "
            "its selector or the processor's limits of size must be mended"
        )


def check_prompts(table: Table) -> None:
    """ValueError where two methods were asked the same question in other bytes."""
    first: dict[str, tuple[str, str]] = {}
    for method, records in table.items():
        for question, record in records.items():
            other, prompt = first.setdefault(question, (method, record["prompt"]))
            if prompt != record["prompt"]:
                raise ValueError(
                    f"prompts differ: question {question} reached {method} in other bytes than {other}; "
                    "methods must be given one template"
                )


def check_paired(table: Table, questions: Sequence[str]) -> None:
    """ValueError where a method has not answered every question."""
    for method, records in table.items():
        missing = [question for question in questions if question not in records]
        if missing:
            raise ValueError(f"{method} has no answer to {len(missing)} questions, first {missing[0]}: run it again")
