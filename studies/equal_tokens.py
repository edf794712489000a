"""The equal-token test: 256 visual tokens spent in two ways on the same scene.

python -m studies.equal_tokens --questions 1000 --out results/equal-tokens.json

Scenes are drawn at 1024 px with small text and many things (the hard variants). The plain model gets each at 512 px,
which is 256 tokens: the drawn image made smaller by `downsampling`, every token kept. ARR-COC gets the drawn image and
chooses 256 of its 1,024 tokens. The plain model with all 1,024, and the oracle, are there for scale.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arr_coc.evaluation.field.data import MANY, SMALL_TEXT, Record, ids_of, scene_pictures
from arr_coc.evaluation.field.main import Bench, FieldOptions, Say, describe, samples_path
from arr_coc.evaluation.field.methods import ORACLE, REFERENCE, Method, sample_of
from arr_coc.evaluation.field.run import Samples
from arr_coc.evaluation.statistics import Figure, difference_of, flip_p
from arr_coc.files import write_json
from arr_coc.selectors import PLAIN

EQUAL, EQUAL_SIDE, EQUAL_TOKENS = "equal-tokens", 1024, 256
SMALLER = "downsampling"


def equal_tokens(options: FieldOptions, say: Say, side: int = EQUAL_SIDE, tokens: int = EQUAL_TOKENS) -> dict[str, Any]:
    """The report, also written to `options.out`: rows of all methods, and what ARR-COC gains over the plain model."""
    started = time.perf_counter()
    bench = Bench(replace(options, selectors=(REFERENCE, ORACLE, SMALLER, PLAIN)))
    smaller = Method(SMALLER, "dense", tokens)
    chosen = [Method(*way, tokens) for way in ((REFERENCE, "sparse"), (ORACLE, "sparse"), (REFERENCE, "dense"))]
    methods = [*chosen, smaller, Method(PLAIN, "dense", 1.0)]
    pictures = scene_pictures(options.questions, side, options.seed, "hard")
    samples = Samples(samples_path(options.out, EQUAL, side), bench.about(EQUAL, side))
    rows = bench.rows(pictures, methods, samples, {"dataset": EQUAL, "side": side})
    for row in rows.values():
        say(describe(row))
    questions = [question for question, _, _ in ids_of(pictures)]
    records = {method: [samples.records[method.key][question] for question in questions] for method in methods}
    gains = {
        f"{method.selector} {method.encoding}": gains_over(records, method, smaller)
        for method in methods
        if method != smaller
    }
    for way, gain in gains.items():
        say(f"{way} over the plain model at {side // 2} px: " + ", ".join(f"{k} {_points(g)}" for k, g in gain.items()))
    report: dict[str, Any] = {"rows": list(rows.values()), "gains": gains, "runs": {EQUAL: samples.about}}
    report["seconds"] = round(time.perf_counter() - started, 1)
    write_json(options.out, report)
    return report


def gains_over(records: Mapping[Method, Sequence[Record]], method: Method, plain: Method) -> dict[str, Figure]:
    """Accuracy of a method less that of the plain model, over all questions and over each group; p is two-sided."""
    found: dict[str, Figure] = {}
    for group in ("overall", SMALL_TEXT, MANY):
        mine, theirs = (
            sample_of([r for r in records[one] if group == "overall" or group in r["groups"]], "score")
            for one in (method, plain)
        )
        p = flip_p((mine.values - theirs.values)[:, None], mine.images)[0] if len(mine) else None
        found[group] = difference_of(mine, theirs) | {"p": None if p is None else round(float(p), 6)}
    return found


def _points(figure: Figure) -> str:
    if figure["mean"] is None:
        return "no questions"
    low, high = figure["ci95"]
    return f"{100 * figure['mean']:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}, n {figure['n']})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.equal_tokens", description=__doc__)
    parser.add_argument("--model", default="mini", help="mini, a folder with a Qwen3-VL, or a hub id")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the questions")
    parser.add_argument("--engine", default="auto", help="auto, or plain: every method through the model's own path")
    parser.add_argument("--device", help="cuda or cpu; the GPU where there is one")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, default=Path("out/equal-tokens.json"))
    given = parser.parse_args(arguments)
    try:
        report = equal_tokens(FieldOptions(**vars(given)), lambda line: print(line, file=sys.stderr, flush=True))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 3
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
