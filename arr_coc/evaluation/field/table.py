"""From samples to the table: a row per method, with intervals and tests against ARR-COC, all clustered by image.

I images, M methods, Q questions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arr_coc.evaluation.comparing import Sample, difference_of, mean_of
from arr_coc.evaluation.field.data import Record
from arr_coc.evaluation.field.methods import REFERENCE, Method

SHUFFLES = 50_000  # of a permutation test: the least p is 1 in 50,001, enough for a hundred comparisons
AT_ONCE = 1000  # shuffles that are held in memory
PARTS = ("select", "vision", "prefill")

Row = dict[str, Any]


def sample_of(records: Sequence[Record], key: str) -> Sample:
    """One value per question that has one."""
    return Sample.of((record["image"], record[key]) for record in records if record[key] is not None)


def flip_p(differences_QM: np.ndarray, images_Q: np.ndarray, seed: int = 0) -> np.ndarray:
    """Two-sided p of paired differences `[M]`: how often a sum is as large when whole images change their sign."""
    places = np.unique(images_Q, return_inverse=True)[1]
    sums_IM = np.zeros((int(places.max()) + 1, differences_QM.shape[1]))
    np.add.at(sums_IM, places, differences_QM)
    found_M = np.abs(sums_IM.sum(0)) - 1e-9  # sums in another order differ in their last bits
    rng = np.random.default_rng(seed)
    as_large_M = np.zeros(differences_QM.shape[1])
    for _ in range(0, SHUFFLES, AT_ONCE):
        signs = rng.integers(0, 2, (AT_ONCE, len(sums_IM))) * 2.0 - 1.0
        as_large_M += (np.abs(signs @ sums_IM) >= found_M).sum(0)
    p_M: np.ndarray = (as_large_M + 1) / (SHUFFLES + 1)
    return p_M


def holm(p_M: Sequence[float]) -> list[float]:
    """Holm's correction for so many comparisons at once."""
    order = np.argsort(p_M, kind="stable")
    corrected = [0.0] * len(p_M)
    highest = 0.0
    for place, number in enumerate(order.tolist()):
        highest = max(highest, min(1.0, (len(p_M) - place) * p_M[number]))
        corrected[number] = highest
    return corrected


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
    references = {method: reference_of(method, list(rows)) for method in rows}
    compared: list[Method] = []
    columns: list[np.ndarray] = []
    images = np.empty(0)
    for method, reference in references.items():
        rows[method] |= {"p_vs_arr_coc": None, "gain_vs_arr_coc": None, "against": None}
        if reference is None or reference == method or rows[method]["accuracy"] is None:
            continue
        mine, theirs = (sample_of(records[one], "score") for one in (method, reference))
        rows[method]["gain_vs_arr_coc"] = difference_of(mine, theirs)
        rows[method]["against"] = reference.key
        compared.append(method)
        columns.append(mine.values - theirs.values)
        images = mine.images
    if compared:
        for method, p in zip(compared, holm(flip_p(np.stack(columns, 1), images).tolist()), strict=True):
            rows[method]["p_vs_arr_coc"] = round(p, 6)


def add_oracle(rows: Mapping[Method, Row]) -> None:
    """above_oracle: whether a row's interval lies above that of the oracle at the same budget and encoding."""
    for method, row in rows.items():
        oracle = next(
            (
                other
                for one, other in rows.items()
                if one.name == "oracle" and one.keep == method.keep and one.encoding == method.encoding
            ),
            None,
        )
        known = oracle is not None and oracle["ci95"] is not None and row["ci95"] is not None
        row["above_oracle"] = bool(known and oracle is not None and row["ci95"][0] > oracle["ci95"][1])
