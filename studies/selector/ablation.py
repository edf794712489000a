"""What each part of a selector is worth: knocked out at inference, and adaptive against fixed weights and tensions.

B rows, C texture channels, G channels of sight, H W grid of cells, S scorers, T tensions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from arr_coc.balancing import UNTRAINED_TENSIONS, product
from arr_coc.config import CHANNEL_SETS, DETAIL, GROUPS, SCORERS, SIGHTS, TENSIONS, ARRCOCConfig, Keep, channel_names
from arr_coc.evaluation.statistics import Clustered, Figure, difference_of, mean_of
from arr_coc.records import Balance, Judgement, TexturePyramid
from arr_coc.texture import detail_spread
from studies.asked import ask_about
from studies.selector.measures import Part
from studies.selector.selection import NOTHING, Alteration, Chosen
from studies.selector.study import Study, recalls, scores

DEFAULT_GROUPS = {
    "colour": range(0, 3),
    "position": range(3, 5),
    "edges": range(5, 8),
    "saliency": range(8, 11),
    "grouping": range(11, 13),
}
"""Places of the 13 channels by what they measure."""
KEEP = 0.1  # fraction KEPT
QUESTIONS = 600  # of the knock-outs, and of the scenes that fixed weights are taken from
BASELINE = "nothing"


# ---------------------------------------------------------------- what can be knocked out


def rebalanced(judgement: Judgement, weights_BS: Tensor, tensions_BT: Tensor) -> Judgement:
    """The same maps under other weights and tensions."""
    scores_BSHW = torch.stack(list(judgement.maps.values()), dim=1)
    return replace(judgement, balance=Balance(product(scores_BSHW, weights_BS), weights_BS, tensions_BT))


def without_scorer(scorer: str) -> Alteration:
    """The exponent of one scorer at 0."""

    def change(judgement: Judgement) -> Judgement:
        weights_BS = judgement.balance.weights_BS.clone()
        weights_BS[:, SCORERS.index(scorer)] = 0
        return rebalanced(judgement, weights_BS, judgement.balance.tensions_BT)

    return Alteration(judgement=change)


def with_tension(tension: str, value: float) -> Alteration:
    """One tension at the same value for every question."""

    def change(judgement: Judgement) -> Judgement:
        tensions_BT = judgement.balance.tensions_BT.clone()
        tensions_BT[:, TENSIONS.index(tension)] = value
        return rebalanced(judgement, judgement.balance.weights_BS, tensions_BT)

    return Alteration(judgement=change)


def fixed_policy(weights: Sequence[float], tensions: Sequence[float]) -> Alteration:
    """The same weights and tensions for every question."""

    def change(judgement: Judgement) -> Judgement:
        like = judgement.balance
        return rebalanced(
            judgement,
            like.weights_BS.new_tensor(weights).expand_as(like.weights_BS),
            like.tensions_BT.new_tensor(tensions).expand_as(like.tensions_BT),
        )

    return Alteration(judgement=change)


def without_textures(channels: Sequence[int]) -> Alteration:
    """Some texture channels at their mean over the image, on every level."""

    def flat(level_BChw: Tensor) -> Tensor:
        level_BChw = level_BChw.clone()
        level_BChw[:, channels] = level_BChw[:, channels].mean((2, 3), keepdim=True)
        return level_BChw

    def change(pyramid: TexturePyramid) -> TexturePyramid:
        fine, middle, cell = flat(pyramid.fine_BChw), flat(pyramid.middle_BChw), flat(pyramid.cell_BCHW)
        detail = next(cell[:, pyramid.names.index(name)] for name in DETAIL if name in pyramid.names)
        return TexturePyramid(fine, middle, cell, pyramid.names, detail_spread(detail))

    return Alteration(textures=change)


def without_sight(first: int, last: int) -> Alteration:
    """Channels `first` up to `last` of what the layer's sight gives, at 0."""

    def change(seen_BGHW: Tensor | None) -> Tensor | None:
        assert seen_BGHW is not None, "a layer without sight has none to lose"
        seen_BGHW = seen_BGHW.clone()
        seen_BGHW[:, first:last] = 0
        return seen_BGHW

    return Alteration(seen=change)


def knock_outs(config: ARRCOCConfig, weights: Sequence[float], tensions: Sequence[float]) -> dict[str, Alteration]:
    """Every knock-out by name; `weights` and `tensions` are the means that stand in for the policy."""
    out = {BASELINE: NOTHING}
    out |= {f"scorer {name}": without_scorer(name) for name in SCORERS}
    for name, untrained in zip(TENSIONS, UNTRAINED_TENSIONS, strict=True):
        out |= {f"tension {name} at {value}": with_tension(name, value) for value in (0.0, untrained)}
    out["policy"] = fixed_policy(weights, tensions)
    groups = texture_groups(config.texture_channels)
    out |= {f"textures {name}": without_textures(list(channels)) for name, channels in groups.items()}
    widths = (config.texture_channels, config.sight_channels, config.glance_channels)
    first = 0
    for name, sight, width in zip(("small textures", "stem", "glance"), SIGHTS[:3], widths, strict=True):
        if SIGHTS.index(config.sight) >= SIGHTS.index(sight):
            out[name] = without_sight(first, first + width)
        first += width
    if config.sight == "look":
        out["look"] = Alteration(light=True)
    return out


def texture_groups(channels: int) -> dict[str, Sequence[int]]:
    """Places of the channels of a set by what they measure, without those that are 0 of a single image."""
    if channels == len(CHANNEL_SETS[13]):
        return dict(DEFAULT_GROUPS)
    names, still = channel_names(channels), ("motion", "temporal", "history", "semantic")
    return {name: [names.index(one) for one in group] for name, group in GROUPS.items() if name not in still}


# ---------------------------------------------------------------- what it costs


def mean_policy(study: Study, px: int) -> tuple[list[float], list[float]]:
    """Mean weights and tensions over questions of the split "val"."""
    asked = ask_about("val", study.some(QUESTIONS), (px, px), study.seed)
    chosen = study.chooser.over(asked, [KEEP])[KEEP]
    weights, tensions = ([one.weights for one in chosen], [one.tensions for one in chosen])
    return torch.tensor(weights).mean(0).tolist(), torch.tensor(tensions).mean(0).tolist()


def ablation(study: Study, px: int) -> Part:
    """Recall and sparse accuracy at 10 %, and the budget and recall of "auto", with each part knocked out."""
    asked = study.first(px, study.some(QUESTIONS))
    found: dict[str, dict[Keep, list[Chosen]]] = {}
    with study.told("choose with parts knocked out"):
        for name, alteration in knock_outs(study.config, *mean_policy(study, px)).items():
            found[name] = study.chooser.over(asked, [KEEP, "auto"], alteration)
    ways = {name: (chosen[KEEP], "sparse") for name, chosen in found.items()}
    accuracy = {name: scores(given) for name, given in study.answers_about(asked, ways).items()}
    recall = {name: recalls(chosen[KEEP]) for name, chosen in found.items()}
    return {
        "ablation": {
            name: {
                f"recall_{KEEP}": mean_of(recall[name]),
                f"recall_{KEEP}_change": difference_of(recall[name], recall[BASELINE]),
                f"sparse_accuracy_{KEEP}": mean_of(accuracy[name]),
                f"sparse_accuracy_{KEEP}_change": difference_of(accuracy[name], accuracy[BASELINE]),
                "auto_mean_keep": mean_of(_shares(chosen["auto"])),
                "auto_recall": mean_of(recalls(chosen["auto"])),
            }
            for name, chosen in found.items()
        }
    }


def _shares(chosen: Sequence[Chosen]) -> Clustered:
    return Clustered.of((one.image, one.share) for one in chosen)


# ---------------------------------------------------------------- adaptive against fixed


def spread_budget(fewer: Sequence[Chosen], more: Sequence[Chosen], mean: float) -> list[Chosen]:
    """Of each question the choice with fewer or with more cells, so that their mean is as near to `mean` as can be."""
    picked: list[Chosen] = []
    held = 0
    for few, many in zip(fewer, more, strict=True):
        owed = mean * (len(picked) + 1) - held
        picked.append(min(few, many, key=lambda one: abs(len(one.cells) - owed)))
        held += len(picked[-1].cells)
    return picked


def adaptive(study: Study, px: int) -> Part:
    """The policy against its own means, fixed: at 10 % kept, and at the mean number of tokens that "auto" keeps."""
    asked, ours = study.asked(px), study.chosen(px)
    weights, tensions = mean_policy(study, px)
    mean = sum(len(one.cells) for one in ours["auto"]) / len(ours["auto"])
    few = max(2, int(mean))
    with study.told("choose with a fixed policy"):
        fixed = study.chooser.over(asked, [KEEP, few, few + 1], fixed_policy(weights, tensions))
    equal = spread_budget(fixed[few], fixed[few + 1], mean)
    pairs = {str(KEEP): (ours[KEEP], fixed[KEEP]), "auto": (ours["auto"], equal)}
    ways = {f"{who} {keep}": (c, "sparse") for keep, pair in pairs.items() for who, c in zip("af", pair, strict=True)}
    found = study.answers(px, ways)

    def compare(measure: Callable[[str, int], Clustered]) -> Mapping[str, Mapping[str, Figure]]:
        return {
            keep: {
                "adaptive": mean_of(measure(keep, 0)),
                "fixed": mean_of(measure(keep, 1)),
                "gain": difference_of(measure(keep, 0), measure(keep, 1)),
            }
            for keep in pairs
        }

    return {
        "adaptive": {
            "fixed_weights": dict(zip(SCORERS, weights, strict=True)),
            "fixed_tensions": dict(zip(TENSIONS, tensions, strict=True)),
            "keep": compare(lambda keep, who: _shares(pairs[keep][who])),
            "recall": compare(lambda keep, who: recalls(pairs[keep][who])),
            "sparse_accuracy": compare(lambda keep, who: scores(found[f"{'af'[who]} {keep}"])),
        }
    }
