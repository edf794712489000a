"""Write the figures of results/*.json into README.md, between their markers. Run it after every change of a result.

python scripts/figures.py            write
python scripts/figures.py --check    exit with 1 if something would change
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TESTS = {
    "overall": "512 px, new scenes",
    "reading": "of these, reading",
    "px1024": "1024 px",
    "unseen": "a font, wordings and layouts never trained",
    "sparse25": "25 % of the tokens: the evidence and an even grid, encoded sparse",
    "sparse25_distractors": "the same with the distractors as far as they fit",
    "blind": "control: a blank image",
    "shuffled": "control: another scene's image",
}


def percent(figure: dict[str, Any]) -> str:
    low, high = figure["ci95"]
    return f"{figure['accuracy']:.1%} | {low:.1%} to {high:.1%} | {figure['n']:,}"


def mini_table(results: dict[str, Any]) -> str:
    rows = [f"| {label} | {percent(results[key])} |" for key, label in TESTS.items() if key in results]
    families = ", ".join(f"{name.replace('_', ' ')} {one['accuracy']:.0%}" for name, one in results["families"].items())
    return "\n".join(
        [
            "| mini, dense unless it says otherwise | exact answers | 95 % interval | questions |",
            "|---|---|---|---|",
            *rows,
            "",
            f"By family: {families}. The most frequent answer of each family: {results['overall']['majority']:.0%}.",
        ]
    )


def selector_table(results: dict[str, Any]) -> str:
    """What the selector keeps, and what mini still answers: shares of its accuracy with all tokens."""

    def row(label: str, keep: str, found: dict[str, Any]) -> str:
        shares = (f"{found[name][keep]:.0%}" for name in ("recall", "sparse", "dense", "random_sparse"))
        return f"| {label} | {' | '.join(shares)} |"

    auto, asked = results["auto"], results["runs"]
    questions = asked["accuracy"]["questions"]
    lines = [
        "| tokens kept | evidence found | accuracy kept: chosen before the ViT | after it | random, before |",
        "|---|---|---|---|---|",
        *(row(f"{float(keep):.0%}, 512 px", keep, results) for keep in ("0.06", "0.1", "0.25")),
        *(row(f"{float(keep):.0%}, 1024 px", keep, results["px1024"]) for keep in ("0.06", "0.1", "0.25")),
        "",
        f'`keep="auto"`: {auto["mean_keep"]:.0%} of the tokens on average at {auto["fraction"]:.1%} of the accuracy; '
        f"a description gets {auto['describe_over_colour']['mean']:.1f} times the tokens of a colour.",
        f"{questions:,} questions at 512 px, {questions // 4:,} at 1024 px; {asked['auto']['questions']:,} for auto.",
    ]
    return "\n".join(lines)


def filled(text: str, name: str, table: str) -> str:
    pattern = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end of figures -->)", re.DOTALL)
    assert pattern.search(text), f"README.md has no place for the figures of {name}"
    return pattern.sub(lambda found: found[1] + table + "\n" + found[2], text)


def main() -> int:
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = before
    for name, table in (("mini", mini_table), ("selector", selector_table)):
        after = filled(after, name, table(json.loads((ROOT / "results" / f"{name}.json").read_text())))
    if "--check" in sys.argv[1:]:
        return int(after != before)
    readme.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
