"""The report: one page, in HTML and in Markdown, from what lies in a folder of results.

The same results give the same bytes. What is not there is said to be not measured yet. Whoever has more to say of the
same results adds sections of their own (`Section`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arr_coc.evaluation.field.data import MANY, SMALL_TEXT
from arr_coc.evaluation.field.main import Say
from arr_coc.evaluation.field.methods import REFERENCE
from arr_coc.evaluation.field.table import PARTS
from arr_coc.evaluation.report import pages, results
from arr_coc.evaluation.report.compare import at_budget, compared_blocks
from arr_coc.evaluation.report.pages import BAD, EVEN, GOOD, NONE, Block, Cell, Fold, Heading, Table, Text, share
from arr_coc.evaluation.report.plots import pareto
from arr_coc.evaluation.report.results import FIELD, FILES, NAMES, Entry, Keep, KnownFile, Measured, Names, Place

TITLE = "ARR-COC against the field"
PAGES, OWN_PICTURES = ("report.html", "report.md"), ("pareto-*.png", "failure-*.jpg")
NEAR = 0.01  # accuracies that are less apart are called even
GROUPS = {"hard": "hard scenes", "plain": "plain scenes", SMALL_TEXT: SMALL_TEXT, MANY: MANY}  # not families


@dataclass(frozen=True, slots=True)
class Section:
    """What somebody adds to the page, after one of its own parts: opening, plots, tables or comparisons."""

    after: str
    make: Callable[[Measured], list[Block]]


def write_report(
    folder: Path, out: Path, say: Say, extra: Sequence[Section] = (), files: Mapping[str, KnownFile] = FILES
) -> list[Path]:
    """Write both pages and the pictures of the Markdown one to `out`; returns the pages.

    `say` gets a line about each long step; `files` are those that are read of the folder of results.
    """
    blocks = page(Measured.of(results.read_results(folder, files)), say, extra)
    out.mkdir(parents=True, exist_ok=True)
    for old in (path for pattern in OWN_PICTURES for path in sorted(out.glob(pattern))):
        old.unlink()  # of an earlier report, which may have had more of them
    for name, data in (file for picture in pages.pictures_of(blocks) for file in picture.files().items()):
        (out / name).write_bytes(data)
    paths = [out / name for name in PAGES]
    for path, text in zip(paths, (pages.to_html(blocks), pages.to_markdown(blocks)), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def page(measured: Measured, say: Say, extra: Sequence[Section] = ()) -> list[Block]:
    """All that the page says."""
    say(f"{len(measured.entries)} rows of the field in {measured.results.folder}")
    parts: dict[str, Callable[[Measured], list[Block]]] = {
        "opening": _opening_blocks,
        "plots": _plot_blocks,
        "tables": _table_blocks,
        "comparisons": lambda of: compared_blocks(of, say),
    }
    blocks: list[Block] = []
    for name, make in parts.items():
        blocks += make(measured) if measured.entries or name in ("opening", "plots") else []
        blocks += [block for section in extra if section.after == name for block in section.make(measured)]
    return blocks


def _opening_blocks(measured: Measured) -> list[Block]:
    if not measured.entries:
        return [Heading(TITLE, 1), Text("Token selection for Qwen3-VL: what was measured so far.")]
    asked = ", ".join(f"{here[0].questions:,} questions on {place.label}" for place, here in measured.places.items())
    lead = (
        f"Every method on the same model, the same questions and the same number of visual tokens: {asked}. Intervals "
        "are 95 %, drawn over images; p-values are of paired permutation tests over images, corrected by Holm. "
        "The oracle is told where the answer is: it is a ceiling, not a method. Random is the mean of its seeds, with "
        "the widest of their limits."
    )
    return [Heading(TITLE, 1), Text(lead)]


def _plot_blocks(measured: Measured) -> list[Block]:
    if not measured.entries:
        return [Heading("The field"), Text(f"**Not measured yet**: `{FILES[FIELD].maker}` writes `{FIELD}`.")]
    timed = measured.results.at(FIELD, "timed_runs") or {}  # where times were taken apart from the answers
    devices = sorted({str(run.get("device")).upper() for run in timed.values()})
    on = f", each method alone, on a {' and a '.join(devices)}" if devices else ""
    blocks: list[Block] = [
        Heading("Accuracy against tokens and time"),
        Text(
            f"Times are of one question, measured in batches{on}. Filled marks were trained, hollow "
            "ones were not. A solid line chose before the ViT (sparse), a dotted one had it encode the whole image, or "
            "a smaller one. The broad band is the frontier: nothing is as good for less. Tokens are those that a layer "
            "of the language model works on, on average, since FastV drops them only after some layers; in that plot "
            "marks are moved sideways a little, so that none hides another."
        ),
    ]
    for place, here in measured.places.items():
        blocks += [Heading(place.label, 3), pareto(here, measured.names, place)]
    return blocks


# ---------------------------------------------------------------- every method at every budget, and by family


def _table_blocks(measured: Measured) -> list[Block]:
    blocks: list[Block] = [Heading("Every method at every budget")]
    for place, here in measured.places.items():
        blocks += budget_blocks(here, measured.names, place)
    blocks += [Heading("By family of question")]
    for place, here in measured.places.items():
        blocks += family_blocks(here, measured.names, place)
    return blocks


def budget_blocks(entries: Sequence[Entry], names: Names, place: Place) -> list[Block]:
    """A table per budget of one place."""
    blocks: list[Block] = [Heading(place.label, 3)]
    for number, keep in enumerate(results.budgets_of(entries)):
        members = at_budget(entries, keep)
        title = f"{results.budget_label(keep, members[0].total)} kept, {members[0].questions:,} questions"
        table = method_table(members, names)
        # The first stands open, so that a reader sees what the others hold.
        blocks += [Text(f"**{title}**"), table] if not number else [Fold(title, (table,))]
    return blocks


def method_table(entries: Sequence[Entry], names: Names) -> Table:
    """All methods of one budget, the best first."""
    heads = (
        *("method", "training", "accuracy %", "95 % interval", "over ARR-COC, points", "p (Holm)", "evidence found %"),
        *("tokens", "equivalent tokens", "ms to first token", "select + vision + prefill"),
    )
    rows = [
        [
            names[entry.way],
            "trained" if entry.trained else "none",
            share(entry.accuracy),
            NONE if entry.low is None else f"{share(entry.low)} to {share(entry.high)}",
            NONE if entry.gain is None else pages.signed(entry.gain),
            pages.probability(entry.p),
            share(entry.recall),
            f"{entry.tokens:,.0f}",
            f"{entry.equivalent:,.0f}",
            f"{entry.time_ms:,.1f}",
            " + ".join(f"{entry.parts_ms[part]:.1f}" for part in PARTS),
        ]
        for entry in sorted(entries, key=lambda one: -(one.accuracy or 0.0))
    ]
    return Table.of(heads, rows, ours=NAMES[REFERENCE])


def family_blocks(entries: Sequence[Entry], names: Names, place: Place) -> list[Block]:
    """Families of one place: ARR-COC and the best of the others at each budget; then everything, a table per family."""
    families = sorted({f for entry in entries for f in entry.families}, key=lambda name: (name in GROUPS, name))
    told = {family: GROUPS.get(family, family.replace("_", " ")) for family in families}
    keeps, plain = results.budgets_of(entries), results.plain_of(entries)
    budgets = [results.budget_label(keep, entries[0].total) for keep in keeps]
    shares = {(e.way, keep): e.families for e in entries for keep in (keeps if e is plain else [e.keep])}
    ways = sorted(dict.fromkeys(entry.way for entry in entries), key=lambda way: plain is not None and way == plain.way)
    everything = plain.families if plain else {}
    rows: list[list[Cell | str]] = [
        [told[one], share(everything.get(one)), *(_family_cell(entries, names, one, keep) for keep in keeps)]
        for one in families
    ]

    def whole(family: str) -> Table:
        lines = [[names[way], *(share(shares.get((way, keep), {}).get(family)) for keep in keeps)] for way in ways]
        return Table.of(("method", *budgets), lines, ours=NAMES[REFERENCE])

    return [
        Heading(place.label, 3),
        Text("ARR-COC, and in brackets the best of the other methods, the oracle aside. Accuracy in %."),
        Table.of(("family", "all tokens %", *budgets), rows),
        Fold("Every method, family by family", tuple(Fold(told[family], (whole(family),)) for family in families)),
    ]


def _family_cell(entries: Sequence[Entry], names: Names, family: str, keep: Keep) -> Cell:
    ours = results.ours_of(entries, keep)
    mine = None if ours is None else ours.families.get(family)
    rivals = [e for e in entries if e.keep == keep and e.competes and e.name != REFERENCE and family in e.families]
    if mine is None or not rivals:
        return Cell(share(mine))
    best = max(rivals, key=lambda entry: entry.families[family])
    value = best.families[family]
    tone = EVEN if abs(value - mine) < NEAR else (GOOD if mine > value else BAD)
    return Cell(f"{share(mine)}\n({names[best.way]} {share(value)})", tone)
