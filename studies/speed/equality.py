"""The fast path against the plain one on mini's questions: the same tokens, and by how much it was close where not.

python -m studies.speed.equality --questions 100 --keep 0.25 --selector look_twice --out results/fast-equality.json
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.config import Keep
from arr_coc.files import write_json
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.processor import Conversation, encode
from studies.asked import ask_about

CLOSE = 0.1  # logits: where paths part, the two best may be this far from each other
MOST = 24  # new tokens


@dataclass(frozen=True, slots=True)
class BothPaths:
    """One question by both paths."""

    question: str
    same: bool
    margin: float | None  # between the two best logits of the plain path where the paths part
    same_cells: bool


def first_difference(one_T: Tensor, other_T: Tensor) -> int | None:
    """The place of the first token in which two rows differ; a row that ends early differs there."""
    shared = min(len(one_T), len(other_T))
    different = (one_T[:shared] != other_T[:shared]).nonzero()
    if len(different):
        return int(different[0])
    return None if len(one_T) == len(other_T) else shared


def compare(owner: ARRCOCQwen, image: Image.Image, question: str, keep: Keep) -> BothPaths:
    """Ask one question both ways."""
    inputs: dict[str, Any] = dict(encode(owner.processor, [Conversation([image], question)]))
    inputs.pop("mm_token_type_ids")
    owner.fast = True
    with torch.no_grad():
        served = owner.serve(inputs, keep, {"max_new_tokens": MOST, "do_sample": False})
    if served is None:
        raise ValueError(f"the fast path does not serve this model: {'; '.join(owner.notices)}")
    owner.fast = False
    options: dict[str, Any] = {"max_new_tokens": MOST, "do_sample": False, "output_logits": True}
    plain = owner.generate(**inputs, keep=keep, return_dict_in_generate=True, **options)
    with torch.no_grad():
        cells = owner.prepare(**inputs, keep=keep).images[0][0].kept
    plain_T = plain.sequences[0, inputs["input_ids"].shape[1] :].cpu()
    place = first_difference(served.new_BT[0], plain_T)
    margin = None
    if place is not None and place < len(plain.logits):
        best = plain.logits[place][0].float().topk(2).values
        margin = float(best[0] - best[1])
    return BothPaths(question, place is None, margin, torch.equal(cells.cpu(), served.images[0][0].kept.cpu()))


def equality(owner: ARRCOCQwen, questions: int, keep: Keep, side: int = 512) -> dict[str, Any]:
    """How many questions got the same tokens, and whether the others were close."""
    made = [
        compare(owner, Image.fromarray(asked.image), question.text, keep)
        for asked in ask_about("seen", questions, (side, side))
        for question in asked.questions
    ]
    differ = [one for one in made if not one.same]
    return {
        "questions": len(made),
        "same_tokens": sum(one.same for one in made),
        "same_cells": sum(one.same_cells for one in made),
        "close_where_different": all(one.margin is not None and one.margin <= CLOSE for one in differ),
        "different": [{"question": one.question, "margin": one.margin, "same_cells": one.same_cells} for one in differ],
        "selector": owner.selector.name,
        "keep": keep,
        "dtype": str(owner.model.dtype).removeprefix("torch."),
        "notices": owner.notices,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.speed.equality", description=__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--keep", type=float, default=0.25, help="share KEPT")
    parser.add_argument("--selector", default="auto")
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    how = {"device": options.device, "dtype": options.dtype, "selector": options.selector}
    owner = ARRCOCQwen.from_pretrained(options.model, **how, break_even=0)
    made = equality(owner, options.questions, options.keep)
    if owner.fast_runner is not None:
        statistics = owner.fast_runner.recordings.statistics
        made["recordings"] = {"made": statistics.made, "hits": statistics.hits, "failed": statistics.failed}
    if options.out:
        write_json(options.out, made)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
