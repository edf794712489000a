"""Accuracy on drawn clips: every method at every share of the tokens, paired; short events at equal tokens.

    python -m studies.video.study --questions 250 --out results/video.json

Clips are those of `studies.wide.evaluate_views`, which training never draws: 4 to 32 frames of 128 to 256 px at 2 fps.
Answers are exact matches. Figures are shares of the accuracy with all tokens; p is of a paired sign flip over clips.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.evaluation.statistics import flip_p
from arr_coc.files import write_whole
from arr_coc.images.clips import Clip
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.request import Hints
from studies.mini.views import Form, ShownViews, ViewQuestion
from studies.video.baselines import BLIND, METHODS, method
from studies.wide.clip_questions import TIMED
from studies.wide.clips import make_clip
from studies.wide.evaluate_views import FIRST_SEED, ask_views

KEEPS = (0.25, 0.1, 0.05)
MOTION = (*TIMED, "moves", "often")  # families about order and motion
SHORT = ("often", "comes or goes", "order")  # families whose evidence may lie between sampled frames


@dataclass(frozen=True, slots=True)
class AskedClip:
    """One question about one clip; `number` is the clip's."""

    number: int
    shown: ShownViews
    question: ViewQuestion

    @property
    def clip(self) -> Clip:
        frames = torch.from_numpy(np.stack(self.shown.pictures)).permute(0, 3, 1, 2).contiguous()
        return Clip(frames, tuple(n / self.shown.form.fps for n in range(len(frames))))


def drawn(questions: int, split: str = "seen") -> list[AskedClip]:
    rows = ask_views("clips", (split,), questions)
    return [AskedClip(number, row.shown, one) for number, row in enumerate(rows) for one in row.questions]


def evidence_boxes(asked: AskedClip) -> list[list[tuple[float, float, float, float]]]:
    """The cells that hold the answer, as boxes of each moment."""
    cells, first, found = asked.shown.evidence(asked.question), 0, []
    for height, width in asked.shown.form.grids:
        own = [cell - first for cell in cells if first <= cell < first + height * width]
        places = [divmod(cell, width) for cell in own]
        found.append([(x / width, y / height, (x + 1) / width, (y + 1) / height) for y, x in places])
        first += height * width
    return found


def answered(model: ARRCOCQwen, asked: AskedClip, keep: float) -> dict[str, Any]:
    """The answer, whether it is right, and the share of the tokens that was kept."""
    inputs = model.encode_question(None, asked.question.text, keep=keep, video=asked.clip)
    if model.selector.reads_evidence:
        inputs["hints"] = Hints(evidence_boxes(asked))
    (answer,) = model.answer_rows(inputs, {"max_new_tokens": 24}, keep)
    right = answer.text.strip() == asked.question.answer.strip()
    return {"right": right, "kept": answer.tokens_kept / answer.tokens_total, "family": asked.question.family}


def compared(model: ARRCOCQwen, asked: Sequence[AskedClip], methods: Sequence[str], keeps: Sequence[float]) -> Any:
    """Records by "method@keep": a row per question. All ways of one question follow each other, and share its look."""
    selectors = {name: method(name, model.arr_coc_config, model.layer) for name in methods}
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in asked:
        model.selector = selectors["look_twice"]
        model.arr_coc_config = replace(model.arr_coc_config, encoding="auto")
        records["all"].append(answered(model, one, 1.0))
        for name, selector in selectors.items():
            model.selector = selector
            encoding = "dense" if name.endswith("_dense") else "auto"
            model.arr_coc_config = replace(model.arr_coc_config, encoding=encoding)
            for keep in keeps if name == "look_twice" else keeps[1:]:
                records[f"{name}@{keep}"].append(answered(model, one, keep))
    return records


def told(records: dict[str, list[dict[str, Any]]], clips: Sequence[int]) -> dict[str, Any]:
    """What the tables need: accuracy, the share of the full one, by families, and p against ours."""
    full = records["all"]
    accuracy = float(np.mean([row["right"] for row in full]))
    timed = [place for place, row in enumerate(full) if row["family"] in MOTION]
    found: dict[str, Any] = {}
    for name, rows in records.items():
        right = np.array([row["right"] for row in rows], dtype=float)
        own: dict[str, Any] = {
            "accuracy": float(right.mean()),
            "of_full": float(right.mean() / accuracy),
            "order_and_motion_of_full": float(right[timed].mean() / np.mean([full[n]["right"] for n in timed])),
            "kept": float(np.mean([row["kept"] for row in rows])),
        }
        baseline, _, keep = name.partition("@")
        if baseline in BLIND:
            ours = np.array([row["right"] for row in records[f"look_twice@{keep}"]], dtype=float)
            own["ours_ahead"] = float(ours.mean() - right.mean())
            own["p"] = float(flip_p((ours - right)[:, None], np.array(clips))[0])
        families = {row["family"] for row in rows}
        own["families"] = {one: float(right[[r["family"] == one for r in rows]].mean()) for one in sorted(families)}
        found[name] = own
    return found


def short_events(model: ARRCOCQwen, questions: int) -> dict[str, float]:
    """At the tokens of 8 whole frames: 8 frames of 32, evenly, whole; and all 32, of which ARR-COC keeps a quarter."""
    form, right = Form(((128, 128),), 32), defaultdict[str, list[bool]](list)
    number = 0
    while len(right["ours"]) < questions:
        shown = make_clip(FIRST_SEED + 500_000 + number, "seen", form)
        for question in [one for one in shown.questions if one.family in SHORT][:3]:
            asked = AskedClip(number, shown, question)
            clip = asked.clip
            places = [round(n * 31 / 7) for n in range(8)]
            few = Clip(clip.frames_T3hw[places], tuple(clip.seconds[n] for n in places))
            for name, given, keep in (("8 whole frames", few, 1.0), ("ours", clip, 0.25), ("all", clip, 1.0)):
                text = model.ask(question=question.text, video=given, keep=keep, max_new_tokens=24).text
                right[name].append(text.strip() == question.answer.strip())
        number += 1
    return {**{name: float(np.mean(rows)) for name, rows in right.items()}, "questions": len(right["ours"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--short", type=int, default=60)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no question after so long")
    parser.add_argument("--out", type=Path, default=Path("results/video.json"))
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    model, started = ARRCOCQwen.from_pretrained("mini", break_even=0), time.perf_counter()
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    numbers: list[int] = []
    for one in drawn(wanted.questions):
        if time.perf_counter() - started > wanted.seconds:
            break
        for name, rows in compared(model, [one], wanted.methods.split(","), KEEPS).items():
            records[name] += rows
        numbers.append(one.number)
        if len(numbers) % 10 == 0:
            print(
                len(numbers),
                {name: round(float(np.mean([r["right"] for r in rows])), 3) for name, rows in records.items()},
                flush=True,
            )
            save(
                wanted.out, {"accuracy": told(records, numbers), "questions": len(numbers), "clips": len(set(numbers))}
            )
    model.arr_coc_config = replace(model.arr_coc_config, encoding="auto")
    model.selector = method("look_twice", model.arr_coc_config, model.layer)
    if wanted.short:
        save(wanted.out, {"short_events": short_events(model, wanted.short)})


def save(path: Path, parts: dict[str, Any]) -> None:
    """Into what is there already."""
    before = json.loads(path.read_text()) if path.exists() else {"command": "python -m studies.video.study"}
    write_whole(path, json.dumps({**before, **parts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
