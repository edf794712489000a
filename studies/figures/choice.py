"""Tables of the choice itself, judged by where people looked, what is written, and where the answer is."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table
from studies.figures.textures import ranged

UNASKED = {
    "look_twice": "looking twice, nothing asked",
    "variance": "variance",
    "centre": "centre",
    "random:seed=0": "chance",
}
KINDS = {
    "photographs": "cells that people looked at",
    "drawn pages": "written or drawn, documents of the wide world",
    "whole pages": "written or drawn, papers, web pages, slides",
    "titles of whole pages": "titles of these",
    "titles of dense pages": "titles of newspapers, reports, leaflets",
    "headings of dense pages": "headings of these",
}
ASKED = {
    ("asked", "arr_coc"): "trained on questions alone",
    ("asked", "look_twice"): "looking twice, untrained",
    ("blind", "look_twice"): "information x perspectival, untrained, nothing asked",
    ("asked", "variance"): "variance",
    ("asked", "random:seed=0"): "chance",
}


def share(figure: dict[str, Any]) -> str:
    """In percent."""
    return ranged({"mean": 100 * figure["mean"], "ci95": [100 * end for end in figure["ci95"]]}, 1)


def gaze_table(results: dict[str, Any], keep: float = 0.25) -> str:
    """What a quarter of the cells holds where nobody asks, and how much of it is blank paper."""
    found = {(row["dataset"], row["selector"]): row for row in results["evidence"] if row["keep"] == keep}
    rows = [(label, *(share(found[kind, one]["recall"]) for one in UNASKED)) for kind, label in KINDS.items()]
    for kind in ("drawn pages", "whole pages"):
        blank = (f"{100 - 100 * found[kind, one]['precision']['mean']:.1f}" for one in UNASKED)
        rows.append((f"blank, of what is kept of {kind}", *blank))
    return "\n".join(markdown_table((f"{keep:.0%} kept, %", *UNASKED.values()), rows))


def alone_table(results: dict[str, Any]) -> str:
    """Recall of the evidence at every budget, and what training on questions alone gains."""
    found = {(row["dataset"], row["selector"], row["keep"]): row for row in results["rows"]}
    keeps = sorted({keep for *_, keep in found})
    rows = [(label, *(share(found[*which, keep]["recall"]) for keep in keeps)) for which, label in ASKED.items()]
    gains = results["over_information_x_perspectival"]
    first = found["asked", "arr_coc", keeps[0]]
    told = (
        f"{first['questions']:,} questions about {first['images']} scenes, {results['steps']} steps in "
        f"{results['seconds']:.0f} s on {results['machine']}. Over information x perspectival, points: "
        + "; ".join(f"{share(gains[str(keep)])} at {keep:.0%}" for keep in keeps)
        + "."
    )
    heads = ("evidence found, %", *(f"{keep:.0%} kept" for keep in keeps))
    return "\n".join([*markdown_table(heads, rows), "", told])
