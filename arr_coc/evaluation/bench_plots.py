"""Pictures of the bench: where the time goes, what a budget is worth, how it grows. Loads matplotlib when it must."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arr_coc.evaluation.bench_report import FAST, PARTS, Row, growth, speed_ups

COLOURS = {"select": "#d97706", "vision": "#2563eb", "prefill": "#64748b"}


def save_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the pictures that the rows allow, and return where they are."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in (("latency.png", latency_bars), ("speed_up.png", budget_lines), ("growth.png", growth_lines)):
        figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
        if draw(axes, rows):
            figure.savefig(folder / name, dpi=120)
            written.append(folder / name)
        pyplot.close(figure)
    return written


def latency_bars(axes: Any, rows: Sequence[Row]) -> bool:
    """One bar per row, of its parts."""
    labels = [
        f"{row['side']} px x{row['batch']}\n{row['encoding']} {row['kept']}\n{row['mode']}"
        + (f" {row['sight']}" if row["sight"] else "")
        for row in rows
    ]
    base = [0.0] * len(rows)
    for part, colour in COLOURS.items():
        heights = [row[f"{part}_ms"] for row in rows]
        axes.barh(range(len(rows)), heights, left=base, label=part, color=colour)  # two rows may have one label
        base = [low + height for low, height in zip(base, heights, strict=True)]
    axes.invert_yaxis()
    axes.set_yticks(range(len(rows)), labels, fontsize=6)
    axes.set_xlabel("ms to the first token")
    axes.legend()
    return bool(rows)


def budget_lines(axes: Any, rows: Sequence[Row]) -> bool:
    """How many times faster than all tokens, against the tokens kept."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for one in speed_ups(rows):
        if one["over_dense"] and one["mode"] in FAST:
            name = f"{one['encoding']} {one['sight']}, {one['side']} px, batch {one['batch']}"
            lines.setdefault(name, []).append((one["kept"], one["over_dense"]))
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("visual tokens kept")
    axes.set_ylabel("times faster to the first token than all tokens")
    if lines:
        axes.legend(fontsize=7)
    return bool(lines)


def growth_lines(axes: Any, rows: Sequence[Row]) -> bool:
    """Each part against the image's side, both logarithmic, with its slope."""
    drawn = False
    for series in growth(rows):
        if series["mode"] not in FAST:
            continue
        names = ("model", "batch", "text_tokens", "encoding", "mode", "sight")
        members = [row for row in rows if all(row[name] == series[name] for name in names)]
        members = sorted((row for row in members if series["kept"] in (None, row["kept"])), key=lambda row: row["side"])
        for part in PARTS[:-1]:
            rise = series[f"{part}_slope"]
            if rise is not None:
                points = [(row["side"], row[f"{part}_ms"]) for row in members]
                label = f"{series['encoding']} {series['sight'] or ''} {part}, slope {rise:.2f}"
                axes.loglog(*zip(*points, strict=True), marker="o", label=label)
                drawn = True
    axes.set_xlabel("side of the image, px")
    axes.set_ylabel("ms")
    if drawn:
        axes.legend(fontsize=7)
    return drawn
