"""From samples to the table: a row per method, with intervals and tests against ARR-COC, all clustered by image.

Before that, what must be true of a fair comparison is checked on what was really run: the same questions, prompts and
budgets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arr_coc.config import tokens_to_keep
from arr_coc.evaluation.field.data import Record
from arr_coc.evaluation.field.methods import ORACLE, REFERENCE, Method
from arr_coc.evaluation.statistics import Clustered, difference_of, flip_p, holm, mean_of

PARTS = ("select", "vision", "prefill")
OFF_BY = 1.0  # tokens that the mean kept count may differ from the budget
OFF_BY_RESIZED = 0.15  # share of the budget, for methods that resize: a rectangle has not just any number of cells

Row = dict[str, Any]
Table = Mapping[str, Mapping[str, Record]]  # per method, per question


def check_counts(method: Method, records: Sequence[Record], resizes: bool) -> None:
    """ValueError where a method kept more or fewer tokens than it was told, so that it is not compared at all."""
    budgets = [tokens_to_keep(method.keep, record["total"]) for record in records]
    wanted = float(np.mean([min(k or 0, record["total"]) for k, record in zip(budgets, records, strict=True)]))
    found = float(np.mean([record["tokens"] for record in records]))
    allowed = max(OFF_BY, OFF_BY_RESIZED * wanted) if resizes else OFF_BY
    if abs(found - wanted) > allowed:
        off = f"{method.key} kept {found:.1f} tokens in the mean where {wanted:.1f} were asked for"
        raise ValueError(f"method silently off: {off}; its selector or the processor's limits of size must be mended")


def check_prompts(table: Table) -> None:
    """ValueError where two methods were asked the same question in other bytes."""
    first: dict[str, tuple[str, str]] = {}
    for method, records in table.items():
        for question, record in records.items():
            other, prompt = first.setdefault(question, (method, record["prompt"]))
            if prompt != record["prompt"]:
                differ = f"question {question} reached {method} in other bytes than {other}"
                raise ValueError(f"prompts differ: {differ}; methods must be given one template")


def sample_of(records: Sequence[Record], key: str) -> Clustered:
    """One value per question that has one."""
    return Clustered.of((record["image"], record[key]) for record in records if record[key] is not None)


def base_row(method: Method, records: Sequence[Record], layers: int, full_layers: int, about: Row) -> Row:
    """What a row says of one method alone."""
    accuracy, recall = mean_of(sample_of(records, "score")), mean_of(sample_of(records, "recall"))
    precision = sample_of(records, "precision")
    tokens = float(np.mean([record["tokens"] for record in records]))
    total = float(np.mean([record["total"] for record in records]))
    parts = {part: round(float(np.median([r["time_ms"][part] for r in records])), 3) for part in PARTS}
    memory = [record["memory_mb"] for record in records if record["memory_mb"] is not None]
    return {
        **about,
        "selector": method.selector,
        "trained": method.trained,
        "encoding": method.encoding,
        "keep": method.keep,
        "n": len(records),
        "accuracy": accuracy["mean"],
        "ci95": accuracy["ci95"],
        "recall": recall["mean"],
        "recall_ci95": recall["ci95"],
        "precision": None if not len(precision) else round(precision.mean, 5),
        "tokens": round(tokens, 3),
        "tokens_total": round(total, 3),
        "equivalent_tokens": round((full_layers * total + (layers - full_layers) * tokens) / layers, 3),
        "families": by_group(records),
        "time_ms": {**parts, "first_token": round(sum(parts.values()), 3)},
        "memory_mb": max(memory) if memory else None,
    }


def by_group(records: Sequence[Record]) -> dict[str, float]:
    """Accuracy per family and per group; questions without a score are left out."""
    groups: dict[str, list[float]] = {}
    for record in records:
        for name in {record["family"], *record["groups"]} - {""}:
            if record["score"] is not None:
                groups.setdefault(name, []).append(record["score"])
    return {name: round(float(np.mean(scores)), 5) for name, scores in sorted(groups.items())}


def reference_of(method: Method, methods: Sequence[Method]) -> Method | None:
    """ARR-COC at the same budget: with the same encoding where it ran so, else with the other; else None."""
    fitting = [m for m in methods if m.selector == REFERENCE and m.keep == method.keep]
    return next((m for m in fitting if m.encoding == method.encoding), fitting[0] if fitting else None)


def add_tests(rows: Mapping[Method, Row], records: Mapping[Method, Sequence[Record]]) -> None:
    """p_vs_arr_coc and gain_vs_arr_coc of every row that has an ARR-COC to be held against.

    All comparisons of the table are corrected together. A gain is this row's accuracy less ARR-COC's.
    """
    columns: dict[Method, np.ndarray] = {}
    images = np.empty(0)
    for method, row in rows.items():
        row |= {"p_vs_arr_coc": None, "gain_vs_arr_coc": None, "against": None}
        reference = reference_of(method, list(rows))
        if reference is None or reference == method or row["accuracy"] is None:
            continue
        mine, theirs = (sample_of(records[one], "score") for one in (method, reference))
        row |= {"gain_vs_arr_coc": difference_of(mine, theirs), "against": reference.key}
        columns[method], images = mine.values - theirs.values, mine.images
    found = flip_p(np.stack(list(columns.values()), 1), images).tolist() if columns else []
    for method, p in zip(columns, holm(found), strict=True):
        rows[method]["p_vs_arr_coc"] = round(p, 6)


def add_oracle(rows: Mapping[Method, Row]) -> None:
    """above_oracle: whether a row's interval lies above that of the oracle at the same budget and encoding."""
    highest = {
        (one.keep, one.encoding): row["ci95"][1]
        for one, row in reversed(list(rows.items()))
        if one.name == ORACLE and row["ci95"] is not None
    }
    for method, row in rows.items():
        limit = highest.get((method.keep, method.encoding))
        row["above_oracle"] = limit is not None and row["ci95"] is not None and row["ci95"][0] > limit
