"""The Pareto plots: accuracy against tokens and against measured time, all methods, with 95 % intervals.

Filled marks were trained, hollow ones were not; a solid line chose before the ViT, a dotted one after it.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from arr_coc.evaluation.field.methods import ORACLE, REFERENCE
from arr_coc.evaluation.report.pages import Block, Illustration, side_by_side
from arr_coc.evaluation.report.results import LOOKS, RIVAL, Entry, Names, Place
from arr_coc.selectors import PLAIN

WIDTH, PLOT, LEGEND_LINE, DPI = 4.4, 4.0, 0.163, 200  # inches; narrow, so that letters can be read on a phone
STEP = 1.012  # how far methods of the same cost are moved apart
Cost = Callable[[Entry], float]
OTHERS = ("1", "2", "3", "4", "8", "P")  # marks of methods that have no look of their own


class Theme(NamedTuple):
    """Colours of a page."""

    paper: str
    ink: str
    faint: str
    grid: str
    front: str

    def style(self) -> dict[str, Any]:
        """What matplotlib draws in these colours: a grid behind lines, between two axes."""
        inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
        return {
            **{"font.family": "DejaVu Sans", "font.size": 8.5, **dict.fromkeys(inks, self.ink)},
            **{"figure.facecolor": self.paper, "savefig.facecolor": self.paper, "axes.facecolor": self.paper},
            **{"axes.grid": True, "axes.axisbelow": True, "grid.color": self.grid, "grid.linewidth": 0.7},
            **{"axes.edgecolor": self.faint, "axes.spines.top": False, "axes.spines.right": False},
        }


LIGHT = Theme("#ffffff", "#1b1f24", "#77808c", "#e3e6ea", "#cfe3f3")
DARK = Theme("#15181d", "#e8eaed", "#98a1ad", "#2b3038", "#1f3f58")


def pareto(entries: Sequence[Entry], names: Names, place: Place) -> Block:
    """Two plots of one place: against tokens, and against time."""
    here = [entry for entry in entries if entry.accuracy is not None]
    stem = place.label.replace(", ", "-").replace(" ", "")
    kinds: tuple[tuple[str, str, Cost, float], ...] = (
        ("tokens", "visual tokens per layer of the language model", lambda entry: entry.equivalent, STEP),
        ("time", "ms to the first token, measured", lambda entry: entry.time_ms, 1.0),
    )
    pictures = []
    for kind, axis, cost, step in kinds:
        about = f"accuracy against {kind}, {place.label}, with 95 % intervals and the frontier"
        drawn = (_draw(here, names, axis, cost, theme, step) for theme in (LIGHT, DARK))
        pictures.append(Illustration(f"pareto-{stem}-{kind}.png", about, *drawn))
    return side_by_side(*pictures)


def _draw(entries: Sequence[Entry], names: Names, axis: str, cost: Cost, theme: Theme, step: float) -> bytes:
    """One plot as a PNG; each method is moved by `step`, so that those of the same cost do not hide each other."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ways = list(dict.fromkeys(entry.way for entry in entries))
    moved = {way: step ** (number - len(ways) / 2) for number, way in enumerate(ways)}

    def shown(entry: Entry) -> float:
        return cost(entry) * moved[entry.way]

    legend_inches = LEGEND_LINE * -(-(len(ways) + 1) // 2) + 0.1
    height = PLOT + legend_inches
    with matplotlib.rc_context(theme.style()):
        figure = Figure(figsize=(WIDTH, height), dpi=DPI)
        axes = figure.add_axes((0.13, (legend_inches + 0.45) / height, 0.85, (PLOT - 0.53) / height))
        open_to_all = [entry for entry in entries if entry.name != ORACLE]  # who knows the answer is no aim
        places = frontier([(cost(entry), entry.accuracy or 0.0) for entry in open_to_all])
        best = [(shown(open_to_all[place]), 100 * (open_to_all[place].accuracy or 0.0)) for place in places]
        if best:
            xs, ys = zip(*best, strict=True)
            axes.step(xs, ys, where="post", color=theme.front, linewidth=8, zorder=1, label="frontier")
        for number, way in enumerate(ways):
            members = sorted((entry for entry in entries if entry.way == way), key=cost)
            _draw_method(axes, members, names[way], shown, *_look(way[0], number, theme))
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=axis, ylabel="accuracy, %")
        axes.set_ylim(top=min(axes.get_ylim()[1], 102))
        figure.legend(
            *axes.get_legend_handles_labels(), loc="lower center", ncols=2, fontsize=8, frameon=False,
            handlelength=2.8, columnspacing=1.2, labelspacing=0.4, borderaxespad=0.2,
        )  # fmt: skip
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _look(selector: str, number: int, theme: Theme) -> tuple[str, str]:
    """Colour and mark."""
    _, colour, mark = LOOKS.get(selector.partition(":")[0], ("", "faint", OTHERS[number % len(OTHERS)]))
    if selector.startswith(f"{RIVAL}:") and "diversity" in selector:
        mark = "P"
    return {"ink": theme.ink, "faint": theme.faint}.get(colour, colour), mark


def _draw_method(axes: Any, members: Sequence[Entry], name: str, cost: Cost, colour: str, mark: str) -> None:
    first, ours = members[0], members[0].name == REFERENCE
    values = [100 * (entry.accuracy or 0.0) for entry in members]
    below = [max(0.0, v - 100 * e.low) if e.low is not None else 0.0 for v, e in zip(values, members, strict=True)]
    above = [max(0.0, 100 * e.high - v) if e.high is not None else 0.0 for v, e in zip(values, members, strict=True)]
    axes.errorbar(
        [cost(entry) for entry in members], values, yerr=[below, above], label=name, color=colour, marker=mark,
        markersize=6.5 if ours else 5, markerfacecolor=colour if first.trained or first.name == PLAIN else "none",
        linestyle="-" if first.encoding == "sparse" else ":", linewidth=2.2 if ours else 1.0,
        elinewidth=1.4 if ours else 0.6, capsize=2, zorder=4 if ours else 3,
    )  # fmt: skip


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
