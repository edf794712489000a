"""Which methods are compared, and the table of them: a selector with its settings, an encoding, and a budget.

divprune                 by name
random:seed=2            with settings, as `make_selector` takes them
plain                    the unmodified model with every token: no choice, keep 1.0
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_coc.config import Keep, check_keep, tokens_to_keep
from arr_coc.evaluation.field.data import Record
from arr_coc.evaluation.statistics import Clustered, difference_of, flip_p, holm, mean_of
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.selectors import PLAIN, Selector, read_selector, settings_of

REFERENCE, ORACLE = "arr_coc", "oracle"
TRAINED = frozenset({REFERENCE, "rival"})  # all others are training-free
ENCODINGS = ("sparse", "foveated", "dense")
FIELD = (
    *(REFERENCE, "look_twice", "training_free", "random:seed=0", "random:seed=1", "random:seed=2"),
    *("even_grid", "pooling", "downsampling", "fastv", "visionzip", "divprune", "cdpruner", "mmtok", ORACLE),
)
PARTS = ("select", "vision", "prefill")
OFF_BY = 1.0  # tokens that the mean kept count may differ from the budget
OFF_BY_RESIZED = 0.15  # share of the budget, for methods that resize: a rectangle has not just any number of cells

Row = dict[str, Any]
Table = Mapping[str, Mapping[str, Record]]  # per method, per question


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the table."""

    selector: str  # as it was asked for, settings included
    encoding: str
    keep: Keep  # a fraction KEPT, or a number of tokens

    @property
    def key(self) -> str:
        """Names the row in the file of samples."""
        return f"{self.selector} {self.encoding} {self.keep}"

    @property
    def name(self) -> str:
        return self.selector.partition(":")[0]

    @property
    def trained(self) -> bool:
        """Whether anything of the choice was learned from boxes."""
        return self.name in TRAINED


def build(owner: ARRCOCQwen, specs: Iterable[str]) -> dict[str, Selector]:
    """The selectors by the texts that ask for them, on the model's device; "plain" needs none."""
    named = (spec for spec in specs if settings_of(spec)[0] != PLAIN)
    return {spec: read_selector(spec, owner.arr_coc_config, owner.layer).to(owner.device).eval() for spec in named}


def stamp_of(selector: Selector) -> str:
    """Of all that a selector weighs with, learned or set, and of what it was tuned to."""
    digest = hashlib.sha256(repr(sorted(selector.tuned.items())).encode())
    for name, tensor in (*selector.named_parameters(), *selector.named_buffers()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def plan(selectors: dict[str, Selector], keeps: Sequence[Keep], encodings: Sequence[str], plain: bool) -> list[Method]:
    """Every selector with every encoding that it can work with and every budget; the plain model once.

    Those that choose before the ViT come first: while they run, nothing of the dense ones is held in memory.
    """
    for encoding in encodings:
        if encoding not in ENCODINGS:
            raise ValueError(f"encoding {encoding!r}: expected one of {', '.join(ENCODINGS)}")
    for keep in keeps:
        check_keep(keep)
        if isinstance(keep, str) or keep == 1.0:
            raise ValueError(f"keep {keep!r}: give fractions KEPT below 1 or numbers of tokens, equal for all methods")
    methods = [
        Method(spec, encoding, keep)
        for encoding in ENCODINGS
        if encoding in encodings
        for spec, selector in selectors.items()
        if encoding == "dense" or not (selector.reads_tokens or selector.resizes)
        for keep in keeps
    ]
    for spec in selectors:
        if not any(method.selector == spec for method in methods):
            raise ValueError(f"selector {spec!r} works after the ViT: add --encoding dense")
    return methods + ([Method(PLAIN, "dense", 1.0)] if plain else [])


# ---------------------------------------------------------------- from samples to the table
# A row per method, with intervals and tests against ARR-COC, all clustered by image. Before that, what must be true of
# a fair comparison is checked on what was really run: the same questions, prompts and budgets.


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
