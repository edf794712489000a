"""Who beats whom: wins, ties and losses of every method against every other over the budgets, and at equal time.

A win is a paired test over images with p < 0.01 after Holm's correction for all pairs of the budget. Without samples
only the table's own tests against ARR-COC are known. M methods, Q questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from arr_coc.evaluation.field.methods import PLAIN, REFERENCE
from arr_coc.evaluation.report.rows import ORACLE, Entry, Keep, Place, budgets_of, plain_of
from arr_coc.evaluation.report.samples import Answers
from arr_coc.evaluation.statistics import flip_p, holm

SURE = 0.01
Way = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Score:
    """Of one method against another."""

    wins: int = 0
    ties: int = 0
    losses: int = 0

    def plus(self, sign: int) -> "Score":
        """One more comparison: 1 won, 0 even, -1 lost."""
        return Score(self.wins + (sign > 0), self.ties + (sign == 0), self.losses + (sign < 0))


Matrix = dict[tuple[Way, Way], Score]


def at_budget(entries: Sequence[Entry], keep: Keep) -> list[Entry]:
    """The methods of a budget, and the plain model, which has all tokens at every budget."""
    plain = plain_of(entries)
    chosen = [entry for entry in entries if entry.keep == keep and entry.name != PLAIN]
    return chosen + ([] if plain is None else [replace(plain, keep=keep)])


def signs_from_answers(members: Sequence[Entry], answers: Answers) -> dict[tuple[Way, Way], int]:
    """1 where the first of a pair is surely better, -1 where the second is, else 0; for members that have scores."""
    scored = [(entry, scores_Q) for entry in members if (scores_Q := answers.of(entry)) is not None]
    pairs = list(combinations(scored, 2))
    if not pairs:
        return {}
    differences_QM = np.stack([first - second for (_, first), (_, second) in pairs], 1)
    known_Q = np.isfinite(differences_QM).all(1)
    if not known_Q.any():
        return {}
    p_M = holm(flip_p(differences_QM[known_Q], answers.images_Q[known_Q]).tolist())
    found = {}
    for ((first, _), (second, _)), p, mean in zip(pairs, p_M, differences_QM[known_Q].mean(0).tolist(), strict=True):
        found[first.way, second.way] = 0 if p >= SURE else (1 if mean > 0 else -1)
    return found


def signs_from_rows(members: Sequence[Entry]) -> dict[tuple[Way, Way], int]:
    """The same from the table's own tests: each method against the ARR-COC that it was held against."""
    ours = {entry.encoding: entry for entry in members if entry.name == REFERENCE}
    found = {}
    for entry in members:
        against = ours.get(entry.encoding) or next(iter(ours.values()), None)
        if against is None or entry.way == against.way or entry.p is None or entry.gain is None:
            continue
        found[entry.way, against.way] = 0 if entry.p >= SURE else (1 if entry.gain["mean"] > 0 else -1)
    return found


def win_matrix(entries: Sequence[Entry], answers: Mapping[Place, Answers]) -> Matrix:
    """Both directions of every pair that was compared, over all places and budgets."""
    matrix: Matrix = {}
    for place in dict.fromkeys(entry.place for entry in entries):
        here = [entry for entry in entries if entry.place == place]
        for keep in budgets_of(here):
            members = at_budget(here, keep)
            known = signs_from_answers(members, answers[place]) if place in answers else signs_from_rows(members)
            for (first, second), sign in known.items():
                matrix[first, second] = matrix.get((first, second), Score()).plus(sign)
                matrix[second, first] = matrix.get((second, first), Score()).plus(-sign)
    return matrix


@dataclass(frozen=True, slots=True)
class Timed:
    """A method at a budget and an ARR-COC that are compared by their times; None where none is as fast."""

    entry: Entry
    ours: Entry | None
    difference: float | None  # ARR-COC less the method, in shares
    sign: int | None  # 1 surely ahead, 0 not sure, -1 surely behind


def at_equal_time(entries: Sequence[Entry], answers: Answers | None) -> list[Timed]:
    """For every method of one place but ARR-COC and the oracle, whose choice nobody could make."""
    mine, others = _ours_and_others(entries)
    pairs = [
        (other, max((m for m in mine if m.time_ms <= other.time_ms), key=lambda m: m.accuracy or 0.0, default=None))
        for other in others
    ]
    signs = iter(_signs([(other, best) for other, best in pairs if best is not None], answers))
    return [
        Timed(other, None, None, None) if best is None else _timed(other, best, next(signs)) for other, best in pairs
    ]


def within_our_time(entries: Sequence[Entry], answers: Answers | None) -> list[Timed]:
    """For every ARR-COC of one place that no faster one equals: the best other method that took no more time."""
    mine, others = _ours_and_others(entries)
    best = [mine[place] for place in frontier([(entry.time_ms, entry.accuracy or 0.0) for entry in mine])]
    pairs = [
        (max(in_time, key=lambda other: other.accuracy or 0.0), one)
        for one in best
        if (in_time := [other for other in others if other.time_ms <= one.time_ms])
    ]
    return [_timed(other, one, sign) for (other, one), sign in zip(pairs, _signs(pairs, answers), strict=True)]


def _ours_and_others(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """ARR-COC, and every method whose choice somebody could make, where their answers were rated."""
    rated = [entry for entry in entries if entry.accuracy is not None]
    return [e for e in rated if e.name == REFERENCE], [e for e in rated if e.name not in (REFERENCE, ORACLE)]


def _timed(other: Entry, ours: Entry, sign: int) -> Timed:
    assert ours.accuracy is not None
    assert other.accuracy is not None
    return Timed(other, ours, ours.accuracy - other.accuracy, sign)


def _signs(pairs: Sequence[tuple[Entry, Entry]], answers: Answers | None) -> list[int]:
    """Of each pair (other, ARR-COC), by paired tests where there are samples; else by intervals that do not touch."""
    scored = [] if answers is None else [(answers.of(best), answers.of(other)) for other, best in pairs]
    columns = [mine_Q - theirs_Q for mine_Q, theirs_Q in scored if mine_Q is not None and theirs_Q is not None]
    if answers is None or not columns or len(columns) < len(pairs):
        return [_apart(best, other) for other, best in pairs]
    differences_QM = np.stack(columns, 1)
    known_Q = np.isfinite(differences_QM).all(1)
    p_M = holm(flip_p(differences_QM[known_Q], answers.images_Q[known_Q]).tolist())
    means_M = differences_QM[known_Q].mean(0).tolist()
    return [0 if p >= SURE else (1 if mean > 0 else -1) for p, mean in zip(p_M, means_M, strict=True)]


def _apart(a: Entry, b: Entry) -> int:
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return 0
    return 1 if a.low > b.high else (-1 if a.high < b.low else 0)


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of (cost, value) points are on the frontier: nobody is as good for less, or better for as much.

    From the cheapest to the dearest.
    """
    best, found = float("-inf"), []
    for place in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if points[place][1] > best:
            best = points[place][1]
            found.append(place)
    return found
