"""The equal-token test: 256 visual tokens, spent in two ways on the same scene.

The scene is drawn at 1024 px, with small text and many things (the hard variants). The plain model gets it at 512 px,
which is 256 tokens: the drawn image made smaller by `downsampling`, every token kept. ARR-COC gets the drawn image
and chooses 256 of its 1,024 tokens. The plain model with all 1,024, and the oracle, are there for scale.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from arr_coc.evaluation.comparing import Figure, difference_of
from arr_coc.evaluation.field.data import MANY, SMALL_TEXT, Record, ids_of, scene_pictures
from arr_coc.evaluation.field.main import Bench, FieldOptions, describe, samples_path
from arr_coc.evaluation.field.methods import PLAIN, REFERENCE, Method
from arr_coc.evaluation.field.run import Samples
from arr_coc.evaluation.field.table import flip_p, sample_of
from arr_coc.files import write_json

SIDE, TOKENS = 1024, 256
SMALLER = "downsampling"
METHODS = (
    Method(REFERENCE, "sparse", TOKENS),
    Method("oracle", "sparse", TOKENS),
    Method(REFERENCE, "dense", TOKENS),
    Method(SMALLER, "dense", TOKENS),
    Method(PLAIN, "dense", 1.0),
)
GROUPS = (SMALL_TEXT, MANY)


def equal_tokens(
    options: FieldOptions, say: Callable[[str], None], side: int = SIDE, tokens: int = TOKENS
) -> dict[str, Any]:
    """The report, also written to `options.out`: rows of all methods, and what ARR-COC gains over the plain model."""
    started = time.perf_counter()
    bench = Bench(replace(options, selectors=(REFERENCE, "oracle", SMALLER, PLAIN)))
    methods = [method if method.name == PLAIN else replace(method, keep=tokens) for method in METHODS]
    pictures = scene_pictures(options.questions, side, options.seed, "hard")
    name = "equal-tokens"
    samples = Samples(samples_path(options.out, name, side), bench.about(name, side))
    rows = bench.rows(pictures, methods, samples, {"dataset": name, "side": side})
    for row in rows.values():
        say(describe(row))
    questions = [question for question, _, _ in ids_of(pictures)]
    records = {method: [samples.records[method.key][question] for question in questions] for method in methods}
    smaller = next(method for method in methods if method.selector == SMALLER)
    gains = {
        f"{method.selector} {method.encoding}": gains_over(records, method, smaller)
        for method in methods
        if method != smaller
    }
    for way, gain in gains.items():
        say(f"{way} over the plain model at {side // 2} px: " + ", ".join(f"{k} {_points(g)}" for k, g in gain.items()))
    report: dict[str, Any] = {"rows": list(rows.values()), "gains": gains, "runs": {name: samples.about}}
    report["seconds"] = round(time.perf_counter() - started, 1)
    write_json(options.out, report)
    return report


def gains_over(records: Mapping[Method, Sequence[Record]], method: Method, plain: Method) -> dict[str, Figure]:
    """Accuracy of a method less that of the plain model, over all questions and over each group; p is two-sided."""
    found: dict[str, Figure] = {}
    for group in ("overall", *GROUPS):
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
