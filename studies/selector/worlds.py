"""How much of the evidence a selector finds in each world, and what its policy and its scorers are worth there.

    ARR_COC_WIDE=PACK python -m studies.selector.worlds --questions 300 --out results/selector-worlds.json

Worlds are the old one (new scenes, and what is held out of it) and the wide one with each of its held-out axes. Ways
are the selector as it is, each scorer without its weight, weights and tensions at their means over training scenes, and
looking twice, untrained. Recall is of the most that so many cells can hold, a mean over questions, drawn by images.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from arr_coc.config import SCORERS, TENSIONS, Keep
from arr_coc.evaluation.statistics import Clustered, difference_of, mean_of
from arr_coc.files import write_json
from arr_coc.qwen.model import ARRCOCQwen
from studies.asked import Asked, ask_about
from studies.mini.evaluation import load_answerer
from studies.selector.ablation import fixed_policy, without_scorer
from studies.selector.adapters import load_fitting
from studies.selector.selection import NOTHING, Alteration, Chooser, Chosen
from studies.wide.evaluate import ask_wide
from studies.wide.faces import PACK
from studies.wide.held_out import AXES

KEEPS: tuple[Keep, ...] = (0.06, 0.1, 0.25)  # fractions KEPT
WORLDS = ("wide seen", *(f"wide {axis}" for axis in AXES), "old seen", "old unseen")
OURS, TWICE, FIXED = "as it is", "looking twice, untrained", "policy at its means"
MINI = Path("arr_coc/models/mini")


def asked_in(world: str, questions: int, side: int) -> list[Asked]:
    """Scenes of a world with so many questions in all."""
    kind, split = world.split()
    return (ask_wide if kind == "wide" else ask_about)(split, questions, (side, side))


def looking_twice(
    owner: ARRCOCQwen, asked: Sequence[Asked], ours: dict[Keep, list[Chosen]]
) -> dict[Keep, list[Chosen]]:
    """What looking twice keeps for the same questions."""
    found: dict[Keep, list[Chosen]] = {}
    for keep, chosen in ours.items():
        found[keep] = []
        for one in chosen:
            about = asked[one.image]
            inputs = owner.encode_question(Image.fromarray(about.image), about.questions[one.question].text)
            (selection,) = owner.choose(inputs, keep=keep)
            found[keep].append(replace(one, cells=tuple(selection.kept.tolist())))
    return found


def recall_of(chosen: Sequence[Chosen]) -> Clustered:
    return Clustered.of((one.image, one.recall) for one in chosen if one.evidence)


def mean_policy(chooser: Chooser, questions: int, side: int) -> tuple[list[float], list[float]]:
    """Mean weights and tensions over scenes of training, half of each world."""
    asked = [*ask_wide("train", questions // 2, (side, side)), *ask_about("val", questions // 2, (side, side))]
    chosen = chooser.over(asked, KEEPS[:1])[KEEPS[0]]
    weights, tensions = ([one.weights for one in chosen], [one.tensions for one in chosen])
    return torch.tensor(weights).mean(0).tolist(), torch.tensor(tensions).mean(0).tolist()


def measure(chooser: Chooser, twice: ARRCOCQwen, asked: Sequence[Asked], fixed: Alteration) -> dict[str, Any]:
    """Recall of every way in one world, and against the selector as it is."""
    ways = {OURS: NOTHING, FIXED: fixed} | {f"without {name}": without_scorer(name) for name in SCORERS}
    kept = {name: chooser.over(asked, KEEPS, way) for name, way in ways.items()}
    kept[TWICE] = looking_twice(twice, asked, kept[OURS])
    report: dict[str, Any] = {}
    for name, chosen in kept.items():
        report[name] = {str(keep): mean_of(recall_of(chosen[keep])) for keep in KEEPS}
        if name != OURS:
            report[name]["change"] = {
                str(keep): difference_of(recall_of(chosen[keep]), recall_of(kept[OURS][keep])) for keep in KEEPS
            }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="Evidence that a selector finds in each world.")
    parser.add_argument("--adapter", type=Path, default=MINI)
    parser.add_argument("--questions", type=int, default=300, help="of each world")
    parser.add_argument("--side", type=int, default=512, help="px")
    parser.add_argument("--worlds", nargs="+", default=WORLDS, choices=WORLDS)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if not os.environ.get(PACK):
        parser.error(f"set {PACK} to a pack made by studies.wide.collect: held-out fonts are drawn with it")
    answerer = load_answerer(MINI, "cpu", torch.float32)
    _, layer = load_fitting(given.adapter, answerer.model)
    chooser, twice = (
        Chooser(answerer.model, answerer.turns, layer),
        ARRCOCQwen.from_pretrained("mini", selector="look_twice"),
    )
    weights, tensions = mean_policy(chooser, given.questions, given.side)
    report: dict[str, Any] = {
        "questions": given.questions,
        "side": given.side,
        "means": dict(zip((*SCORERS, *TENSIONS), [round(one, 4) for one in (*weights, *tensions)], strict=True)),
        "worlds": {},
    }
    for world in given.worlds:
        chooser.glances = type(chooser.glances)(answerer.model)  # what was seen of another world is done with
        asked = asked_in(world, given.questions, given.side)
        report["worlds"][world] = measure(chooser, twice, asked, fixed_policy(weights, tensions))
        for name, found in report["worlds"][world].items():
            print(
                f"{world:14s} {name:26s} " + " ".join(f"{found[str(keep)]['mean']:.3f}" for keep in KEEPS), flush=True
            )
        write_json(given.out, report, indent=1)


if __name__ == "__main__":
    main()
