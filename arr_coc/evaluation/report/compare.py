"""Who beats whom: wins, ties and losses of every method against every other over the budgets.

A win is a paired test over images with p < 0.01 after Holm's correction for all pairs of the budget. Without samples
only the table's own tests against ARR-COC are known. M methods, Q questions.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from arr_coc.evaluation.field.main import Say
from arr_coc.evaluation.field.methods import REFERENCE
from arr_coc.evaluation.report.pages import BAD, GOOD, Block, Cell, Heading, Table, Text
from arr_coc.evaluation.report.results import NAMES, Answers, Entry, Keep, Measured, Names, Way, budgets_of, plain_of
from arr_coc.evaluation.statistics import flip_p, holm
from arr_coc.selectors import PLAIN

SURE = 0.01


class Tally(NamedTuple):
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


def win_matrix(measured: Measured) -> Matrix:
    """Both directions of every pair that was compared, over all places and budgets."""
    matrix: Matrix = {}
    for place, here in measured.places.items():
        for keep in budgets_of(here):
            members, known = at_budget(here, keep), measured.answers.get(place)
            signs = signs_from_rows(members) if known is None else signs_from_answers(members, known)
            for (first, second), sign in signs.items():
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
        total = Tally(*map(sum, zip(*(tally for pair, tally in matrix.items() if pair[0] == row), strict=True)))
        cells = [_tally_cell(matrix.get((row, column)), row == column) for column in columns]
        rows.append([f"{names[row]} ({number})", *cells, "/".join(map(str, total))])
    heads = ("method", *(str(ways.index(way) + 1) for way in columns), "all")
    return Table.of(heads, rows, ours=NAMES[REFERENCE])


def _tally_cell(tally: Tally | None, itself: bool) -> Cell:
    if tally is None:
        return Cell("·" if itself else "")
    tone = GOOD if tally.wins > tally.losses else (BAD if tally.wins < tally.losses else "")
    return Cell("/".join(map(str, tally)), tone)


def compared_blocks(measured: Measured, say: Say) -> list[Block]:
    """Who beats whom."""
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
    return [*blocks, matrix_table(win_matrix(measured), measured.names)]
