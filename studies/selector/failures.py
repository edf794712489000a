"""Where selectors are known to fail: quiet text beside loud colour, images without structure, misleading saliency.

The pictures that try to mislead them are made here: bright corners in scenes, and images without any structure.

H W grid of cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw

from arr_coc.config import Keep
from arr_coc.evaluation.statistics import Clustered, Figure, difference_of, mean_of
from arr_coc_scenes import COLOURS, draw_scene
from arr_coc_scenes.making import lay_scene
from arr_coc_scenes.types import Box, Mark, gap_between
from studies.asked import Asked
from studies.cells import CELL, box_cells
from studies.selector.measures import Part
from studies.selector.study import Study, recalls

GREY_SCENES = 500
GREY_KEEPS: tuple[Keep, ...] = (0.06, 0.1, 0.25, "auto")
GREY_SEEDS = 5_000_000  # apart from the scenes of the other measures
UNSTRUCTURED_IMAGES = 200
UNSTRUCTURED_KEEP = 0.25  # fraction KEPT
BLOCK = 4  # cells a side of the largest hole that coverage may leave, plus one
AT_ONCE = 8  # images
CORNER_KEEPS: tuple[Keep, ...] = (0.1, 0.25)  # fractions KEPT
LOUD = ("red", "orange", "yellow", "green", "blue", "purple", "pink")
CORNER = (56, 40)  # px: width and height of a bright plate
MARGIN = 8  # px between a plate and the edge, and the least to anything else
UNSTRUCTURED = ("noise", "grain", "blocks", "splatter")


# ---------------------------------------------------------------- grey text beside something loud


@dataclass(frozen=True, slots=True)
class Beside:
    """The cells of a grey text, and of the loud boxes of its scene without those that the text is in too."""

    text: frozenset[int]
    nearest: frozenset[int]  # the coloured plate nearest to the text; any bright box where there is no plate
    loud: tuple[frozenset[int], ...]  # every plate and thing


def grey_scene(seed: int, px: int) -> tuple[Asked, Beside]:
    """A scene with a grey text and bright signs and things, asked for the text."""
    scene, draft = lay_scene(seed, "seen", (px, px), families=("grey_text",))
    question = scene.questions[0]
    height, width = px // CELL, px // CELL
    text = frozenset(box_cells(question.evidence[0], height, width))
    boxes = sorted([s.box for s in draft.signs] or draft.loud, key=lambda box: gap_between(box, question.evidence[0]))
    nearest, *loud = (frozenset(box_cells(box, height, width)) - text for box in [boxes[0], *draft.loud])
    return Asked(scene, draw_scene(scene), (question,)), Beside(text, nearest, tuple(loud))


def twice(text: int, box: int) -> bool:
    """Whether the text has tokens, and at least twice as many as the box."""
    return text > 0 and text >= 2 * box


def grey_text(study: Study, px: int) -> Part:
    """Share of scenes with at least twice as many tokens on the grey text as on the loud box beside it.

    Tokens on a box are the kept cells that it touches. `share` is about the plate nearest to the text,
    `share_of_every_box` about whichever bright box of the scene has most, `share_by_density` about the nearest plate
    with the part kept of each box's cells in place of their number, so that large boxes do not count for more.
    """
    made = [grey_scene(GREY_SEEDS + number, px) for number in range(study.some(GREY_SCENES))]
    report: Part = {"tokens_on_a_box": "kept cells that it touches"}
    for keep, chosen in study.chooser.over([asked for asked, _ in made], GREY_KEEPS).items():
        rows = []
        for one, (_, beside) in zip(chosen, made, strict=True):
            kept = set(one.cells)
            text, nearest = len(kept & beside.text), len(kept & beside.nearest)
            most = max(len(kept & box) for box in beside.loud)
            dense = text / len(beside.text), nearest / max(1, len(beside.nearest))
            rows.append(
                (text, nearest, twice(text, nearest), twice(text, most), dense[0] > 0 and dense[0] >= 2 * dense[1])
            )
        names = ("tokens_on_text", "tokens_on_nearest", "share", "share_of_every_box", "share_by_density")
        report[str(keep)] = {
            name: mean_of(Clustered.of(enumerate(column)))
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }
        report[str(keep)]["recall"] = mean_of(recalls(chosen))
    return report


# ---------------------------------------------------------------- images without structure


def empty_block(kept_HW: np.ndarray, size: int = BLOCK, step: int = 1) -> bool:
    """Whether some square of `size` x `size` cells holds no kept cell; `step` 1: any square, `size`: tiles."""
    windows = np.lib.stride_tricks.sliding_window_view(kept_HW, (size, size))[::step, ::step]
    return bool((~windows.any((2, 3))).any())


def no_structure(study: Study, px: int) -> Part:
    """Share of images of noise and splatter that are covered evenly at 25 %: no 4 x 4 cells without a kept one.

    `covered` looks at every square of 4 x 4 cells, wherever it starts; `tiles_covered` at those of a fixed tiling.
    """
    texts = [question.text for asked in study.asked(px) for question in asked.questions]
    per_kind = -(-study.some(UNSTRUCTURED_IMAGES) // len(UNSTRUCTURED))
    found: dict[str, list[tuple[bool, bool]]] = {}
    for kind in UNSTRUCTURED:
        images = [unstructured(kind, px, seed) for seed in range(per_kind)]
        found[kind] = []
        for start in range(0, per_kind, AT_ONCE):
            part = images[start : start + AT_ONCE]
            asked = [(place, texts[(start + place) % len(texts)]) for place in range(len(part))]
            kept = study.chooser.choose(study.chooser.judge(part, asked), UNSTRUCTURED_KEEP).cpu().numpy()
            grids = kept.reshape(len(part), px // CELL, px // CELL)
            found[kind] += [(not empty_block(grid), not empty_block(grid, step=BLOCK)) for grid in grids]
    return {"keep": UNSTRUCTURED_KEEP, **_covered([c for kind in UNSTRUCTURED for c in found[kind]])} | {
        "kinds": {kind: _covered(rows) for kind, rows in found.items()}
    }


def _covered(rows: Sequence[tuple[bool, bool]]) -> dict[str, Figure]:
    names = ("covered", "tiles_covered")
    return {name: mean_of(Clustered.of(enumerate(row[n] for row in rows))) for n, name in enumerate(names)}


# ---------------------------------------------------------------- misleading saliency


def corners(study: Study, px: int) -> Part:
    """Recall of the evidence before and after bright plates were drawn into every corner of scenes with room."""
    pairs = corner_pairs(study.asked(px), study.seed)
    if not pairs:
        return {"scenes": 0}
    before, after = (study.chooser.over([pair[n] for pair in pairs], CORNER_KEEPS) for n in (0, 1))
    return {"scenes": len(pairs)} | {
        str(keep): {
            "recall_before": mean_of(recalls(before[keep])),
            "recall_after": mean_of(recalls(after[keep])),
            "fall": difference_of(recalls(before[keep]), recalls(after[keep])),
        }
        for keep in CORNER_KEEPS
    }


def failures(study: Study, px: int) -> Part:
    """All three, under one key."""
    report: Part = {}
    for name, measure in (("grey_text", grey_text), ("no_structure", no_structure), ("corners", corners)):
        with study.told(f"{name} at {px} px"):
            report[name] = measure(study, px)
    return {"failures": report}


# ---------------------------------------------------------------- pictures that mislead


def corner_boxes(width: int, height: int) -> tuple[Box, ...]:
    """Where the four plates of an image of that size stand."""
    left, right = (MARGIN, MARGIN + CORNER[0]), (width - MARGIN - CORNER[0], width - MARGIN)
    top, bottom = (MARGIN, MARGIN + CORNER[1]), (height - MARGIN - CORNER[1], height - MARGIN)
    return tuple((x[0], y[0], x[1], y[1]) for y in (top, bottom) for x in (left, right))


def with_corners(asked: Asked, seed: int) -> Asked | None:
    """The scene with a bright plate in every corner; None where something stands there, or no colour is free.

    The plates have colours that nothing in the scene has and no question names, and no text, so that every question
    keeps its answer and its evidence.
    """
    scene = asked.scene
    boxes = corner_boxes(scene.width, scene.height)
    taken = [element.box for element in scene.elements] + [mark.box for mark in scene.marks]
    if any(gap_between(corner, box) < MARGIN for corner in boxes for box in taken):
        return None
    said = " ".join(question.text for question in asked.questions).split()
    worn = {element.colour for element in scene.elements} | {word.strip(".,?") for word in said}
    free = [colour for colour in LOUD if colour not in worn]
    if not free:
        return None
    rng = np.random.default_rng([seed, scene.seed])
    plates = tuple(Mark("rect", box, COLOURS[free[int(rng.integers(len(free)))]]) for box in boxes)
    louder = replace(scene, marks=(*scene.marks, *plates))
    return replace(asked, scene=louder, image=draw_scene(louder))


def corner_pairs(asked: Sequence[Asked], seed: int) -> list[tuple[Asked, Asked]]:
    """(scene, the same with bright corners) for all scenes that have room for them."""
    changed = [(one, with_corners(one, seed)) for one in asked]
    return [(before, after) for before, after in changed if after is not None]


def unstructured(kind: str, px: int, seed: int) -> np.ndarray:
    """An image uint8 `[px, px, 3]` with nothing in it: noise of each pixel, of grey grain, of blocks, or splatter."""
    rng = np.random.default_rng([UNSTRUCTURED.index(kind), seed])
    if kind == "noise":
        return rng.integers(0, 256, (px, px, 3), dtype=np.uint8)
    if kind == "grain":
        grey = rng.normal(rng.uniform(70, 185), rng.uniform(15, 45), (px, px, 1)).clip(0, 255)
        return np.repeat(grey.astype(np.uint8), 3, axis=2)
    if kind == "blocks":
        return rng.integers(0, 256, (px // 8, px // 8, 3), dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    return _splatter(px, rng)


def _splatter(px: int, rng: np.random.Generator) -> np.ndarray:
    """Drops of paint everywhere: many small, few large, in any colour."""
    image = Image.new("RGB", (px, px), tuple(rng.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    count = px * px // 400
    radii = (2 * rng.pareto(2.0, count) + 2).clip(max=px / 16)
    for radius, (x, y), ink in zip(
        radii.tolist(), rng.uniform(0, px, (count, 2)).tolist(), rng.integers(0, 256, (count, 3)).tolist(), strict=True
    ):
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=tuple(ink))
    return np.asarray(image)
