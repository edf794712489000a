"""Whether the weights can be read: what the policy gives each scorer, by family, with tests; as a table and a plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.config import SCORERS, TENSIONS
from arr_coc.evaluation.plotting import BLUE, ORANGE, PINK, new_figure, png, styled
from arr_coc.evaluation.report.pages import markdown_table
from arr_coc.evaluation.statistics import Clustered, Figure, difference_of, mean_of
from studies.selector.measures import Part
from studies.selector.selection import Chosen
from studies.selector.study import Study

SHUFFLES = 4000  # of a permutation test: the least p is 1 in 4,001
SIGNIFICANT = 0.01
READABLE = 0.01  # a smaller difference of mean weights says nothing, however sure it is
# (scorer, family whose weight is said to be higher, families that it is compared with; (): all others)
CLAIMS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("participatory", "colour", ("describe",)),
    ("information", "describe", ("colour",)),
    ("perspectival", "odd_one_out", ()),
)
TABLE_FILE, PLOT_FILE = "selector-weights.md", "selector-weights.png"

Rows = Sequence[tuple[int, str, tuple[float, ...]]]
"""Image, family and one number per scorer (or tension) of every question."""


def weights_of(chosen: Sequence[Chosen]) -> Rows:
    """Weights as the policy gives them, each from 0 to 1."""
    return [(one.image, one.family, one.weights) for one in chosen]


def shares_of(chosen: Sequence[Chosen]) -> Rows:
    """Weights as parts of their sum: what each scorer counts for in the relevance."""
    return [(one.image, one.family, tuple(w / max(1e-6, sum(one.weights)) for w in one.weights)) for one in chosen]


def tensions_of(chosen: Sequence[Chosen]) -> Rows:
    """Tensions, each from 0 to 1."""
    return [(one.image, one.family, one.tensions) for one in chosen]


def column(rows: Rows, number: int, family: str) -> Clustered:
    """One of the numbers, over the questions of a family."""
    return Clustered.of((image, values[number]) for image, name, values in rows if name == family)


def by_family(rows: Rows, names: Sequence[str]) -> dict[str, dict[str, Figure]]:
    """mean, ci95 and n of each number, by its name and the family."""
    present = sorted({family for _, family, _ in rows})
    return {
        name: {family: mean_of(column(rows, number, family)) for family in present} for number, name in enumerate(names)
    }


def claim(rows: Rows, scorer: str, family: str, others: Sequence[str]) -> Part:
    """A one-sided test that a scorer's weight is higher for a family than for each of some others.

    "Highest of all" holds where it holds against every single one: its p is the largest of theirs, its difference the
    smallest. It holds where it is sure and large enough to be read.
    """
    number, present = SCORERS.index(scorer), {name for _, name, _ in rows}
    rivals = sorted((set(others) or present - {family}) & present)
    if family not in present or not rivals:
        return {"p": None, "difference": None, "holds": None}
    mine = column(rows, number, family)
    tests: dict[str, dict[str, Any]] = {
        rival: {
            "difference": difference_of(mine, column(rows, number, rival)),
            "p": permutation_p(mine, column(rows, number, rival)),
        }
        for rival in rivals
    }
    worst = max(test["p"] for test in tests.values())
    least = min(test["difference"]["mean"] for test in tests.values())
    holds = bool(worst < SIGNIFICANT and least >= READABLE)
    return {"p": worst, "difference": least, "holds": holds, "against": tests}


def permutation_p(a: Clustered, b: Clustered, seed: int = 0) -> float:
    """How often chance alone makes the mean of `a` exceed that of `b` by as much: one-sided.

    One value per image and sample. Images that are in both count as two, which widens what chance can do.
    """
    first, second = per_image(a), per_image(b)
    both = np.concatenate([first, second])
    found = first.mean() - second.mean()
    rng = np.random.default_rng(seed)
    as_much = 0
    for _ in range(SHUFFLES):
        mixed = rng.permutation(both)
        # A hair of slack: sums in another order differ in their last bits.
        as_much += mixed[: len(first)].mean() - mixed[len(first) :].mean() >= found - 1e-12
    return round((as_much + 1) / (SHUFFLES + 1), 6)


def per_image(sample: Clustered) -> np.ndarray:
    """Mean of each image that has questions."""
    numbers = np.unique(sample.images, return_inverse=True)[1]
    means: np.ndarray = np.bincount(numbers, sample.values) / np.bincount(numbers)
    return means


def weights(study: Study, px: int) -> Part:
    """Mean weights and tensions of each family, and whether the three things said of them hold."""
    chosen = study.chosen(px)["auto"]
    plain, shares = weights_of(chosen), shares_of(chosen)
    return {
        "weights": {
            "weights": by_family(plain, SCORERS),
            "shares": by_family(shares, SCORERS),
            "tensions": by_family(tensions_of(chosen), TENSIONS),
            "claims": {_said(*one): claim(plain, *one) for one in CLAIMS},
            "claims_of_shares": {_said(*one): claim(shares, *one) for one in CLAIMS},
        }
    }


def _said(scorer: str, family: str, others: Sequence[str]) -> str:
    return f"{scorer} higher for {family} than for {', '.join(others) or 'any other family'}"


# ---------------------------------------------------------------- for people


def write_docs(found: dict[str, Any], folder: Path) -> None:
    """The table and the plot of the report's "weights", into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLE_FILE).write_text(table(found))
    plot(found, folder / PLOT_FILE)


def table(found: dict[str, Any]) -> str:
    """Weights and tensions by family, and the verdicts, as Markdown."""
    columns = [
        *((name, found["weights"][name]) for name in SCORERS),
        *((name, found["tensions"][name]) for name in TENSIONS),
    ]
    families = [
        (family.replace("_", " "), f"{figure['n']:,}", *(_cell(values[family]) for _, values in columns))
        for family, figure in found["weights"][SCORERS[0]].items()
    ]
    claims = [
        (said.replace("_", " "), *_test(test), *_test(found["claims_of_shares"][said]), _verdict(test))
        for said, test in found["claims"].items()
    ]
    lines = [
        "# What the policy weighs",
        "",
        "Mean weights of the three scorers and mean tensions by family of question, 512 px scenes of the test split,",
        "with 95 % intervals over images. Weights need not sum to one: what counts is their proportion.",
        "",
        f"![weights by family]({PLOT_FILE})",
        "",
        *markdown_table(("family", "questions", *(name for name, _ in columns)), families),
        "",
        "Each statement is tested by permuting families between images, one-sided. It holds at p < 0.01 if the weights",
        "differ by at least 0.01; against several families, if it holds against each of them.",
        "",
        *markdown_table(("statement", "difference", "p", "of shares: difference", "p", "verdict"), claims),
    ]
    return "\n".join(lines) + "\n"


def _cell(figure: Figure) -> str:
    low, high = figure["ci95"]
    return f"{figure['mean']:.3f} ({low:.3f} to {high:.3f})"


def _test(test: dict[str, Any]) -> tuple[str, str]:
    return ("-", "-") if test["p"] is None else (f"{test['difference']:.4f}", f"{test['p']:.4f}")


def _verdict(test: dict[str, Any]) -> str:
    if test["holds"] is None:
        return "not tested"
    if not test["holds"] and test["p"] < SIGNIFICANT:
        return "refuted: sure, but too small to be read"
    return "holds" if test["holds"] else "refuted"


def plot(found: dict[str, Any], path: Path) -> None:
    """A point with its interval for each scorer and family."""
    names = list(found["weights"][SCORERS[0]])
    with styled():
        figure = new_figure(5.5, 0.3 * len(names) + 1.3, layout="constrained")
        axes = figure.subplots()
        for number, (scorer, colour, mark) in enumerate(zip(SCORERS, (BLUE, ORANGE, PINK), "osD", strict=True)):
            figures = [found["weights"][scorer][name] for name in names]
            means = [one["mean"] for one in figures]
            error = [[abs(one["ci95"][side] - one["mean"]) for one in figures] for side in (0, 1)]
            places = [place + 0.2 * (number - 1) for place in range(len(names))]
            axes.errorbar(means, places, xerr=error, fmt=mark, markersize=4, color=colour, label=scorer)
        axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        axes.invert_yaxis()
        axes.set_xlim(-0.02, 1.02)
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="mean weight, 95 % interval over images")
        figure.suptitle(
            "What each scorer weighs, by family of question", fontsize=9.5, weight="bold", x=0.02, ha="left"
        )
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        path.write_bytes(png(figure))
