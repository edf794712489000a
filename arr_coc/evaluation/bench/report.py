"""Rows of the bench -> speed-ups, growth, what fits which card; tables and pictures for people.

A row is a dictionary as `bench.measure.measure` makes it. Matplotlib is loaded when it must be.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from arr_coc.evaluation.bench.measure import PARTS

Row = dict[str, Any]
CARDS_GB = (16, 24, 32)
USABLE = 0.92  # of a card's memory; the rest is the driver's and what fragments
SAME = ("model", "side", "batch", "text_tokens")  # what two rows must share to be compared
SERIES = ("model", "batch", "text_tokens", "kept", "encoding", "mode", "sight")  # what those of a series share
FAST = ("graphs", "own forward", "compiled")
TWO_LOOKS = ("look_twice",)  # what looks at a small copy first
COLOURS = {"select": "#d97706", "vision": "#2563eb", "prefill": "#64748b"}
STYLES = {"dense": "--", "sparse": "-", "after-vit": ":", "foveated": "-."}
MOST_PANELS = 4  # of the latency picture; what was measured in most ways comes first


def find(rows: Iterable[Row], like: Row, encoding: str, mode: str) -> Row | None:
    """The row for the same request as `like`, served that way."""
    wanted = {name: like[name] for name in SAME} | {"encoding": encoding, "mode": mode}
    return next((row for row in rows if all(row[name] == value for name, value in wanted.items())), None)


def all_tokens(rows: Iterable[Row], like: Row) -> Row | None:
    """The row that keeps all tokens by the same mode; without a selector, there is nothing more to compile."""
    return find(rows, like, encoding="dense", mode="graphs" if like["mode"] == "compiled" else like["mode"])


def speed_ups(rows: Sequence[Row]) -> list[Row]:
    """Each row that keeps a part, against all tokens by the same mode, and against plain transformers."""
    made = []
    for row in (row for row in rows if row["encoding"] != "dense"):
        same_mode, stock = all_tokens(rows, row), find(rows, row, encoding="dense", mode="eager")
        entry = {name: row[name] for name in (*SAME, "kept", "encoding", "mode", "sight", "ttft_ms")}
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
    if any(x <= 0 or y <= 0 for x, y in points) or len({x for x, _ in points}) < 2:
        return None
    xs, ys = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - mean_x) ** 2 for x in xs)


def growth(rows: Sequence[Row]) -> list[Row]:
    """How each part grows with the image's side, where three sides or more were measured: 0 not at all, 2 as the area.

    Rows that keep all tokens are one series, whatever their number.
    """
    made = []
    for key, members in series_of(rows).items():
        sides = [row["side"] for row in members]
        if len(set(sides)) >= 3:
            times = {part: [row[f"{part}_ms"] for row in members] for part in (*PARTS, "ttft")}
            slopes = {f"{part}_slope": slope(list(zip(sides, of, strict=True))) for part, of in times.items()}
            made.append({**dict(zip(SERIES, key, strict=True)), "sides": sorted(sides), **slopes})
    return made


def series_of(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that differ in the image's side alone, by what they share."""
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        shared = row | ({"kept": None} if row["encoding"] == "dense" else {})
        series.setdefault(tuple(shared[name] for name in SERIES), []).append(row)
    return series


def break_evens(rows: Sequence[Row]) -> Row:
    """By model, path and number of looks, as `arr_coc/qwen/break_even.json` has them for a device."""
    made: Row = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        for path, modes in (("recorded", FAST[:2]), ("eager", ("eager",))):
            looks = {"one look": break_even(own, modes), "two looks": break_even(own, modes, twice=True)}
            made.setdefault(model, {})[path] = looks
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


HEADS = ("side", "batch", "kept", "encoding", "mode", "sight")
NUMBERS = ("select_ms", "vision_ms", "prefill_ms", "ttft_ms", "spread_ms", "decode_ms", "peak_mb", "peak_above_mb")


def table(rows: Sequence[Row]) -> str:
    """The rows for people: one line each, and how many times faster than all tokens by the same mode."""
    lines = [(*HEADS, *(name.replace("_ms", " ms").replace("_", " ") for name in NUMBERS), "times faster")]
    for row in rows:
        heads = ("-" if row[name] is None else str(row[name]) for name in HEADS)
        numbers = ("-" if row.get(name) is None else f"{row[name]:,.1f}" for name in NUMBERS)
        dense = all_tokens(rows, row)
        lines.append((*heads, *numbers, f"{dense['ttft_ms'] / row['ttft_ms']:.2f}" if dense else "-"))
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


# ---------------------------------------------------------------- pictures


def save_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the pictures that the rows allow, and return where they are."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in (("latency.png", latency_bars), ("speed_up.png", budget_lines), ("growth.png", growth_lines)):
        figure = draw(pyplot, rows)
        if figure is not None:
            figure.savefig(folder / name, dpi=110)
            pyplot.close(figure)
            written.append(folder / name)
    return written


def requests_of(rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    """Rows by image size and batch, those that were served in most ways first, at most MOST_PANELS; then by size."""
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["side"], row["batch"]), []).append(row)
    chosen = sorted(groups, key=lambda key: -len(groups[key]))[:MOST_PANELS]
    return {key: groups[key] for key in sorted(chosen)}


def way_of(row: Row) -> str:
    """How a row was served, in words."""
    if row["encoding"] == "dense":
        return f"all tokens, {row['mode']}"
    return f"{row['kept']} {row['encoding']}, {row['sight']}, {row['mode']}"


def latency_bars(pyplot: Any, rows: Sequence[Row]) -> Any:
    """A panel per image size and batch, a bar per way, made of its parts; each panel has a scale of its own."""
    groups = requests_of(rows)
    if not groups:
        return None
    heights = [len(members) + 1 for members in groups.values()]
    figure, panels = pyplot.subplots(
        len(groups), 1, figsize=(9, 0.26 * sum(heights) + 1), layout="constrained", squeeze=False, height_ratios=heights
    )
    for axes, ((side, batch), members) in zip(panels[:, 0], groups.items(), strict=True):
        members = sorted(members, key=lambda row: -row["ttft_ms"])
        base = [0.0] * len(members)
        for part, colour in COLOURS.items():
            widths = [row[f"{part}_ms"] for row in members]
            axes.barh(range(len(members)), widths, left=base, label=part, color=colour)
            base = [low + width for low, width in zip(base, widths, strict=True)]
        for place, total in enumerate(base):
            axes.text(total, place, f" {total:.1f}", va="center", fontsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.08, y=0.02)
        axes.set_yticks(range(len(members)), [way_of(row) for row in members], fontsize=8)
        axes.set_title(f"{side} x {side} px, batch {batch}", fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].legend(fontsize=8, loc="lower right")
    panels[-1, 0].set_xlabel("ms to the first token")
    return figure


def budget_lines(pyplot: Any, rows: Sequence[Row]) -> Any:
    """How many times faster than all tokens, against the tokens kept, where several budgets were measured."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for one in speed_ups(rows):
        if one["over_dense"] and one["mode"] in FAST:
            name = f"{one['encoding']} {one['sight']}, {one['side']} px, batch {one['batch']}, {one['mode']}"
            lines.setdefault((name, one["encoding"]), []).append((one["kept"], one["over_dense"]))
    lines = {key: points for key, points in lines.items() if len({kept for kept, _ in points}) > 1}
    if not lines:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for (name, encoding), points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", linestyle=STYLES[encoding], label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="visual tokens kept", ylabel="times faster to the first token than all tokens")
    axes.legend(fontsize=8)
    return figure


def growth_lines(pyplot: Any, rows: Sequence[Row]) -> Any:
    """Each part against the image's side, both logarithmic, with its slope; all tokens are dashed."""
    members, drawn = series_of(rows), []
    for series in growth(rows):
        measured = sorted(members[tuple(series[name] for name in SERIES)], key=lambda row: row["side"])
        what = "all tokens" if series["kept"] is None else f"{series['kept']} kept"
        for part in PARTS if series["mode"] in FAST else ():
            rise = series[f"{part}_slope"]
            if rise is not None:
                told = f"{part}, {what}: slope {abs(rise) if abs(rise) < 0.005 else rise:.2f}"
                look = {"color": COLOURS[part], "linestyle": STYLES[series["encoding"]], "label": told}
                drawn.append(([row["side"] for row in measured], [row[f"{part}_ms"] for row in measured], look))
    if not drawn:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for xs, ys, look in drawn:
        axes.loglog(xs, ys, marker="o", **look)
    sides = sorted({side for xs, *_ in drawn for side in xs})
    axes.set_xticks(sides, [str(side) for side in sides])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="side of the image, px", ylabel="ms")
    axes.legend(fontsize=8)
    return figure
