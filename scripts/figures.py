"""Write the figures of results/*.json into README.md and docs/, between their markers, after every change of a result.

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
            weak_spots(results),
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


def weak_spots(results: dict[str, Any]) -> str:
    """What mini still does badly, where it is under 0.8."""
    places = {"512 px": results, "1024 px": results["px1024"], "never trained": results["unseen"]}
    found = [
        f"{name.replace('_', ' ')} {one['accuracy']:.1%} ({place})"
        for place, part in places.items()
        for name, one in part["families"].items()
        if one["accuracy"] < 0.8
    ]
    return f"Families under 80 %: {', '.join(found) or 'none'}."


def mini_aims(results: dict[str, Any]) -> str:
    lowest = min(results["families"], key=lambda name: results["families"][name]["accuracy"])
    rows = [
        ("seen, 512 px", "92 %", f"{results['overall']['accuracy']:.1%}"),
        ("reading", "88 %", f"{results['reading']['accuracy']:.1%}"),
        ("every family", "80 %", f"lowest: {lowest}, {results['families'][lowest]['accuracy']:.1%}"),
        ("1024 px", "85 %", f"{results['px1024']['accuracy']:.1%}"),
        ("unseen", "80 %", f"{results['unseen']['accuracy']:.1%}"),
        ("sparse with evidence, of dense", "95 %", f"{results['sparse25']['of_dense']:.1%}"),
        ("the same with distractors beside it", "-", f"{results['sparse25_distractors']['of_dense']:.1%}"),
        ("blank image, at most", "35 %", f"{results['blind']['accuracy']:.1%}"),
        ("another image, at most", "blank + 5", f"{results['shuffled']['accuracy']:.1%}"),
    ]
    return "\n".join([*as_table(("", "aim", "reached"), rows), "", weak_spots(results)])


def selector_aims(results: dict[str, Any]) -> str:
    recall, above, iou = results["recall"], results["recall_above"]["0.06"], results["px1024"]["iou_64"]
    dense, sparse, gap = results["dense"], results["sparse"], results["random_gap"]["sparse"]
    auto, failures, asked = results["auto"], results["failures"], results["questions"]
    grey, corners, bare = failures["grey_text"], failures["corners"], failures["no_structure"]["covered"]
    rows = [
        ("recall, localised, 25 / 10 % kept", "0.92 / 0.75", f"{recall['0.25']:.3f} / {recall['0.1']:.3f}"),
        (
            "recall at 6 % over untrained / random",
            "x2.5",
            f"x{above['over_untrained']['mean']:.2f} / x{above['over_random']['mean']:.1f}",
        ),
        ("accuracy of full, dense, 25 / 10 %", "92 / 78 %", f"{dense['0.25']:.1%} / {dense['0.1']:.1%}"),
        ("accuracy of full, sparse, 25 / 10 %", "95 / 82 %", f"{sparse['0.25']:.1%} / {sparse['0.1']:.1%}"),
        ("the same, localised, 10 %", "90 %", f"{results['sparse_localised']['0.1']:.1%}"),
        (
            "random, sparse, lower by, 25 / 10 %",
            "25 points",
            f"{100 * gap['0.25']['mean']:.0f} / {100 * gap['0.1']['mean']:.0f} points",
        ),
        ("auto: tokens, accuracy of full", "20 %, 95 %", f"{auto['mean_keep']:.1%}, {auto['fraction']:.1%}"),
        ("auto: describe over colour", "x2", f"x{auto['describe_over_colour']['mean']:.2f}"),
        ("overlap of different questions, 6 %", "under 0.4", f"{asked['jaccard_of_different']['mean']:.2f}"),
        ("the same cells when reworded", "0.6", f"{asked['same_when_reworded']['mean']:.2f}"),
        (
            f"grey text: twice the tokens of the sign, 6 / 10 / 25 % / auto ({grey['0.06']['share']['n']} scenes)",
            "95 %",
            " / ".join(f"{grey[keep]['share']['mean']:.1%}" for keep in ("0.06", "0.1", "0.25", "auto")),
        ),
        (f"no structure: no 4 x 4 block empty, 25 % ({bare['n']} images)", "all", f"{bare['mean']:.0%}"),
        (
            "bright corners: recall falls, 10 / 25 %",
            "under 5 points",
            f"{100 * corners['0.1']['fall']['mean']:.1f} / {100 * corners['0.25']['fall']['mean']:.1f} points",
        ),
        (
            "IoU of 64 cells, 1024 px: trained / untrained / random / best possible",
            "-",
            " / ".join(f"{iou[name]['mean']:.3f}" for name in ("trained", "untrained", "random", "ceiling")),
        ),
    ]
    counts = ", ".join(f"{part} {run['questions']:,}" for part, run in results["runs"].items())
    return "\n".join(
        [*as_table(("", "aim", "reached"), rows), "", f"Questions at 512 px, a quarter at 1024 px: {counts}."]
    )


def as_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows)]


def filled(text: str, name: str, table: str) -> str:
    pattern = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end of figures -->)", re.DOTALL)
    assert pattern.search(text), f"no place for the figures of {name}"
    return pattern.sub(lambda found: found[1] + table + "\n" + found[2], text)


PAGES = {
    "README.md": {"mini": mini_table, "selector": selector_table},
    "docs/training-mini.md": {"mini": mini_aims},
    "docs/training-selector.md": {"selector": selector_aims},
}


def main() -> int:
    changed = 0
    for page, tables in PAGES.items():
        path = ROOT / page
        before = after = path.read_text()
        for name, table in tables.items():
            after = filled(after, name, table(json.loads((ROOT / "results" / f"{name}.json").read_text())))
        changed |= after != before
        if "--check" not in sys.argv[1:]:
            path.write_text(after)
    return int(changed and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
