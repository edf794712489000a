"""From the answers of a tuning run to its result: the table, what is recommended, and when not to use it.

Something is surely so where the 95 % interval of a paired difference, over images, does not hold 0.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from arr_coc import __version__
from arr_coc.evaluation.field.data import Record
from arr_coc.evaluation.field.methods import ENCODINGS, Method, Row, base_row, sample_of
from arr_coc.evaluation.statistics import Clustered, Figure, difference_of
from arr_coc.evaluation.tuning import ALL, CLOSE, KEEPS, QUARTER, Answers, Say, TuneOptions, Tuner, spec_of
from arr_coc.files import write_json
from arr_coc.qwen.tuned import TUNED, TUNING_FILE, TUNING_VERSION, default_settings, place_to_write

LOSS = 0.02  # of accuracy against all tokens: what a recommended budget may lose
GAIN = 0.02  # of accuracy: what an encoding that saves less must gain over sparse
ENOUGH = 30  # questions below which the whole table says little
FEW = 12  # questions below which nothing is said of a family


def run_tuning(options: TuneOptions, say: Say) -> dict[str, Any]:
    """The result of tuning; of what was done so far where it was interrupted."""
    tuner, complete = Tuner(options, say), True
    try:
        tuner.run()
    except KeyboardInterrupt:
        complete = False
    return result_of(tuner, complete)


def write_result(report: Mapping[str, Any], model: str, out: Path | None) -> str:
    """Write it where loading finds it, or to `out`, and say so; nothing is written where nothing was judged."""
    if not report["table"]:
        return "ended before anything was judged: nothing is written"
    path = place_to_write(model, report["fingerprint"]) if out is None else out
    path = path / TUNING_FILE if path.is_dir() else path
    write_json(path, report)
    return f"written: {path.name}{'' if out else ', which is found when the model is loaded'}"


def result_of(tuner: Tuner, complete: bool) -> dict[str, Any]:
    """All that is written, from what was found so far."""
    options, owner = tuner.options, tuner.owner
    usual, settings = default_settings(), tuner.picked or default_settings()
    rows = [_row(group, *made, tuner) for group, answers in tuner.judged.items() for made in answers.items()]
    answers, spec, rivals = next(iter(tuner.judged.values()), None), spec_of(settings), tuner.rivals()
    advice = recommend(answers, spec) if answers else None
    gpu = owner.device.type == "cuda"
    return {
        "format_version": TUNING_VERSION,
        "made_by": f"arr-coc {__version__}",
        "model": Path(options.model).name,
        "trained": owner.arr_coc_config.trained,
        "fingerprint": tuner.key,
        "device": torch.cuda.get_device_name(owner.device) if gpu else owner.device.type,
        "dtype": str(owner.model.dtype).removeprefix("torch."),
        "data": options.data.partition(":")[0],
        "settings": settings,
        "changed": sorted(name for name in usual if settings[name] != usual[name]),
        "tried": {"by_evidence": len(tuner.found), "by_answers": len(tuner.final)},
        "alone": tuner.alone,
        "table": rows,
        "recommended": advice,
        "when_not": [*_slow(tuner.alone), *when_not(answers, spec, advice)] if answers and advice else [],
        "recommended_vs_best": against_best(answers, spec, [spec, *rivals]) if answers else None,
        "recommended_vs_usual": against_best(answers, spec, [TUNED if TUNED in rivals else spec]) if answers else None,
        "seconds": round(time.monotonic() - tuner.started, 1),
        "complete": complete,
    }


def _row(group: str, method: Method, records: Sequence[Record], tuner: Tuner) -> Row:
    """A row of the field's table; without a time where it ran on another engine than the rest."""
    row = base_row(method, records, tuner.layers, 0, {"group": group})
    alike = tuner.bench.engine_of(method) is tuner.bench.engine_of(ALL)
    times = {"first_token_ms": row["time_ms"]["first_token"] if alike else None}
    return row | {"selector": method.name, "settings": method.selector} | times


# ---------------------------------------------------------------- what is recommended


def difference(answers: Answers, method: Method, other: Method, family: str | None = None) -> Figure:
    """Accuracy of one method less that of another, of one family or of all."""
    pair = ([r for r in answers[one] if family in (None, r["family"])] for one in (method, other))
    return difference_of(*(sample_of(records, "score") for records in pair))


def against_best(answers: Answers, spec: str, tried: Iterable[str]) -> Figure:
    """Accuracy of what was picked less that of the best that was tried, over the budgets that tell them apart."""

    def sample(of: str) -> Clustered:
        several = zip(*(answers[Method(of, "sparse", keep)] for keep in CLOSE), strict=True)
        return Clustered.of((rs[0]["image"], sum(r["score"] for r in rs) / len(rs)) for rs in several)

    best = max(tried, key=lambda one: sample(one).mean)
    figure = difference_of(sample(spec), sample(best))
    return figure | {"best": best, "keeps": list(CLOSE), "surely_worse": figure["ci95"][1] < 0}


def recommend(answers: Answers, spec: str) -> dict[str, Any]:
    """The encoding, and the least budget that loses little against all tokens; None where every budget loses more."""
    best = "sparse"
    for encoding in ENCODINGS:
        gain = difference(answers, Method(spec, encoding, QUARTER), Method(spec, best, QUARTER))
        if gain["ci95"][0] > 0 and gain["mean"] >= GAIN:
            best = encoding
    fitting = [k for k in KEEPS if difference(answers, Method(spec, best, k), ALL)["mean"] >= -LOSS]
    return {"encoding": best, "keep": min(fitting, default=None)}


def _slow(alone: Sequence[Mapping[str, Any]]) -> list[str]:
    """From how many tokens on choosing pays, one question at a time."""
    paying = [row["tokens"] for row in alone if row["quarter_ms"] < row["all_ms"]]
    if paying:
        return [f"below {min(paying):,} tokens choosing does not pay in time here"]
    return [f"up to {alone[-1]['tokens']:,} tokens choosing does not pay in time here"] if alone else []


def when_not(answers: Answers, spec: str, advice: Mapping[str, Any]) -> list[str]:
    """Whom this does not help: families that lose, budgets at which an even grid does as well, and the like."""
    keep = advice["keep"] or QUARTER
    chosen, lines = Method(spec, advice["encoding"], keep), []
    for family in sorted({record["family"] for record in answers[ALL]} - {""}):
        lost = difference(answers, chosen, ALL, family)
        if lost["n"] >= FEW and lost["ci95"][1] < 0:
            points = f"{-100 * lost['mean']:.0f} points at {keep:.0%}"
            lines.append(f"{family} questions lose {points}: keep all tokens for them")
    for encoding in ENCODINGS:
        lost = difference(answers, Method(spec, encoding, keep), chosen)
        if lost["ci95"][1] < 0:
            loses = f"{encoding} loses {-100 * lost['mean']:.0f} points more"
            lines.append(f"use {chosen.encoding} for this model: {loses}")
    for each in KEEPS:
        even = Method("even_grid", chosen.encoding, each)
        if even in answers and difference(answers, Method(spec, even.encoding, each), even)["ci95"][0] <= 0:
            lines.append(f"at {each:.0%} an even grid is not surely worse than choosing")
    if advice["keep"] is None:
        lines.append(f"every budget loses more than {100 * LOSS:.0f} points: keep all tokens where answers matter most")
    if len(answers[ALL]) < ENOUGH:
        lines.append(f"only {len(answers[ALL])} questions were judged: more --minutes tell more")
    if sample_of(answers[ALL], "score").mean < 0.5:
        lines.append("with all tokens, too, it seldom answers these right: give questions of your own (--data)")
    return lines


# ---------------------------------------------------------------- for people


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """The result as a person reads it."""
    lines = []
    for group in dict.fromkeys(row["group"] for row in report["table"]):
        lines += [*_table([row for row in report["table"] if row["group"] == group], group), ""]
    if not lines:
        return ["nothing was judged yet"]
    settings = ", ".join(f"{name} {value:.4g}" for name, value in report["settings"].items())
    advice, best, usual = (report[key] for key in ("recommended", "recommended_vs_best", "recommended_vs_usual"))
    keep = "all tokens" if advice["keep"] is None else f"{advice['keep']:.0%} of the tokens, {advice['encoding']}"
    return [
        *lines,
        f"settings      {settings}",
        f"changed       {', '.join(report['changed']) or 'nothing: the usual settings are the best that were tried'}",
        f"              against the usual settings {_points(usual)}, against the best of all tried {_points(best)}",
        f"recommended   {keep}",
        *(f"{'but' if not place else '':14}{line}" for place, line in enumerate(report["when_not"])),
        *(["note          --selector look_twice uses this; auto is the trained selector"] if report["trained"] else []),
        *([] if report["complete"] else ["interrupted: this is what was done until then"]),
    ]


def _table(rows: Sequence[Row], group: str) -> list[str]:
    """A line for each budget and encoding of looking twice, the even grid and chance beside it."""
    whole = next(row for row in rows if row["settings"] == ALL.selector)
    about = f"{group + ', ' if group else ''}{whole['n']} questions; all {whole['tokens']:.0f} tokens"
    heads = f"{'kept':>6}  {'encoding':9} {'looking twice, %':22} {'even grid':>9} {'random':>7} {'tokens':>7}"
    lines = [f"{about}: {_accuracy(whole)} %, first token after {_cost(whole)}", f"{heads}  first token"]
    by_place = {(row["settings"], row["encoding"], row["keep"]): row for row in rows}
    spec = next(row["settings"] for row in rows if row["keep"] == "auto")
    for (name, encoding, keep), row in by_place.items():
        if name == spec:
            beside = [by_place.get((other, encoding, keep)) for other in ("even_grid", "random")]
            blind = [f"{100 * one['accuracy']:.1f}" if one else "" for one in beside]
            kept = keep if isinstance(keep, str) else f"{keep:.0%}"
            start = f"{kept:>6}  {encoding:9} {_accuracy(row):22} {blind[0]:>9} {blind[1]:>7}"
            lines.append(f"{start} {row['tokens']:7.1f}  {_cost(row)}")
    return lines


def _points(figure: Figure) -> str:
    low, high = figure["ci95"]
    return f"{100 * figure['mean']:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"


def _accuracy(row: Row) -> str:
    low, high = row["ci95"]
    return f"{100 * row['accuracy']:5.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _cost(row: Row) -> str:
    memory = "" if row["memory_mb"] is None else f", {row['memory_mb']:,.0f} MB"
    return "" if row["first_token_ms"] is None else f"{row['first_token_ms']:.1f} ms{memory}"
