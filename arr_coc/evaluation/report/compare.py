"""Who beats whom: wins, ties and losses of every method against every other over the budgets, and at equal time.

A win is a paired test over images with p < 0.01 after Holm's correction for all pairs of the budget. Without samples
only the table's own tests against ARR-COC are known. M methods, Q questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from arr_coc.evaluation.field.main import Say
from arr_coc.evaluation.field.methods import ORACLE, PLAIN, REFERENCE
from arr_coc.evaluation.report.pages import (
    BAD,
    EVEN,
    GOOD,
    MISSING,
    NONE,
    Block,
    Cell,
    Heading,
    Table,
    Text,
    share,
    signed,
)
from arr_coc.evaluation.report.results import (
    NAMES,
    Answers,
    Entry,
    Keep,
    Measured,
    Names,
    Place,
    Way,
    budget_label,
    budgets_of,
    places_of,
    plain_of,
)
from arr_coc.evaluation.statistics import flip_p, holm

SURE = 0.01
SIGNS = {1: "ahead", 0: "level", -1: "behind"}
SIGN_TONES = {1: GOOD, 0: EVEN, -1: BAD}


@dataclass(frozen=True, slots=True)
class Tally:
    """Of one method against another."""

    wins: int = 0
    ties: int = 0
    losses: int = 0

    def plus(self, sign: int) -> "Tally":
        """One more comparison: 1 won, 0 even, -1 lost."""
        return Tally(self.wins + (sign > 0), self.ties + (sign == 0), self.losses + (sign < 0))


Matrix = dict[tuple[Way, Way], Tally]


def at_budget(entries: Sequence[Entry], keep: Keep) -> list[Entry]:
    """The methods of a budget, and the plain model, which has all tokens at every budget."""
    plain = plain_of(entries)
    at_it = [entry for entry in entries if entry.keep == keep and entry.name != PLAIN]
    return at_it + ([] if plain is None else [replace(plain, keep=keep)])


def sure_sign(p: float, difference: float) -> int:
    """1 where something is surely better, -1 where it is surely worse, else 0."""
    return 0 if p >= SURE else (1 if difference > 0 else -1)


def paired_signs(differences: Sequence[np.ndarray], answers: Answers) -> list[int]:
    """Of each column of differences `[Q]`, all corrected together; none where nobody knows what is right."""
    differences_QM = np.stack(differences, 1)
    known_Q = np.isfinite(differences_QM).all(1)
    if not known_Q.any():
        return []
    p_M = holm(flip_p(differences_QM[known_Q], answers.images_Q[known_Q]).tolist())
    return [sure_sign(p, mean) for p, mean in zip(p_M, differences_QM[known_Q].mean(0).tolist(), strict=True)]


def signs_from_answers(members: Sequence[Entry], answers: Answers) -> dict[tuple[Way, Way], int]:
    """The sign of the first of every pair against the second, for members that have scores."""
    scored = [(entry.way, scores_Q) for entry in members if (scores_Q := answers.of(entry)) is not None]
    pairs = list(combinations(scored, 2))
    signs = paired_signs([first - second for (_, first), (_, second) in pairs], answers) if pairs else []
    return {(pair[0][0], pair[1][0]): sign for pair, sign in zip(pairs, signs, strict=False)}


def signs_from_rows(members: Sequence[Entry]) -> dict[tuple[Way, Way], int]:
    """The same from the table's own tests: each method against the ARR-COC that it was held against."""
    ours = {entry.encoding: entry for entry in members if entry.name == REFERENCE}
    found = {}
    for entry in members:
        against = ours.get(entry.encoding) or next(iter(ours.values()), None)
        if against is not None and entry.way != against.way and entry.p is not None and entry.gain is not None:
            found[entry.way, against.way] = sure_sign(entry.p, entry.gain)
    return found


def win_matrix(entries: Sequence[Entry], answers: Mapping[Place, Answers]) -> Matrix:
    """Both directions of every pair that was compared, over all places and budgets."""
    matrix: Matrix = {}
    for place in places_of(entries):
        here = [entry for entry in entries if entry.place == place]
        for keep in budgets_of(here):
            members = at_budget(here, keep)
            known = signs_from_answers(members, answers[place]) if place in answers else signs_from_rows(members)
            for (first, second), sign in known.items():
                matrix[first, second] = matrix.get((first, second), Tally()).plus(sign)
                matrix[second, first] = matrix.get((second, first), Tally()).plus(-sign)
    return matrix


def matrix_table(matrix: Matrix, names: Names) -> Table:
    """Lines against columns, columns by number: wins, ties, losses of the line."""
    ways = [way for way in names if any(way in pair for pair in matrix)]
    met = {way: sum(column == way for _, column in matrix) for way in ways}
    columns = [way for way in ways if met[way] > 1] or ways  # who met one other only is seen in that one's column
    rows: list[list[Cell | str]] = []
    for number, row in enumerate(ways, start=1):
        tallies = [tally for pair, tally in matrix.items() if pair[0] == row]
        total = "/".join(str(sum(getattr(one, kind) for one in tallies)) for kind in ("wins", "ties", "losses"))
        cells = [_tally_cell(matrix.get((row, column)), row == column) for column in columns]
        rows.append([f"{names[row]} ({number})", *cells, total])
    heads = ("method", *(str(ways.index(way) + 1) for way in columns), "all")
    return Table.of(heads, rows, ours=NAMES[REFERENCE])


def _tally_cell(tally: Tally | None, itself: bool) -> Cell:
    if tally is None:
        return Cell("·" if itself else "")
    tone = GOOD if tally.wins > tally.losses else (BAD if tally.wins < tally.losses else "")
    return Cell(f"{tally.wins}/{tally.ties}/{tally.losses}", tone)


# ---------------------------------------------------------------- at equal time


@dataclass(frozen=True, slots=True)
class Timed:
    """A method at a budget and an ARR-COC that are compared by their times; None where none is as fast."""

    entry: Entry
    ours: Entry | None = None
    sign: int = 0  # 1 surely ahead, 0 not sure, -1 surely behind

    @property
    def difference(self) -> float | None:
        """ARR-COC less the method, in shares."""
        return None if self.ours is None else (self.ours.accuracy or 0.0) - (self.entry.accuracy or 0.0)

    @property
    def said(self) -> str:
        """Who is ahead, by how many points."""
        return f"{SIGNS[self.sign]}, {signed(self.difference or 0.0)}"


def at_equal_time(entries: Sequence[Entry], answers: Answers | None) -> list[Timed]:
    """For every method of one place but ARR-COC and the oracle, whose choice nobody could make."""
    mine, others = _ours_and_others(entries)
    pairs = [
        (other, max((m for m in mine if m.time_ms <= other.time_ms), key=lambda m: m.accuracy or 0.0, default=None))
        for other in others
    ]
    signs = iter(_signs([(other, best) for other, best in pairs if best is not None], answers))
    return [Timed(other) if best is None else Timed(other, best, next(signs)) for other, best in pairs]


def within_our_time(entries: Sequence[Entry], answers: Answers | None) -> list[Timed]:
    """For every ARR-COC of one place that no faster one equals: the best other method that took no more time."""
    mine, others = _ours_and_others(entries)
    best = [mine[place] for place in frontier([(entry.time_ms, entry.accuracy or 0.0) for entry in mine])]
    pairs = [
        (max(in_time, key=lambda other: other.accuracy or 0.0), one)
        for one in best
        if (in_time := [other for other in others if other.time_ms <= one.time_ms])
    ]
    return [Timed(other, one, sign) for (other, one), sign in zip(pairs, _signs(pairs, answers), strict=True)]


def _ours_and_others(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """ARR-COC, and every method whose choice somebody could make, where their answers were rated."""
    rated = [entry for entry in entries if entry.accuracy is not None]
    return [e for e in rated if e.name == REFERENCE], [e for e in rated if e.name not in (REFERENCE, ORACLE)]


def _signs(pairs: Sequence[tuple[Entry, Entry]], answers: Answers | None) -> list[int]:
    """Of each pair (other, ARR-COC), by paired tests where there are samples; else by intervals that do not touch."""
    scored = [] if answers is None else [(answers.of(best), answers.of(other)) for other, best in pairs]
    columns = [mine_Q - theirs_Q for mine_Q, theirs_Q in scored if mine_Q is not None and theirs_Q is not None]
    tested = paired_signs(columns, answers) if answers is not None and columns and len(columns) == len(pairs) else []
    return tested or [_apart(best, other) for other, best in pairs]


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


def time_table(timed: Sequence[Timed], entries: Sequence[Entry], names: Names) -> Table:
    """Methods by budgets: how far the best ARR-COC of no more time is ahead, in points."""
    keeps = budgets_of(entries)
    found = {(one.entry.way, one.entry.keep): one for one in timed}
    found |= {(one.entry.way, keep): one for one in timed if one.entry.name == PLAIN for keep in keeps}
    ways = dict.fromkeys(one.entry.way for one in timed)
    rows: list[list[Cell | str]] = [
        [names[way], *(_timed_cell(found.get((way, keep))) for keep in keeps)] for way in ways
    ]
    return Table.of(("method", *(f"at {budget_label(keep, entries[0].total)}" for keep in keeps)), rows)


def _timed_cell(one: Timed | None) -> Cell:
    if one is None:
        return Cell(NONE)
    if one.ours is None:
        return Cell(f"no ARR-COC as fast\n({one.entry.time_ms:,.1f} ms)", MISSING)
    spent = f"{one.ours.time_ms:,.1f} of {one.entry.time_ms:,.1f} ms"
    return Cell(f"{one.said}\n{budget_label(one.ours.keep)} {one.ours.encoding}, {spent}", SIGN_TONES[one.sign])


def within_table(timed: Sequence[Timed], names: Names) -> Table:
    """What else was to be had in the time that each ARR-COC took."""
    rows: list[list[Cell | str]] = []
    for one in timed:
        assert one.ours is not None
        mine, theirs = ([f"{e.time_ms:,.1f}", share(e.accuracy)] for e in (one.ours, one.entry))
        other = f"{names[one.entry.way]}, {budget_label(one.entry.keep)}"
        result = Cell(one.said, SIGN_TONES[one.sign])
        rows.append([f"{budget_label(one.ours.keep)} {one.ours.encoding}", *mine, other, *theirs, result])
    return Table.of(("ARR-COC", "ms", "accuracy %", "best other in that time", "ms", "accuracy %", "points"), rows)


# ---------------------------------------------------------------- on the page


def compared_blocks(measured: Measured, say: Say) -> list[Block]:
    """Who beats whom, and at equal time."""
    say("who beats whom")
    blocks: list[Block] = [
        Heading("Who beats whom"),
        Text(
            "Wins / ties / losses of the line against the column over all sizes and budgets. A win is p < 0.01 after "
            "Holm's correction over all pairs of a budget. All tokens has every token at every budget."
        ),
    ]
    if measured.notes:
        why = "; ".join(measured.notes)
        blocks.append(Text(f"{why}: there, only the table's own tests against ARR-COC are known."))
    blocks += [
        matrix_table(win_matrix(measured.entries, measured.answers), measured.names),
        Heading("At equal measured time"),
        Text(
            "For each method and budget: the most accurate ARR-COC that took no more time to the first token, how many "
            "points it is ahead, and whether that is sure (p < 0.01 after Holm; without samples, intervals that do "
            "not touch). Then the other way round: for each ARR-COC that no faster one equals, the most accurate other "
            "method that took no more time than it."
        ),
    ]
    for place, here in measured.places.items():
        answers = measured.answers.get(place)
        blocks += [
            Heading(place.label, 3),
            time_table(at_equal_time(here, answers), here, measured.names),
            within_table(within_our_time(here, answers), measured.names),
        ]
    return blocks
