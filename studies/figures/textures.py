"""Tables of the texture array: what it costs, how well saliency tells where people look, and text where letters are;
and of what it costs that cells listen to each other."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table

METHODS = {
    "learned": "learned, finest level",
    "learned_fine": "learned, twice as many cells",
    "learned_cells": "learned, one value a cell",
    "perspectival_untrained_40": "perspectival scorer of 40 channels, untrained",
    "perspectival_shipped": "perspectival scorer of mini's adapter",
    "perspectival_untrained_13": "perspectival scorer of 13 channels, untrained",
    "spectral_residual": "spectral residual",
    "spectral_residual_fine": "spectral residual, twice as many cells",
    "colour_contrast": "colour contrast",
    "local_contrast": "local contrast",
    "centre_bias": "centre bias",
}
HEADS = {"nss": "NSS", "auc_judd": "AUC-Judd", "cc": "CC", "kl": "KL"}
MAKERS = {"filter": "`text_likelihood`, the filter", "detector": "`text_detected`, the detector"}
KINDS = {"words": "words", "touched": "touched by letters", "blank": "blank", "things": "things"}


def ranged(figure: dict[str, Any], digits: int = 2) -> str:
    low, high = figure["ci95"]
    return f"{figure['mean']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def saliency_table(results: dict[str, Any]) -> str:
    """Every map by every measure, and what the learned one gains."""
    methods, network = results["methods"], results["network"]
    rows = [(label, *(ranged(methods[name][metric]) for metric in HEADS)) for name, label in METHODS.items()]
    seconds = network["training"]["seconds"]
    gains = (
        f"{network['parameters']:,} parameters, {network['weights_kb']} kB, trained in {seconds} s on a CPU. "
        f"NSS is {ranged(results['nss_over_spectral_residual'])} times that of spectral residual, "
        f"{ranged(results['nss_above_centre_bias'])} above the centre bias, "
        f"{ranged(results['nss_above_shipped'])} above mini's scorer. "
        f"A map that is the blurred gaze itself has {results['gaze_itself']['nss']:.2f}."
    )
    return "\n".join([*markdown_table((f"{results['photographs']} photographs", *HEADS.values()), rows), "", gains])


def text_table(results: dict[str, Any]) -> str:
    """Shares of cells that are called text."""
    rows = [
        (label, *(f"{results[maker][kind]['mean']:.1%}" for kind in KINDS))
        for maker, label in MAKERS.items()
        if maker in results
    ]
    return "\n".join(markdown_table((f"{results['pages']} pages", *KINDS.values()), rows))


def texture_cost(results: dict[str, Any]) -> str:
    """Time, on a GPU also as a recorded graph, operations and arithmetic by the side of an image."""
    found = {(row["work"], row["side"]): row for row in results["rows"]}
    sides = sorted({side for _, side in found})
    rows = []
    for work in dict.fromkeys(work for work, _ in found):
        several = [found[work, side] for side in sides]
        last = several[-1]
        decimals = {key: number for key, number in (("ms", 1), ("recorded_ms", 2)) if key in last}
        times = [", ".join(f"{row[key]:.{number}f}" for key, number in decimals.items()) for row in several]
        rows.append((work, *times, f"{last['launches']}", f"{last['mflop']:.0f}"))
    heads = (results["device"], *(f"{side} px, ms" for side in sides), "operations", "MFLOP")
    return "\n".join(markdown_table(heads, rows))


def deliberation_table(results: dict[str, Any]) -> str:
    """CPU time of a cell by their number, and answers both ways."""
    cost, accuracy = results["microseconds_a_cell"], results["accuracy"]
    sizes = list(cost["areas"])
    rows = [(way, *(f"{found[size]:.1f}" for size in sizes)) for way, found in cost.items()]
    heads = ("one round, microseconds of CPU a cell", *(f"{int(size):,} cells" for size in sizes))
    cells = results["areas"] * 4
    told = (
        f"mini at {results['side']} px, {results['keep']:.0%} kept, {accuracy['areas']['n']} questions: "
        f"{accuracy['every cell']['mean']:.1%} exact answers where each of {cells} cells hears all, "
        f"{accuracy['areas']['mean']:.1%} where it hears {results['areas']} areas of four; "
        f"{results['cells_shared']['mean']:.0%} of the kept cells are the same."
    )
    return "\n".join([*markdown_table(heads, rows), "", told])
