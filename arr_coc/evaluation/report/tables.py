"""Tables of the field: every method at every budget, families of questions, and where ARR-COC leads."""

from collections.abc import Mapping, Sequence

from arr_coc.evaluation.field.data import MANY, SMALL_TEXT
from arr_coc.evaluation.field.methods import REFERENCE
from arr_coc.evaluation.report.blocks import BAD, EVEN, GOOD, Block, Cell, Fold, Heading, Table, Text
from arr_coc.evaluation.report.checks import points, signed
from arr_coc.evaluation.report.field_checks import not_behind
from arr_coc.evaluation.report.pairs import SURE, at_budget
from arr_coc.evaluation.report.rows import (
    NAMES,
    RIVAL,
    Entry,
    Place,
    budget_label,
    budgets_of,
    ours_of,
    place_label,
    plain_of,
)

Names = Mapping[tuple[str, str], str]
NONE = "\u2013"
NEAR = 0.01  # a trained rival may be so much better where it takes longer
GROUPS = {"hard": "hard scenes", "plain": "plain scenes", SMALL_TEXT: SMALL_TEXT, MANY: MANY}  # not families


def share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f}"


def probability(p: float | None) -> str:
    return NONE if p is None else f"{p:.4f}" if p >= 0.0001 else "< 0.0001"


def method_table(entries: Sequence[Entry], names: Names) -> Table:
    """All methods of one budget, the best first."""
    heads = (
        *("method", "training", "accuracy %", "95 % interval", "over ARR-COC, points", "p (Holm)", "evidence found %"),
        *("tokens", "equivalent tokens", "ms to first token", "select + vision + prefill"),
    )
    rows = []
    for entry in sorted(entries, key=lambda one: -(one.accuracy or 0.0)):
        parts = " + ".join(f"{entry.parts_ms[part]:.1f}" for part in ("select", "vision", "prefill"))
        rows.append(
            [
                names[entry.way],
                "trained" if entry.trained else "none",
                share(entry.accuracy),
                NONE if entry.low is None else f"{share(entry.low)} to {share(entry.high)}",
                NONE if entry.gain is None else signed(entry.gain["mean"]),
                probability(entry.p),
                share(entry.recall),
                f"{entry.tokens:,.0f}",
                f"{entry.equivalent:,.0f}",
                f"{entry.time_ms:,.1f}",
                parts,
            ]
        )
    return Table.of(heads, rows, ours=NAMES[REFERENCE])


def budget_blocks(entries: Sequence[Entry], names: Names, place: Place) -> list[Block]:
    """A table per budget of one place."""
    blocks: list[Block] = [Heading(place_label(place), 3)]
    for number, keep in enumerate(budgets_of(entries)):
        members = at_budget(entries, keep)
        title = f"{budget_label(keep, members[0].total)} kept, {members[0].questions:,} questions"
        table = method_table(members, names)
        # The first stands open, so that a reader sees what the others hold.
        blocks += [Text(f"**{title}**"), table] if not number else [Fold(title, (table,))]
    return blocks


def lead_table(entries: Sequence[Entry], names: Names) -> Table:
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
                f"{place_label(ours.place)}: {budget_label(keep, ours.total)}",
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
    return Table.of(heads, rows, wide_words=True)


def _lead(entry: Entry) -> str:
    assert entry.gain is not None
    p = "" if entry.p is None else f" (p {entry.p:.3f})"
    return f"{signed(-entry.gain['mean'])}{p}"


def _rivals(members: Sequence[Entry], ours: Entry) -> Cell:
    """Good where ARR-COC is ahead, or within a point at less time."""
    rivals = [entry for entry in members if entry.name == RIVAL and entry.gain is not None]
    if not rivals or ours.accuracy is None:
        return Cell("not in the table" if not rivals else NONE, EVEN)
    best = max(rivals, key=lambda entry: entry.accuracy or 0.0)
    assert best.accuracy is not None
    assert best.gain is not None
    sure = best.p is not None and best.p < SURE and best.gain["mean"] < 0
    near = best.accuracy - ours.accuracy <= NEAR and ours.time_ms < best.time_ms
    times = f"{best.time_ms / ours.time_ms:.1f} times the time" if ours.time_ms else ""
    lead = points(ours.accuracy - best.accuracy)
    alike = f" ({points(-best.gain['mean'])} with the whole image encoded)" if ours.encoding != best.encoding else ""
    return Cell(f"{share(best.accuracy)}, at {times}; lead {lead}{alike}", GOOD if sure or near else BAD)


def family_blocks(entries: Sequence[Entry], names: Names, place: Place) -> list[Block]:
    """Families of one place: ARR-COC and the best of the others at each budget; then everything, a table per family."""
    families = sorted({f for entry in entries for f in entry.families}, key=lambda name: (name in GROUPS, name))
    keeps, plain = budgets_of(entries), plain_of(entries)
    rows = []
    for family in families:
        cells: list[Cell | str] = [_family(family), NONE if plain is None else share(plain.families.get(family))]
        cells += [_family_cell(entries, names, family, keep) for keep in keeps]
        rows.append(cells)
    heads = ("family", "all tokens %", *(budget_label(keep, entries[0].total) for keep in keeps))
    folds = tuple(Fold(_family(family), (_family_table(entries, names, family),)) for family in families)
    return [
        Heading(place_label(place), 3),
        Text("ARR-COC, and in brackets the best of the other methods, the oracle aside. Accuracy in %."),
        Table.of(heads, rows),
        Fold("Every method, family by family", folds),
    ]


def _family(name: str) -> str:
    return GROUPS.get(name, name.replace("_", " "))


def _family_cell(entries: Sequence[Entry], names: Names, family: str, keep: float | int) -> Cell:
    ours = ours_of(entries, keep)
    mine = None if ours is None else ours.families.get(family)
    rivals = [e for e in entries if e.keep == keep and e.competes and e.name != REFERENCE and family in e.families]
    if mine is None or not rivals:
        return Cell(share(mine))
    best = max(rivals, key=lambda entry: entry.families[family])
    value = best.families[family]
    tone = EVEN if abs(value - mine) < NEAR else (GOOD if mine > value else BAD)
    return Cell(f"{share(mine)}\n({names[best.way]} {share(value)})", tone)


def _family_table(entries: Sequence[Entry], names: Names, family: str) -> Table:
    """One family: methods by budgets."""
    keeps, plain = budgets_of(entries), plain_of(entries)
    by_way = {(entry.way, entry.keep): entry.families.get(family) for entry in entries}
    ways = [way for way in dict.fromkeys(entry.way for entry in entries) if plain is None or way != plain.way]
    rows = [[names[way], *(share(by_way.get((way, keep))) for keep in keeps)] for way in ways]
    if plain is not None:
        rows.append([names[plain.way], *[share(plain.families.get(family))] * len(keeps)])
    heads = ("method", *(budget_label(keep, entries[0].total) for keep in keeps))
    return Table.of(heads, rows, ours=NAMES[REFERENCE])
