"""Promises about answers, from the table of the field and from the equal-token test."""

from collections.abc import Sequence

from arr_coc.evaluation.field.methods import REFERENCE
from arr_coc.evaluation.report.main import SURE
from arr_coc.evaluation.report.pages import signed
from arr_coc.evaluation.report.results import (
    FIELD,
    Entry,
    Keep,
    budget_label,
    by_place,
    labels_of,
    ours_of,
    plain_of,
)
from arr_coc.evaluation.statistics import Figure
from studies.report.checks import NOT_HERE, Check, judge, not_yet, percent, points
from studies.report.sources import EQUAL, SELECTOR, Results, gains_of

SOURCE_GAIN = 0.05  # over the plain model
EQUAL_GAIN, SMALL_TEXT_GAIN = 0.05, 0.15  # at equal visual tokens
NOW = {0.25: 0.95, 0.1: 0.82}  # share of the plain model's accuracy, by the fraction of tokens KEPT
NEXT = {0.25: 0.97, 0.1: 0.90}


def _at(entries: Sequence[Entry], side: int | None = 512) -> list[Entry]:
    return [entry for entry in entries if entry.place == ("scenes", side)]


def gain_over_plain(entries: Sequence[Entry]) -> list[Check]:
    """+5 % over the plain model with all its tokens: by the best budget of ARR-COC, at every size."""
    asked = "+5 % accuracy over the plain model on diverse questions"
    checks = []
    for place, here in by_place(entries).items():
        plain = plain_of(here)
        mine = [entry for entry in here if entry.name == REFERENCE and entry.accuracy is not None]
        if plain is None or not plain.accuracy or not mine:
            continue
        best = max(mine, key=lambda entry: entry.accuracy or 0.0)
        assert best.accuracy is not None
        gain = best.accuracy / plain.accuracy - 1
        figure = (
            f"{signed(gain)} % ({points(best.accuracy - plain.accuracy)}) at best, with "
            f"{budget_label(best.keep, best.total)}, {best.encoding}; the plain model "
            f"answers {percent(plain.accuracy)}, {place.label}, {plain.questions:,} questions"
        )
        if plain.accuracy * (1 + SOURCE_GAIN) > 1:
            figure += f"; there is room for {100 * (1 / plain.accuracy - 1):+.1f} % only"
        checks.append(judge(asked, gain >= SOURCE_GAIN, figure, FIELD))
    if not checks:
        checks.append(not_yet(asked, FIELD))
    if all(place[0] == "scenes" for place in by_place(entries)):
        checks.append(Check(f"{asked}: photographs", NOT_HERE, "mini knows drawn scenes only", ""))
    return checks


def gain_at_equal_tokens(results: Results) -> list[Check]:
    """+5 points over the plain model that spends the same tokens on a smaller image."""
    asked = "+5 points at equal visual tokens"
    found = gains_of(results)
    if found is None:
        return [not_yet(asked, EQUAL)]
    gains, file = found
    return [
        _gain_check(asked, way, gain.get("overall"), EQUAL_GAIN, file)
        for way, gain in gains.items()
        if way.startswith(f"{REFERENCE} ")
    ] or [not_yet(asked, file)]


def _gain_check(asked: str, way: str, figure: Figure | None, wanted: float, file: str) -> Check:
    if not figure or figure.get("mean") is None:
        return not_yet(asked, file, "no questions")
    mean, (low, high) = figure["mean"], figure["ci95"]
    text = f"{points(mean)} ({signed(low)} to {signed(high)}), {way.replace(REFERENCE, 'ARR-COC')}, n {figure['n']:,}"
    return judge(asked, mean >= wanted, text, file)


def kept_accuracy(results: Results, entries: Sequence[Entry]) -> list[Check]:
    """Accuracy with 25 % and 10 % of the tokens as a share of the plain model's: now, and next."""
    checks = []
    for wanted, when in ((NOW, "now"), (NEXT, "next")):
        for keep, least in wanted.items():
            asked = f"{when}: at least {100 * least:.0f} % of the plain model's accuracy at {budget_label(keep)}"
            share, figure, file = _kept(results, entries, keep)
            checks.append(judge(asked, None if share is None else share >= least, figure, file))
    return checks


def _kept(results: Results, entries: Sequence[Entry], keep: Keep) -> tuple[float | None, str, str]:
    here = _at(entries)
    ours, plain = ours_of(here, keep), plain_of(here)
    if ours is not None and plain is not None and ours.accuracy is not None and plain.accuracy:
        share = ours.accuracy / plain.accuracy
        pair = f"{percent(ours.accuracy)} of {percent(plain.accuracy)}"
        return share, f"{percent(share)}: {pair}, 512 px, {ours.encoding}, {ours.questions:,} questions", FIELD
    share = results.at(SELECTOR, "sparse", str(keep))
    questions = results.at(SELECTOR, "runs", "accuracy", "questions")
    if isinstance(share, int | float):
        return share, f"{percent(share)}, 512 px, sparse, {questions or '?'} questions", SELECTOR
    return None, "no result yet", FIELD


def ahead_of_all(entries: Sequence[Entry]) -> list[Check]:
    """Ahead of every method at 25 % and 10 %, surely: p < 0.01 after correction."""
    checks = []
    for keep in NOW:
        asked = f"ahead of every method at {budget_label(keep)}, with error bars"
        here = _at(entries)
        others = [e for e in here if e.keep == keep and e.competes and e.name != REFERENCE and e.gain is not None]
        if not others:
            checks.append(not_yet(asked, FIELD))
            continue
        open_ends = not_behind(others)
        names = labels_of(here)
        text = f"surely ahead of {len(others) - len(open_ends)} of {len(others)}"
        if open_ends:
            text += ". Not of " + "; ".join(f"{names[entry.way]} ({_lead(entry)})" for entry in open_ends)
        checks.append(judge(asked, not open_ends, f"512 px: {text}", FIELD))
    return checks


def not_behind(others: Sequence[Entry]) -> list[Entry]:
    """Those that ARR-COC is not surely ahead of."""
    return [e for e in others if e.p is None or e.gain is None or e.p >= SURE or e.gain >= 0]


def _lead(entry: Entry) -> str:
    """ARR-COC's lead over an entry, with the test."""
    assert entry.gain is not None
    return points(-entry.gain) + (f", p {entry.p:.3f}" if entry.p is not None else "")
