"""Figures of clips, from results/video.json."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table

NAMES = {
    "look_twice": "ARR-COC, before the ViT",
    "look_twice_dense": "ARR-COC, after the ViT",
    "vidcom2": "unlike the rest, after the ViT (as VidCom2)",
    "blind": "ARR-COC without the question",
    "downsampling": "smaller frames",
    "random": "at random",
    "evs": "what changed (as EVS)",
    "uniform_frames": "whole frames, evenly",
    "oracle": "told where the evidence is",
}


def video_table(results: dict[str, Any]) -> str:
    """Shares of the full accuracy by method, at 10 and 5 % of the tokens, and how sure it is that ours is ahead."""
    found, rows = results["accuracy"], []
    for name, words in NAMES.items():
        cells = [words]
        for keep in ("0.1", "0.05"):
            one = found[f"{name}@{keep}"]
            if len(cells) == 1:
                cells.append(f"{one['questions']:,}")
            cells += [f"{one['of_full']:.1%}", f"{one['order_and_motion_of_full']:.1%}", told(one)]
        rows.append(tuple(cells))
    heads = ("", "questions", "10 %", "order and motion", "ours ahead", "5 %", "order and motion", "ours ahead")
    quarter = found["look_twice@0.25"]["of_full"]
    whole = found["all@1.0"]["accuracy"]
    said = f"{results['questions']:,} questions about {results['clips']} clips; all tokens: {whole:.1%}"
    return "\n".join([*markdown_table(heads, rows), "", f"{said}; 25 % of them, ours: {quarter:.1%} of that."])


def told(one: dict[str, Any]) -> str:
    if "p" not in one:
        return "-"
    sure = "p < 0.001" if one["p"] < 0.001 else f"p = {one['p']:.3f}"
    return f"{100 * one['ours_ahead']:+.1f} points, {sure}"


def steady_table(results: dict[str, Any]) -> str:
    """The sources' tests, short events and the stream: what was wanted, what was measured."""
    cuts, pans, short, rows = results["cuts"], results["pans"], results["short_events"], results["stream"]["rows"]
    watched = results["watching"]
    late = [row["ms_per_frame"] for row in rows[len(rows) // 2 :]]
    early, memory = [row["ms_per_frame"] for row in rows[: len(rows) // 2]], [row["resident_mb"] for row in rows[1:]]
    ahead = 100 * (short["ours"] - short["8 whole frames"])
    table = [
        (f"{cuts['cuts']} cuts: the new scene's evidence is kept in the moment after", "0.95", f"{cuts['found']:.2f}"),
        ("overlap of what is held in neighbouring moments, nothing moves", "0.9", f"{results['still_overlap']:.3f}"),
        (
            f"{pans['clips']} pans over a page: variance of what is held, cells",
            "0.2",
            f"{pans['position_variance']:.4f}",
        ),
        (
            "pans whose answer flips (with all tokens; not with all tokens, but with ours)",
            "0",
            "{clips_whose_answer_flips} ({flips_with_all_tokens}; {flips_of_the_choice_alone})".format(**pans),
        ),
        (
            f"answers of a watcher that change, of {watched['clips']} pans (each made anew; with all tokens; anew)",
            "0",
            "{} ({}; {}; {})".format(
                *(watched[way]["clips_whose_answer_flips"] for way in ("ours", "ours_anew", "all", "all_anew"))
            ),
        ),
        (
            "titles that a watcher has right at the end (each made anew)",
            "no fewer",
            f"{watched['ours']['right_at_the_end']} ({watched['ours_anew']['right_at_the_end']})",
        ),
        (
            f"true changes that a watcher follows, of {watched['questions']} questions about clips",
            "all",
            f"{watched['followed']} of {watched['true_changes']}",
        ),
        (
            f"short events, {short['questions']} questions: over 8 whole frames at equal tokens",
            "+8 points",
            f"{ahead:+.1f}",
        ),
        (
            "stream of 2,000 frames: memory after the first 100",
            "flat",
            f"{min(memory):,.0f} to {max(memory):,.0f} MB",
        ),
        (
            "stream: CPU ms per frame, first half and second",
            "flat",
            f"{sum(early) / len(early):.0f}, {sum(late) / len(late):.0f}",
        ),
    ]
    return "\n".join(markdown_table(("", "wanted", "measured"), table))
