"""One style for all plots: the colours of a light and of a dark page, letters, grid, notes, and lines that are named.

Paper and ink are those of `arr_coc.viewing.paper`, so that plots and pictures look alike. Matplotlib is loaded when it
must be.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

DPI = 200
BLUE, SKY, ORANGE, RED = "#0072B2", "#56B4E9", "#E69F00", "#D55E00"  # of Okabe and Ito: apart for every eye
GREEN, PINK, YELLOW, GREY = "#009E73", "#CC79A7", "#C9B700", "#77808c"
OKABE_ITO = (BLUE, RED, GREEN, PINK, ORANGE, SKY)
STAGES = {"select": ORANGE, "vision": BLUE, "prefill": GREY}  # where the time goes, in all plots
BAND = "frontier"  # a broad line that names may stand upon
MOVED, REACH, SLACK = 6, 90, 4  # points: a name without a thread, the farthest name; px that one may hang out


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
            **{"axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlelocation": "left"},
            **{"legend.frameon": False, "legend.fontsize": 8, "savefig.dpi": DPI},
        }


LIGHT = Theme("#fafaf8", "#28282c", "#77808c", "#e3e6ea", "#cfe3f3")
DARK = Theme("#15181d", "#e8eaed", "#98a1ad", "#2b3038", "#1f3f58")


@contextmanager
def styled(theme: Theme = LIGHT) -> Iterator[None]:
    """Whatever is drawn meanwhile has the style."""
    import matplotlib

    with matplotlib.rc_context(theme.style()):
        yield


def new_figure(width: float, height: float, **how: Any) -> Any:
    """An empty figure, in inches; inside `styled`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, **how)


def png(figure: Any) -> bytes:
    """The same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


class Named(NamedTuple):
    """A line's name, the point of the line where it stands, and its colour."""

    text: str
    x: float
    y: float
    colour: str


def name_lines(axes: Any, names: Sequence[Named], left: bool = False, theme: Theme = LIGHT) -> None:
    """Write names beside their points, where neither a line nor another name is; a thread leads to those far away.

    On the right if there is room, or on the left; `left` is for the other way round.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(axes.figure)
    canvas.draw()  # scales and places are known from here on
    taken, inside = _inked(axes), axes.get_window_extent()
    placed = [_box(text, canvas.get_renderer()) for text in axes.texts]
    thread = {"arrowstyle": "-", "color": theme.faint, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    tries = sorted(
        ((side, down) for side in (-1, 1) for down in range(-REACH, REACH + 1, 2)),
        key=lambda one: (abs(one[1]) + (0 if (one[0] < 0) == left else 8), one[1]),
    )
    for name in sorted(names, key=lambda one: -one.y):
        text = axes.annotate(
            name.text, (name.x, name.y), (0, 0), textcoords="offset points", fontsize=8, color=name.colour, va="center",
            zorder=6, arrowprops=thread,
        )  # fmt: skip
        for side, down in tries:
            text.set(ha="left" if side > 0 else "right", position=(7 * side, down))
            box = _box(text, canvas.get_renderer())
            free = not any(box.overlaps(other) for other in placed) and not box.count_contains(taken)
            if free and inside.x0 <= box.x0 + SLACK and box.x1 <= inside.x1 + SLACK and inside.y0 <= box.y0:
                break
        text.arrow_patch.set_visible(abs(text.get_position()[1]) > MOVED)
        placed.append(_box(text, canvas.get_renderer()))


def _inked(axes: Any) -> Any:
    """Places along all lines of a plot, in px: [P, 2]."""
    import numpy as np

    found = [np.zeros((0, 2))]
    for line in (one for one in axes.lines if one.get_label() != BAND):
        points = line.get_transform().transform(np.asarray(line.get_xydata(), dtype=float))
        steps = np.linspace(0, 1, 40)[:, None]
        found += [points, *(start + (end - start) * steps for start, end in pairwise(points))]
    return np.concatenate(found)


def _box(text: Any, renderer: Any) -> Any:
    """Where a text stands, without its thread."""
    from matplotlib.text import Text

    if hasattr(text, "update_positions"):  # what points at something
        text.update_positions(renderer)
    return Text.get_window_extent(text, renderer)
