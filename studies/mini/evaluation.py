"""Evaluation of mini on its first world: how well it reads scenes, dense and sparse, and guesses without them.

`studies/wide/evaluate.py` asks about both worlds, and makes results/mini.json.

python -m studies.mini.evaluation --model arr_coc/models/mini --questions 500 --out out/first-world.json
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.evaluation.field.data import READING
from arr_coc_scenes import Question
from studies.answering import Answerer, Row
from studies.asked import Asked, ask_about
from studies.cells import CELL, boxes_cells, fill_evenly
from studies.outcomes import Outcome, by_group, majority, summary

SPARSE_SHARE = 0.25  # share of the cells KEPT in the sparse figures


def dense_rows(asked: Sequence[Asked]) -> list[Row]:
    """All cells, the questions of a scene together."""
    return [Row(a.image, tuple(q.text for q in a.questions)) for a in asked]


def sparse_rows(asked: Sequence[Asked], share: float = SPARSE_SHARE) -> list[Row]:
    """Per question its evidence plus an even grid, up to `share` of the cells KEPT, or all of a larger evidence."""
    return [_sparse_row(a, question, share, with_distractors=False) for a in asked for question in a.questions]


def distracted_rows(asked: Sequence[Asked]) -> list[Row]:
    """As `sparse_rows`, with the distractors that fit before the even grid: the evidence must still be found."""
    return [_sparse_row(a, question, SPARSE_SHARE, with_distractors=True) for a in asked for question in a.questions]


def _sparse_row(a: Asked, question: Question, share: float, with_distractors: bool) -> Row:
    height, width = a.scene.height // CELL, a.scene.width // CELL
    budget = max(1, round(share * height * width))
    chosen = boxes_cells(question.evidence, height, width)
    for box in question.distractors if with_distractors else ():
        wider = chosen | boxes_cells([box], height, width)
        chosen = wider if len(wider) <= budget else chosen
    return Row(a.image, (question.text,), tuple(fill_evenly(chosen, budget, height, width)))


def blind_rows(asked: Sequence[Asked]) -> list[Row]:
    """A blank image: what can be guessed from the question alone."""
    return [Row(np.full_like(a.image, 128), tuple(q.text for q in a.questions)) for a in asked]


def shuffled_rows(asked: Sequence[Asked]) -> list[Row]:
    """The image of the next scene, of the same size and any layout."""
    return [Row(asked[(n + 1) % len(asked)].image, tuple(q.text for q in a.questions)) for n, a in enumerate(asked)]


def outcomes(answerer: Answerer, asked: Sequence[Asked], make_rows: Callable[..., list[Row]]) -> list[Outcome]:
    """Ask everything and pair the answers with what was expected."""
    answers = [text for row in answerer.answer(make_rows(asked)) for text in row]
    expected = [(n, a.scene, q) for n, a in enumerate(asked) for q in a.questions]
    return [
        Outcome(n, q.family, scene.difficulty, q.answer, given)
        for (n, scene, q), given in zip(expected, answers, strict=True)
    ]


def reading_summary(found: Sequence[Outcome]) -> dict[str, object]:
    """Summary over the families that need letters to be read."""
    return summary([o for o in found if o.family in READING])


def evaluate(answerer: Answerer, questions: int, log: Callable[[str], None] = print, size: int = 512) -> dict[str, Any]:
    """The whole report on the first world, on images of `size` px and, for `px1024`, of twice that."""
    started = time.perf_counter()
    seen = ask_about("seen", questions, (size, size))
    dense = outcomes(answerer, seen, dense_rows)
    report: dict[str, Any] = {
        "overall": summary(dense) | {"majority": majority(dense)},
        "reading": reading_summary(dense),
        "families": by_group(dense, "family"),
        "difficulties": by_group(dense, "difficulty"),
    }
    log(f"seen          {report['overall']}")
    log("by family     " + ", ".join(f"{k} {v['accuracy']:.1%}" for k, v in by_group(dense, "family").items()))
    runs: list[tuple[str, list[Asked], Callable[..., list[Row]]]] = [
        ("sparse25", seen, sparse_rows),
        ("sparse25_distractors", seen, distracted_rows),
        ("blind", seen, blind_rows),
        ("shuffled", seen, shuffled_rows),
        ("unseen", ask_about("unseen", questions, (size, size)), dense_rows),
        ("px1024", ask_about("seen", max(1, questions // 4), (2 * size, 2 * size)), dense_rows),
    ]
    for name, asked, make_rows in runs:
        found = outcomes(answerer, asked, make_rows)
        report[name] = summary(found) | {"families": by_group(found, "family")}
        log(f"{name:13s} {summary(found)}")
    for name in ("sparse25", "sparse25_distractors"):
        report[name]["of_dense"] = round(report[name]["accuracy"] / max(1e-9, report["overall"]["accuracy"]), 4)
    report["seconds"] = round(time.perf_counter() - started, 1)
    return report


def load_answerer(folder: Path, device: str, dtype: torch.dtype) -> Answerer:
    """mini from its folder, in float32 weights that compute in `dtype`."""
    from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration

    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} holds no model: give a folder with config.json and weights (see `python -m studies.mini.train`)"
        )
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    return Answerer(model, AutoTokenizer.from_pretrained(folder), dtype)


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Evaluate mini on scenes that it has not seen.")
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[2] / "arr_coc" / "models" / "mini")
    parser.add_argument("--questions", type=int, default=500, help="questions per split (1024 px: a quarter)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--quiet", action="store_true", help="print one line per test, not the whole report")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.questions < 1:
        parser.error(f"--questions {arguments.questions}: ask at least one")
    on_gpu = torch.device(arguments.device).type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    report = evaluate(load_answerer(arguments.model, arguments.device, dtype), arguments.questions)
    report["device"] = torch.cuda.get_device_name(arguments.device) if on_gpu else "cpu"
    text = json.dumps(report, indent=2)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")
    if not arguments.quiet:
        print(text)


if __name__ == "__main__":
    main()
