"""Write the figures of results/*.json into README.md and docs/, between their markers, after every change of a result.

python -m studies.figures.write            write
python -m studies.figures.write --check    exit with 1 if something would change
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arr_coc.evaluation.report.pages import markdown_table
from studies.figures.again import again_table, confidence_table
from studies.figures.choice import alone_table, gaze_table
from studies.figures.deploying import batch_line, million_table, together_line
from studies.figures.field import equal_table, field_table
from studies.figures.look_twice import headline, look_twice_table
from studies.figures.reliability import mutants_line, page_line, reliability_rows, reliability_runs
from studies.figures.selector import blank_table, selector_aims, selector_table, study_tables, worlds_table
from studies.figures.serving import vllm_table
from studies.figures.speed import (
    ask_line,
    clip_table,
    equality_line,
    looks_table,
    speed_aims,
    speed_fit,
    speed_growth,
    speed_table,
    trial_table,
)
from studies.figures.stock import (
    compact_positions,
    counting_falls,
    half_runs,
    late_places,
    simple_choices,
    stock_runs,
    stock_tables,
)
from studies.figures.textures import deliberation_table, saliency_table, text_table, texture_cost
from studies.figures.video import steady_table, video_table
from studies.mini.card import SPLITS

ROOT = Path(__file__).parents[2]
TOLD = (  # in the README; the model's card has them all
    *("seen", "double_size", "fourfold_size", "styles", "fonts", "layouts", "several", "clips"),
    *("sparse25", "blank", "another_image"),
)


def percent(figure: dict[str, Any]) -> tuple[str, str, str]:
    low, high = figure["ci95"]
    return f"{figure['accuracy']:.1%}", f"{low:.1%} to {high:.1%}", f"{figure['n']:,}"


def mini_table(results: dict[str, Any]) -> str:
    heads = ("mini, dense unless it says otherwise", "exact answers", "95 % interval", "questions")
    rows = [(SPLITS[key], *percent(results[key])) for key in TOLD if key in results]
    return "\n".join([*markdown_table(heads, rows), "", weak_spots(results)])


def weak_spots(results: dict[str, Any]) -> str:
    """What mini still does badly, where it is under 0.8 in at least 20 questions."""
    places = ("seen", "double_size", "styles", "fonts", "pairs", "wordings", "layouts", "several", "clips")
    found = [
        f"{name.replace('_', ' ')} {one['accuracy']:.0%} ({SPLITS[place]})"
        for place in places
        for name, one in results.get(place, {"families": {}})["families"].items()
        if one["n"] >= 20 and one["accuracy"] < 0.8
    ]
    return f"Families under 80 %: {', '.join(found) or 'none'}."


def mini_aims(results: dict[str, Any]) -> str:
    """The second edition's bars. Ratios are of `seen`, which has the same questions."""
    reached = {key: one["accuracy"] for key, one in results.items()}

    def lowest(split: str) -> str:
        families = results[split]["families"]
        name = min(families, key=lambda one: families[one]["accuracy"])
        return f"lowest: {name.replace('_', ' ')}, {families[name]['accuracy']:.1%}"

    rows = [
        ("seen, 512 px", "95 %", f"{reached['seen']:.1%}"),
        ("every family of it", "88 %", lowest("seen")),
        ("1024 px", "93 %", f"{reached['double_size']:.1%}"),
        ("every family of it", "85 %", lowest("double_size")),
        ("2048 px", "85 %", f"{reached['fourfold_size']:.1%}"),
        *((f"{SPLITS[key]}", aim, f"{reached[key]:.1%}") for key, aim in HELD_OUT_AIMS.items()),
        ("several images, clips", "85 %", f"{reached['several']:.1%}, {reached['clips']:.1%}"),
        ("blank image, at most", "15 %", f"{reached['blank']:.1%}"),
        ("another image, at most", "blank + 3", f"{reached['another_image']:.1%}"),
        ("25 % with the evidence, of dense", "98 %", f"{reached['sparse25'] / reached['seen']:.1%}"),
        ("6 % with the evidence, of dense", "95 %", f"{reached['sparse6'] / reached['seen']:.1%}"),
        ("128 of 1,024, a small copy first", "at least sparse", _beside(reached, "foveated128", "sparse128")),
        (
            "the same, half of the evidence missed",
            "10 points",
            _beside(reached, "foveated128_missed", "sparse128_missed"),
        ),
    ]
    return "\n".join([*markdown_table(("", "aim", "reached"), rows), "", weak_spots(results)])


def _beside(reached: dict[str, float], one: str, other: str, ending: str = "") -> str:
    return f"{reached[one + ending]:.1%}, sparse {reached[other + ending]:.1%}"


HELD_OUT_AIMS = {"styles": "85 %", "pairs": "90 %", "wordings": "92 %", "layouts": "75 %"}

WIDE = {
    **{"seen": "the wide world", "styles": "styles", "fonts": "fonts", "pairs": "pairs of colour and thing"},
    **{"wordings": "wordings", "layouts": "layouts", "old_seen": "the first world", "old_unseen": "its unseen test"},
    **{"double_size": "the wide world at 1024 px", "blank": "a blank image", "another_image": "another scene's image"},
    **{"sparse25": "the wide world, 25 % of the tokens, sparse"},
    **{"foveated25": "the same, a small copy first", "sparse25_missed": "25 %, half of the evidence left out"},
    **{"foveated25_missed": "the same, a small copy first (left out too)", "several": "several images"},
    **{"several_held_out": "several images, held out", "clips": "clips", "clips_held_out": "clips, held out"},
    **{"clips_in_time": "clips, questions about order", "clips_shuffled": "the same, frames shuffled"},
    **{"clips_blank": "blank clips", "clips_another": "another clip", "several_blank": "several blank images"},
}


def wide_table(results: dict[str, Any]) -> str:
    """Exact answers after each run of the wide training."""
    runs = results["runs"]
    heads = ("", *(f"run {one['run']}: {one['seconds']} s, {one['steps']:,} steps" for one in runs))
    rows = []
    for name, label in WIDE.items():
        found = [one["splits"].get(name) for one in runs]
        rows.append((label, *("-" if one is None else f"{one['accuracy']:.1%} of {one['n']}" for one in found)))
    return "\n".join(markdown_table(heads, rows))


def filled(text: str, name: str, table: str) -> str:
    pattern = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end of figures -->)", re.DOTALL)
    assert pattern.search(text), f"no place for the figures of {name}"
    return pattern.sub(lambda found: found[1] + table + "\n" + found[2], text)


# Page -> marker -> what fills it, and the files of results that it is made from.
PAGES: dict[str, dict[str, tuple[Callable[..., str], str]]] = {
    "README.md": {
        "headline": (headline, "look-twice field speed-look-twice speed-gpu"),
        "mini": (mini_table, "mini"),
        "selector": (selector_table, "selector"),
        "field": (field_table, "field"),
        "equal": (equal_table, "equal-tokens"),
        "speed": (speed_table, "speed-gpu"),
    },
    "docs/concepts.md": {
        "look_twice": (look_twice_table, "look-twice"),
        "confidence": (confidence_table, "look-again"),
        "again": (again_table, "look-again"),
    },
    "docs/deploying.md": {
        "together": (together_line, "serving"),
        "together on a GPU": (together_line, "serving-gpu"),
        "batch": (batch_line, "batch"),
        "million": (million_table, "speed-look-twice"),
    },
    "docs/reliability.md": {
        "reliability runs": (reliability_runs, "reliability"),
        "page load": (page_line, "page-load"),
        "reliability rows": (reliability_rows, "reliability"),
        "mutants": (mutants_line, "mutants"),
    },
    "docs/video.md": {"video": (video_table, "video"), "steady": (steady_table, "video")},
    "docs/serving.md": {"vllm": (vllm_table, "serving-vllm")},
    "docs/training-mini.md": {
        "mini": (mini_aims, "mini"),
        "wide": (wide_table, "wide"),
        "stock runs": (stock_runs, "mini-stock"),
        "stock": (stock_tables, "mini-stock"),
        "half": (half_runs, "mini-half"),
        "late places": (late_places, "effects"),
        "simple choices": (simple_choices, "effects"),
        "compact positions": (compact_positions, "effects"),
        "counting falls": (counting_falls, "effects"),
    },
    "docs/training-selector.md": {
        "selector": (selector_aims, "selector"),
        "blank paper": (blank_table, "blank-paper"),
        "study": (study_tables, "selector-study"),
        "worlds": (worlds_table, "selector-worlds"),
        "questions alone": (alone_table, "questions-alone"),
        "trial": (trial_table, "trial"),
    },
    "docs/textures.md": {
        "texture cost": (texture_cost, "speed-textures"),
        "texture cost on a GPU": (texture_cost, "speed-textures-gpu"),
        "saliency": (saliency_table, "saliency"),
        "gaze": (gaze_table, "gaze"),
        "text": (text_table, "text-channel"),
    },
    "docs/speed.md": {
        "aims": (speed_aims, "speed-gpu"),
        "growth": (speed_growth, "speed-gpu"),
        "fit": (speed_fit, "speed-gpu"),
        "looks": (looks_table, "speed-look-twice"),
        "equality": (equality_line, "fast-equality"),
        "deliberation": (deliberation_table, "deliberation"),
        "ask on a GPU": (ask_line, "speed-gpu-ask"),
        "ask on a CPU": (ask_line, "speed-cpu"),
        "clip on a GPU": (clip_table, "speed-video"),
        "clip on a CPU": (clip_table, "speed-video-cpu"),
    },
}


def main() -> int:
    changed = False
    for page, places in PAGES.items():
        path = ROOT / page
        before = after = path.read_text()
        for name, (make, results) in places.items():
            files = [json.loads((ROOT / "results" / f"{one}.json").read_text()) for one in results.split()]
            after = filled(after, name, make(*files))
        changed |= after != before
        if "--check" not in sys.argv[1:]:
            path.write_text(after)
    return int(changed and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
