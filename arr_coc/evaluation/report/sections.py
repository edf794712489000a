"""Sections of the page that compare: who beats whom, equal time, equal tokens, losses, and what made each file."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from arr_coc.evaluation.field.main import KEEPS
from arr_coc.evaluation.field.methods import ENCODINGS, PLAIN, REFERENCE
from arr_coc.evaluation.field.methods import FIELD as ALL_SELECTORS
from arr_coc.evaluation.report.blocks import BAD, EVEN, GOOD, MISSING, Block, Cell, Heading, Table, Text
from arr_coc.evaluation.report.checks import TONES, judge, signed
from arr_coc.evaluation.report.field_checks import EQUAL_GAIN, SMALL_TEXT_GAIN
from arr_coc.evaluation.report.losses import KEPT, KINDS, Loss, count_losses
from arr_coc.evaluation.report.pairs import Matrix, Timed
from arr_coc.evaluation.report.results import EQUAL, FIELD, MAKERS, Results
from arr_coc.evaluation.report.rows import NAMES, Entry, budget_label, budgets_of, label, place_label
from arr_coc.evaluation.report.tables import NONE, Names, probability, share

WANTED = {"overall": EQUAL_GAIN, "small text": SMALL_TEXT_GAIN}  # of the equal-token test
SIGNS = {1: "ahead", 0: "level", -1: "behind"}


def matrix_table(matrix: Matrix, names: Names) -> Table:
    """Lines against columns, columns by number: wins, ties, losses of the line."""
    ways = [way for way in names if any(way in pair for pair in matrix)]
    met = {way: sum(column == way for _, column in matrix) for way in ways}
    columns = [way for way in ways if met[way] > 1] or ways  # who met one other only is seen in that one's column
    rows: list[list[Cell | str]] = []
    for row in ways:
        cells: list[Cell | str] = [f"{names[row]} ({ways.index(row) + 1})"]
        for column in columns:
            score = matrix.get((row, column))
            if score is None:
                cells.append(Cell("·" if row == column else ""))
                continue
            tone = GOOD if score.wins > score.losses else (BAD if score.wins < score.losses else "")
            cells.append(Cell(f"{score.wins}/{score.ties}/{score.losses}", tone))
        scores = [matrix[pair] for pair in matrix if pair[0] == row]
        cells.append("/".join(str(sum(getattr(s, kind) for s in scores)) for kind in ("wins", "ties", "losses")))
        rows.append(cells)
    heads = ("method", *(str(ways.index(way) + 1) for way in columns), "all")
    return Table.of(heads, rows, ours=NAMES[REFERENCE])


def time_table(timed: Sequence[Timed], entries: Sequence[Entry], names: Names) -> Table:
    """Methods by budgets: how far the best ARR-COC of no more time is ahead, in points."""
    found = {(one.entry.way, one.entry.keep): one for one in timed}
    keeps: list[float | int] = [*budgets_of(entries)]
    rows: list[list[Cell | str]] = []
    for way in dict.fromkeys(one.entry.way for one in timed):
        if way[0] == PLAIN:
            rows.append([names[way], *[_timed_cell(found[way, 1.0])] * len(keeps)])
        else:
            rows.append([names[way], *(_timed_cell(found.get((way, keep))) for keep in keeps)])
    heads = ("method", *(f"at {budget_label(keep, entries[0].total)}" for keep in keeps))
    return Table.of(heads, rows)


def within_table(timed: Sequence[Timed], names: Names) -> Table:
    """What else was to be had in the time that each ARR-COC took."""
    rows: list[list[Cell | str]] = []
    for one in timed:
        assert one.ours is not None
        assert one.difference is not None
        assert one.sign is not None
        rows.append(
            [
                f"{budget_label(one.ours.keep)} {one.ours.encoding}",
                f"{one.ours.time_ms:,.1f}",
                f"{100 * (one.ours.accuracy or 0):.1f}",
                f"{names[one.entry.way]}, {budget_label(one.entry.keep)}",
                f"{one.entry.time_ms:,.1f}",
                f"{100 * (one.entry.accuracy or 0):.1f}",
                Cell(f"{SIGNS[one.sign]}, {signed(one.difference)}", {1: GOOD, 0: EVEN, -1: BAD}[one.sign]),
            ]
        )
    return Table.of(("ARR-COC", "ms", "accuracy %", "best other in that time", "ms", "accuracy %", "points"), rows)


def _timed_cell(one: Timed | None) -> Cell:
    if one is None:
        return Cell(NONE)
    if one.ours is None or one.difference is None or one.sign is None:
        return Cell(f"no ARR-COC as fast\n({one.entry.time_ms:,.1f} ms)", MISSING)
    text = (
        f"{SIGNS[one.sign]}, {signed(one.difference)}\n{budget_label(one.ours.keep)} {one.ours.encoding}, "
        f"{one.ours.time_ms:,.1f} of {one.entry.time_ms:,.1f} ms"
    )
    return Cell(text, {1: GOOD, 0: EVEN, -1: BAD}[one.sign])


def equal_token_blocks(results: Results) -> list[Block]:
    """256 tokens spent two ways on the same scene."""
    blocks: list[Block] = [
        Heading("The same tokens, spent two ways"),
        Text(
            "Scenes drawn at 1024 px with small text and many things. The plain model gets each at 512 px: 256 tokens, "
            "all of them kept. ARR-COC gets it at 1024 px and chooses 256 of its 1,024. Differences are in points."
        ),
    ]
    found = results.gains
    if found is None:
        return [*blocks, Text(f"**Not measured yet**: `{MAKERS[EQUAL]}` writes `{EQUAL}`.")]
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
    blocks.append(Table.of(heads, rows, ours=NAMES[REFERENCE]))
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
        blocks.append(Table.of(("method", "accuracy %", "95 % interval", "tokens"), lines, ours=NAMES[REFERENCE]))
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


def loss_tables(losses: Sequence[Loss]) -> list[Block]:
    """Losses by budget and by family, and of which kind they are."""
    if not losses:
        return [Text("No question was lost that another method answered.")]

    def family(loss: Loss) -> str:
        return loss.query.family.replace("_", " ")

    def budget(loss: Loss) -> str:
        return f"{place_label(loss.entry.place)}: {budget_label(loss.entry.keep, loss.entry.total)}"

    blocks: list[Block] = [
        Text(f"Evidence counts as kept where at least {100 * KEPT:.0f} % of the cells under the answer's boxes were.")
    ]
    for title, by in (("tokens kept", budget), ("family", family)):
        counts = count_losses(losses, by)
        if by is family:  # budgets stay in their order
            counts = dict(sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0])))
        rows = [
            [name, str(sum(kinds.values())), *(str(kinds[kind]) for kind in KINDS)] for name, kinds in counts.items()
        ]
        blocks.append(Table.of((title, "lost", *KINDS), rows))
    return blocks


def source_table(results: Results) -> Table:
    """What made each file, on what, with how many questions."""
    rows: list[list[Cell | str]] = []
    for name, maker in MAKERS.items():
        if name not in results.documents:
            rows.append([f"`{name}`", Cell("not measured yet", MISSING), f"`{maker}`", NONE, NONE, NONE])
            continue
        rows += [[f"`{name}`", what, f"`{command}`", *more] for what, command, *more in _runs(results, name, maker)]
    return Table.of(("file", "what", "command", "device", "questions", "seed"), rows, wide_words=True)


def _runs(results: Results, name: str, maker: str) -> list[tuple[str, str, str, str, str]]:
    document = results.documents[name]
    runs = document.get("runs") if isinstance(document.get("runs"), dict) else {}
    if name in (FIELD, EQUAL):
        timed = {f"{key}, times": run for key, run in (document.get("timed_runs") or {}).items()}
        return [
            (key, _field_command(results, name, run), run.get("device", NONE), *_asked(run))
            for key, run in {**(runs or {}), **timed}.items()
        ] or [("rows", maker, NONE, NONE, NONE)]
    if runs:
        return [
            (key, f"{maker} --parts {key} --questions {run.get('questions')}", run.get("device", NONE), *_asked(run))
            for key, run in runs.items()
        ]
    questions = document.get("overall", {}).get("n") if isinstance(document.get("overall"), dict) else None
    model = document.get("model", "mini")
    device = str(document.get("device") or NONE)
    if not questions:
        return [(str(model), maker, device, NONE, NONE)]
    return [(str(model), f"{maker} --questions {questions}", device, f"{questions:,}", "0")]


def _asked(run: Mapping[str, Any]) -> tuple[str, str]:
    questions, seed = run.get("questions"), run.get("seed")
    return NONE if questions is None else f"{questions:,}", NONE if seed is None else str(seed)


def _field_command(results: Results, name: str, run: Mapping[str, Any]) -> str:
    """The command as it could be typed again: what is as it is by default is left out."""
    verb, _, out = MAKERS[name].partition(" --out ")
    words = [verb]
    if name == FIELD:
        here = [row for row in results.rows(FIELD) if (row["dataset"], row["side"]) == (run["dataset"], run["side"])]
        if run["dataset"] != "scenes":
            words.append(f"--data {run['dataset']}")
        words += [f"--side {run['side']}"] if run["side"] is not None else []
        words += _unusual("--selector", [_portable(row["selector"]) for row in here], (*ALL_SELECTORS, PLAIN))
        words += _unusual(
            "--keep", [r["keep"] for r in here if r["selector"] != PLAIN], KEEPS.get(run["side"] or 0, ())
        )
        words += _unusual("--encoding", [row["encoding"] for row in here if row["selector"] != PLAIN], ENCODINGS)
    words += [f"--questions {run.get('questions')}", f"--seed {run.get('seed')}", f"--device {run.get('device')}"]
    words += [f"--model {run['model']}"] if run.get("model") != "mini" else []
    return " ".join([*words, f"--out {out}"])


def _portable(selector: str) -> str:
    """Without the folders of the machine that it was asked on."""
    return re.sub(r"path=/(?:[^,/]+/)*", "path=", selector)


def _unusual(option: str, found: Sequence[Any], usual: Sequence[Any]) -> list[str]:
    used = list(dict.fromkeys(found))
    return [] if set(used) == set(usual) else [f"{option} {value}" for value in used]
