"""Tables of speed, from results/speed-*.json and fast-equality.json."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table


def find_row(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    return next(row for row in rows if all(row[name] == value for name, value in wanted.items()))


def times_faster(results: dict[str, Any], side: int, batch: int, sight: str = "stem", mode: str = "graphs") -> float:
    """How many times sooner the first token comes with 200 tokens kept, against all tokens over the same graphs."""
    wanted = {"side": side, "batch": batch, "kept": 200, "encoding": "sparse", "mode": mode, "sight": sight}
    return float(find_row(results["speed_up"], **wanted)["over_dense"])


def speed_table(results: dict[str, Any]) -> str:
    """All tokens against 200, by image size and batch; memory in all, and above weights and inputs."""
    lines = []
    for side, batch in ((1024, 1), (1024, 8), (2048, 1), (2048, 4)):
        wanted = {"side": side, "batch": batch, "mode": "graphs"}
        dense = find_row(results["rows"], **wanted, encoding="dense")
        sparse = find_row(results["rows"], **wanted, encoding="sparse", kept=200, sight="stem")
        above, whole = (1 - sparse[peak] / dense[peak] for peak in ("peak_above_mb", "peak_mb"))
        peaks = " to ".join(f"{row['peak_mb'] / 1024:.1f}" for row in (dense, sparse))
        lines.append(
            (
                f"{side} px, batch {batch}",
                f"{dense['ttft_ms']:.1f} ms",
                f"{sparse['ttft_ms']:.1f} ms",
                f"x{times_faster(results, side, batch):.1f}",
                f"x{times_faster(results, side, batch, sight='glance'):.1f}",
                f"{above:.0%} less",
                f"{whole:.0%} less ({peaks} GB)",
            )
        )
    head = (
        *("first token", "all tokens", "200 kept", "faster", "with a glance"),
        *("memory above the weights", "memory in all"),
    )
    return "\n".join(markdown_table(head, lines))


def speed_aims(results: dict[str, Any]) -> str:
    one = find_row(results["rows"], side=1024, batch=1, encoding="sparse", mode="graphs", kept=200, sight="stem")
    fused = find_row(results["rows"], side=1024, batch=1, encoding="sparse", mode="compiled", kept=200, sight="stem")
    eight = find_row(results["speed_up"], side=1024, batch=8, encoding="sparse", mode="graphs", kept=200, sight="stem")
    large = find_row(results["speed_up"], side=2048, batch=1, encoding="sparse", mode="graphs", kept=200, sight="stem")
    stock = find_row(results["speed_up"], side=1024, batch=1, encoding="sparse", mode="graphs", kept=200, sight="stem")

    def pair(side: int, batch: int) -> str:
        return " / ".join(f"x{times_faster(results, side, batch, sight):.2f}" for sight in ("stem", "glance"))

    rows = [
        ("1024 px, batch 1, without / with a glance", "x2.1 / x1.8", pair(1024, 1)),
        ("1024 px, batch 8", "x4.2 / x3.6", pair(1024, 8)),
        ("2048 px, batch 1", "x10 / -", pair(2048, 1)),
        ("2048 px, batch 4", "x20 / -", pair(2048, 4)),
        ("1024 px, batch 1, over plain transformers", "x3.8", f"x{stock['over_transformers']:.1f}"),
        (
            "the selector, 1024 px, batch 1: graphs / compiled",
            "1.5 ms",
            f"{one['select_ms']:.2f} / {fused['select_ms']:.2f} ms",
        ),
        ("the selector, 1024 px, batch 8, of the dense time", "3 %", f"{eight['select_share_of_dense']:.1%}"),
        ("memory above weights and inputs, 2048 px", "85 % less", f"{large['memory_above_saved']:.1%} less"),
        ("memory in all, 2048 px", "25 % less", f"{large['memory_saved']:.1%} less"),
        ("time per further token, over plain generate", "x5", f"x{results['decode_speed_up']:.1f}"),
    ]
    return "\n".join(markdown_table(("", "aim", "measured"), rows))


def looks_table(results: dict[str, Any]) -> str:
    """Milliseconds to the first token of each model and request, and how many times faster than all tokens."""

    def cell(row: dict[str, Any] | None, dense: dict[str, Any]) -> str:
        return "-" if row is None else f"{row['ttft_ms']:.1f} (x{dense['ttft_ms'] / row['ttft_ms']:.2f})"

    asked = dict.fromkeys((row["model"], row["side"], row["batch"]) for row in results["rows"])
    rows = []
    for model, side, batch in asked:
        here = [one for one in results["rows"] if (one["model"], one["side"], one["batch"]) == (model, side, batch)]
        ways = {(one["mode"], one["sight"]): one for one in reversed(here) if one["kept"] in (200, one["tokens"])}
        dense = ways["graphs", None]
        if ("graphs", "look_twice") in ways:
            name = f"{model.removeprefix('shape:')}, {side} px, batch {batch}"
            others = (("eager", None), ("graphs", "stem"), ("graphs", "look_twice"), ("eager", "look_twice"))
            rows.append((name, f"{dense['ttft_ms']:.1f}", *(cell(ways.get(way), dense) for way in others)))
    heads = ("", "all tokens, graphs", "all, transformers", "one look", "two looks", "two looks, eager")
    return "\n".join(markdown_table(heads, rows))


def speed_growth(results: dict[str, Any]) -> str:
    """Log-log slopes of each part against the image's side: 0 does not grow, 2 grows as the area."""

    def slope(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    rows = [
        (
            "all tokens" if series["encoding"] == "dense" else f"{series['kept']} kept, {series['sight']}",
            f"{min(series['sides'])} to {max(series['sides'])} px",
            *(slope(series[f"{part}_slope"]) for part in ("select", "vision", "prefill", "ttft")),
        )
        for series in results["growth"]
    ]
    return "\n".join(markdown_table(("batch 1, graphs", "sides", "select", "vision", "prefill", "first token"), rows))


def speed_fit(results: dict[str, Any]) -> str:
    """Peaks in all, and which cards they fit."""
    rows: list[tuple[str, ...]] = []
    for row in results["fit"]:
        if row["mode"] != "graphs" or row["encoding"] == "after-vit":
            continue
        cards = [card for card in ("16", "24", "32") if row[f"fits_{card}_gb"]]
        kept = "all tokens" if row["encoding"] == "dense" else f"{row['kept']} kept"
        line = (
            f"{row['side']} px",
            str(row["batch"]),
            kept,
            f"{row['peak_mb'] / 1024:.1f} GB",
            ", ".join(cards) or "none",
        )
        if line[:3] not in [one[:3] for one in rows]:
            rows.append(line)
    return "\n".join(markdown_table(("image", "batch", "tokens", "peak in all", "fits cards of GB"), rows))


def equality_line(results: dict[str, Any]) -> str:
    return (
        f"On the GPU in {results['dtype']}, {results['same_tokens']} of {results['questions']} answers of mini were "
        f"the same tokens by both paths, at {results['keep']:.0%} kept."
    )


def clip_times(results: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    """Heads, rows, and a line on what was measured: a clip with all tokens, and with a part of them."""
    rows = []
    for name, row in results["rows"].items():
        parts = (f"{row[part]:,.0f} ms" if part in row else "-" for part in ("select", "vision", "prefill", "ttft_ms"))
        how, dial = name.split(", ") if ", " in name else ("eager", name)
        kept = "all tokens" if dial == "all" else f"{row['kept']:,} kept ({float(dial):.0%})"
        rows.append(
            (
                kept if how == "eager" else f"{kept}, {how}",
                *parts,
                f"x{results['rows']['all']['ttft_ms'] / row['ttft_ms']:.1f}",
                f"{row['peak_above_mb']:,.0f} MB",
            )
        )
    heads = ("", "select", "vision", "prefill", "first token", "faster", "memory above the weights")
    what = (
        f"{results['frames']} frames of {results['side']} px, {results['tokens']:,} visual tokens, {results['model']}"
    )
    return heads, rows, f"{what} on {results['device'].upper()}."


def clip_table(results: dict[str, Any]) -> str:
    heads, rows, said = clip_times(results)
    return "\n".join([*markdown_table(heads, rows), "", said])


def trial_table(trials: list[dict[str, Any]]) -> str:
    """Memory that a few steps of training really took, beside what was foretold."""
    rows = [
        (
            f"stage {one['stage']}, {one['target'] if one['stage'] != 2 else one['adapt']}",
            f"{one['questions']}",
            f"{one['peak_bytes'] / 1e9:.2f} GB ({one['peak_over_estimate']:.2f} of the estimate)",
            f"{one['host_peak_bytes'] / 1e9:.2f} GB ({one['host_over_estimate']:.2f})",
        )
        for one in trials
    ]
    heads = ("20 steps at 1024 px", "questions", "peak on the GPU", "peak on the machine")
    return "\n".join(markdown_table(heads, rows)).replace("20 steps", f"{trials[0]['steps']} steps")


def ask_line(results: dict[str, Any]) -> str:
    row = results["speed_up"][0]
    soak = results.get("soak")
    more = f" {soak['asks']:,} asks in a row: memory grew by {soak['growth']:.1%}." if soak else ""
    return (
        f"A whole `ask` of mini ({results['device']}, {results['dtype']}, {row['side']} px, {row['kept']} tokens): "
        f"x{row['over_dense_ask']:.2f} as fast as with all tokens.{more}"
    )
