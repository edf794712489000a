"""The report: one page, in HTML and in Markdown, from what lies in a folder of results.

The same results give the same bytes. What is not there is said to be not measured yet. Whoever has more to say of the
same results adds sections of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from arr_coc.evaluation.field.data import MANY, SMALL_TEXT
from arr_coc.evaluation.field.main import Say
from arr_coc.evaluation.field.methods import PARTS as TIMED
from arr_coc.evaluation.field.methods import REFERENCE
from arr_coc.evaluation.report import pages, results
from arr_coc.evaluation.report.pages import (
    BAD,
    EVEN,
    GOOD,
    NONE,
    Block,
    Cell,
    bullets,
    fold,
    heading,
    paragraph,
    share,
    table,
)
from arr_coc.evaluation.report.plots import pareto
from arr_coc.evaluation.report.results import (
    FIELD,
    MAKER,
    NAMES,
    Answers,
    Entry,
    Keep,
    Measured,
    Names,
    Way,
    asked_of,
    budget_label,
    budgets_of,
    plain_of,
)
from arr_coc.evaluation.statistics import flip_p, holm
from arr_coc.files import write_whole
from arr_coc.selectors import PLAIN

PARTS = ("summary", "opening", "plots", "tables", "comparisons", "appendix")
TITLE = "ARR-COC against the field"
OWN_PICTURES = ("pareto-*.png", "failure-*.jpg")
SUMMED = 2  # places that the summary speaks of, two lines each
NEAR = 0.01  # accuracies that are less apart are called even
SURE = 0.01  # the p below which one method beats another
GROUPS = {"hard": "hard scenes", "plain": "plain scenes", SMALL_TEXT: SMALL_TEXT, MANY: MANY}  # not families

Make = Callable[[Measured], list[Block]]  # a section of the page
Signs = list[int]  # of each comparison: 1 surely better, 0 not sure, -1 surely worse
Matrix = dict[tuple[Way, Way], Signs]


def write_report(folder: Path, out: Path, say: Say, extra: Mapping[str, Sequence[Make]] | None = None) -> list[Path]:
    """Write both pages and the pictures of the Markdown one to `out`; returns the pages.

    `say` gets a line about each long step; `extra` are sections that follow one of PARTS.
    """
    blocks = page_of(folder, say, extra or {})
    pictures = [files for block in blocks for picture in block.pictures for files in picture.files().items()]
    texts = {out / "report.html": pages.to_html(blocks), out / "report.md": pages.to_markdown(blocks)}
    written = {out / name: data for name, data in pictures}
    for path, content in (written | texts).items():
        write_whole(path, content)
    for old in (path for pattern in OWN_PICTURES for path in out.glob(pattern) if path not in written):
        old.unlink()  # of an earlier report, which had more of them
    return list(texts)


def page_of(folder: Path, say: Say, extra: Mapping[str, Sequence[Make]]) -> list[Block]:
    """All that the page says of a folder of results; of what no page can be made, one line."""
    try:
        return page(Measured.of(folder), say, extra)
    except (LookupError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{folder / FIELD}: no table for a page ({why}); make it again with {MAKER}") from error


def page(measured: Measured, say: Say, extra: Mapping[str, Sequence[Make]]) -> list[Block]:
    """All that the page says."""
    say(f"{len(measured.entries)} rows of the field in {measured.folder}")
    own: dict[str, list[Make]] = {
        "summary": [_summary_blocks],
        "opening": [_opening_blocks],
        "plots": [_plot_blocks],
    }
    if measured.entries:
        own |= {"tables": [table_blocks], "comparisons": [compared_blocks], "appendix": [_appendix_blocks]}
        say("who beats whom")
    makers = [make for part in PARTS for make in (*own.get(part, ()), *extra.get(part, ()))]
    return [block for make in makers for block in make(measured)]


def _summary_blocks(measured: Measured) -> list[Block]:
    """The title, and what a reader with half a minute should know: at most four lines."""
    lines: list[str] = []
    for place, here in [*measured.places.items()][:SUMMED]:
        plain = plain_of(here)
        kept = [(keep, one) for keep in budgets_of(here) if (one := results.ours_of(here, keep))]
        if plain is None or not kept:
            continue
        told = ", ".join(f"{share(one.accuracy)} % with {budget_label(keep, one.total)}" for keep, one in kept)
        lines.append(f"**{place.label}**: {share(plain.accuracy)} % right with all tokens; ARR-COC {told}.")
        keep, ours = kept[-1]
        others = [one for one in at_budget(here, keep) if one.competes and one.name != REFERENCE]
        if others:
            best = max(others, key=lambda one: one.accuracy or 0.0)
            lines.append(
                f"With the fewest, {budget_label(keep, ours.total)}: {measured.names[ours.way]}, "
                f"{share(ours.accuracy)} %, first token after {ours.time_ms:,.0f} ms; the best of the others, "
                f"{measured.names[best.way]}, {share(best.accuracy)} % after {best.time_ms:,.0f} ms; all tokens after "
                f"{plain.time_ms:,.0f} ms."
            )
    return [heading(TITLE, 1), *([bullets(lines)] if lines else [])]


def _opening_blocks(measured: Measured) -> list[Block]:
    asked = ", ".join(f"{asked_of(here)} on {place.label}" for place, here in measured.places.items())
    some = " Who was asked fewer is held against the others by both intervals, which finds less, and never more."
    fewer = any(len({entry.questions for entry in here}) > 1 for here in measured.places.values())
    lead = (
        f"Every method on the same model, the same questions and the same number of visual tokens: {asked}. Intervals "
        "are 95 %, drawn over images; p-values are of paired permutation tests over images, corrected by Holm. "
        "The oracle is told where the answer is: it is a ceiling, not a method. Random is the mean of its seeds, with "
        f"the widest of their limits.{some if fewer else ''}"
    )
    return [paragraph(lead if asked else "Token selection for Qwen3-VL: what was measured so far.")]


def _plot_blocks(measured: Measured) -> list[Block]:
    if not measured.entries:
        return [heading("The field"), paragraph(f"**Not measured yet**: `{MAKER}` writes `{FIELD}`.")]
    timed = measured.document.get("timed_runs") or {}  # where times were taken apart from the answers
    devices = sorted({str(run.get("device")).upper() for run in timed.values()})
    on = f", each method alone, on a {' and a '.join(devices)}" if devices else ""
    told = (
        f"ARR-COC, the best of the others, and a smaller image; the appendix has every method. Times are of one "
        f"question, measured in batches{on}. A solid line chose before the ViT (sparse), a dotted one had it encode "
        "the whole image (dense). Tokens are those that a layer of the language model works on, on average, since "
        "FastV drops them only after some layers; in that plot marks are moved sideways a little, so that none hides "
        "another."
    )
    plots = [(heading(p.label, 3), pareto(here, measured.names, p)) for p, here in measured.places.items()]
    return [heading("Accuracy against tokens and time"), paragraph(told), *(block for pair in plots for block in pair)]


def _appendix_blocks(measured: Measured) -> list[Block]:
    plots = [fold(p.label, pareto(here, measured.names, p, every=True)) for p, here in measured.places.items()]
    return [heading("Appendix: every method in the plots"), *plots]


# ---------------------------------------------------------------- every method at every budget, and by family


def table_blocks(measured: Measured) -> list[Block]:
    """Every budget of every place, then the families of every place."""
    blocks: list[Block] = []
    for title, make in (("Every method at every budget", budget_blocks), ("By family of question", family_blocks)):
        blocks.append(heading(title))
        for place, here in measured.places.items():
            blocks += [heading(place.label, 3), *make(here, measured.names)]
    return blocks


def budget_blocks(entries: Sequence[Entry], names: Names) -> list[Block]:
    """A table per budget of one place; the first stands open, so that a reader sees what the others hold."""
    titles = {
        f"{budget_label(keep, entries[0].total)} kept, {asked_of(entries)}": at_budget(entries, keep)
        for keep in budgets_of(entries)
    }
    made = [(title, method_table(members, names)) for title, members in titles.items()]
    first = [paragraph(f"**{made[0][0]}**"), made[0][1]] if made else []
    return [*first, *(fold(title, held) for title, held in made[1:])]


def method_table(entries: Sequence[Entry], names: Names) -> Block:
    """All methods of one budget, the best first."""
    columns: dict[str, Callable[[Entry], str]] = {
        "method": lambda one: names[one.way],
        "training": lambda one: "trained" if one.trained else "none",
        "accuracy %": lambda one: share(one.accuracy),
        "95 % interval": lambda one: NONE if one.low is None else f"{share(one.low)} to {share(one.high)}",
        "over ARR-COC, points": lambda one: NONE if one.gain is None else pages.signed(one.gain),
        "p (Holm)": lambda one: pages.probability(one.p),
        "evidence found %": lambda one: share(one.recall),
        "tokens": lambda one: f"{one.tokens:,.0f}",
        "equivalent tokens": lambda one: f"{one.equivalent:,.0f}",
        "ms to first token": lambda one: f"{one.time_ms:,.1f}",
        "select + vision + prefill": lambda one: " + ".join(f"{one.parts_ms[part]:.1f}" for part in TIMED),
    }
    ranked = sorted(entries, key=lambda one: -(one.accuracy or 0.0))
    return table([*columns], [[told(one) for told in columns.values()] for one in ranked], ours=NAMES[REFERENCE])


def family_blocks(entries: Sequence[Entry], names: Names) -> list[Block]:
    """Families of one place: ARR-COC and the best of the others at each budget; then everything, a table per family."""
    families = sorted({f for entry in entries for f in entry.families}, key=lambda name: (name in GROUPS, name))
    told = {family: GROUPS.get(family, family.replace("_", " ")) for family in families}
    keeps, plain = budgets_of(entries), plain_of(entries)
    budgets = [budget_label(keep, entries[0].total) for keep in keeps]
    rows: list[list[Cell | str]] = [
        [told[one], share((plain.families if plain else {}).get(one)), *(_best(entries, names, one, k) for k in keeps)]
        for one in families
    ]
    shares = {(entry.way, keep): entry.families for keep in keeps for entry in at_budget(entries, keep)}
    ways = sorted(dict.fromkeys(entry.way for entry in entries), key=lambda way: plain is not None and way == plain.way)

    def whole(family: str) -> Block:
        lines = [[names[way], *(share(shares.get((way, keep), {}).get(family)) for keep in keeps)] for way in ways]
        return table(("method", *budgets), lines, ours=NAMES[REFERENCE])

    return [
        paragraph("ARR-COC, and in brackets the best of the other methods, the oracle aside. Accuracy in %."),
        table(("family", "all tokens %", *budgets), rows),
        fold("Every method, family by family", *(fold(told[family], whole(family)) for family in families)),
    ]


def _best(entries: Sequence[Entry], names: Names, family: str, keep: Keep) -> Cell:
    """ARR-COC's share of a family at a budget, and that of the best other method."""
    ours = results.ours_of(entries, keep)
    mine = None if ours is None else ours.families.get(family)
    rivals = [e for e in entries if e.keep == keep and e.competes and e.name != REFERENCE and family in e.families]
    if mine is None or not rivals:
        return Cell(share(mine))
    best = max(rivals, key=lambda entry: entry.families[family])
    value = best.families[family]
    tone = EVEN if abs(value - mine) < NEAR else (GOOD if mine > value else BAD)
    return Cell(f"{share(mine)}\n({names[best.way]} {share(value)})", tone)


# ---------------------------------------------------------------- who beats whom
# Wins, ties and losses of every method against every other over the budgets. A win is a paired test over images with
# p < 0.01 after Holm's correction for all pairs of the budget. Without samples only the table's own tests against
# ARR-COC are known. M methods, Q questions.


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
