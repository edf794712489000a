"""Tables of the selector, from results/selector.json and selector-study.json."""

from typing import Any

from arr_coc.config import TENSIONS
from arr_coc.evaluation.report.pages import markdown_table


def selector_table(results: dict[str, Any]) -> str:
    """What the selector keeps, and what mini still answers: shares of its accuracy with all tokens."""

    def row(px: int, keep: str, found: dict[str, Any]) -> tuple[str, ...]:
        shares = (f"{found[name][keep]:.0%}" for name in ("recall", "sparse", "dense", "random_sparse"))
        return f"{float(keep):.0%}, {px} px", *shares

    auto, asked = results["auto"], results["runs"]
    questions = asked["accuracy"]["questions"]
    heads = ("tokens kept", "evidence found", "accuracy kept: chosen before the ViT", "after it", "random, before")
    places = ((512, results), (1024, results["px1024"]))
    lines = [
        *markdown_table(heads, [row(px, keep, found) for px, found in places for keep in ("0.06", "0.1", "0.25")]),
        "",
        f'`keep="auto"`: {auto["mean_keep"]:.0%} of the tokens on average at {auto["fraction"]:.1%} of the accuracy; '
        f"a description gets {auto['describe_over_colour']['mean']:.1f} times the tokens of a colour.",
        f"{questions:,} questions at 512 px, {questions // 4:,} at 1024 px; {asked['auto']['questions']:,} for auto.",
    ]
    return "\n".join(lines)


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
        [*markdown_table(("", "aim", "reached"), rows), "", f"Questions at 512 px, a quarter at 1024 px: {counts}."]
    )


def study_tables(results: dict[str, Any]) -> str:
    """What stage 3, the sights, the strategies and distillation gave."""

    def gain(figure: dict[str, Any]) -> str:
        low, high = figure["ci95"]
        return f"{100 * figure['mean']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"

    def recalls(found: dict[str, float]) -> tuple[str, ...]:
        return tuple(f"{found[keep]:.3f}" for keep in ("0.06", "0.1", "0.25"))

    names = {
        "shipped": "as shipped",
        "from_stage1_with_hard_variants": "before: hard variants in stage 1 too",
        "from_stage1_without_hard_variants": "before: none in stage 1, short",
    }
    steps = {start: " + ".join(f"{n:,}" for n in found.values()) for start, found in results["stage3_steps"].items()}
    stage3 = [
        (
            names[start],
            steps[start],
            level,
            f"{float(keep):.0%}",
            gain(one[keep]["recall_gain"]),
            gain(one[keep]["accuracy_gain"]),
        )
        for start, levels in results["stage3"].items()
        for level, one in levels.items()
        for keep in one
    ]
    kept = ("6 %", "10 %", "25 %")
    sights = [(name, *recalls(one["recall"])) for name, one in results["sights"]["held"].items()]
    reading = [(name, f"{one['step']:,}", *recalls(one["recall"])) for name, one in results["reading"]["held"].items()]
    strategies = [
        (name.replace("_", " "), *recalls(one["recall"])) for name, one in results["strategies"]["held"].items()
    ]
    distilled = [(f"{one['step']}", *recalls(one["recall"])) for one in results["distillation"]["held"]]
    trials = [
        (
            f"stage {one['stage']}, {one['adapt']}",
            f"{one['first_loss']:.2f} to {one['last_loss']:.2f}",
            f"{one['peak_bytes'] / 2**30:.2f} GB",
            f"{one['estimate_bytes'] / 2**30:.2f} GB",
        )
        for one in results["trial"]
    ]
    return "\n".join(
        [
            "Stage 3, points gained over stage 1 on the test scenes, with 95 % intervals (before: with a glance of 32 "
            "channels and no scenes to be read):",
            "",
            *markdown_table(("run", "steps of stages 1 + 3", "scenes", "kept", "recall", "accuracy, sparse"), stage3),
            "",
            "A loss for names, 255 s of stage 1 and 225 s of stage 3 on one H200; recall on validation scenes:",
            "",
            *markdown_table(("stage", "steps", *kept), reading),
            "",
            f"Sights after {results['sights']['steps']} steps of stage 1, recall on validation scenes:",
            "",
            *markdown_table(("sight", *kept), sights),
            "",
            f"Strategies of stage 2 after {results['strategies']['steps']} steps of "
            f"{results['strategies']['questions_per_step']} questions, from {results['strategies']['start']}; recall:",
            "",
            *markdown_table(("strategy", *kept), strategies),
            "",
            f"Distillation alone, no boxes, {results['distillation']['questions_per_step']} questions a step; recall:",
            "",
            *markdown_table(("steps", *kept), distilled),
            "",
            "20 steps on one repeated batch at the shape of Qwen3-VL-2B, random weights:",
            "",
            *markdown_table(("", "loss", "memory at its peak", "estimate"), trials),
        ]
    )


def worlds_table(results: dict[str, Any]) -> str:
    """Evidence found in each world: as it is, untrained, and what its balance and its ways of knowing are worth."""
    whole = ("balanced", "look twice")
    less = ("light", "exponents at their means", "without information", "without perspectival")

    def shown(found: dict[str, Any], way: str) -> str:
        if way in whole:
            return " / ".join(f"{100 * found[way][keep]['mean']:.1f}" for keep in ("0.06", "0.1", "0.25"))
        one = found[way]["change"]["0.06"]
        return f"{100 * one['mean']:+.1f} ({100 * one['ci95'][0]:+.1f} to {100 * one['ci95'][1]:+.1f})"

    worlds = results["worlds"]
    rows = [(world, *(shown(found["recall"], way) for way in (*whole, *less))) for world, found in worlds.items()]
    heads = ("evidence found, %, at 6 / 10 / 25 %", "as it is", "looking twice, untrained")
    questions = " / ".join(str(number) for number in sorted({found["questions"] for found in worlds.values()}))
    exponents = ", ".join(f"{name} {value:.2f}" for name, value in results["mean_exponents"].items())
    tensions = ", ".join(f"{name} {value:.2f}" for name, value in zip(TENSIONS, results["mean_tensions"], strict=True))
    lines = [
        *markdown_table((*heads, *(f"{way}, 6 %" for way in less)), rows),
        "",
        f"{questions} questions of each world at {results['side']} px.",
        f"Light: without the language model's look. Mean exponents: {exponents}; tensions: {tensions}.",
    ]
    return "\n".join(lines)


def blank_table(results: dict[str, Any]) -> str:
    """Blank paper of what is kept of pages, and what answers about scenes changed by."""

    def share(figure: dict[str, Any]) -> str:
        return f"{100 * figure['mean']:.1f}"

    kept = f"of {results['keep']:.0%} kept"
    heads = ("blank cells, %", "of the page", f"{kept}, before", "now", "least possible")
    pages = [
        (kind, *(share(found[name]) for name in ("page", "before", "after", "least")))
        for kind, found in results["pages"].items()
    ]
    scenes = []
    for world, found in results["scenes"].items():
        for keep, one in found.items():
            gain = " to ".join(f"{100 * end:+.1f}" for end in one["gain"]["ci95"])
            answers = f"{share(one['after'])}, {100 * one['gain']['mean']:+.1f} ({gain})"
            other = share(one["other_cells"])
            scenes.append((f"{world} world, {float(keep):.0%}", share(one["before"]), answers, other))
    asked = next(iter(next(iter(results["scenes"].values())).values()))["gain"]["n"]
    drawn = (f"{asked:,} questions each, 512 px, sparse", "answers before, %", "now", "questions with other cells, %")
    return "\n".join([*markdown_table(heads, pages), "", *markdown_table(drawn, scenes)])
