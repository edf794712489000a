"""Rows of the bench -> speed-ups, growth, what fits which card, and a table for people.

A row is a dictionary as `bench_measure.measure` makes it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
PARTS = ("select", "vision", "prefill", "ttft")
CARDS_GB = (16, 24, 32)
USABLE = 0.92  # of a card's memory; the rest is the driver's and what fragments
SAME = ("model", "side", "batch", "text_tokens")  # what two rows must share to be compared
FAST = ("graphs", "own forward", "compiled")


def find(rows: Iterable[Row], like: Row, encoding: str, mode: str) -> Row | None:
    """The row for the same request as `like`, served that way."""
    for row in rows:
        if all(row[name] == like[name] for name in SAME) and (row["encoding"], row["mode"]) == (encoding, mode):
            return row
    return None


def all_tokens(rows: Iterable[Row], like: Row) -> Row | None:
    """The row that keeps all tokens by the same mode; without a selector, there is nothing more to compile."""
    return find(rows, like, encoding="dense", mode="graphs" if like["mode"] == "compiled" else like["mode"])


def speed_ups(rows: Sequence[Row]) -> list[Row]:
    """Each row that keeps a part, against all tokens by the same mode, and against plain transformers."""
    made = []
    for row in rows:
        if row["encoding"] == "dense":
            continue
        same_mode = all_tokens(rows, row)
        stock = find(rows, row, encoding="dense", mode="eager")
        names = (*SAME, "kept", "encoding", "mode", "sight")
        entry = {name: row[name] for name in names} | {"ttft_ms": row["ttft_ms"]}
        entry["over_dense"] = same_mode["ttft_ms"] / row["ttft_ms"] if same_mode else None
        entry["over_transformers"] = stock["ttft_ms"] / row["ttft_ms"] if stock else None
        entry["select_share_of_dense"] = row["select_ms"] / same_mode["ttft_ms"] if same_mode else None
        if same_mode and same_mode.get("ask_ms"):
            entry["over_dense_ask"] = same_mode["ask_ms"] / row["ask_ms"]
        if same_mode and same_mode["peak_above_mb"]:
            entry["memory_above_saved"] = 1 - row["peak_above_mb"] / same_mode["peak_above_mb"]
            entry["memory_saved"] = 1 - row["peak_mb"] / same_mode["peak_mb"]
        if stock and stock["peak_above_mb"]:
            entry["memory_above_saved_over_transformers"] = 1 - row["peak_above_mb"] / stock["peak_above_mb"]
        made.append(entry)
    return made


def decode_speed_up(rows: Sequence[Row]) -> float | None:
    """Time per token of plain generate over that of the captured step, at batch 1."""
    timed = [row for row in rows if row.get("decode_ms") and row["batch"] == 1]
    stock = [row["decode_ms"] for row in timed if row["mode"] == "eager" and row["encoding"] == "dense"]
    fast = [row["decode_ms"] for row in timed if row["mode"] in FAST]
    return min(stock) / max(fast) if stock and fast else None


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of log y against log x; None with fewer than two different x, or a y that is not positive."""
    usable = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len(usable) != len(points) or len({x for x, _ in usable}) < 2:
        return None
    mean_x = sum(x for x, _ in usable) / len(usable)
    mean_y = sum(y for _, y in usable) / len(usable)
    above = sum((x - mean_x) * (y - mean_y) for x, y in usable)
    return above / sum((x - mean_x) ** 2 for x, _ in usable)


def growth(rows: Sequence[Row]) -> list[Row]:
    """How each part grows with the image's side, where three sides or more were measured: 0 not at all, 2 as the area.

    Rows that keep all tokens are one series, whatever their number.
    """
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        kept = None if row["encoding"] == "dense" else row["kept"]
        key = (row["model"], row["batch"], row["text_tokens"], kept, row["encoding"], row["mode"], row["sight"])
        series.setdefault(key, []).append(row)
    made = []
    for key, members in series.items():
        if len({row["side"] for row in members}) < 3:
            continue
        names = ("model", "batch", "text_tokens", "kept", "encoding", "mode", "sight")
        slopes = {f"{part}_slope": slope([(row["side"], row[f"{part}_ms"]) for row in members]) for part in PARTS}
        made.append({**dict(zip(names, key, strict=True)), "sides": sorted(row["side"] for row in members), **slopes})
    return made


def break_even(rows: Sequence[Row]) -> int | None:
    """The fewest visual tokens from which on, at batch 1 and over graphs, sparse was faster than all tokens."""
    pays: dict[int, bool] = {}
    for row in rows:
        dense = all_tokens(rows, row)
        if row["encoding"] == "sparse" and row["mode"] in FAST[:2] and row["batch"] == 1 and dense:
            pays[row["tokens"]] = pays.get(row["tokens"], False) or row["ttft_ms"] < dense["ttft_ms"]
    least = None
    for tokens in sorted(pays, reverse=True):
        if not pays[tokens]:
            break
        least = tokens
    return least


def fit(rows: Sequence[Row]) -> list[Row]:
    """Which measured request fits which card, from its peak in all."""
    names = (*SAME, "kept", "encoding", "mode", "peak_mb")
    return [
        {name: row[name] for name in names}
        | {f"fits_{card}_gb": row["peak_mb"] <= USABLE * card * 1024 for card in CARDS_GB}
        for row in rows
    ]


def document(rows: Sequence[Row], about: Row) -> Row:
    """Everything that is written: what was measured on what, the rows, and what follows from them."""
    return {
        **about,
        "rows": list(rows),
        "speed_up": speed_ups(rows),
        "decode_speed_up": decode_speed_up(rows),
        "growth": growth(rows),
        "break_even_tokens": break_even(rows),
        "fit": fit(rows),
    }


HEADS = ("side", "batch", "kept", "encoding", "mode", "sight")
NUMBERS = ("select_ms", "vision_ms", "prefill_ms", "ttft_ms", "spread_ms", "decode_ms", "peak_mb", "peak_above_mb")


def table(rows: Sequence[Row]) -> str:
    """The rows for people: one line each, and how many times faster than all tokens by the same mode."""
    faster = [_times(rows, row) for row in rows]
    lines = [(*HEADS, *(name.replace("_ms", " ms").replace("_", " ") for name in NUMBERS), "times faster")]
    for row, times in zip(rows, faster, strict=True):
        heads = tuple("-" if row[name] is None else str(row[name]) for name in HEADS)
        numbers = tuple("-" if row.get(name) is None else f"{row[name]:,.1f}" for name in NUMBERS)
        lines.append((*heads, *numbers, times))
    return aligned(lines)


def fit_table(rows: Sequence[Row]) -> str:
    """What fits which card, for people."""
    heads = ("model", "side", "batch", "kept", "encoding", "mode")
    lines = [(*heads, "peak GB", *(f"{card} GB" for card in CARDS_GB))]
    for row in fit(rows):
        fits = tuple("yes" if row[f"fits_{card}_gb"] else "no" for card in CARDS_GB)
        lines.append((*(str(row[name]) for name in heads), f"{row['peak_mb'] / 1024:.1f}", *fits))
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, numbers and words to the right."""
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _times(rows: Sequence[Row], row: Row) -> str:
    dense = all_tokens(rows, row)
    return f"{dense['ttft_ms'] / row['ttft_ms']:.2f}" if dense else "-"
