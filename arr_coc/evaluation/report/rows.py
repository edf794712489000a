"""Rows of the field as the page shows them: named for people, the seeds of chance put together.

An entry is one method with one encoding at one budget, on one dataset at one size.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from arr_coc.evaluation.field.methods import PLAIN, REFERENCE, Method, settings_of

ORACLE, RIVAL, CHANCE = "oracle", "rival", "random"
NAMES = {
    REFERENCE: "ARR-COC",
    "training_free": "ours, training-free",
    CHANCE: "random",
    "even_grid": "even grid",
    "pooling": "pooling",
    "downsampling": "smaller image",
    "fastv": "FastV",
    "visionzip": "VisionZip",
    "divprune": "DivPrune",
    "cdpruner": "CDPruner",
    "mmtok": "MMTok",
    ORACLE: "oracle",
    RIVAL: "trained rival",
    PLAIN: "all tokens",
}

Row = Mapping[str, Any]
Place = tuple[str, int | None]  # dataset and side in px
Keep = float | int


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
    gain: Row | None  # this less ARR-COC
    p: float | None  # of that, after Holm's correction
    recall: float | None
    tokens: float
    total: float
    equivalent: float  # tokens per layer of the language model, on average
    time_ms: float
    parts_ms: Row
    memory_mb: float | None
    families: Row
    above_oracle: bool
    keys: tuple[str, ...]  # of the rows in the file of samples

    @property
    def name(self) -> str:
        return self.selector.partition(":")[0]

    @property
    def way(self) -> tuple[str, str]:
        """The method, whatever its budget."""
        return self.selector, self.encoding

    @property
    def competes(self) -> bool:
        """Whether it chooses without knowing the answer's place: all but the oracle and the plain model."""
        return self.name not in (ORACLE, PLAIN)


def entries_of(rows: Iterable[Row]) -> list[Entry]:
    """Entries in the order of the rows; what differs in nothing but the seed of chance is one of them."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row["dataset"], row["side"], _without_seed(row["selector"]), row["encoding"], row["keep"])
        groups.setdefault(key, []).append(row)
    return [_entry(key, members) for key, members in groups.items()]


def _without_seed(selector: str) -> str:
    return CHANCE if selector.partition(":")[0] == CHANCE else selector


def _entry(key: tuple[Any, ...], members: Sequence[Row]) -> Entry:
    """Means of the members; of chance's seeds the widest limits and the largest p, so that nothing looks surer."""
    first, known = members[0], [row for row in members if row["ci95"] is not None]
    ps = [row["p_vs_arr_coc"] for row in members if row.get("p_vs_arr_coc") is not None]
    times = [row["time_ms"] for row in members]
    memories = [row["memory_mb"] for row in members if row.get("memory_mb") is not None]
    families = sorted({name for row in members for name in row.get("families", {})})
    tokens = fmean(row["tokens"] for row in members)
    return Entry(
        place=(key[0], key[1]),
        selector=key[2],
        encoding=key[3],
        keep=key[4],
        trained=bool(first["trained"]),
        questions=first["n"],
        accuracy=_mean(row["accuracy"] for row in members),
        low=min((row["ci95"][0] for row in known), default=None),
        high=max((row["ci95"][1] for row in known), default=None),
        gain=_gain([row["gain_vs_arr_coc"] for row in members if row.get("gain_vs_arr_coc")]),
        p=max(ps) if ps else None,
        recall=_mean(row.get("recall") for row in members),
        tokens=tokens,
        total=fmean(row.get("tokens_total", row["tokens"]) for row in members),
        equivalent=fmean(row.get("equivalent_tokens", row["tokens"]) for row in members),
        time_ms=fmean(one["first_token"] for one in times),
        parts_ms={part: fmean(one.get(part, 0.0) for one in times) for part in ("select", "vision", "prefill")},
        memory_mb=max(memories) if memories else None,
        families={
            name: fmean(row["families"][name] for row in members if name in row["families"]) for name in families
        },
        above_oracle=any(row.get("above_oracle") for row in members),
        keys=tuple(Method(row["selector"], row["encoding"], row["keep"]).key for row in members),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _gain(gains: Sequence[Row]) -> Row | None:
    known = [gain for gain in gains if gain.get("mean") is not None]
    if not known:
        return None
    limits = [min(gain["ci95"][0] for gain in known), max(gain["ci95"][1] for gain in known)]
    return {"mean": fmean(gain["mean"] for gain in known), "ci95": limits}


def places_of(entries: Iterable[Entry]) -> list[Place]:
    """Datasets and sizes in their order."""
    return list(dict.fromkeys(entry.place for entry in entries))


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


def label(selector: str) -> str:
    """A selector's name for people; settings that are not paths or seeds are kept."""
    name, settings = settings_of(selector)
    kept = [f"{key} {value}" for key, value in settings.items() if key not in ("path", "seed")]
    return " ".join([NAMES.get(name, name), *kept])


def labels_of(entries: Iterable[Entry]) -> dict[tuple[str, str], str]:
    """Names of methods by (selector, encoding): the encoding is said of those that also ran before the ViT."""
    ways = list(dict.fromkeys(entry.way for entry in entries))
    both = {selector for selector, encoding in ways if encoding == "sparse"}
    return {way: label(way[0]) + (f", {way[1]}" if way[0] in both else "") for way in ways}


def place_label(place: Place) -> str:
    dataset, side = place
    return dataset if side is None else f"{dataset}, {side} px"


def budget_label(keep: Keep, total: float | None = None) -> str:
    """25 % KEPT, or 64 of 1,024."""
    if isinstance(keep, int):
        return f"{keep} tokens" if total is None else f"{keep} of {total:,.0f}"
    return f"{100 * keep:g}\u00a0%"  # a space at which no line is broken
