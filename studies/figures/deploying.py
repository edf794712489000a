"""What the page about deploying tells: card hours of a million images, and rows a second with and without Ray."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table
from studies.figures.speed import find_row


def hours_of_a_million(row: dict[str, Any]) -> float:
    """Card hours, from the milliseconds of a batch."""
    return float(row["ttft_ms"]) / row["batch"] * 1e6 / 3.6e6


def million_table(results: dict[str, Any]) -> str:
    """All tokens against 200 kept, by shape and size, in the largest batch that was measured."""
    lines = []
    for model, side, batch in (("2b", 1024, 8), ("4b", 1024, 8), ("8b", 1024, 8), ("2b", 2048, 4), ("4b", 2048, 4)):
        wanted = {"model": f"shape:qwen3-vl-{model}", "side": side, "batch": batch, "mode": "graphs"}
        dense = find_row(results["rows"], **wanted, encoding="dense")
        sparse = find_row(results["rows"], **wanted, encoding="sparse", kept=200, sight="look_twice")
        before, after = hours_of_a_million(dense), hours_of_a_million(sparse)
        per_image = (f"{one['ttft_ms'] / batch:.1f} ms" for one in (dense, sparse))
        name = f"{model.upper()}, {side} px, batches of {batch}"
        lines.append((name, *per_image, f"{before:.1f}", f"{after:.1f}", f"{before - after:.1f} x P"))
    heads = (
        str(results["device"]),
        "an image, all tokens",
        "200 kept",
        "card hours of a million, all tokens",
        "200 kept",
        "saved",
    )
    first, price = lines[0], 3
    sums = " against ".join(f"{price} x {hours} = {price * float(hours):.1f}" for hours in first[3:5])
    return "\n".join([*markdown_table(heads, lines), "", f"At a price of {price}, the first row costs {sums}."])


def batch_line(results: dict[str, Any]) -> str:
    """Ray against the loops, as it was measured: every run, since a busy machine makes them differ."""
    one, loop, ray = (
        ", ".join(str(run["rows_a_second"]) for run in results["runs"][name]) for name in ("one", "plain", "ray")
    )
    starts = f"{results['plain_start_s']:.0f} s and {results['ray_start_s']:.0f} s"
    what = f"mini on {results['cores']} cores, {results['rows']} rows of {results['side']} px, in turns"
    without = f"{one} rows a second one after the other (`--batch 1`), {loop} in batches"
    by = f"{ray} by {results['workers']} workers of Ray, once started"
    ratios = f"the best of each: x{results['ratio_of_one']} of the first, x{results['ratio']} of the second"
    return f"{what}: {without}, {by} ({ratios}). First rows came after {starts} (batches, Ray)."


def together_line(results: dict[str, Any]) -> str:
    """The plain server, one by one and in batches."""
    how = f"{results['images']} images of {results['side']} px by {results['clients']} clients at once, dials mixed"
    ratios = f"x{results['wall_s_ratio']} by the clock, x{results['cpu_s_ratio']} in seconds of a core"
    equal = f"{results['equal']} of {results['images']} answers and counts are equal"
    what = f"{results['model']} on {results['device']}, {how}, up to {results['tokens']} tokens of an answer"
    return f"{what}: batches of {results['batch']} against one by one {ratios}; {equal}."
