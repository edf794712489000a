"""The Pareto plots: accuracy against tokens and against measured time, all methods, with 95 % intervals.

Filled marks were trained, hollow ones were not; a solid line chose before the ViT, a dotted one after it.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arr_coc.evaluation.field.methods import ORACLE, REFERENCE
from arr_coc.evaluation.report.pages import Illustration, Pair
from arr_coc.evaluation.report.results import LOOKS, RIVAL, Entry, Names, Place
from arr_coc.selectors import PLAIN

WIDTH, PLOT, LEGEND_LINE, DPI = 4.4, 4.0, 0.163, 200  # inches; narrow, so that letters can be read on a phone
STEP = 1.012  # how far methods of the same cost are moved apart
Cost = Callable[[Entry], float]
OTHERS = ("1", "2", "3", "4", "8", "P")  # marks of methods that have no look of their own


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a page."""

    paper: str
    ink: str
    faint: str
    grid: str
    front: str


LIGHT = Theme("#ffffff", "#1b1f24", "#77808c", "#e3e6ea", "#cfe3f3")
DARK = Theme("#15181d", "#e8eaed", "#98a1ad", "#2b3038", "#1f3f58")


def pareto(entries: Sequence[Entry], names: Names, place: Place) -> Pair:
    """Two plots of one place: against tokens, and against time."""
    here = [entry for entry in entries if entry.place == place and entry.accuracy is not None]
    stem = place.label.replace(", ", "-").replace(" ", "")
    kinds: tuple[tuple[str, str, Cost], ...] = (
        ("tokens", "visual tokens per layer of the language model", lambda entry: entry.equivalent),
        ("time", "ms to the first token, measured", lambda entry: entry.time_ms),
    )
    pictures = []
    for kind, axis, cost in kinds:
        about = f"accuracy against {kind}, {place.label}, with 95 % intervals and the frontier"
        drawn = (_draw(here, names, axis, cost, theme, kind == "tokens") for theme in (LIGHT, DARK))
        pictures.append(Illustration(f"pareto-{stem}-{kind}.png", about, *drawn))
    return Pair(tuple(pictures))


def _draw(entries: Sequence[Entry], names: Names, axis: str, cost: Cost, theme: Theme, apart: bool) -> bytes:
    """One plot as a PNG; `apart` moves methods of the same cost a little, so that their intervals do not hide."""
    import matplotlib
    from matplotlib.figure import Figure

    ways = list(dict.fromkeys(entry.way for entry in entries))
    moved = {way: STEP ** (number - len(ways) / 2) if apart else 1.0 for number, way in enumerate(ways)}

    def shown(entry: Entry) -> float:
        return cost(entry) * moved[entry.way]

    legend_inches = LEGEND_LINE * -(-(len(ways) + 1) // 2) + 0.1
    height = PLOT + legend_inches
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "font.size": 8.5, "text.color": theme.ink}):
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor=theme.paper)
        axes = figure.add_axes((0.13, (legend_inches + 0.45) / height, 0.85, (PLOT - 0.53) / height))
        _draw_frontier(axes, entries, cost, shown, theme)
        for number, way in enumerate(ways):
            members = sorted((entry for entry in entries if entry.way == way), key=cost)
            _draw_method(axes, members, names[way], shown, _look(way[0], number, theme))
        _dress(axes, axis, theme)
        figure.legend(
            *axes.get_legend_handles_labels(), loc="lower center", ncols=2, fontsize=8, frameon=False,
            handlelength=2.8, columnspacing=1.2, labelspacing=0.4, borderaxespad=0.2, labelcolor=theme.ink,
        )  # fmt: skip
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", facecolor=theme.paper, metadata={"Software": None})
    return buffer.getvalue()


def _look(selector: str, number: int, theme: Theme) -> tuple[str, str]:
    _, colour, mark = LOOKS.get(selector.partition(":")[0], ("", "faint", OTHERS[number % len(OTHERS)]))
    if selector.startswith(f"{RIVAL}:") and "diversity" in selector:
        mark = "P"
    return {"ink": theme.ink, "faint": theme.faint}.get(colour, colour), mark


def _draw_method(axes: Any, members: Sequence[Entry], name: str, cost: Cost, look: tuple[str, str]) -> None:
    first, ours = members[0], members[0].name == REFERENCE
    values = [100 * (entry.accuracy or 0.0) for entry in members]
    known = [(v, e.low, e.high) for v, e in zip(values, members, strict=True)]
    below = [0.0 if low is None else max(0.0, v - 100 * low) for v, low, _ in known]
    above = [0.0 if high is None else max(0.0, 100 * high - v) for v, _, high in known]
    axes.errorbar(
        [cost(entry) for entry in members], values, yerr=[below, above], label=name, color=look[0], marker=look[1],
        markersize=6.5 if ours else 5, markerfacecolor=look[0] if first.trained or first.name == PLAIN else "none",
        linestyle="-" if first.encoding == "sparse" else ":", linewidth=2.2 if ours else 1.0,
        elinewidth=1.4 if ours else 0.6, capsize=2, zorder=4 if ours else 3,
    )  # fmt: skip


def _draw_frontier(axes: Any, entries: Sequence[Entry], cost: Cost, shown: Cost, theme: Theme) -> None:
    """A broad band behind the best that can be had for a cost; the oracle, which knows the answer, is left out."""
    open_to_all = [entry for entry in entries if entry.name != ORACLE]
    points = [(cost(entry), entry.accuracy or 0.0) for entry in open_to_all]
    best = [(shown(open_to_all[place]), 100 * points[place][1]) for place in frontier(points)]
    if best:
        axes.step(*zip(*best, strict=True), where="post", color=theme.front, linewidth=8, zorder=1, label="frontier")


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of (cost, value) points are on the frontier: nobody is as good for less, or better for as much.

    From the cheapest to the dearest.
    """
    best, found = float("-inf"), []
    for place in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if points[place][1] > best:
            best = points[place][1]
            found.append(place)
    return found


def _dress(axes: Any, axis: str, theme: Theme) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_facecolor(theme.paper)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(axis, color=theme.ink)
    axes.set_ylabel("accuracy, %", color=theme.ink)
    axes.set_ylim(top=min(axes.get_ylim()[1], 102))
    axes.grid(color=theme.grid, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.ink, which="both")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)
