"""Whether the choice is steady: a camera that pans over a page, cuts between scenes, and a stream of 2,000 frames.

    python -m studies.video.steadiness --pans 50 --cuts 100 --frames 2000 --out results/video.json

What is held at a moment are the cells that were kept of it, and those that were kept before and have not changed since,
wherever they moved: what was told once is not told again. Distances are in cells of 32 px, on the page that is filmed.
Whether an answer flips is asked with all tokens too: what mini reads otherwise of a longer clip, no choice can steady.
"""

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.config import FINE, Timing
from arr_coc.evaluation.bench.measure import resident
from arr_coc.images.clips import Clip
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.moving import carry, follow, samples_of
from arr_coc.qwen.watching import FIRM
from arr_coc_scenes import draw_scene, make_scene
from studies.cells import CELL, boxes_cells
from studies.mini.views import Form
from studies.video.study import drawn, save
from studies.wide.clips import make_clip
from studies.wide.evaluate_views import FIRST_SEED

SIDE, STEP, FRAMES = 256, 4, 30  # px of a frame, px that the camera goes a frame, frames of a pan
TITLE = "What is the title?"
KEEP = 0.25
NEW = 0.5  # of a cell that is new: what was held of it is no longer
WATCHED = 8  # pairs of frames that a watcher of a pan holds: as many as mini sees at their full size
FIRMNESS = (("_anew", 1.0), ("", FIRM))
CHANGING = ("count", "moves", "often", "comes or goes", "order", "exists", "direction", "moving sign")
HELD = 0.5  # of a cell's samples, from which the cell is held


def held_sets(clip: Clip, choices: list[ImageSelection]) -> list[set[int]]:
    """What is held at each moment, as cells of that moment."""
    frames = clip.frames_T3hw.unflatten(0, (-1, 2)).float() / 255
    grid = choices[0].grid
    motion = follow(samples_of(frames, grid), Timing())
    held_Ns = np.zeros((grid[0] * grid[1], FINE**2), np.float32)
    new_TN1, found = motion.new_THW.flatten(1).unsqueeze(-1).numpy(), []
    for t, (choice, traced) in enumerate(zip(choices, motion.traced(), strict=True)):
        carry(held_Ns, traced)
        held_Ns *= new_TN1[t] < NEW
        held_Ns[choice.kept.numpy()] = 1
        found.append(set((held_Ns.mean(1) >= HELD).nonzero()[0].tolist()))
    return found


def overlaps_of(held: list[set[int]]) -> list[float]:
    """Of what is held in neighbouring moments, in place: the share of all that both hold."""
    return [len(a & b) / max(1, len(a | b)) for a, b in itertools.pairwise(held)]


def pan(number: int) -> tuple[Clip, list[int], str] | None:
    """A camera goes down a page whose title stays in view; how far it is, in px, at each moment; and the title."""
    scene = make_scene(FIRST_SEED + number, "seen", size=(512, 512), families=("title",))
    titles = [question for question in scene.questions if "title" in question.text.lower()]
    if not titles:
        return None
    left, top, right, bottom = titles[0].evidence[0]
    if right - left > SIDE - 16 or bottom - top > SIDE - STEP * FRAMES - 16:
        return None
    x = int(min(max(0, (left + right - SIDE) / 2), 512 - SIDE))
    start = int(min(max(0, bottom + 8 - SIDE), 512 - SIDE - STEP * FRAMES))
    places = [start + STEP * n for n in range(FRAMES)]
    if not (places[-1] <= top and bottom <= places[0] + SIDE):
        return None
    page = torch.from_numpy(np.ascontiguousarray(draw_scene(scene))).permute(2, 0, 1)
    frames = torch.stack([page[:, y : y + SIDE, x : x + SIDE] for y in places])
    return Clip(frames, tuple(n / 2 for n in range(FRAMES))), places[::2], titles[0].answer


@torch.no_grad()
def pans(model: ARRCOCQwen, wanted: int) -> dict[str, Any]:
    variances, overlaps, flips, found, number = [], [], list[tuple[bool, bool]](), 0, 0
    while found < wanted and number < 40 * wanted:
        made, number = pan(number), number + 1
        if made is None:
            continue
        found += 1
        clip, places, _ = made
        choices = model.choose(None, TITLE, keep=KEEP, video=clip)
        held = held_sets(clip, choices)
        width = choices[0].grid[1]
        middles = []
        for cells, down in zip(held, places, strict=True):
            rows_columns = np.array([divmod(cell, width) for cell in cells or {0}], dtype=float)
            middles.append(rows_columns.mean(0) + np.array([down / CELL, 0]))
        variances.append(float(np.var(middles, axis=0).mean()))
        overlaps += overlaps_of(held)
        parts = [Clip(clip.frames_T3hw[:end], clip.seconds[:end]) for end in (10, 20, FRAMES)]
        ours, whole = (
            {model.ask(question=TITLE, video=part, keep=keep, max_new_tokens=16).text for part in parts}
            for keep in (KEEP, 1.0)
        )
        flips.append((len(ours) > 1, len(whole) > 1))
    return {
        "clips": found,
        "position_variance": float(np.mean(variances)),
        "overlap": float(np.mean(overlaps)),
        "clips_whose_answer_flips": sum(ours for ours, _ in flips),
        "flips_with_all_tokens": sum(whole for _, whole in flips),
        "flips_of_the_choice_alone": sum(ours and not whole for ours, whole in flips),
    }


def answers_of(model: ARRCOCQwen, clip: Clip, question: str, keep: float, window: int, firm: float) -> list[str]:
    """What a watcher answers while a clip goes by: after its first pair of frames, and after every second one then."""
    watcher, found = model.watch(question, keep=keep, window=window, firm=firm), []
    for frame, seconds in zip(clip.frames_T3hw, clip.seconds, strict=True):
        if watcher.see(frame.permute(1, 2, 0).numpy(), seconds) is not None and watcher.frames % 4 == 2:
            found.append(watcher.answer(max_new_tokens=24).text.strip())
    return found


@torch.no_grad()
def watched_pans(model: ARRCOCQwen, wanted: int) -> dict[str, Any]:
    """How often the answer of a watcher changes while a camera pans and the title stays in view, and is right."""
    made = list(itertools.islice(filter(None, map(pan, itertools.count())), wanted))
    ways = {f"{name}{how}": (keep, firm) for name, keep in (("ours", KEEP), ("all", 1.0)) for how, firm in FIRMNESS}
    found: dict[str, Any] = {"clips": len(made), "window": WATCHED}
    for name, (keep, firm) in ways.items():
        told = [answers_of(model, clip, TITLE, keep, WATCHED, firm) for clip, _, _ in made]
        changes = [sum(a != b for a, b in itertools.pairwise(one)) for one in told]
        right = np.array([[text == title for text in one] for one, (_, _, title) in zip(told, made, strict=True)])
        found[name] = {
            "clips_whose_answer_flips": sum(map(bool, changes)),
            "changes": sum(changes),
            "right_at_the_end": int(right[:, -1].sum()),
            "right": float(right.mean()),
        }
    return found


@torch.no_grad()
def true_changes(model: ARRCOCQwen, questions: int) -> dict[str, Any]:
    """Where the answer is another at the start of a clip and right at its end, made anew: does one that stands come?"""
    asked = [one for one in drawn(questions) if one.question.family in CHANGING]
    right = [one.question.answer.strip() for one in asked]
    anew, firmly = (
        [
            answers_of(model, one.clip, one.question.text, KEEP, max(2, one.shown.form.frames // 2), firm)
            for one in asked
        ]
        for _, firm in FIRMNESS
    )
    changed = [n for n, texts in enumerate(anew) if texts[-1] == right[n] and set(texts) != {right[n]}]
    ends = {
        how: [texts[-1] == answer for texts, answer in zip(told, right, strict=True)]
        for how, told in (("anew", anew), ("firmly", firmly))
    }
    return {
        "questions": len(asked),
        "right": {how: sum(end) for how, end in ends.items()},
        "true_changes": len(changed),
        "followed": sum(ends["firmly"][n] for n in changed),
    }


@torch.no_grad()
def still_overlap(model: ARRCOCQwen, wanted: int) -> float:
    """Overlap of what is held in neighbouring moments of a scene in which nothing moves."""
    found = []
    for number in range(wanted):
        picture = make_clip(FIRST_SEED + 700_000 + number, "seen", Form(((SIDE, SIDE),), 4)).pictures[0]
        frames = torch.from_numpy(picture).permute(2, 0, 1).repeat(16, 1, 1, 1)
        clip = Clip(frames, tuple(n / 2 for n in range(16)))
        held = held_sets(clip, model.choose(None, "What is there?", keep=KEEP, video=clip))
        found += overlaps_of(held)
    return float(np.mean(found))


@torch.no_grad()
def cuts(model: ARRCOCQwen, wanted: int) -> dict[str, Any]:
    """Two clips one after the other, a question about the second: is its evidence kept in the moment after the cut?"""
    form, number, told = Form(((SIDE, SIDE),), 8), 0, 0
    found: list[bool] = []
    cells: list[float] = []
    while len(found) < wanted:
        first, second = (make_clip(FIRST_SEED + 800_000 + 2 * number + n, "seen", form) for n in range(2))
        number += 1
        able = [q for q in second.questions if q.family in ("colour", "thing", "exists", "sign") and q.evidence]
        able = [q for q in able if {0, 1} <= {frame for frame, _ in q.evidence}]
        if not able:
            continue
        frames = torch.from_numpy(np.stack([*first.pictures, *second.pictures])).permute(0, 3, 1, 2)
        clip = Clip(frames.contiguous(), tuple(n / 2 for n in range(len(frames))))
        choices = model.choose(None, able[0].text, keep=KEEP, video=clip)
        moment, grid = choices[len(first.pictures) // 2], choices[0].grid
        evidence = boxes_cells([box for frame, box in able[0].evidence if frame < 2], *grid)
        kept = set(moment.kept.tolist())
        found.append(bool(evidence & kept))
        cells.append(len(evidence & kept) / len(evidence))
        told += moment.cut
    return {"cuts": wanted, "found": float(np.mean(found)), "cells": float(np.mean(cells)), "marked_as_cuts": told}


def stream(model: ARRCOCQwen, frames: int) -> dict[str, Any]:
    """Memory and CPU time per frame of a stream, a hundred frames at a time."""
    watcher = model.watch("What moves?", keep=KEEP, window=16)
    rng, rows, started = np.random.default_rng(0), [], time.process_time()
    picture = np.full((128, 128, 3), 200, np.uint8)
    for number in range(frames):
        shown = picture.copy()
        x, y = (5 * number) % 96, 32 * (number // 200 % 3)
        shown[y : y + 32, x : x + 32] = (230, 60, 40)
        if number % 300 == 299:
            picture = rng.integers(0, 256, (8, 8, 3), np.uint8).repeat(16, 0).repeat(16, 1)
        watcher.see(shown)
        if number % 100 == 99:
            now = time.process_time()
            rows.append({"frames": number + 1, "ms_per_frame": 10 * (now - started), "resident_mb": resident("VmRSS")})
            started = now
    return {"window": watcher.window, "held": len(watcher.held), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pans", type=int, default=50)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--still", type=int, default=20)
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--watched", type=int, default=50, help="pans with a watcher")
    parser.add_argument("--changing", type=int, default=100, help="questions about clips with a watcher")
    parser.add_argument("--out", type=Path, default=Path("results/video.json"))
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    model = ARRCOCQwen.from_pretrained("mini", break_even=0)
    if wanted.cuts:
        save(wanted.out, {"cuts": cuts(model, wanted.cuts)})
    if wanted.still:
        save(wanted.out, {"still_overlap": still_overlap(model, wanted.still)})
    if wanted.pans:
        save(wanted.out, {"pans": pans(model, wanted.pans)})
    if wanted.watched:
        save(wanted.out, {"watching": watched_pans(model, wanted.watched) | true_changes(model, wanted.changing)})
    if wanted.frames:
        save(wanted.out, {"stream": stream(model, wanted.frames)})


if __name__ == "__main__":
    main()
