"""Tables of looking twice, from results/look-twice.json, and the front page's table of what ships."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table
from studies.figures.field import NAMES
from studies.figures.speed import find_row, times_faster

BUDGETS = {"512": ("0.25", "0.1", "0.06"), "1024": ("256", "128", "64")}
OURS = "look_twice"
ALL = ("plain", "dense", "1.0")
TWO_B = "shape:qwen3-vl-2b"


def share_of(table: dict[str, Any] | None, selector: str, encoding: str, keep: str) -> str:
    """Exact answers of one row, in percent; a dash where it was not asked."""
    for row in [] if table is None else table["rows"]:
        if (row["selector"], row["encoding"], row["keep"]) == (selector, encoding, keep):
            return f"{row['accuracy']['mean']:.1%}"
    return "-"


def answers_table(tables: dict[str, Any]) -> str:
    """Exact answers of looking twice and of every method beside it."""
    heads, rows, whole = answers(tables)
    return "\n".join([*markdown_table(heads, rows), "", whole])


def answers(tables: dict[str, Any]) -> tuple[list[str], list[list[str]], str]:
    """The same as heads, rows, and a sentence about all tokens."""
    sides = [side for side in BUDGETS if side in tables]
    ways = [(OURS, "sparse"), (OURS, "dense")]
    found = {(row["selector"], row["encoding"]) for side in sides for row in tables[side]["rows"]}
    ways += sorted(found - set(ways) - {ALL[:2]})
    rows = []
    for selector, encoding in ways:
        where = "in the LM" if selector == "fastv" else {"sparse": "before the ViT", "dense": "after it"}[encoding]
        shares = [share_of(tables[side], selector, encoding, keep) for side in sides for keep in BUDGETS[side]]
        rows.append([NAMES.get(selector, selector.replace("_", " ")), where, *shares])
    heads = [f"{side} px, {_budget(keep)}" for side in sides for keep in BUDGETS[side]]
    whole = ", ".join(f"{share_of(tables[side], *ALL)} at {side} px" for side in sides)
    asked = " and ".join(f"{tables[side]['questions']:,} questions at {side} px" for side in sides)
    return ["", "chosen", *heads], rows, f"With all tokens {whole}. {asked}."


def _budget(keep: str) -> str:
    return f"{float(keep):.0%}" if "." in keep else keep


def against_line(tables: dict[str, Any]) -> str:
    """Who is surely ahead of looking twice, and where it is surely ahead of all."""
    ahead: list[str] = []
    behind: list[str] = []
    for side, table in tables.items():
        for one in table["against"]:
            ours, theirs = one["ours"].split(" "), one["theirs"].rsplit(" ", 2)
            if ours[1] != "dense" or theirs[0] in ("plain", "arr_coc", "oracle") or one["mean"] is None:
                continue
            told = f"{NAMES.get(theirs[0], theirs[0])} at {_budget(theirs[2])} of {side} px"
            sure = one["p"] < 0.05
            (ahead if sure and one["mean"] > 0 else behind if sure and one["mean"] < 0 else []).append(
                f"{told} ({100 * one['mean']:+.1f})"
            )
    return (
        f"Encoded alike, after the ViT, looking twice is surely ahead of another method in {len(ahead)} comparisons "
        f"and surely behind in {len(behind)}{': ' + ', '.join(behind) if behind else ''} "
        "(p under 0.05, images as clusters)."
    )


def exponents_table(choice: dict[str, Any]) -> str:
    """Evidence found at 6 % by the exponent of information, by family, and what rules for it gain."""
    found = choice["exponents"]
    rows = [
        (family.replace("_", " "), f"{one['n']}", *(f"{value:.2f}" for value in one["recall"]))
        for family, one in found["families"].items()
    ]
    rows.append(("all", f"{sum(one['n'] for one in found['families'].values())}",
                 *(f"{values[0]:.3f}" for values in found["recall"])))  # fmt: skip
    rules = ", ".join(
        f"{name} {100 * (one['test'] - found['recall_fixed']):+.1f}" for name, one in found["rules"].items()
    )
    fixed = found["recall_fixed"]
    return "\n".join(
        [
            *markdown_table(("evidence found at 6 %", "questions", *(f"g = {g:g}" for g in found["exponents"])), rows),
            "",
            f"A linear rule for g, fitted on other scenes with their evidence, over the best fixed g "
            f"({found['best_fixed']:g}), in points: {rules}. The best g of every family would gain "
            f"{100 * (found['best_of_each_family'] - fixed):.1f}, the best of every question "
            f"{100 * (found['best_of_each_question'] - fixed):.1f}.",
        ]
    )


def sinks_line(choice: dict[str, Any]) -> str:
    """What planted sinks cost, and what automatic budgets take."""
    plain, *planted = choice["sinks"]
    worst = [
        f"{one['sinks']} of {one['times']:g} times {100 * (one['accuracy'] - plain['accuracy']):+.1f}"
        for one in planted
    ]
    auto = choice["automatic"]
    return (
        f"Attention drawn to empty cells of the small copy (how many, how many times the most attention; points of "
        f"accuracy at 25 %, {plain['n']} questions): {', '.join(worst)}. "
        f'`keep="auto"` without an adapter: {auto["tokens"]:.0%} of the tokens at {auto["kept"]:.1%} of the accuracy '
        f"with all ({auto['n']} questions)."
    )


def fastv_line(rows: list[dict[str, Any]]) -> str:
    """How many times as fast as FastV, budget by budget."""
    told = {
        side: ", ".join(f"x{one['times']:.1f} at {_budget(str(one['keep']))}" for one in rows if one["side"] == side)
        for side in (512, 1024)
    }
    return (
        "FastV shows every token to its first layers, and the ViT has been paid for by then. Chosen before the ViT, "
        "looking twice has its first token so many times as fast (mini, two CPU cores, both in one run): "
        f"{told[512]} of 512 px; {told[1024]} tokens of 1024 px."
    )


def look_twice_table(results: dict[str, Any]) -> str:
    """All of it, for the page of concepts."""
    parts = [answers_table(results["field"]), against_line(results["field"])]
    if "over_fastv" in results:
        parts.append(fastv_line(results["over_fastv"]))
    if "choice" in results:
        parts += [exponents_table(results["choice"]), sinks_line(results["choice"])]
    if "control" in results:
        kept = next(iter(results["control_without_counting"].values()))
        shares = ", ".join(
            f"{kept[f'{OURS} sparse {keep}']:.0%} at {_budget(keep)}"
            for keep in BUDGETS["512"]
            if f"{OURS} sparse {keep}" in kept
        )
        parts += [
            "The same on mini-stock, which never saw a cell missing:",
            answers_table(results["control"]),
            against_line(results["control"]),
            f"Of its accuracy with all tokens it keeps, sparse, on all families but counting: {shares}.",
        ]
    return "\n\n".join(parts)


def headline(looks: dict[str, Any], field: dict[str, Any], fast: dict[str, Any], twice: dict[str, Any]) -> str:
    """What ships, each with its accuracy and its time."""

    def trained(side: int, keep: float | int) -> str:
        rows = field["rows"]
        return f"{find_row(rows, side=side, selector='arr_coc', encoding='sparse', keep=keep)['accuracy']:.1%}"

    def twice_faster(side: int) -> str:
        row = find_row(fast["speed_up"], model=TWO_B, side=side, batch=1, sight=OURS, mode="graphs")
        return f"x{row['over_dense']:.1f}"

    small, large = (looks["field"].get(side) for side in ("512", "1024"))
    whole = (share_of(small, *ALL), share_of(small, *ALL), share_of(large, *ALL), "x1", "x1")
    ours = (
        *(share_of(small, OURS, "sparse", keep) for keep in ("0.25", "0.1")),
        share_of(large, OURS, "sparse", "128"),
    )
    glance = (f"x{times_faster(twice, side, 1, 'glance'):.1f}" for side in (1024, 2048))
    rows = [
        ("all tokens", *whole),
        ("any Qwen3-VL: looking twice, untrained", *ours, twice_faster(1024), twice_faster(2048)),
        ("mini's own: trained, with a glance", trained(512, 0.25), trained(512, 0.1), trained(1024, 128), *glance),
    ]
    heads = ("what ships", "512 px, 25 %", "512 px, 10 %", "1024 px, 128", "first token, 1024 px", "2048 px")
    device = fast["device"].removeprefix("NVIDIA ")
    return "\n".join(
        [
            *markdown_table(heads, rows),
            "",
            "Exact answers of mini with that many visual tokens; time to the first token of the 2B shape with 200 of "
            f"them kept, choosing included, over all tokens, both by graphs (one {device}, {fast['dtype']}, batch 1). "
            "Without recorded graphs a fast GPU waits for launches, and choosing costs more than it saves below about "
            '2048 px: there `keep="auto"` keeps every token.',
        ]
    )
