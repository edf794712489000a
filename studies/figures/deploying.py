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
    return "\n".join(markdown_table(heads, lines))


def batch_line(results: dict[str, Any]) -> str:
    """Ray against the loop, as it was measured."""
    loop, ray = (results[f"{name}_rows_a_second"] for name in ("plain", "ray"))
    starts = f"{results['plain_start_s']:.0f} s and {results['ray_start_s']:.0f} s"
    what = f"mini on {results['cores']} cores, {results['rows']} rows of {results['side']} px, in turns"
    return (
        f"{what}: {loop} rows a second without Ray, {ray} by {results['workers']} workers, once started "
        f"(x{results['ratio']}); their first rows came after {starts}. The machine had other work meanwhile (load "
        f"{results['load']})."
    )
