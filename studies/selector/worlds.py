"""How much of the evidence a selector finds in each world, and what the balance of its ways of knowing is worth there.

    ARR_COC_WIDE=PACK python -m studies.selector.worlds --out results/selector-worlds.json
    ARR_COC_WIDE=PACK python -m studies.selector.worlds --adapter runs/one --questions 200 --out runs/worlds.json

Worlds are the old one (new scenes, and what is held out of it) and the wide one with each of its held-out axes. Ways
are the selector as it is, without the language model's look, each scorer without its exponent, all exponents at their
means, and looking twice, untrained. Recall is of the most that so many cells can hold, mean over questions, by images.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arr_coc.config import SCORERS, Keep
from arr_coc.evaluation.statistics import Clustered, Figure, difference_of, mean_of
from arr_coc.files import write_json
from arr_coc.selectors.look_twice import LookTwiceSelector
from arr_coc.timing import Stopwatch
from studies.answering import count_cells
from studies.asked import Asked, ask_about
from studies.mini.evaluation import load_answerer
from studies.selector.ablation import fixed_policy, without_scorer
from studies.selector.adapters import load_fitting
from studies.selector.selection import CELLS_AT_ONCE, NOTHING, Alteration, Chooser, Chosen, batches, evidence_cells
from studies.wide.evaluate import ask_wide
from studies.wide.faces import PACK
from studies.wide.held_out import AXES

KEEPS: tuple[Keep, ...] = (0.06, 0.1, 0.25)  # fractions KEPT
WORLDS = ("wide seen", *(f"wide {axis}" for axis in AXES), "old seen", "old unseen")
OURS, TWICE, FIXED = "balanced", "look twice", "exponents at their means"
MINI = Path("arr_coc/models/mini")


def asked_in(world: str, questions: int, side: int) -> list[Asked]:
    """Scenes of a world with so many questions in all."""
    kind, split = world.split()
    return ask_wide(split, questions, (side, side)) if kind == "wide" else ask_about(split, questions, (side, side))


def look_twice(chooser: Chooser, asked: Sequence[Asked], keeps: Sequence[Keep]) -> dict[Keep, list[Chosen]]:
    """What looking twice keeps, untrained, of the same small copies."""
    selector = LookTwiceSelector(chooser.looker.config).to(chooser.device)
    found: dict[Keep, list[Chosen]] = {keep: [] for keep in keeps}
    for numbers in batches(asked, CELLS_AT_ONCE[chooser.device.type]):
        images = [asked[n].image for n in numbers]
        pairs = [(place, n, q) for place, n in enumerate(numbers) for q in range(len(asked[n].questions))]
        texts = [(place, asked[n].questions[q].text) for place, n, q in pairs]
        grid, image_B3hw = chooser.shown(images)
        looked_RMN, _ = chooser.glances.look(chooser.turns, images, image_B3hw, texts)
        seen = selector.seen(selector.see(image_B3hw, grid, None, Stopwatch(chooser.device)))
        image_R = torch.tensor([place for place, _, _ in pairs], device=chooser.device)
        attended_RHW = looked_RMN.mean(1).unflatten(1, grid)
        judgement = selector.weigh(seen, attended_RHW, torch.ones_like(image_R, dtype=torch.bool), image_R)
        for keep in keeps:
            k_R = selector.allocator.budgets(judgement.balance.relevance_BHW, torch.ones(1), [keep] * len(pairs))
            masks = selector.choose(judgement, k_R.to(chooser.device)).keep_BHW.flatten(1).cpu().numpy()
            found[keep] += [_kept(asked[n], n, q, mask) for (_, n, q), mask in zip(pairs, masks, strict=True)]
    return found


def _kept(one: Asked, number: int, question: int, mask: np.ndarray) -> Chosen:
    cells, evidence = tuple(np.flatnonzero(mask).tolist()), frozenset(evidence_cells(one, question))
    family = one.questions[question].family
    return Chosen(number, question, family, one.scene.difficulty, count_cells(one.image), cells, evidence, (), ())


def ways(fixed: tuple[Sequence[float], Sequence[float]] | None, looks: bool) -> dict[str, Alteration]:
    """What is changed, by name; `fixed` are mean exponents and tensions."""
    out = {OURS: NOTHING} | ({"light": Alteration(light=True)} if looks else {})
    out |= {f"without {scorer}": without_scorer(scorer) for scorer in SCORERS}
    return out if fixed is None else out | {FIXED: fixed_policy(*fixed)}


def recall_of(chosen: Sequence[Chosen]) -> Clustered:
    return Clustered.of((one.image, one.recall) for one in chosen if one.evidence)


def by_family(chosen: Sequence[Chosen]) -> dict[str, Figure]:
    names = sorted({one.family for one in chosen if one.evidence})
    return {name: mean_of(recall_of([one for one in chosen if one.family == name])) for name in names}


def measure(chooser: Chooser, world: str, questions: int, side: int, fixed: Any) -> dict[str, Any]:
    """Recall of every way in one world, against the selector as it is; and its exponents by family."""
    asked, looks = asked_in(world, questions, side), chooser.layer.knowing.participatory.looked is not None
    kept = {name: chooser.over(asked, KEEPS, alter) for name, alter in ways(fixed, looks).items()}
    if looks:
        kept[TWICE] = look_twice(chooser, asked, KEEPS)
    report: dict[str, Any] = {"questions": sum(len(one.questions) for one in asked), "recall": {}, "families": {}}
    for name, chosen in kept.items():
        report["recall"][name] = {str(keep): mean_of(recall_of(chosen[keep])) for keep in KEEPS}
        if name != OURS:
            report["recall"][name]["change"] = {
                str(keep): difference_of(recall_of(chosen[keep]), recall_of(kept[OURS][keep])) for keep in KEEPS
            }
        report["families"][name] = {str(keep): by_family(chosen[keep]) for keep in KEEPS}
    ours = kept[OURS][KEEPS[0]]
    names = sorted({one.family for one in ours})
    report["exponents"] = {name: mean_exponents([one for one in ours if one.family == name]) for name in names}
    return report


def mean_exponents(chosen: Sequence[Chosen]) -> dict[str, float]:
    """Mean exponent of each scorer."""
    means: Tensor = torch.tensor([one.weights for one in chosen]).mean(0)
    return {name: round(value, 4) for name, value in zip(SCORERS, means.tolist(), strict=True)}


def mean_policy(chooser: Chooser, questions: int, side: int) -> tuple[list[float], list[float]]:
    """Mean exponents and tensions over scenes of training, half of each world."""
    asked = [*ask_wide("train", questions // 2, (side, side)), *ask_about("val", questions // 2, (side, side))]
    chosen = chooser.over(asked, KEEPS[:1])[KEEPS[0]]
    weights, tensions = ([one.weights for one in chosen], [one.tensions for one in chosen])
    return torch.tensor(weights).mean(0).tolist(), torch.tensor(tensions).mean(0).tolist()


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Evidence that a selector finds in each world.")
    parser.add_argument("--adapter", type=Path, default=MINI)
    parser.add_argument("--model", type=Path, default=MINI)
    parser.add_argument("--questions", type=int, default=400, help="of each world")
    parser.add_argument("--side", type=int, default=512, help="px")
    parser.add_argument("--worlds", nargs="+", default=WORLDS, choices=WORLDS)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further world after this time")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    if not os.environ.get(PACK):
        parser.error(f"set {PACK} to a pack made by studies.wide.collect: held-out fonts are drawn with it")
    started = time.monotonic()
    dtype = torch.bfloat16 if torch.device(a.device).type == "cuda" else torch.float32
    answerer = load_answerer(a.model, a.device, dtype)
    config, layer = load_fitting(a.adapter, answerer.model)
    chooser = Chooser(answerer.model, answerer.turns, layer)
    fixed = mean_policy(chooser, a.questions, a.side)
    report: dict[str, Any] = {
        "sight": config.sight,
        "texture_channels": config.texture_channels,
        "parameters": sum(p.numel() for p in layer.parameters()),
        "side": a.side,
        "mean_exponents": dict(zip(SCORERS, fixed[0], strict=True)),
        "mean_tensions": fixed[1],
        "worlds": {},
    }
    for world in a.worlds:
        if time.monotonic() - started > a.seconds:
            break
        found = report["worlds"][world] = measure(chooser, world, a.questions, a.side, fixed)
        for name, values in found["recall"].items():
            shown = " ".join(f"{values[str(keep)]['mean']:.3f}" for keep in KEEPS)
            print(f"{world:14s} {name:26s} {shown}", flush=True)
        chooser = Chooser(answerer.model, answerer.turns, layer)  # what was seen of this world is done with
        write_json(a.out, report, indent=1)


if __name__ == "__main__":
    main()
