"""What a folder of results says: the table of the field as entries named for people, and the answers beside it.

An entry is one method with one encoding at one budget, on one dataset at one size; seeds of chance are put together. A
file that is not there is no mistake: what it would have said is reported as not measured yet. Q questions.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from arr_coc.evaluation.field.main import samples_path
from arr_coc.evaluation.field.methods import ORACLE, PARTS, REFERENCE, Method
from arr_coc.evaluation.field.run import Answered, read_samples
from arr_coc.evaluation.plotting import BLUE, GREEN, ORANGE, PINK, RED, SKY, YELLOW
from arr_coc.files import read_json_object
from arr_coc.selectors import PLAIN, settings_of

FIELD, MAKER = "field.json", "arr-coc eval --out results/field.json"  # the table, and what makes it
FIELD_KEYS = (  # what is read of each of its rows
    *("dataset", "side", "selector", "trained", "encoding", "keep", "n", "accuracy", "ci95", "tokens", "time_ms"),
)
RIVAL, CHANCE = "rival", "random"
# How methods are shown: name, colour and mark. Every method has a mark of its own, so that no colour is needed to tell
# them apart; "ink" and "faint" are the page's.
LOOKS = {
    REFERENCE: ("ARR-COC", BLUE, "o"),
    "look_twice": ("looking twice", SKY, "P"),
    "training_free": ("ours, training-free", SKY, "D"),
    CHANCE: ("random", "faint", "x"),
    "even_grid": ("even grid", "faint", "+"),
    "pooling": ("pooling", "faint", "h"),
    "downsampling": ("smaller image", "faint", "d"),
    "fastv": ("FastV", RED, "p"),
    "visionzip": ("VisionZip", YELLOW, ">"),
    "divprune": ("DivPrune", ORANGE, "<"),
    "cdpruner": ("CDPruner", PINK, "v"),
    "mmtok": ("MMTok", GREEN, "^"),
    ORACLE: ("oracle", "ink", "*"),
    RIVAL: ("trained rival", RED, "s"),
    PLAIN: ("all tokens", "ink", "X"),
}
NAMES = {selector: look[0] for selector, look in LOOKS.items()}

Row = Mapping[str, Any]
Keep = float | int
Way = tuple[str, str]  # selector and encoding: a method, whatever its budget
Names = Mapping[Way, str]


class Place(NamedTuple):
    """A dataset, and the side of its images in px where there is one."""

    dataset: str
    side: int | None

    @property
    def label(self) -> str:
        return self.dataset if self.side is None else f"{self.dataset}, {self.side} px"


def read_document(path: Path, maker: str, row_keys: Sequence[str]) -> dict[str, Any]:
    """A file of results, empty where it is not there; rows must have all `row_keys`, if any."""
    again = f"make it again with {maker}"
    document = read_json_object(path, again)
    rows = document.get("rows", []) if row_keys else []
    if not isinstance(rows, list):
        raise ValueError(f"{path}: rows is not a list; {again}")
    for number, row in enumerate(rows, start=1):
        if missing := [key for key in row_keys if not isinstance(row, dict) or key not in row]:
            raise ValueError(f"{path}: row {number} lacks {', '.join(missing)}; {again}")
    return document


# ---------------------------------------------------------------- entries


@dataclass(frozen=True, slots=True)
class Entry:
    """Shares are in [0, 1], times in ms of one question up to its first token."""

    place: Place
    selector: str  # as it was asked for; the seeds of chance share one
    encoding: str
    keep: Keep  # a fraction KEPT, or a number of tokens
    trained: bool
    questions: int
    accuracy: float | None
    low: float | None  # of the 95 % interval
    high: float | None
    gain: float | None  # this less ARR-COC
    p: float | None  # of that, after Holm's correction
    recall: float | None
    tokens: float
    total: float
    equivalent: float  # tokens per layer of the language model, on average
    time_ms: float
    parts_ms: Row
    families: Row
    above_oracle: bool
    keys: tuple[str, ...]  # of the rows in the file of samples

    @property
    def name(self) -> str:
        return self.selector.partition(":")[0]

    @property
    def way(self) -> Way:
        return self.selector, self.encoding

    @property
    def competes(self) -> bool:
        """Whether it chooses without knowing the answer's place: all but the oracle and the plain model."""
        return self.name not in (ORACLE, PLAIN)


def entries_of(rows: Iterable[Row]) -> list[Entry]:
    """Entries in the order of the rows; what differs in nothing but the seed of chance is one of them."""
    groups: dict[tuple[Place, str, str, Keep], list[Row]] = {}
    for row in rows:
        selector = CHANCE if row["selector"].partition(":")[0] == CHANCE else row["selector"]
        key = (Place(row["dataset"], row["side"]), selector, row["encoding"], row["keep"])
        groups.setdefault(key, []).append(row)
    return [_entry(*key, members) for key, members in groups.items()]


def _entry(place: Place, selector: str, encoding: str, keep: Keep, members: Sequence[Row]) -> Entry:
    """Means of the members; of chance's seeds the widest limits and the largest p, so that nothing looks surer."""
    known = [row["ci95"] for row in members if row["ci95"] is not None]
    times, shares = [row["time_ms"] for row in members], [row.get("families", {}) for row in members]
    families = sorted({name for one in shares for name in one})
    return Entry(
        *(place, selector, encoding, keep),
        trained=bool(members[0]["trained"]),
        questions=members[0]["n"],
        accuracy=_mean(row["accuracy"] for row in members),
        low=min((low for low, _ in known), default=None),
        high=max((high for _, high in known), default=None),
        gain=_mean((row.get("gain_vs_arr_coc") or {}).get("mean") for row in members),
        p=max((row["p_vs_arr_coc"] for row in members if row.get("p_vs_arr_coc") is not None), default=None),
        recall=_mean(row.get("recall") for row in members),
        tokens=fmean(row["tokens"] for row in members),
        total=fmean(row.get("tokens_total", row["tokens"]) for row in members),
        equivalent=fmean(row.get("equivalent_tokens", row["tokens"]) for row in members),
        time_ms=fmean(one["first_token"] for one in times),
        parts_ms={part: fmean(one.get(part, 0.0) for one in times) for part in PARTS},
        families={name: fmean(one[name] for one in shares if name in one) for name in families},
        above_oracle=any(row.get("above_oracle") for row in members),
        keys=tuple(Method(row["selector"], row["encoding"], row["keep"]).key for row in members),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def by_place(entries: Iterable[Entry]) -> dict[Place, list[Entry]]:
    """Entries of each dataset and size, in their order."""
    places: dict[Place, list[Entry]] = {}
    for entry in entries:
        places.setdefault(entry.place, []).append(entry)
    return places


def budgets_of(entries: Iterable[Entry]) -> list[Keep]:
    """Budgets from the largest to the smallest; the plain model's is none."""
    kept = {entry.keep: entry.tokens / entry.total for entry in entries if entry.name != PLAIN}
    return sorted(kept, key=lambda keep: -kept[keep])


def plain_of(entries: Iterable[Entry]) -> Entry | None:
    """The plain model with all tokens, where it was asked."""
    return next((entry for entry in entries if entry.name == PLAIN), None)


def ours_of(entries: Iterable[Entry], keep: Keep) -> Entry | None:
    """ARR-COC at a budget: chosen before the ViT where it ran so, else after it."""
    fitting = [entry for entry in entries if entry.name == REFERENCE and entry.keep == keep]
    return min(fitting, key=lambda entry: entry.encoding != "sparse", default=None)


def asked_of(entries: Iterable[Entry]) -> str:
    """How many questions, of which some methods may have been asked the first ones alone."""
    counts = sorted({entry.questions for entry in entries})
    return " to ".join(f"{count:,}" for count in (counts[0], *counts[1:][-1:])) + " questions"


def label(selector: str) -> str:
    """A selector's name for people; settings that are not paths or seeds are kept."""
    name, settings = settings_of(selector)
    kept = [f"{key} {value}" for key, value in settings.items() if key not in ("path", "seed")]
    return " ".join([NAMES.get(name, name), *kept])


def labels_of(entries: Iterable[Entry]) -> dict[Way, str]:
    """Names of methods by (selector, encoding): the encoding is said of those that also ran before the ViT."""
    ways = list(dict.fromkeys(entry.way for entry in entries))
    both = {selector for selector, encoding in ways if encoding != "dense"}
    return {way: label(way[0]) + (f", {way[1]}" if way[0] in both else "") for way in ways}


def budget_label(keep: Keep, total: float | None = None) -> str:
    """25 % KEPT, or 64 of 1,024."""
    if isinstance(keep, int):
        return f"{keep} tokens" if total is None else f"{keep} of {total:,.0f}"
    return f"{100 * keep:g}\u00a0%"  # a space at which no line is broken


# ---------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True)
class Answers:
    """What was answered at one place."""

    about: dict[str, Any]  # what was asked of which model
    questions: list[str]
    images_Q: np.ndarray
    scores: dict[str, np.ndarray]  # by a method's key, a score per question; NaN where nobody knows the right answer
    lines: Answered  # all that is known of each answer

    def of(self, entry: Entry) -> np.ndarray | None:
        """Scores of an entry `[Q]`, the mean over its seeds; None where a part of it is not there."""
        known = [self.scores[key] for key in entry.keys if key in self.scores]
        return np.mean(known, axis=0) if len(known) == len(entry.keys) else None


def read_file(path: Path) -> Answers:
    """One file of samples; methods that did not come to their end are left out."""
    about, records, _ = read_samples(path, "move it away or make it again")
    images = {question: line["image"] for lines in records.values() for question, line in lines.items()}
    whole = {method: lines for method, lines in records.items() if len(lines) == len(images)}
    scores = {method: np.array([lines[one]["score"] for one in images], float) for method, lines in whole.items()}
    return Answers(about, list(images), np.array(list(images.values()), int), scores, whole)


@dataclass(frozen=True, slots=True)
class Measured:
    """What every section of the page reads: the table of the field, and the answers behind it."""

    folder: Path
    document: dict[str, Any]  # the file of the table; empty where nothing was measured yet
    places: dict[Place, list[Entry]]  # the entries of each dataset and size
    answers: dict[Place, Answers]  # of the places whose samples are there and belong to the table
    notes: list[str]  # why those of others are not

    @classmethod
    def of(cls, folder: Path) -> "Measured":
        """From a folder of results."""
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder; make results with {MAKER}, or name their folder by --results")
        document = read_document(folder / FIELD, MAKER, FIELD_KEYS)
        places, answers, notes = by_place(entries_of(document.get("rows", []))), {}, []
        for place in places:
            path = samples_path(folder / FIELD, *place)
            found = read_file(path) if os.path.isfile(path) else None  # no name, however long, is an error
            if found is None:
                notes.append(f"`{path.name}` is not here")
            elif found.about != document.get("runs", {}).get(path.stem):
                notes.append(f"`{path.name}` belongs to another run than the table")
            else:
                answers[place] = found
        return cls(folder, document, places, answers, notes)

    @property
    def entries(self) -> list[Entry]:
        return [entry for here in self.places.values() for entry in here]

    @property
    def names(self) -> Names:
        return labels_of(self.entries)
