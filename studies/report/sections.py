"""Where ARR-COC leads and what people say of it, and the same tokens spent two ways: sections of our own report."""

from collections.abc import Mapping, Sequence
from typing import Any

from arr_coc.evaluation.field.methods import REFERENCE
from arr_coc.evaluation.report.main import NEAR, SURE, at_budget
from arr_coc.evaluation.report.pages import (
    BAD,
    EVEN,
    GOOD,
    NONE,
    Block,
    Cell,
    heading,
    paragraph,
    probability,
    share,
    signed,
    table,
)
from arr_coc.evaluation.report.results import (
    NAMES,
    RIVAL,
    Entry,
    Measured,
    Names,
    budget_label,
    budgets_of,
    label,
    ours_of,
    plain_of,
)
from arr_coc.files import read_json_object
from studies.figures.look_twice import against_line, answers
from studies.report.checks import TONES, judge, points
from studies.report.field_checks import EQUAL_GAIN, SMALL_TEXT_GAIN, not_behind
from studies.report.sources import EQUAL, FILES, NOTES, gains_of, read_results

TWICE = "look-twice.json"
WHO = (
    "The **trained rival** is a scorer of our own, trained on the same boxes and for about as long as ARR-COC, that "
    "reads what the vision encoder makes of the whole image: the strongest choice that we could build without "
    "choosing first. It pays for the whole encoder. All other methods of the field need no training."
)
WANTED = {"overall": EQUAL_GAIN, "small text": SMALL_TEXT_GAIN}  # of the equal-token test


def who_blocks(measured: Measured) -> list[Block]:
    """Whom the page speaks of, before it does."""
    return [paragraph(WHO)] if measured.entries else []


def lead_blocks(measured: Measured) -> list[Block]:
    """Where ARR-COC leads, and the notes of people, where the field was measured."""
    if not measured.entries:
        return []
    tables = [lead_table(here, measured.names) for here in measured.places.values()]
    path = measured.folder / NOTES
    notes = path.read_text(encoding="utf-8").split("\n\n") if path.is_file() else []
    said = [paragraph(part.replace("\n", " ").strip()) for part in notes if part.strip()]
    return [heading("Where ARR-COC leads"), *tables, *said]


def twice_blocks(measured: Measured) -> list[Block]:
    """What a model without an adapter does: looking twice beside every method that needs no training."""
    path = measured.folder / TWICE
    if not path.is_file():
        return []
    field = read_json_object(path)["field"]
    heads, rows, whole = answers(field)
    said = (whole, *against_line(field).split("\n\n"))
    return [heading("Without an adapter: looking twice"), table(heads, rows), *map(paragraph, said)]


def lead_table(entries: Sequence[Entry], names: Names) -> Block:
    """At each budget: whom ARR-COC is surely ahead of, the trained rival, and whether anyone passes the oracle."""
    rows: list[list[Cell | str]] = []
    for keep in budgets_of(entries):
        members = at_budget(entries, keep)
        ours, plain = ours_of(members, keep), plain_of(members)
        if ours is None:
            continue
        free = [e for e in members if e.competes and not e.trained and e.gain is not None]
        left = not_behind(free)
        told = f"{len(free) - len(left)} of {len(free)}" + "".join(f"; {names[e.way]} {_lead(e)}" for e in left)
        above = [names[entry.way] for entry in members if entry.above_oracle]
        rows.append(
            [
                f"{ours.place.label}: {budget_label(keep, ours.total)}",
                f"{share(ours.accuracy)} ({share(ours.low)} to {share(ours.high)})",
                NONE if plain is None else share(plain.accuracy),
                Cell(told, EVEN if not free else (BAD if left else GOOD)),
                _rivals(members, ours),
                Cell(", ".join(above) or "none", BAD if above else GOOD),
            ]
        )
    heads = (
        "tokens kept",
        "ARR-COC %",
        "all tokens %",
        "surely ahead of, training-free, encoded alike",
        "trained rival",
        "above oracle",
    )
    return table(heads, rows, wide_words=True)


def _lead(entry: Entry) -> str:
    assert entry.gain is not None
    p = "" if entry.p is None else f" (p {entry.p:.3f})"
    return f"{signed(-entry.gain)}{p}"


def _rivals(members: Sequence[Entry], ours: Entry) -> Cell:
    """Good where ARR-COC is ahead, or within a point at less time."""
    rivals = [entry for entry in members if entry.name == RIVAL and entry.gain is not None]
    if not rivals or ours.accuracy is None:
        return Cell("not in the table" if not rivals else NONE, EVEN)
    best = max(rivals, key=lambda entry: entry.accuracy or 0.0)
    assert best.accuracy is not None
    assert best.gain is not None
    sure = best.p is not None and best.p < SURE and best.gain < 0
    near = best.accuracy - ours.accuracy <= NEAR and ours.time_ms < best.time_ms
    times = f"{best.time_ms / ours.time_ms:.1f} times the time" if ours.time_ms else ""
    lead = points(ours.accuracy - best.accuracy)
    alike = f" ({points(-best.gain)} with the whole image encoded)" if ours.encoding != best.encoding else ""
    return Cell(f"{share(best.accuracy)}, at {times}; lead {lead}{alike}", GOOD if sure or near else BAD)


def equal_token_blocks(measured: Measured) -> list[Block]:
    """256 tokens spent two ways on the same scene."""
    blocks: list[Block] = [
        heading("The same tokens, spent two ways"),
        paragraph(
            "Scenes drawn at 1024 px with small text and many things. The plain model gets each at 512 px: 256 tokens, "
            "all of them kept. ARR-COC gets it at 1024 px and chooses 256 of its 1,024. Differences are in points."
        ),
    ]
    results = read_results(measured.folder)
    found = gains_of(results)
    if found is None:
        return [*blocks, paragraph(f"**Not measured yet**: `{FILES[EQUAL].maker}` writes `{EQUAL}`.")]
    gains, file = found
    rows: list[list[Cell | str]] = []
    for way, groups in gains.items():
        selector, _, encoding = way.rpartition(" ")
        rows += [
            [
                f"{label(selector)}, {encoding}",
                group,
                *_gain_cells(figure, WANTED.get(group) if _ours(way) else None, file),
            ]
            for group, figure in groups.items()
        ]
    heads = ("method", "questions", "over the plain model at 512 px", "95 % interval", "p", "n", "aim")
    blocks.append(table(heads, rows, ours=NAMES[REFERENCE]))
    if results.rows(EQUAL):
        lines = [
            [
                label(r["selector"]) + f", {r['encoding']}",
                share(r["accuracy"]),
                _interval(r["ci95"]),
                f"{r['tokens']:,.0f}",
            ]
            for r in results.rows(EQUAL)
        ]
        blocks.append(table(("method", "accuracy %", "95 % interval", "tokens"), lines, ours=NAMES[REFERENCE]))
    return blocks


def _ours(way: str) -> bool:
    return way.startswith(f"{REFERENCE} ")


def _interval(limits: Sequence[float] | None) -> str:
    return NONE if limits is None else f"{share(limits[0])} to {share(limits[1])}"


def _gain_cells(figure: Mapping[str, Any], wanted: float | None, file: str) -> list[Cell | str]:
    mean, limits = figure.get("mean"), figure.get("ci95")
    if mean is None or limits is None:
        return ["no questions", NONE, NONE, str(figure.get("n", 0)), NONE]
    cells: list[Cell | str] = [signed(mean), f"{signed(limits[0])} to {signed(limits[1])}"]
    cells += [probability(figure.get("p")), f"{figure['n']:,}"]
    if wanted is None:
        return [*cells, NONE]
    check = judge("", mean >= wanted, "", file)
    return [*cells, Cell(f"at least {signed(wanted)}: {check.verdict}", TONES[check.verdict])]
