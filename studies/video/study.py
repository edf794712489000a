"""Accuracy on drawn clips: every method at every share of the tokens, paired; short events at equal tokens.

    python -m studies.video.study --questions 250 --out results/video.json

Clips are those of `studies.wide.evaluate_views`, which training never draws: 4 to 32 frames of 128 to 256 px at 2 fps.
Answers are exact matches. Figures are shares of the accuracy with all tokens; p is of a paired sign flip over clips.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.evaluation.statistics import flip_p
from arr_coc.files import write_whole
from arr_coc.images.clips import Clip
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.familiar import meant
from arr_coc.qwen.request import Hints
from studies.answering import Answerer
from studies.mini.views import Form, ShownViews, ViewQuestion, first_cells
from studies.video.baselines import BLIND, METHODS, method
from studies.wide.clip_questions import TIMED
from studies.wide.clips import make_clip
from studies.wide.evaluate_views import FIRST_SEED, ViewAnswerer, ViewRow, ask_views

KEEPS = (0.25, 0.1, 0.05)
AFTER_THE_VIT = ("look_twice_dense", "vidcom2")  # the ViT sees every cell
ONE_BY_ONE = ("downsampling",)  # it has cells of its own, which batches know nothing of
FEW = (*ONE_BY_ONE, "look_twice_dense", "uniform_frames", "evs", "random", "oracle")  # asked fewer questions
AT_ONCE = 7  # clips that are asked about together: as many as are remembered from one share to the next
Records = dict[str, list[dict[str, Any]]]  # of "method@keep", a row per question
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


def kept_cells(model: ARRCOCQwen, asked: AskedClip, keep: float) -> tuple[int, ...]:
    """The cells that are kept, numbered through all moments."""
    inputs = model.encode_question(None, asked.question.text, keep=keep, video=asked.clip)
    if model.selector.reads_evidence:
        inputs["hints"] = Hints(evidence_boxes(asked))
    starts = first_cells(asked.shown.form.grids)
    choices = zip(starts, model.choose(inputs, keep=keep), strict=True)
    return tuple(start + cell for start, choice in choices for cell in choice.kept.tolist())


def rows_of(model: ARRCOCQwen, asked: Sequence[AskedClip], name: str, keep: float) -> list[ViewRow]:
    """What is shown for the questions about one clip, in their order: chosen once where the question is not read."""
    read = [replace(one.question, text=meant(model.processor.tokenizer, one.question.text)) for one in asked]
    if keep == 1.0:
        return [ViewRow(asked[0].shown, tuple(read))]
    dense, shown = name in AFTER_THE_VIT, asked[0].shown
    if name in BLIND:
        return [ViewRow(shown, tuple(read), kept_cells(model, asked[0], keep), dense=dense)]
    cells = [kept_cells(model, one, keep) for one in asked]
    return [ViewRow(shown, (question,), own, dense=dense) for question, own in zip(read, cells, strict=True)]


def product_answers(model: ARRCOCQwen, asked: Sequence[AskedClip], keep: float) -> list[dict[str, Any]]:
    """A record per question, asked one by one as a user would."""
    found = []
    for one in asked:
        inputs = model.encode_question(None, one.question.text, keep=keep, video=one.clip)
        (answer,) = model.answer_rows(inputs, {"max_new_tokens": 24}, keep)
        found.append(record(one.question, answer.text, answer.tokens_kept / answer.tokens_total))
    return found


def record(question: ViewQuestion, text: str, kept: float) -> dict[str, Any]:
    return {"right": text.strip() == question.answer.strip(), "kept": kept, "family": question.family}


def compared(
    model: ARRCOCQwen, answerer: ViewAnswerer, clips: Sequence[Sequence[AskedClip]], name: str, keep: float
) -> list[dict[str, Any]]:
    """A record per question about some clips. The product chooses; answers are made for many questions at once."""
    model.selector = method("look_twice" if name == "all" else name, model.arr_coc_config, model.layer)
    if name in ONE_BY_ONE:
        return [row for asked in clips for row in product_answers(model, asked, keep)]
    rows = [row for asked in clips for row in rows_of(model, asked, name, keep)]
    return [
        record(question, text, len(row.cells or range(row.shown.form.cells)) / row.shown.form.cells)
        for row, texts in zip(rows, answerer.answer(rows), strict=True)
        for question, text in zip(row.questions, texts, strict=True)
    ]


def told(records: Records, clips: Sequence[int]) -> dict[str, Any]:
    """What the tables need: accuracy, the share of the full one, by families, and p against ours.

    A method that was asked fewer questions was asked the first of them, and is compared on those.
    """
    found: dict[str, Any] = {}
    for name, rows in records.items():
        full = records["all@1.0"][: len(rows)]
        right = np.array([row["right"] for row in rows], dtype=float)
        timed = [place for place, row in enumerate(full) if row["family"] in MOTION]
        own: dict[str, Any] = {
            "questions": len(rows),
            "accuracy": float(right.mean()),
            "of_full": float(right.mean() / np.mean([row["right"] for row in full])),
            "order_and_motion_of_full": float(right[timed].mean() / np.mean([full[n]["right"] for n in timed])),
            "kept": float(np.mean([row["kept"] for row in rows])),
        }
        baseline, _, keep = name.partition("@")
        if baseline in BLIND:
            ours = np.array([row["right"] for row in records[f"look_twice@{keep}"][: len(rows)]], dtype=float)
            own["ours_ahead"] = float(ours.mean() - right.mean())
            own["p"] = float(flip_p((ours - right)[:, None], np.array(clips[: len(rows)]))[0])
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


def lines(names: Sequence[str]) -> list[tuple[str, float]]:
    """(method, share KEPT): ours at every share, others at the smaller ones, after all tokens."""
    return [("all", 1.0), *((n, keep) for n in names for keep in (KEEPS if n == "look_twice" else KEEPS[1:]))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--few", type=int, default=240, help=f"questions for {FEW}")
    parser.add_argument("--short", type=int, default=60)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--records", type=Path, default=Path("out/video-records.json"), help="goes on from there")
    parser.add_argument("--out", type=Path, default=Path("results/video.json"))
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    model = ARRCOCQwen.from_pretrained("mini", break_even=0)
    answerer = ViewAnswerer(Answerer(model.model, model.processor.tokenizer, most_tokens=24))
    asked = drawn(wanted.questions) if wanted.questions else []
    clips = [list(several) for _, several in groupby(asked, lambda one: one.number)]
    records: Records = defaultdict(list, json.loads(wanted.records.read_text()) if wanted.records.exists() else {})
    done = 0
    for start in range(0, len(clips), AT_ONCE):
        part = clips[start : start + AT_ONCE]
        before, done = done, done + sum(map(len, part))
        for name, keep in lines(wanted.methods.split(",")):
            rows = records[f"{name}@{keep}"]
            if len(rows) == before and (name not in FEW or before < wanted.few):
                rows += compared(model, answerer, part, name, keep)
        wanted.records.parent.mkdir(parents=True, exist_ok=True)
        write_whole(wanted.records, json.dumps(records))
        found = told(records, [one.number for one in asked])
        print(done, {name: round(one["of_full"], 3) for name, one in found.items()}, flush=True)
        save(wanted.out, {"accuracy": found, "questions": done, "clips": start + len(part)})
    model.selector = method("look_twice", model.arr_coc_config, model.layer)
    if wanted.short:
        save(wanted.out, {"short_events": short_events(model, wanted.short)})


def save(path: Path, parts: dict[str, Any]) -> None:
    """Into what is there already."""
    before = json.loads(path.read_text()) if path.exists() else {"command": "python -m studies.video.study"}
    write_whole(path, json.dumps({**before, **parts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
