"""One adapter against others: plain scenes and hard variants, and adapters that were trained in other ways."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arr_coc.config import ARRCOCConfig, Keep
from arr_coc.evaluation.statistics import Clustered, difference_of, mean_of
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.storage import has_adapter, load_adapter
from studies.outcomes import Outcome
from studies.selector.measures import Part, of_full, recall_of
from studies.selector.selection import Chosen
from studies.selector.study import Study, recalls, scores

LEVELS = ("plain", "hard")
COMPARED_KEEPS: tuple[Keep, ...] = (0.1, 0.25)  # fractions KEPT


def load_fitting(folder: Path, model: Any) -> tuple[ARRCOCConfig, ARRCOCLayer]:
    """The adapter in a folder, if it fits the model."""
    if not has_adapter(folder):
        raise ValueError(f"{folder} holds no adapter: train one with `arr-coc train selector`, or give another folder")
    config, layer = load_adapter(folder)
    text, vision = model.config.text_config.hidden_size, model.config.vision_config.hidden_size
    if config.hidden_dim != text or (config.glance_dim and config.glance_dim != vision):
        raise ValueError(
            f"{folder}: an adapter for widths {config.hidden_dim} and {config.glance_dim}, the model has {text} and "
            f"{vision}; give the model that it was trained for"
        )
    return config, layer


def hard(study: Study, px: int) -> Part:
    """Recall and sparse accuracy at 10 and 25 %, of plain scenes and of hard variants."""
    chosen = {keep: study.chosen(px)[keep] for keep in COMPARED_KEEPS}
    found = study.answers(px, {str(keep): (listed, "sparse") for keep, listed in chosen.items()})
    return {
        "difficulties": {
            level: {
                str(keep): {"recall": mean_of(recall), "accuracy": mean_of(accuracy)}
                for keep, (recall, accuracy) in _of_level(chosen, found, level).items()
            }
            for level in LEVELS
        }
    }


def _of_level(
    chosen: Mapping[Keep, Sequence[Chosen]], found: Mapping[str, Sequence[Outcome]], level: str
) -> dict[Keep, tuple[Clustered, Clustered]]:
    """Recall and accuracy at each dial, of the scenes of one difficulty."""
    return {
        keep: (
            recalls([one for one in listed if one.difficulty == level]),
            scores([one for one in found[str(keep)] if one.difficulty == level]),
        )
        for keep, listed in chosen.items()
    }


def against(study: Study, px: int, folder: Path) -> Part:
    """How much more this adapter reaches than the one in `folder`, on plain scenes and on hard variants."""
    _, layer = load_fitting(folder, study.answerer.model)
    ours = {keep: study.chosen(px)[keep] for keep in COMPARED_KEEPS}
    theirs = study.chooser_of(layer).over(study.asked(px), COMPARED_KEEPS)
    ways = {f"{who} {keep}": (c[keep], "sparse") for who, c in (("our", ours), ("their", theirs)) for keep in c}
    found = study.answers(px, ways)
    report: Part = {}
    for level in LEVELS:
        mine, other = (
            _of_level(chosen, {str(keep): found[f"{who} {keep}"] for keep in COMPARED_KEEPS}, level)
            for who, chosen in (("our", ours), ("their", theirs))
        )
        report[level] = {
            str(keep): {
                "recall_gain": difference_of(mine[keep][0], other[keep][0]),
                "accuracy_gain": difference_of(mine[keep][1], other[keep][1]),
                "their_recall": mean_of(other[keep][0]),
                "their_accuracy": mean_of(other[keep][1]),
            }
            for keep in COMPARED_KEEPS
        }
    return {"against": report}


def others(study: Study, px: int, folders: Mapping[str, Path]) -> Part:
    """Recall, sparse accuracy at 10 % and size of adapters by name: other sights, strategies, targets."""
    report: Part = {}
    for name, folder in folders.items():
        config, layer = load_fitting(folder, study.answerer.model)
        with study.told(f"choose with {name} at {px} px"):
            chosen = study.chooser_of(layer).over(study.asked(px), [0.06, *COMPARED_KEEPS, "auto"])
        found = study.answers(px, {name: (chosen[0.1], "sparse")})[name]
        report[name] = {
            "sight": config.sight,
            "parameters": sum(parameter.numel() for parameter in layer.parameters()),
            **recall_of(chosen, [0.06, *COMPARED_KEEPS]),
            "sparse_0.1": of_full(found, study.full(px)),
            "auto_mean_keep": mean_of(Clustered.of((one.image, one.share) for one in chosen["auto"])),
        }
    return {"others": report}
