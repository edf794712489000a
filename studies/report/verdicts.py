"""The seven figures that say what success is, in two wordings: what the source asks for, and what this project aims at.

Every figure is reported in both, so that nobody can say that the post was moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from arr_coc.evaluation.report.pages import Block, Cell, bullets, fold, heading, paragraph, table
from arr_coc.evaluation.report.results import Entry, Measured
from studies.report.checks import FAILS, HOLDS, NOT_HERE, NOT_YET, TONES, Check
from studies.report.field_checks import ahead_of_all, gain_at_equal_tokens, gain_over_plain, kept_accuracy
from studies.report.sources import Results, read_results
from studies.report.speed_checks import first_token, memory, selection_time
from studies.report.weight_checks import added_parameters, overlap


@dataclass(frozen=True, slots=True)
class Promise:
    """One figure: what is asked, in two wordings, and what was found."""

    figure: str
    source: str  # "" where the source asks for nothing
    source_checks: tuple[Check, ...]
    ours: str
    our_checks: tuple[Check, ...]


def promises(results: Results, entries: Sequence[Entry]) -> list[Promise]:
    """All seven."""
    kept: tuple[list[Check], list[Check]] = ([], [*kept_accuracy(results, entries), *ahead_of_all(entries)])
    accuracy = (gain_over_plain(entries), gain_at_equal_tokens(results))
    rows: tuple[tuple[str, str, str, tuple[list[Check], list[Check]]], ...] = (
        (
            "time to the first token: select, vision, prefill",
            "25 % less",
            "x2.2 at 1024 px and x10 at 2048 px, 200 tokens, 2B shape, one GPU, graphs on both sides",
            first_token(results),
        ),
        ("memory", "25 % less in all", "said in all, and above the weights: 85 % less at 2048 px", memory(results)),
        (
            "accuracy",
            "+5 % over the plain model on diverse questions",
            "+5 points at equal visual tokens, spent on a sharper image",
            accuracy,
        ),
        (
            "accuracy kept with 25 % and 10 % of the tokens",
            "",
            "95 % and 82 % of the plain model's now, 97 % and 90 % next; ahead of every method, with error bars",
            kept,
        ),
        (
            "textures, scoring and choice",
            "under 5 ms and under 1 ms",
            "all of it under 1.5 ms on a GPU at 1024 px",
            selection_time(results),
        ),
        (
            "overlap of the choice with the right boxes",
            "x2 over the untrained",
            "x2.5 over the untrained and over random",
            overlap(results),
        ),
        (
            "parameters added",
            "about 50 k to 100 k",
            "at most 0.5 M on mini and 1 M at the 2B shape; at most 5 % of the memory",
            added_parameters(results),
        ),
    )
    return [Promise(figure, source, tuple(pair[0]), ours, tuple(pair[1])) for figure, source, ours, pair in rows]


def verdict_of(checks: Sequence[Check]) -> str:
    """Of several checks: one that fails decides, then one that is missing; what cannot be measured decides nothing."""
    found = {check.verdict for check in checks}
    return next((verdict for verdict in (FAILS, NOT_YET, HOLDS, NOT_HERE) if verdict in found), NOT_YET)


def verdict_blocks(measured: Measured) -> list[Block]:
    """A table that sums up, then every check with its figure and its file."""
    made = promises(read_results(measured.folder), measured.entries)
    rows: list[list[Cell | str]] = [
        [
            f"{number}. {promise.figure}",
            promise.source or "nothing",
            summed(promise.source_checks) if promise.source else "nothing to hold",
            promise.ours,
            summed(promise.our_checks),
        ]
        for number, promise in enumerate(made, start=1)
    ]
    heads = ("figure", "the source asks for", "verdict on it", "we aim at", "verdict on ours")
    blocks: list[Block] = [
        heading("What was promised, and what holds"),
        paragraph(
            "Each figure as the source words it and as we word it. It holds where all of its checks hold; beside the "
            "verdict stands the check that decides it."
        ),
        table(heads, rows, wide_words=True),
    ]
    folds = [fold(f"{n}. {promise.figure}: every check", _details(promise)) for n, promise in enumerate(made, 1)]
    return [*blocks, *folds]


def promised_blocks(measured: Measured) -> list[Block]:
    """The last line of the summary: how many of the promises hold, in both wordings."""
    made = promises(read_results(measured.folder), measured.entries)
    source = [verdict_of(promise.source_checks) for promise in made if promise.source]
    ours = [verdict_of(promise.our_checks) for promise in made]
    failed = [promise.figure for promise in made if verdict_of(promise.our_checks) == FAILS]
    missed = f" Ours that do not: {'; '.join(failed)}." if failed else ""
    return [
        bullets(
            [
                f"Of the promises below, {source.count(HOLDS)} of {len(source)} hold as the source words them and "
                f"{ours.count(HOLDS)} of {len(ours)} as we word them.{missed}"
            ]
        )
    ]


def summed(checks: Sequence[Check]) -> Cell:
    """The verdict, how many of the measured checks hold, and the first check that decides."""
    verdict = verdict_of(checks)
    deciding = next(check for check in checks if check.verdict == verdict)
    measured = [check for check in checks if check.verdict in (HOLDS, FAILS)]
    held = sum(check.verdict == HOLDS for check in measured)
    counted = f" ({held} of {len(measured)} checks hold)" if verdict == FAILS and len(measured) > 1 else ""
    return Cell(f"**{verdict}**{counted}: {deciding.figure}{_from(deciding)}", TONES[verdict])


def _from(check: Check) -> str:
    return f" (`{check.file}`)" if check.file else ""


def _details(promise: Promise) -> Block:
    rows: list[list[Cell | str]] = [
        [check.asked, who, Cell(check.verdict, TONES[check.verdict]), check.figure + _from(check)]
        for who, checks in (("source", promise.source_checks), ("ours", promise.our_checks))
        for check in checks
    ]
    return table(("asked for", "whose wording", "verdict", "measured"), rows, wide_words=True)
