"""ARR-COC against every method at equal measured time, seen from both sides."""

from collections.abc import Sequence
from dataclasses import dataclass

from arr_coc.evaluation.field.methods import ORACLE, REFERENCE
from arr_coc.evaluation.report.main import paired_signs
from arr_coc.evaluation.report.pages import (
    BAD,
    EVEN,
    GOOD,
    MISSING,
    NONE,
    Block,
    Cell,
    heading,
    paragraph,
    share,
    signed,
    table,
)
from arr_coc.evaluation.report.plots import frontier
from arr_coc.evaluation.report.results import Answers, Entry, Measured, Names, budget_label, budgets_of
from arr_coc.selectors import PLAIN

SIGNS = {1: "ahead", 0: "level", -1: "behind"}
SIGN_TONES = {1: GOOD, 0: EVEN, -1: BAD}


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


def time_table(timed: Sequence[Timed], entries: Sequence[Entry], names: Names) -> Block:
    """Methods by budgets: how far the best ARR-COC of no more time is ahead, in points."""
    keeps = budgets_of(entries)
    found = {(one.entry.way, one.entry.keep): one for one in timed}
    found |= {(one.entry.way, keep): one for one in timed if one.entry.name == PLAIN for keep in keeps}
    ways = dict.fromkeys(one.entry.way for one in timed)
    rows: list[list[Cell | str]] = [
        [names[way], *(_timed_cell(found.get((way, keep))) for keep in keeps)] for way in ways
    ]
    return table(("method", *(f"at {budget_label(keep, entries[0].total)}" for keep in keeps)), rows)


def _timed_cell(one: Timed | None) -> Cell:
    if one is None:
        return Cell(NONE)
    if one.ours is None:
        return Cell(f"no ARR-COC as fast\n({one.entry.time_ms:,.1f} ms)", MISSING)
    spent = f"{one.ours.time_ms:,.1f} of {one.entry.time_ms:,.1f} ms"
    return Cell(f"{one.said}\n{budget_label(one.ours.keep)} {one.ours.encoding}, {spent}", SIGN_TONES[one.sign])


def within_table(timed: Sequence[Timed], names: Names) -> Block:
    """What else was to be had in the time that each ARR-COC took."""
    rows: list[list[Cell | str]] = []
    for one in timed:
        assert one.ours is not None
        mine, theirs = ([f"{e.time_ms:,.1f}", share(e.accuracy)] for e in (one.ours, one.entry))
        other = f"{names[one.entry.way]}, {budget_label(one.entry.keep)}"
        result = Cell(one.said, SIGN_TONES[one.sign])
        rows.append([f"{budget_label(one.ours.keep)} {one.ours.encoding}", *mine, other, *theirs, result])
    return table(("ARR-COC", "ms", "accuracy %", "best other in that time", "ms", "accuracy %", "points"), rows)


def equal_time_blocks(measured: Measured) -> list[Block]:
    """Both tables of every place, where the field was measured."""
    if not measured.entries:
        return []
    blocks: list[Block] = [
        heading("At equal measured time"),
        paragraph(
            "For each method and budget: the most accurate ARR-COC that took no more time to the first token, how many "
            "points it is ahead, and whether that is sure (p < 0.01 after Holm; without samples, intervals that do "
            "not touch). Then the other way round: for each ARR-COC that no faster one equals, the most accurate other "
            "method that took no more time than it."
        ),
    ]
    for place, here in measured.places.items():
        answers = measured.answers.get(place)
        blocks += [
            heading(place.label, 3),
            time_table(at_equal_time(here, answers), here, measured.names),
            within_table(within_our_time(here, answers), measured.names),
        ]
    return blocks
