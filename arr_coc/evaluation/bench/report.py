"""Rows of the bench -> speed-ups, growth, what fits which card; tables and pictures for people.

A row is a dictionary as `bench.measure.measure` makes it. Matplotlib is loaded when it must be.
"""

import statistics
from collections.abc import Iterable, Sequence
from math import log
from pathlib import Path
from typing import Any

from arr_coc.evaluation.bench.measure import PARTS
from arr_coc.evaluation.plotting import LIGHT, OKABE_ITO, STAGES, Named, name_lines, new_figure, png, styled
from arr_coc.files import write_whole

Row = dict[str, Any]
CARDS_GB = (16, 24, 32)
USABLE = 0.92  # of a card's memory; the rest is the driver's and what fragments
SAME = ("model", "side", "batch", "text_tokens")  # what two rows must share to be compared
SERIES = ("model", "batch", "text_tokens", "kept", "encoding", "mode", "sight")  # what those of a series share
FAST = ("graphs", "own forward", "compiled")
TWO_LOOKS = ("look_twice",)  # what looks at a small copy first
HEADS = ("side", "batch", "kept", "encoding", "mode", "sight")
NUMBERS = {  # of a row, and what a reader is told
    **{f"{name}_ms": f"{name} ms" for name in ("select", "vision", "prefill", "ttft", "spread", "decode")},
    "peak_mb": "MB in all",
    "peak_above_mb": "MB above weights",
}
READING = (
    "sparse: chosen before the vision encoder; after-vit: after it. eager: plain transformers; "
    "graphs, compiled: recordings.\nstem, glance, look_twice: what the selector looks with."
)
STYLES = {"dense": "--", "sparse": "-", "after-vit": ":", "foveated": "-."}
MOST_PANELS = 4  # of the latency picture; what was measured in most ways comes first


def all_tokens(rows: Iterable[Row], like: Row, mode: str = "") -> Row | None:
    """The row of the same request that keeps all tokens, by `mode` or the mode of `like`.

    Without a selector there is nothing more to compile: compiled rows are held against graphs.
    """
    mode = mode or ("graphs" if like["mode"] == "compiled" else like["mode"])
    wanted = {name: like[name] for name in SAME} | {"encoding": "dense", "mode": mode}
    return next((row for row in rows if wanted.items() <= row.items()), None)


def ratio(above: Row | None, below: Row | None, name: str) -> float | None:
    """One row's figure over another's; None where a row is missing."""
    return above[name] / below[name] if above and below else None


def speed_ups(rows: Sequence[Row]) -> list[Row]:
    """Each row that keeps a part, against all tokens by the same mode, and against plain transformers."""
    made = []
    for row in (row for row in rows if row["encoding"] != "dense"):
        dense, stock = all_tokens(rows, row), all_tokens(rows, row, "eager")
        entry = {name: row[name] for name in (*SAME, "kept", "encoding", "mode", "sight", "ttft_ms")}
        entry["over_dense"] = ratio(dense, row, "ttft_ms")
        entry["over_transformers"] = ratio(stock, row, "ttft_ms")
        entry["select_share_of_dense"] = row["select_ms"] / dense["ttft_ms"] if dense else None
        if dense and dense.get("ask_ms"):
            entry["over_dense_ask"] = ratio(dense, row, "ask_ms")
        saved = {"memory_above_saved": (dense, "peak_above_mb"), "memory_saved": (dense, "peak_mb")}
        for name, (whole, peak) in (saved | {"memory_above_saved_over_transformers": (stock, "peak_above_mb")}).items():
            if whole and whole["peak_above_mb"]:
                entry[name] = 1 - row[peak] / whole[peak]
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
    if any(x <= 0 or y <= 0 for x, y in points) or len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression([log(x) for x, _ in points], [log(y) for _, y in points]).slope


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by what they share under these names; all tokens kept are the same budget, however many they are."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        shared = row | ({"kept": None} if row["encoding"] == "dense" else {})
        groups.setdefault(tuple(shared[name] for name in names), []).append(row)
    return groups


def growth(rows: Sequence[Row]) -> list[Row]:
    """How each part grows with the image's side, from three sides on: 0 not at all, 2 as the area."""
    made = []
    for key, members in grouped(rows, *SERIES).items():
        sides = [row["side"] for row in members]
        if len(set(sides)) >= 3:
            of = {part: [(row["side"], row[f"{part}_ms"]) for row in members] for part in (*PARTS, "ttft")}
            slopes = {f"{part}_slope": slope(points) for part, points in of.items()}
            made.append({**dict(zip(SERIES, key, strict=True)), "sides": sorted(sides), **slopes})
    return made


def break_even(rows: Sequence[Row], modes: Sequence[str] = FAST[:2], twice: bool = False) -> int | None:
    """The fewest visual tokens from which on, at batch 1 and by the same mode, sparse was faster than all tokens.

    None where it was not at the most tokens that were measured. What counts is the time until the token is on the host.
    """
    pays: dict[int, bool] = {}
    for row in rows:
        dense = all_tokens(rows, row)
        asked = row["encoding"] == "sparse" and row["mode"] in modes and (row["sight"] in TWO_LOOKS) == twice
        if asked and row["batch"] == 1 and dense:
            pays[row["tokens"]] = pays.get(row["tokens"], False) or row["wall_ttft_ms"] < dense["wall_ttft_ms"]
    most_lost = max((tokens for tokens in pays if not pays[tokens]), default=0)
    return min((tokens for tokens in pays if tokens > most_lost), default=None)


def break_evens(rows: Sequence[Row]) -> Row:
    """By model, path and number of looks, as `arr_coc/qwen/break_even.json` has them for a device."""
    paths = {"recorded": FAST[:2], "eager": ("eager",)}
    made: Row = {}
    for (model,), own in grouped(rows, "model").items():
        looks = {path: (break_even(own, modes), break_even(own, modes, twice=True)) for path, modes in paths.items()}
        made[model] = {path: {"one look": once, "two looks": twice} for path, (once, twice) in looks.items()}
    return made


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
        "break_even_tokens": break_evens(rows),
        "fit": fit(rows),
    }


# ---------------------------------------------------------------- tables


def table(rows: Sequence[Row]) -> str:
    """The rows for people: one line each, and how many times faster than all tokens by the same mode."""
    lines = [(*HEADS, *NUMBERS.values(), "times faster")]
    for row in rows:
        heads = ("-" if row[name] is None else str(row[name]) for name in HEADS)
        faster = ratio(all_tokens(rows, row), row, "ttft_ms")
        numbers = ("-" if row.get(name) is None else f"{row[name]:,.1f}" for name in NUMBERS)
        lines.append((*heads, *numbers, "-" if faster is None else f"{faster:.2f}"))
    return aligned(lines)


def fit_table(rows: Sequence[Row]) -> str:
    """What fits which card, for people."""
    heads = ("model", "side", "batch", "kept", "encoding", "mode")
    lines = [(*heads, "peak GB in all", *(f"{card} GB" for card in CARDS_GB))]
    for row in fit(rows):
        fits = ("yes" if row[f"fits_{card}_gb"] else "no" for card in CARDS_GB)
        lines.append((*(str(row[name]) for name in heads), f"{row['peak_mb'] / 1024:.1f}", *fits))
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, numbers and words to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


# ---------------------------------------------------------------- pictures


def save_plots(rows: Sequence[Row], folder: Path, about: Row | None = None) -> list[Path]:
    """Write the pictures that the rows allow, and return where they are; `about` says what they were measured on."""
    on = ", ".join(str(about[name]) for name in ("device", "dtype") if name in about) if about else ""
    models = ", ".join(dict.fromkeys(str(row["model"]).removeprefix("shape:") for row in rows))
    told = f"{models}, {on}" if on else models
    with styled():
        figures = {
            "latency.png": latency_bars(rows, told),
            "speed_up.png": budget_lines(rows, told),
            "growth.png": growth_lines(rows, told),
        }
        drawn = {folder / name: png(figure) for name, figure in figures.items() if figure is not None}
    for path, picture in drawn.items():
        write_whole(path, picture)
    return list(drawn)


def _figure(width: float, height: float, title: str, note: str) -> Any:
    """A figure with its title, and below it what its words mean."""
    figure = new_figure(width, height, layout="constrained")
    figure.suptitle(title, fontsize=8.8, weight="bold", x=0.02, ha="left")
    figure.supxlabel(note, fontsize=7, color=LIGHT.faint, x=0.02, ha="left")
    return figure


def latency_bars(rows: Sequence[Row], told: str) -> Any:
    """A panel per image size and batch, a bar per way, made of its parts; each panel has a scale of its own."""
    groups = grouped(rows, "side", "batch")
    shown = sorted(sorted(groups, key=lambda key: -len(groups[key]))[:MOST_PANELS])
    if not shown:
        return None
    heights = [len(groups[key]) + 1 for key in shown]
    figure = _figure(7, 0.21 * sum(heights) + 1.5, f"Where the time to the first token goes: {told}", READING)
    panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (side, batch) in zip(panels, shown, strict=True):
        members = sorted(groups[side, batch], key=lambda row: -row["ttft_ms"])
        base = [0.0] * len(members)
        for part, colour in STAGES.items():
            widths = [row[f"{part}_ms"] for row in members]
            axes.barh(range(len(members)), widths, left=base, label=part, color=colour)
            base = [low + width for low, width in zip(base, widths, strict=True)]
        for place, total in enumerate(base):
            axes.text(total, place, f" {total:.1f}", va="center", fontsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.08, y=0.02)
        axes.grid(axis="y", visible=False)
        axes.set_yticks(range(len(members)), [_way(row) for row in members], fontsize=7.5)
        axes.set_title(f"{side} x {side} px, batch {batch}", fontsize=8.5)
    panels[0].legend(loc="lower right")
    panels[-1].set_xlabel("ms to the first token")
    return figure


def _way(row: Row) -> str:
    """How a row was served, in words."""
    whole, mode = row["encoding"] == "dense", row["mode"]
    return f"all tokens, {mode}" if whole else f"{row['kept']} kept, {row['encoding']}, {row['sight']}, {mode}"


def budget_lines(rows: Sequence[Row], told: str) -> Any:
    """How many times faster than all tokens, against the tokens kept, where several budgets were measured."""
    faster = [one for one in speed_ups(rows) if one["over_dense"] and one["mode"] in FAST]
    groups = grouped(faster, "encoding", "sight", "side", "batch", "mode")
    lines = {key: members for key, members in groups.items() if len({one["kept"] for one in members}) > 1}
    if not lines:
        return None
    figure = _figure(6, 4, f"How much sooner the first token comes: {told}", READING)
    axes, names = figure.subplots(), []
    for number, ((encoding, sight, side, batch, mode), members) in enumerate(lines.items()):
        points, colour = sorted((one["kept"], one["over_dense"]) for one in members), OKABE_ITO[number % len(OKABE_ITO)]
        axes.plot(*zip(*points, strict=True), marker="o", linestyle=STYLES[encoding], color=colour)
        names.append(Named(f"{encoding}, {sight}, {side} px, batch {batch}, {mode}", *points[0], colour))
    axes.axhline(1, color=LIGHT.ink, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.annotate("as fast as all tokens", (1, 1), (0, -3), xycoords=("axes fraction", "data"),
                  textcoords="offset points", fontsize=8, ha="right", va="top")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set(xlabel="visual tokens kept", ylabel="times as fast as with all tokens")
    name_lines(axes, names)
    return figure


def growth_lines(rows: Sequence[Row], told: str) -> Any:
    """Each part against the image's side, both logarithmic, with its slope; all tokens are dashed."""
    grown = [(one, part) for one in growth(rows) if one["mode"] in FAST for part in PARTS]
    grown = [(one, part) for one, part in grown if one[f"{part}_slope"] is not None]
    if not grown:
        return None
    note = (
        "Dashed: all tokens. Solid: chosen before the vision encoder. A slope of 0 does not grow, 2 grows as the area."
    )
    figure, members = _figure(6, 4.2, f"How each part grows with the image: {told}", note), grouped(rows, *SERIES)
    sides = sorted({side for one, _ in grown for side in one["sides"]})
    axes, names = figure.subplots(), []
    for one, part in grown:
        measured = sorted(members[tuple(one[name] for name in SERIES)], key=lambda row: row["side"])
        what, rise = "all tokens" if one["kept"] is None else f"{one['kept']} kept", one[f"{part}_slope"]
        times = [row[f"{part}_ms"] for row in measured]
        axes.loglog(one["sides"], times, marker="o", color=STAGES[part], linestyle=STYLES[one["encoding"]])
        words = f"{part}, {what}: slope {abs(rise) if abs(rise) < 0.005 else rise:.2f}"
        names.append(Named(words, one["sides"][-1], times[-1], STAGES[part]))
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.5)  # room for the names
    axes.set_xticks(sides, [str(side) for side in sides])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="side of the image, px", ylabel="ms")
    name_lines(axes, names)
    return figure
