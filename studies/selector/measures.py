"""Recall, accuracy and automatic budgets of a selector: the figures that it is judged by.

Recall is |kept and evidence| / min(K, |evidence|); questions without evidence are left out. Accuracy is given as a
fraction of the accuracy that the same questions reach when every cell is seen. Every fraction of tokens is one KEPT.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from arr_coc.config import Keep
from arr_coc.evaluation.statistics import Clustered, Figure, compared, mean_of
from arr_coc.layer import ARRCOCLayer
from studies.outcomes import Outcome
from studies.selector.selection import Chosen
from studies.selector.study import KEEPS, RANDOM_KEEPS, Study, recalls, scores

UNTRAINED_SEEDS = (1, 2, 3)
CONTROL_KEEP = 0.06  # fraction KEPT where untrained layers are compared
IOU_CELLS = 64  # cells chosen in the test of overlap with boxes
Part = dict[str, Any]


def ratio_of(a: Clustered, b: Clustered) -> Figure:
    """Mean of `a` over mean of `b`."""
    return compared(a, b, np.divide)


def families(items: Sequence[Any], value: Callable[[Any], float]) -> dict[str, Figure]:
    """mean, ci95 and n of a value of each item, by the item's family."""
    names = sorted({item.family for item in items})
    return {
        name: mean_of(Clustered.of((item.image, value(item)) for item in items if item.family == name))
        for name in names
    }


def recall_of(chosen: Mapping[Keep, Sequence[Chosen]], keeps: Sequence[Keep] = KEEPS) -> Part:
    """`recall.<keep>` over localised families, and beside it intervals, families, and all that have evidence."""
    figures = {str(keep): mean_of(recalls(chosen[keep])) for keep in keeps}
    return {
        "recall": {keep: figure["mean"] for keep, figure in figures.items()},
        "recall_detail": figures,
        "recall_everywhere": {str(keep): mean_of(recalls(chosen[keep], localised=False)) for keep in keeps},
        "recall_families": {
            str(keep): families([one for one in chosen[keep] if one.evidence], lambda one: one.recall) for keep in keeps
        },
    }


@dataclass(frozen=True, slots=True)
class Controls:
    """What is kept for the same questions by the trained layer, by untrained ones of its config, and by chance."""

    trained: Sequence[Chosen]
    untrained: list[list[Chosen]]  # one list per seed
    random: Sequence[Chosen]

    def compare(self, measure: Callable[[Sequence[Chosen]], Clustered]) -> Part:
        """A measure of each, and how many times it is higher for the trained layer."""
        trained, chance = measure(self.trained), measure(self.random)
        seeds = [measure(chosen) for chosen in self.untrained]
        pooled = measure([one for chosen in self.untrained for one in chosen])
        return {
            "trained": mean_of(trained),
            "untrained": mean_of(pooled) | {"seeds": [round(sample.mean, 4) for sample in seeds]},
            "random": mean_of(chance),
            "over_untrained": ratio_of(trained, pooled),
            "over_random": ratio_of(trained, chance),
        }


def controls(study: Study, px: int, keep: Keep) -> Controls:
    """Choices at one dial."""
    asked, found = study.asked(px), []
    trained = study.chosen(px).get(keep) or study.chooser.over(asked, [keep])[keep]
    for seed in UNTRAINED_SEEDS:
        # Built on the CPU whatever the device, so that the same seed is the same layer everywhere.
        with torch.random.fork_rng(devices=[]), study.told(f"choose untrained, seed {seed}, at {px} px"):
            torch.manual_seed(seed)
            chooser = study.chooser_of(ARRCOCLayer.from_config(study.config))
            found.append(chooser.over(asked, [keep])[keep])
    return Controls(trained, found, study.random(px, keep))


def recall(study: Study, px: int) -> Part:
    """Recall at every dial, that of chance, and at 6 % how far it is above untrained layers."""
    chance = {str(keep): mean_of(recalls(study.random(px, keep))) for keep in RANDOM_KEEPS}
    return recall_of(study.chosen(px)) | {
        "random_recall": chance,
        "recall_above": {str(CONTROL_KEEP): controls(study, px, CONTROL_KEEP).compare(recalls)},
    }


def overlap(study: Study, px: int) -> Part:
    """IoU of 64 chosen cells with the cells of the boxes, on localised families and on all with evidence.

    A box is rarely 64 cells large, so even the best choice stays far below 1: `ceiling` says where.
    """
    found = controls(study, px, IOU_CELLS)
    report = {}
    for name, localised in (("iou_64", True), ("iou_64_everywhere", False)):
        fitting = [one for one in found.trained if (one.localised if localised else one.evidence)]
        ceiling = mean_of(Clustered.of((one.image, _best_iou(one)) for one in fitting))
        report[name] = found.compare(_ious_of(localised)) | {"ceiling": ceiling}
    return report


def _ious_of(localised: bool) -> Callable[[Sequence[Chosen]], Clustered]:
    """IoU of every question with evidence; of localised families alone, or of all."""
    return lambda chosen: Clustered.of(
        (one.image, one.iou) for one in chosen if (one.localised if localised else one.evidence)
    )


def _best_iou(one: Chosen) -> float:
    """The IoU of as many cells, were they chosen best."""
    fewer, more = sorted((len(one.cells), len(one.evidence)))
    return fewer / more


def of_full(found: Sequence[Outcome], full: Sequence[Outcome]) -> Part:
    """Accuracy as a fraction of the full one, of all and of localised families, and the plain accuracy."""
    local = ratio_of(scores(found, localised=True), scores(full, localised=True))
    return {
        "fraction": ratio_of(scores(found), scores(full)),
        "localised_fraction": local,
        "accuracy": mean_of(scores(found)),
        "localised_accuracy": mean_of(scores(found, localised=True)),
        "families": families(found, lambda one: one.score),
    }


def accuracy(study: Study, px: int) -> Part:
    """`dense`, `sparse`, `random_dense` and `random_sparse` by the fraction kept, and details of each."""
    chosen = study.chosen(px)
    ways = {f"{kind} {keep}": (chosen[keep], kind) for kind in ("dense", "sparse") for keep in KEEPS}
    for keep in RANDOM_KEEPS:
        drawn = study.random(px, keep)
        ways |= {f"random_{kind} {keep}": (drawn, kind) for kind in ("dense", "sparse")}
    found = study.answers(px, ways)
    full = study.full(px)
    report: Part = {
        "full": {
            "accuracy": mean_of(scores(full)),
            "localised_accuracy": mean_of(scores(full, localised=True)),
            "families": families(full, lambda one: one.score),
        }
    }
    for name, outcomes in found.items():
        kind, keep_text = name.split()
        detail = of_full(outcomes, full)
        report.setdefault(kind, {})[keep_text] = detail["fraction"]["mean"]
        report.setdefault(f"{kind}_localised", {})[keep_text] = detail["localised_fraction"]["mean"]
        report.setdefault(f"{kind}_detail", {})[keep_text] = detail
    report["random_gap"] = {
        kind: {str(keep): _gap(found, full, kind, keep) for keep in RANDOM_KEEPS} for kind in ("dense", "sparse")
    }
    return report


def _gap(found: Mapping[str, list[Outcome]], full: Sequence[Outcome], kind: str, keep: Keep) -> Figure:
    """How far chance is below the choice, in fractions of the full accuracy."""
    gap = [
        (one.image, one.score - other.score)
        for one, other in zip(found[f"{kind} {keep}"], found[f"random_{kind} {keep}"], strict=True)
    ]
    return ratio_of(Clustered.of(gap), scores(full))


def auto(study: Study, px: int) -> Part:
    """keep="auto": the fraction of tokens kept, what it costs in accuracy, and who is given how much."""
    chosen = study.chosen(px)["auto"]
    found = study.answers(px, {"auto": (chosen, "sparse")})["auto"]
    kept = mean_of(Clustered.of((one.image, one.share) for one in chosen))
    detail = of_full(found, study.full(px))
    shares = {
        family: Clustered.of((one.image, one.share) for one in chosen if one.family == family)
        for family in ("describe", "colour")
    }
    return {
        "auto": {
            "mean_keep": kept["mean"],
            "fraction": detail["fraction"]["mean"],
            "mean_keep_detail": kept,
            "keep_families": families(chosen, lambda one: one.share),
            "describe_over_colour": ratio_of(shares["describe"], shares["colour"]),
            "recall": mean_of(recalls(chosen)),
            "encoding": "sparse",
            **{f"{name}_detail": value for name, value in detail.items()},
        }
    }
