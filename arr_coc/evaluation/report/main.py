"""The report: one page, in HTML and in Markdown, from what lies in a folder of results.

The same results give the same bytes. What is not there is said to be not measured yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_coc.evaluation.report.blocks import Block, Heading, Text, pictures_of
from arr_coc.evaluation.report.gallery import Overlay, gallery
from arr_coc.evaluation.report.html import to_html
from arr_coc.evaluation.report.losses import Loss, Say, ask_again, find_losses, pick, pictures_again
from arr_coc.evaluation.report.markdown import to_markdown
from arr_coc.evaluation.report.pairs import at_equal_time, win_matrix, within_our_time
from arr_coc.evaluation.report.plots import pareto
from arr_coc.evaluation.report.results import FIELD, MAKERS, NOTES, Results, read_results
from arr_coc.evaluation.report.rows import Entry, Place, entries_of, labels_of, place_label, places_of
from arr_coc.evaluation.report.samples import Answers, read_answers
from arr_coc.evaluation.report.sections import (
    equal_token_blocks,
    loss_tables,
    matrix_table,
    source_table,
    time_table,
    within_table,
)
from arr_coc.evaluation.report.tables import Names, budget_blocks, family_blocks, lead_table
from arr_coc.evaluation.report.verdicts import promises, verdict_blocks

TITLE = "ARR-COC against the field"
PAGES, OWN_PICTURES = ("report.html", "report.md"), ("pareto-*.png", "failure-*.jpg")


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """From where, to where, and how many failures are shown."""

    results: Path = Path("results")
    out: Path = Path("docs/report")
    failures: int = 12  # 0 leaves the gallery out


def write_report(options: ReportOptions, overlay: Overlay, say: Say) -> list[Path]:
    """Write both pages and the pictures of the Markdown one; returns the pages.

    `overlay` dims the cells of an image that a mask `[H, W]` leaves out; `say` gets a line about each long step.
    """
    blocks = page(read_results(options.results), options.failures, overlay, say)
    options.out.mkdir(parents=True, exist_ok=True)
    for old in (path for pattern in OWN_PICTURES for path in sorted(options.out.glob(pattern))):
        old.unlink()  # of an earlier report, which may have had more of them
    for picture in pictures_of(blocks):
        (options.out / picture.name).write_bytes(picture.data)
        if picture.dark is not None:
            (options.out / picture.dark_name).write_bytes(picture.dark)
    paths = [options.out / name for name in PAGES]
    for path, text in zip(paths, (to_html(blocks), to_markdown(blocks)), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def page(results: Results, failures: int, overlay: Overlay, say: Say) -> list[Block]:
    """All that the page says."""
    entries = entries_of(results.rows(FIELD))
    names = labels_of(entries)
    say(f"{len(entries)} rows of the field in {results.folder}")
    answers, notes = read_answers(results, places_of(entries))
    blocks: list[Block] = [Heading(TITLE, 1), Text(_lead_text(entries))]
    blocks += verdict_blocks(promises(results, entries))
    blocks += _field_blocks(entries, names, results) if entries else [Heading("The field"), _missing()]
    blocks += equal_token_blocks(results)
    if entries:
        say("who beats whom")
        blocks += _compared_blocks(entries, names, answers, notes)
        if failures:
            blocks += _failure_blocks(entries, names, answers, failures, overlay, say, results)
    return [*blocks, Heading("What made each file"), source_table(results)]


def _missing() -> Text:
    return Text(f"**Not measured yet**: `{MAKERS[FIELD]}` writes `{FIELD}`.")


def _lead_text(entries: Sequence[Entry]) -> str:
    if not entries:
        return "Token selection for Qwen3-VL: what was promised, and what was measured so far."
    asked = ", ".join(
        f"{next(e.questions for e in entries if e.place == place):,} questions on {place_label(place)}"
        for place in places_of(entries)
    )
    return (
        f"Every method on the same model, the same questions and the same number of visual tokens: {asked}. Intervals "
        "are 95 %, drawn over images; p-values are of paired permutation tests over images, corrected by Holm. "
        "The oracle is told where the answer is: it is a ceiling, not a method. Random is the mean of its seeds, with "
        "the widest of their limits."
    )


def _field_blocks(entries: Sequence[Entry], names: Names, results: Results) -> list[Block]:
    places = {place: [entry for entry in entries if entry.place == place] for place in places_of(entries)}
    blocks: list[Block] = [
        Heading("Accuracy against tokens and time"),
        Text(
            f"Times are of one question, measured in batches{_timed_on(results)}. Filled marks were trained, hollow "
            "ones were not. A solid line chose before the ViT (sparse), a dotted one had it encode the whole image, or "
            "a smaller one. The broad band is the frontier: nothing is as good for less. Tokens are those that a layer "
            "of the language model works on, on average, since FastV drops them only after some layers; in that plot "
            "marks are moved sideways a little, so that none hides another."
        ),
    ]
    for place, here in places.items():
        blocks += [Heading(place_label(place), 3), pareto(here, names, place)]
    blocks += [Heading("Where ARR-COC leads"), *(lead_table(here, names) for here in places.values())]
    blocks += [Text(part.replace("\n", " ").strip()) for part in results.text(NOTES).split("\n\n") if part.strip()]
    blocks += [Heading("Every method at every budget")]
    for place, here in places.items():
        blocks += budget_blocks(here, names, place)
    blocks += [Heading("By family of question")]
    for place, here in places.items():
        blocks += family_blocks(here, names, place)
    return blocks


def _timed_on(results: Results) -> str:
    """Where times were taken apart from the answers, on what."""
    timed = results.at(FIELD, "timed_runs") or {}
    devices = sorted({str(run.get("device")).upper() for run in timed.values()})
    return f", each method alone, on a {' and a '.join(devices)}" if devices else ""


def _compared_blocks(
    entries: Sequence[Entry], names: Names, answers: Mapping[Place, Answers], notes: Sequence[str]
) -> list[Block]:
    blocks: list[Block] = [
        Heading("Who beats whom"),
        Text(
            "Wins / ties / losses of the line against the column over all sizes and budgets. A win is p < 0.01 after "
            "Holm's correction over all pairs of a budget. All tokens has every token at every budget."
        ),
    ]
    if notes:
        blocks.append(Text(f"{'; '.join(notes)}: there, only the table's own tests against ARR-COC are known."))
    blocks += [
        matrix_table(win_matrix(entries, answers), names),
        Heading("At equal measured time"),
        Text(
            "For each method and budget: the most accurate ARR-COC that took no more time to the first token, how many "
            "points it is ahead, and whether that is sure (p < 0.01 after Holm; without samples, intervals that do "
            "not touch). Then the other way round: for each ARR-COC that no faster one equals, the most accurate other "
            "method that took no more time than it."
        ),
    ]
    for place in places_of(entries):
        here = [entry for entry in entries if entry.place == place]
        timed, within = at_equal_time(here, answers.get(place)), within_our_time(here, answers.get(place))
        blocks += [Heading(place_label(place), 3), time_table(timed, here, names), within_table(within, names)]
    return blocks


def _failure_blocks(
    entries: Sequence[Entry],
    names: Names,
    answers: Mapping[Place, Answers],
    wanted: int,
    overlay: Overlay,
    say: Callable[[str], None],
    results: Results,
) -> list[Block]:
    losses: list[Loss] = []
    notes: list[str] = []
    for place in places_of(entries):
        here = [entry for entry in entries if entry.place == place]
        found = answers.get(place)
        if found is None and place == _cheapest(entries, results) and not answers:
            here, found = ask_again(place, _run_of(results, place), say)
            notes.append(f"{place_label(place)}: {len(found.questions)} questions, asked again of mini as it is now")
        pictures = None if found is None else pictures_again(found, place)
        if found is None or pictures is None:
            notes.append(f"{place_label(place)}: the answers or the images are not here")
            continue
        losses += find_losses(here, found, pictures)
    say(f"{len(losses)} losses")
    blocks: list[Block] = [
        Heading("What ARR-COC lost"),
        Text(
            "Questions that ARR-COC got wrong at some budget and another method, or the plain model, got right. With "
            "so many others, some were right by luck."
        ),
        *(Text(note) for note in notes),
        *loss_tables(losses),
    ]
    shown = pick(losses, wanted)
    if shown:
        blocks += [
            Text("Left the scene, right what ARR-COC kept of it; the places of the answer are outlined."),
            gallery(shown, names, overlay),
        ]
    return blocks


def _cheapest(entries: Sequence[Entry], results: Results) -> Place | None:
    """The scenes with the fewest tokens that were asked of mini: those can be asked again by anyone, in a minute."""
    small = sorted((e for e in entries if e.place[0] == "scenes" and e.place[1] is not None), key=lambda e: e.total)
    return next((e.place for e in small if _run_of(results, e.place).get("model") == "mini"), None)


def _run_of(results: Results, place: Place) -> Mapping[str, Any]:
    runs = results.at(FIELD, "runs") or {}
    return next((run for run in runs.values() if (run.get("dataset"), run.get("side")) == place), {})
