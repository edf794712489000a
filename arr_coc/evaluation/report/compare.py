"""Who beats whom: wins, ties and losses of every method against every other over the budgets.

A win is a paired test over images with p < 0.01 after Holm's correction for all pairs of the budget. Without samples
only the table's own tests against ARR-COC are known. M methods, Q questions.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from arr_coc.evaluation.field.methods import REFERENCE
from arr_coc.evaluation.report.pages import BAD, GOOD, Block, Cell, heading, paragraph, table
from arr_coc.evaluation.report.results import NAMES, Answers, Entry, Keep, Measured, Names, Way, budgets_of, plain_of
from arr_coc.evaluation.statistics import flip_p, holm
from arr_coc.selectors import PLAIN

SURE = 0.01

Signs = list[int]  # of each comparison: 1 surely better, 0 not sure, -1 surely worse
Matrix = dict[tuple[Way, Way], Signs]


def at_budget(entries: Sequence[Entry], keep: Keep) -> list[Entry]:
    """The methods of a budget, and the plain model, which has all tokens at every budget."""
    plain = plain_of(entries)
    at_it = [entry for entry in entries if entry.keep == keep and entry.name != PLAIN]
    return at_it + ([] if plain is None else [replace(plain, keep=keep)])


def sure_sign(p: float, difference: float) -> int:
    """1 where something is surely better, -1 where it is surely worse, else 0."""
    return 0 if p >= SURE else (1 if difference > 0 else -1)


def paired_signs(differences: Sequence[np.ndarray], answers: Answers) -> Signs:
    """Of each column of differences `[Q]`, all corrected together; none where nobody knows what is right."""
    differences_QM = np.stack(differences, 1)
    known_Q = np.isfinite(differences_QM).all(1)
    if not known_Q.any():
        return []
    p_M = holm(flip_p(differences_QM[known_Q], answers.images_Q[known_Q]).tolist())
    return [sure_sign(p, mean) for p, mean in zip(p_M, differences_QM[known_Q].mean(0).tolist(), strict=True)]


def signs_of(members: Sequence[Entry], answers: Answers | None) -> dict[tuple[Way, Way], int]:
    """The sign of the first of a pair against the second: of all pairs where there are answers.

    Without, by the table's own tests, of each method against the ARR-COC that it was held against.
    """
    if answers is not None:
        scored = [(entry.way, scores_Q) for entry in members if (scores_Q := answers.of(entry)) is not None]
        pairs = list(combinations(scored, 2))
        signs = paired_signs([first - second for (_, first), (_, second) in pairs], answers) if pairs else []
        return {(pair[0][0], pair[1][0]): sign for pair, sign in zip(pairs, signs, strict=False)}
    ours = {entry.encoding: entry.way for entry in members if entry.name == REFERENCE}
    against = {entry.way: ours.get(entry.encoding) or next(iter(ours.values()), entry.way) for entry in members}
    tested = [entry for entry in members if against[entry.way] != entry.way]
    return {
        (entry.way, against[entry.way]): sure_sign(entry.p, entry.gain)
        for entry in tested
        if entry.p is not None and entry.gain is not None
    }


def win_matrix(measured: Measured) -> Matrix:
    """Both directions of every pair that was compared, over all places and budgets."""
    matrix: Matrix = {}
    for place, here in measured.places.items():
        for keep in budgets_of(here):
            for (first, second), sign in signs_of(at_budget(here, keep), measured.answers.get(place)).items():
                matrix.setdefault((first, second), []).append(sign)
                matrix.setdefault((second, first), []).append(-sign)
    return matrix


def matrix_table(matrix: Matrix, names: Names) -> Block:
    """Lines against columns, columns by number: wins, ties, losses of the line."""

    def told(signs: Signs) -> str:
        return "/".join(str(signs.count(sign)) for sign in (1, 0, -1))

    def cell(row: Way, column: Way) -> Cell:
        signs = matrix.get((row, column))
        if signs is None:
            return Cell("·" if row == column else "")
        return Cell(told(signs), GOOD if sum(signs) > 0 else (BAD if sum(signs) < 0 else ""))

    ways = [way for way in names if any(way in pair for pair in matrix)]
    met = {way: sum(column == way for _, column in matrix) for way in ways}
    columns = [way for way in ways if met[way] > 1] or ways  # who met one other only is seen in that one's column
    rows: list[list[Cell | str]] = []
    for number, row in enumerate(ways, start=1):
        total = [sign for pair, signs in matrix.items() if pair[0] == row for sign in signs]
        rows.append([f"{names[row]} ({number})", *(cell(row, column) for column in columns), told(total)])
    heads = ("method", *(str(ways.index(way) + 1) for way in columns), "all")
    return table(heads, rows, ours=NAMES[REFERENCE])


def compared_blocks(measured: Measured) -> list[Block]:
    """Who beats whom."""
    told = paragraph(
        "Wins / ties / losses of the line against the column over all sizes and budgets. A win is p < 0.01 after "
        "Holm's correction over all pairs of a budget. All tokens has every token at every budget."
    )
    why = f"{'; '.join(measured.notes)}: there, only the table's own tests against ARR-COC are known."
    noted = [paragraph(why)] if measured.notes else []
    return [heading("Who beats whom"), told, *noted, matrix_table(win_matrix(measured), measured.names)]
