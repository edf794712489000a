"""Pictures of the bench: where the time goes, what a budget is worth, how it grows. Loads matplotlib when it must."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arr_coc.evaluation.bench.report import FAST, PARTS, Row, growth, speed_ups

COLOURS = {"select": "#d97706", "vision": "#2563eb", "prefill": "#64748b"}
STYLES = {"dense": "--", "sparse": "-", "after-vit": ":"}
MOST_PANELS = 4  # of the latency picture; what was measured in most ways comes first


def save_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the pictures that the rows allow, and return where they are."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    pictures: tuple[tuple[str, Callable[[Any, Sequence[Row]], Any]], ...] = (
        ("latency.png", latency_bars),
        ("speed_up.png", budget_lines),
        ("growth.png", growth_lines),
    )
    for name, draw in pictures:
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
    axes.set_xlabel("visual tokens kept")
    axes.set_ylabel("times faster to the first token than all tokens")
    axes.legend(fontsize=8)
    return figure


def growth_lines(pyplot: Any, rows: Sequence[Row]) -> Any:
    """Each part against the image's side, both logarithmic, with its slope; all tokens are dashed."""
    drawn = []
    for series in growth(rows):
        if series["mode"] not in FAST:
            continue
        names = ("model", "batch", "text_tokens", "encoding", "mode", "sight")
        members = [row for row in rows if all(row[name] == series[name] for name in names)]
        members = sorted((row for row in members if series["kept"] in (None, row["kept"])), key=lambda row: row["side"])
        for part in PARTS[:-1]:
            rise = series[f"{part}_slope"]
            if rise is not None:
                what = "all tokens" if series["kept"] is None else f"{series['kept']} kept"
                points = [(row["side"], row[f"{part}_ms"]) for row in members]
                drawn.append(
                    (
                        points,
                        part,
                        series["encoding"],
                        f"{part}, {what}: slope {abs(rise) if abs(rise) < 0.005 else rise:.2f}",
                    )
                )
    if not drawn:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for points, part, encoding, label in drawn:
        axes.loglog(
            *zip(*points, strict=True), marker="o", color=COLOURS[part], linestyle=STYLES[encoding], label=label
        )
    sides = sorted({side for points, *_ in drawn for side, _ in points})
    axes.set_xticks(sides, [str(side) for side in sides])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("side of the image, px")
    axes.set_ylabel("ms")
    axes.legend(fontsize=8)
    return figure
