"""Tables of mini-stock, the control that never sees a cell missing, from results/mini-stock.json."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table

TESTS = {
    "seen, seed 777": "the first world, seen, seed 777",
    "seen, seed 778": "the same, seed 778",
    "1024 px": "the same at 1024 px, seed 777",
    "unseen": "its unseen test, seed 777",
    "wide": "the wide world",
    "blank": "seen, seed 777, a blank image",
    "sparse25": "seen, seed 777, 25 % of the tokens with the evidence, sparse",
}
SEEDS = ("seen, seed 777", "seen, seed 778")


def stock_runs(results: dict[str, Any]) -> str:
    """What each run took, and what it reached on the validation scenes."""
    rows = [
        (f"{one['run']}", f"{one['seconds']}", f"`{one['config']}`, seed {one['seed']}", f"{one['steps']:,}",
         f"{one['val']:.1%}", f"{one['val_sparse']:.1%}")
        for one in results["runs"]
    ]  # fmt: skip
    heads = ("run", "seconds", "config", "steps", "val at the end, 360 questions", "sparse with evidence")
    return "\n".join(markdown_table(heads, rows))


def stock_tables(results: dict[str, Any]) -> str:
    """Exact answers on every test, and by family on two seeds together."""
    tests = results["tests"]
    rows = [(label, f"{tests[name]['accuracy']:.1%}", f"{tests[name]['n']:,}") for name, label in TESTS.items()]
    families = []
    for name, (first, count) in tests[SEEDS[0]]["families"].items():
        second, more = tests[SEEDS[1]]["families"][name]
        both = (first * count + second * more) / (count + more)
        families.append((name.replace("_", " "), f"{first:.1%} of {count}", f"{both:.1%} of {count + more}"))
    return "\n".join(
        [
            *markdown_table(("", "exact answers", "questions"), rows),
            "",
            "By family, seen, all tokens:",
            "",
            *markdown_table(("family", "seed 777", "both seeds"), families),
        ]
    )
