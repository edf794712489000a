"""How sure, and looking again: the tables from results/look-again.json, and the plot of how far confidence is true.

python -m studies.figures.again     writes docs/pictures/reliability.png
"""

import json
from pathlib import Path
from typing import Any

from arr_coc.evaluation.plotting import BLUE, LIGHT, RED, new_figure, png, styled
from arr_coc.evaluation.report.pages import markdown_table

ROOT = Path(__file__).parents[2]
SPLITS = {"seen": "seen", "unseen": "held out"}
MARKS = {"seen": (BLUE, "o"), "unseen": (RED, "s")}  # told apart without colour vision
SHOWN = (0.95,)  # thresholds in the table
SUREST = ", the surest"  # rules that give the surest answer instead of the last


def confidence_table(results: dict[str, Any]) -> str:
    """How well each candidate tells right from wrong answers."""
    splits = results["splits"]
    names = splits["seen"]["auroc"]
    rows = [(name, *(f"{splits[split]['auroc'][name]:.3f}" for split in SPLITS)) for name in names]
    counts = results["about"]["questions"]
    asked = ", ".join(f"{SPLITS[split]} {counts[f'{split}, seed 777']:,}" for split in SPLITS)
    return "\n".join(
        [
            *markdown_table(("confidence of an answer, from its tokens' probabilities", *SPLITS.values()), rows),
            "",
            f"AUROC at 10 % of the tokens: how often a right answer is surer than a wrong one. Questions: {asked}.",
        ]
    )


def again_table(results: dict[str, Any]) -> str:
    """What looking again gives and costs, beside as many tokens from the start."""
    rows = []
    for name in (one for one in results["splits"]["seen"]["rules"] if not one.endswith(SUREST)):
        for split, label in SPLITS.items():
            rule = results["splits"][split]["rules"][name]
            first = rule["one_look"]
            for one in (made for made in rule["thresholds"] if made["unsure"] in SHOWN):
                gain = one.get("over_scaled", one["over_fixed"])
                low, high = gain["ci95"]
                rows.append(
                    (
                        f"{name}, under {one['unsure']:g}",
                        label,
                        f"{one['asked_again']:.0%}",
                        f"{first['tokens']:.0f} to {one['tokens']:.0f}",
                        f"{first['accuracy']:.1%} to {one['accuracy']:.1%}",
                        f"{100 * gain['mean']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
                    )
                )
    heads = ("looks again", "split", "asked again", "tokens, all looks", "accuracy", "points over as many at once")
    return "\n".join([*markdown_table(heads, rows), "", _surest_line(results)])


def _surest_line(results: dict[str, Any]) -> str:
    """What giving the surest answer instead of the last would change."""
    changes = []
    for split, label in SPLITS.items():
        rules = results["splits"][split]["rules"]
        for start in ("10 %", "auto"):
            name = f"{start}, doubled"
            last, surest = (rules[one]["thresholds"][-1]["accuracy"] for one in (name, name + SUREST))
            changes.append(f"{100 * (surest - last):+.1f} ({start}, {label})")
    return f"The surest answer instead of the last, under 0.95: {', '.join(changes)} points."


def draw(results: dict[str, Any], path: Path) -> None:
    """Share of right answers by confidence, a mark per tenth; its size says how many answers are there."""
    with styled():
        figure = new_figure(4.4, 3.8, layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 100], [0, 100], color=LIGHT.faint, linestyle=":", linewidth=1, label="as sure as it is right")
        for split, label in SPLITS.items():
            bins = results["splits"][split]["reliability"]["bins"]
            colour, mark, asked = *MARKS[split], sum(one["n"] for one in bins)
            sure, right = ([100 * one[name] for one in bins] for name in ("confidence", "right"))
            axes.plot(sure, right, color=colour, linewidth=1.2, marker=mark, markersize=4, label=label)
            axes.scatter(
                sure, right, s=[250 * one["n"] / asked for one in bins], color=colour, alpha=0.25, linewidths=0
            )
        axes.set(xlabel="confidence of the answer, %", ylabel="right answers, %", xlim=(0, 102), ylim=(-2, 102))
        axes.set_title("How often an answer is right, by how sure it is")
        axes.legend(loc="upper left", title="drawn scenes; the larger a mark, the more answers", title_fontsize=7)
        path.write_bytes(png(figure))


if __name__ == "__main__":
    draw(json.loads((ROOT / "results" / "look-again.json").read_text()), ROOT / "docs" / "pictures" / "reliability.png")
