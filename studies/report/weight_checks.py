"""Promises about the choice itself: how well it overlaps with the right boxes, and what it adds to the model."""

import json
from pathlib import Path

from studies.report.checks import Check, judge, not_yet
from studies.report.sources import SELECTOR, Results

SOURCE_OVERLAP, OVERLAP = 2.0, 2.5  # times that of others
SOURCE_PARAMETERS, MINI_PARAMETERS, SHAPE_PARAMETERS = 100_000, 500_000, 1_000_000
MOST_OF_WEIGHTS = 0.05
SHAPE = "qwen3-vl-2b"
ADAPTER_BYTES = 4  # a selector is held in float32, whatever the model is
MODEL_BYTES = {"float32": 4, "bfloat16": 2}


def overlap(results: Results) -> tuple[list[Check], list[Check]]:
    """Intersection over union of 64 chosen cells with the boxes at 1024 px; recall at 6 % stands beside it."""
    asked = "overlap with the right boxes x2 over the untrained"
    source = [_times(results, asked, SOURCE_OVERLAP, "over_untrained", "the untrained")]
    ours = [
        _times(results, f"overlap x2.5 over {name}", OVERLAP, key, name)
        for key, name in (("over_untrained", "the untrained"), ("over_random", "random"))
    ]
    recall = results.at(SELECTOR, "recall_above", "0.06", "over_untrained", "mean")
    if recall is not None:
        figure = f"x{recall:.2f} over the untrained in evidence found with 6 % of the tokens, 512 px"
        source.append(judge(f"{asked}, by recall", recall >= SOURCE_OVERLAP, figure, SELECTOR))
        ours.append(judge("x2.5 over the untrained, by recall", recall >= OVERLAP, figure, SELECTOR))
    return source, ours


def _times(results: Results, asked: str, wanted: float, key: str, name: str) -> Check:
    where = ("px1024", "iou_64")
    times = results.at(SELECTOR, *where, key, "mean")
    if times is None:
        return not_yet(asked, SELECTOR)
    mine, most = (results.at(SELECTOR, *where, part, "mean") for part in ("trained", "ceiling"))
    low, high = results.at(SELECTOR, *where, key, "ci95") or (times, times)
    figure = f"x{times:.2f} ({low:.2f} to {high:.2f}) over {name}, IoU of 64 cells at 1024 px"
    if mine is not None and most is not None:
        figure += f"; IoU {mine:.3f}, at most {most:.3f} with 64 cells"
    return judge(asked, times >= wanted, figure, SELECTOR)


def added_parameters(results: Results) -> tuple[list[Check], list[Check]]:
    """Parameters of the selector: mini's as its results say, those at the 2B shape counted from the layer."""
    count = results.at(SELECTOR, "runs", "recall", "parameters")
    asked, ours = "about 50 k to 100 k parameters", "at most 0.5 M parameters on mini"
    if count is None:
        source, mine = [not_yet(asked, SELECTOR)], [not_yet(ours, SELECTOR)]
    else:
        source = [judge(asked, count <= SOURCE_PARAMETERS, f"{count:,} on mini", SELECTOR)]
        mine = [judge(ours, count <= MINI_PARAMETERS, f"{count:,}", SELECTOR)]
    at_shape, weights = shape_parameters()
    figure = f"{at_shape:,}, counted from the layer"
    mine.append(judge("at most 1 M parameters at the 2B shape", at_shape <= SHAPE_PARAMETERS, figure, ""))
    return source, [*mine, *share_of_weights(count, at_shape, weights)]


def share_of_weights(count: int | None, at_shape: int, weights: int) -> list[Check]:
    """At most 5 % of the memory that the model's weights take."""
    asked = "at most 5 % of the model's memory"
    checks = []
    if count is not None:
        size = mini_parameters()
        for dtype, width in MODEL_BYTES.items():
            share = count * ADAPTER_BYTES / (size * width)
            figure = f"{100 * share:.1f} % of mini's weights in {dtype}"
            checks.append(judge(asked, share <= MOST_OF_WEIGHTS, figure, SELECTOR))
    share = at_shape * ADAPTER_BYTES / (weights * MODEL_BYTES["bfloat16"])
    checks.append(
        judge(asked, share <= MOST_OF_WEIGHTS, f"{100 * share:.2f} % of the 2B shape's weights in bfloat16", "")
    )
    return checks


def mini_parameters() -> int:
    """Of the model that is shipped, from the index of its files, which hold two bytes for each."""
    from arr_coc.qwen.loading import resolve

    index = json.loads((Path(resolve("mini")) / "model.safetensors.index.json").read_text())
    return int(index["metadata"]["total_size"]) // 2


def shape_parameters() -> tuple[int, int]:
    """Parameters of a selector that looks at the shape of Qwen3-VL-2B, and those of the model itself."""
    from arr_coc.config import ARRCOCConfig
    from arr_coc.layer import ARRCOCLayer
    from arr_coc.qwen.shapes import count_parts, shape_config, sight_dims

    shape = shape_config(SHAPE)
    config = ARRCOCConfig(**sight_dims(shape, "look"), sight="look", texture_channels=40)
    layer = ARRCOCLayer.from_config(config)
    return sum(p.numel() for p in layer.parameters()), sum(count_parts(shape).values())
