"""The Pareto plots: accuracy against tokens and against measured time, all methods, with 95 % intervals.

Filled marks were trained, hollow ones were not; a solid line chose before the ViT, a dotted one after it. A few lines
that are named on the plot, and for the appendix all of them with a legend.
"""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from arr_coc.evaluation.field.methods import ORACLE, REFERENCE
from arr_coc.evaluation.plotting import BAND, DARK, LIGHT, Named, Theme, name_lines, new_figure, png, styled
from arr_coc.evaluation.report.pages import Block, Illustration, side_by_side
from arr_coc.evaluation.report.results import CHANCE, LOOKS, RIVAL, Entry, Names, Place, Way, asked_of, plain_of
from arr_coc.selectors import PLAIN

WIDTH, PLOT, LEGEND_LINE, NOTE = 4.4, 4.2, 0.163, 0.35  # inches; narrow, so that letters can be read on a phone
MOST_LINES, SIMPLE = 6, "downsampling"  # lines with a name; the simplest way to fewer tokens
ROOM = 0.36  # of the axis, for names
READING = (
    "Solid: chosen before the vision encoder. Dotted: after it, or a smaller image.\n"
    "Filled marks: trained; hollow: not. Bars: 95 % intervals. Band: nothing is as good for less."
)
STEP = 1.012  # how far methods of the same cost are moved apart
Cost = Callable[[Entry], float]
OTHERS = ("1", "2", "3", "4", "8", "P")  # marks of methods that have no look of their own


def pareto(entries: Sequence[Entry], names: Names, place: Place, every: bool = False) -> Block:
    """Two plots of one place, against tokens and against time: the few lines that matter, each with its name.

    Or of `every` method, with a legend.
    """
    return side_by_side(*_pictures(entries, names, place, None if every else few_of(entries)))


def few_of(entries: Sequence[Entry]) -> list[Way]:
    """The lines that are named: ARR-COC's own, the best of the others, and what anyone could do instead.

    The best are those with the highest mean accuracy over all budgets, each in its better encoding.
    """
    means: dict[Way, float] = {}
    for way in dict.fromkeys(entry.way for entry in entries if entry.competes):
        means[way] = fmean(entry.accuracy or 0.0 for entry in entries if entry.way == way)
    ours = [way for way in means if way[0] == REFERENCE]
    simple = max((way for way in means if way[0] == SIMPLE), key=means.__getitem__, default=None)
    best: dict[str, Way] = {}
    for way in sorted(means, key=lambda way: -means[way]):
        if way not in ours and way[0] not in (SIMPLE, CHANCE):
            best.setdefault(way[0], way)
    few = [*ours, *([simple] if simple else [])]
    return [*ours, *list(best.values())[: MOST_LINES - len(few)], *few[len(ours) :]]


def _pictures(entries: Sequence[Entry], names: Names, place: Place, few: list[Way] | None) -> list[Illustration]:
    here = [entry for entry in entries if entry.accuracy is not None]
    stem = ("" if few else "all-") + place.label.replace(", ", "-").replace(" ", "")
    kinds: tuple[tuple[str, str, Cost, float], ...] = (
        ("tokens", "visual tokens per layer of the language model", lambda entry: entry.equivalent, STEP),
        ("time", "ms to the first token, measured", lambda entry: entry.time_ms, 1.0),
    )
    pictures = []
    for kind, axis, cost, step in kinds:
        asked = f"{place.label}, {asked_of(here)}" if here else place.label
        plot = Plot(f"Accuracy against {kind}: {asked}", axis, cost, step, few)
        drawn = (_draw(here, names, plot, theme) for theme in (LIGHT, DARK))
        about = f"accuracy against {kind}, {place.label}, with 95 % intervals and the frontier"
        pictures.append(Illustration(f"pareto-{stem}-{kind}.png", about, *drawn))
    return pictures


class Plot(NamedTuple):
    """What is drawn against what."""

    title: str
    axis: str
    cost: Cost
    step: float  # how far methods are moved apart, so that those of the same cost do not hide each other
    few: list[Way] | None  # the lines that are drawn, with their names; None: all, with a legend


def _draw(entries: Sequence[Entry], names: Names, plot: Plot, theme: Theme) -> bytes:
    """One plot as a PNG."""
    ways = list(dict.fromkeys(entry.way for entry in entries)) if plot.few is None else plot.few
    moved = {way: plot.step ** (number - len(ways) / 2) for number, way in enumerate(ways)}

    def shown(entry: Entry) -> float:
        return plot.cost(entry) * moved.get(entry.way, 1.0)

    below = LEGEND_LINE * (-(-(len(ways) + 1) // 2) if plot.few is None else 0) + NOTE
    height = PLOT + below
    with styled(theme):
        figure = new_figure(WIDTH, height)
        axes = figure.add_axes((0.13, (below + 0.45) / height, 0.84, (PLOT - 0.83) / height))
        _frontier(axes, entries, plot.cost, theme)
        lines = {way: sorted((entry for entry in entries if entry.way == way), key=plot.cost) for way in ways}
        looks = {way: _look(way[0], number, theme) for number, way in enumerate(ways)}
        for way, members in lines.items():
            _draw_method(axes, members, names[way], shown, *looks[way])
        if plot.few is not None:
            _draw_whole(axes, entries, theme)
        _scale(axes, entries, plot)
        if plot.few is None:
            figure.legend(
                *axes.get_legend_handles_labels(), loc="lower center", ncols=2, bbox_to_anchor=(0.5, NOTE / height),
                handlelength=2.8, columnspacing=1.2, labelspacing=0.4, borderaxespad=0.2,
            )  # fmt: skip
        else:
            named = [
                Named(names[way], shown(least), 100 * (least.accuracy or 0.0), looks[way][0])
                for way, members in lines.items()
                for least in [min(members, key=lambda entry: entry.tokens)]
            ]
            name_lines(axes, named, left=plot.step > 1, theme=theme)
        figure.text(0.02, 0.05 / height, READING, fontsize=6.5, color=theme.faint, va="bottom", linespacing=1.25)
        figure.text(0.02, 1 - 0.08 / height, plot.title, fontsize=8.8, weight="bold", va="top")
        return png(figure)


def _frontier(axes: Any, entries: Sequence[Entry], cost: Cost, theme: Theme) -> None:
    """A broad band along what nothing beats."""
    open_to_all = [entry for entry in entries if entry.name != ORACLE]  # who knows the answer is no aim
    places = frontier([(cost(entry), entry.accuracy or 0.0) for entry in open_to_all])
    best = [(cost(open_to_all[place]), 100 * (open_to_all[place].accuracy or 0.0)) for place in places]
    if best:
        xs, ys = zip(*best, strict=True)
        axes.step(xs, ys, where="post", color=theme.front, linewidth=8, zorder=1, label=BAND)


def _draw_whole(axes: Any, entries: Sequence[Entry], theme: Theme) -> None:
    """What the model answers with all tokens: the level that the others fall below."""
    whole = plain_of(entries)
    if whole is not None and whole.accuracy is not None:
        level = 100 * whole.accuracy
        axes.axhline(level, color=theme.ink, linewidth=0.8, linestyle=(0, (4, 3)), zorder=2)
        words = f"all {whole.total:,.0f} tokens: {level:.1f} %, {whole.time_ms:,.0f} ms"
        axes.annotate(
            words, (1, level), (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=8,
            ha="right", va="bottom",
        )  # fmt: skip


def _scale(axes: Any, entries: Sequence[Entry], plot: Plot) -> None:
    """Costs on a logarithmic axis in plain numbers; on the side of the names there is room for them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=plot.axis, ylabel="accuracy, %")
    axes.set_ylim(top=min(max(axes.get_ylim()[1], 100), 104))
    if plot.few is not None:
        least = min(
            (100 * (entry.low or entry.accuracy or 0.0) for entry in entries if entry.way in plot.few), default=0
        )
        axes.set_ylim(bottom=least - 4)
        low, high = axes.get_xlim()
        room = (high / low) ** ROOM
        axes.set_xlim(*((low / room, high) if plot.step > 1 else (low, high * room)))


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
