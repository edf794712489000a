"""arr-coc compare: one question, several budgets and selectors. The table, or JSON, goes to stdout.

What the JSON document holds is told in `compare.schema.json`.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_coc.cli import typed
from arr_coc.cli.answers import harmless
from arr_coc.cli.loading import Asking, asking, chosen_selector
from arr_coc.cli.run import EXIT_NO_MEMORY
from arr_coc.cli.terminal import is_terminal, notes
from arr_coc.comparing import PLAIN, Variant, answer_ways, plan

if TYPE_CHECKING:
    from PIL import Image
    from rich.table import Table

    from arr_coc.qwen import ARRCOCQwen

FORMAT = "arr-coc compare 1"
KEEPS = ("0.06", "0.25", "1.0")
NARROW = 72  # columns; below, the table does not fit
COLUMNS = 3  # rows of the table beside each other on the sheet of pictures


@asking
def compare(
    words: typed.OneImage = None,
    keep: Annotated[
        typed.Texts,
        typer.Option(
            metavar="PART",
            help=f"Part KEPT, as in ask; may be repeated. If left out: {', '.join(KEEPS)}. 1.0 is the plain model.",
        ),
    ] = None,
    selector: Annotated[
        typed.Texts, typer.Option(metavar="NAME", help="auto, arr_coc, divprune, random:seed=1, ...; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write pictures there: each row, sheet.png, latency.png.")
    ] = None,
    force: typed.Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    *,
    how: Asking,
) -> None:
    """Compare answers, tokens and times over budgets and selectors. Without an image, the bundled sample is asked.

    arr-coc compare "Which word is blue?"

    arr-coc compare photo.jpg "What is on the sign?" --keep 0.1 --keep 1.0 --selector arr_coc --selector divprune

    arr-coc compare photo.jpg "What is on the sign?" --out pictures --json

    arr-coc compare clip.mp4 "Which way does it go?" --keep 5% --keep 1.0

    Times are in ms, of a second run after a warm-up; the total is the whole answer, its later tokens included.
    """
    source, question = typed.one_image(words)
    typed.check_question(question)
    asked = plan([typed.parse_keep(text) for text in keep or KEEPS], selector or ["auto"])
    paths = picture_paths(asked, out)
    typed.check_free(paths, source, force)
    loaded, (image,) = how.open([source], selector or ["auto"])
    rows = answer_all(loaded, asked, how, image, question)
    notices = list(dict.fromkeys(line for row in rows if row.answer for line in row.answer.notices))
    notes(notices, how.quiet)
    if as_json:
        typer.echo(json.dumps(document(rows, loaded, how.model, source, question, notices), ensure_ascii=False))
    else:
        print_table(rows, question)
    if paths:
        write_pictures(rows, image, question, paths)
        notes([f"pictures in {out}"], how.quiet)
    if all(row.error for row in rows):
        raise typer.Exit(EXIT_NO_MEMORY)


def answer_all(loaded: "ARRCOCQwen", asked: Sequence[Variant], how: Asking, image: Any, question: str) -> list[Variant]:
    """Every row with its answer, "auto" by its name; a bar where somebody sees it."""
    from rich.console import Console
    from rich.progress import track

    from arr_coc.images.clips import is_clip

    names = dict.fromkeys(way.selector for way in asked)
    selectors = {name: chosen_selector(loaded, name, how.seed) for name in names if name != PLAIN}
    loaded.break_even = 0  # "auto" is compared as a choice, whether it pays on this device or not

    @contextmanager
    def using(way: Variant) -> Iterator["ARRCOCQwen"]:
        before = loaded.selector
        loaded.selector = selectors.get(way.selector, before)  # the plain model's is never used
        try:
            yield loaded
        finally:
            loaded.selector = before

    looks: dict[str, Any] = {"console": Console(stderr=True), "disable": how.quiet or not is_terminal(sys.stderr)}
    lengths = {"max_new_tokens": how.max_new_tokens, "warm_up": how.max_new_tokens}
    bar = track(answer_ways(asked, using, image, question, **lengths), "asking", len(asked), transient=True, **looks)
    own = loaded.clip_selector if is_clip(image) else loaded.selector
    return [replace(way, selector=own.name) if way.selector == "auto" else way for way in bar]


def document(
    rows: Sequence[Variant], loaded: "ARRCOCQwen", model: str, image: Path, question: str, notices: Sequence[str]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "question": question,
        "image": image.name,
        "model": model,
        "device": loaded.device.type,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "rows": [measures(row) for row in rows],
        "notices": [*loaded.notices, *notices],
    }


def measures(row: Variant) -> dict[str, Any]:
    """The row as the JSON document has it."""
    from arr_coc.viewing import stage_times

    answer = row.answer
    times = stage_times(answer.timings_ms) if answer else dict.fromkeys(("select", "vision", "prefill", "decode"))
    total = sum(value for value in times.values() if value is not None) if answer else None
    return {
        "selector": row.selector,
        "keep": row.keep,
        "answer": answer.text if answer else None,
        "tokens_kept": answer.tokens_kept if answer else None,
        "tokens_total": answer.tokens_total if answer else None,
        "share_kept": round(answer.tokens_kept / answer.tokens_total, 4) if answer else None,
        **{f"{name}_ms": None if value is None else round(value, 2) for name, value in times.items()},
        "total_ms": None if total is None else round(total, 2),
        "error": row.error,
    }


def print_table(rows: Sequence[Variant], question: str) -> None:
    """On a terminal as wide as that is, below each other where that is narrow; in a pipe nothing is cut."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    if console.width < NARROW:
        console.print("\n".join(listed(rows, question)), markup=False, highlight=False)
    else:
        console.print(table(rows, question))


def listed(rows: Sequence[Variant], question: str) -> list[str]:
    """The table for a terminal of 40 columns: a few lines for each row."""
    from arr_coc.viewing.latency import milliseconds

    lines = [question]
    for row in rows:
        values = measures(row)
        lines.append(_label(row))
        if row.answer is None:
            lines.append(f"  ({row.error})")
            continue
        share = f"{100 * values['share_kept']:.0f} %"
        times = f"{milliseconds(values['total_ms'])} ms"
        lines.append(f"  {row.answer.tokens_kept} of {row.answer.tokens_total} tokens ({share}), {times}")
        lines.append(f"  {harmless(row.answer.text)}")
    return lines


def table(rows: Sequence[Variant], question: str) -> "Table":
    """Numbers first and never wrapped, the answer last with the room that is left: 80 columns must do."""
    from rich.table import Table
    from rich.text import Text

    from arr_coc.viewing.latency import milliseconds

    total = max((row.answer.tokens_total for row in rows if row.answer is not None), default=0)
    looks: dict[str, Any] = {"title_justify": "left", "caption_justify": "left", "box": None, "pad_edge": False}
    made = Table(title=Text(question), caption=f"of {total} visual tokens; times in ms", padding=(0, 1, 0, 0), **looks)
    made.add_column("selector", overflow="fold", max_width=24)
    for name in ("keep", "tokens", "kept", "select", "vision", "prefill", "total"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("answer", overflow="fold")
    for row in rows:
        values = measures(row)
        said = Text(f"({row.error})" if row.answer is None else harmless(row.answer.text))
        numbers = ["-"] * 6
        if row.answer is not None:
            times = [milliseconds(values[f"{stage}_ms"]) for stage in ("select", "vision", "prefill", "total")]
            numbers = [str(row.answer.tokens_kept), f"{100 * values['share_kept']:.0f} %", *times]
        made.add_row(Text(row.selector), str(row.keep), *numbers, said)
    return made


def picture_paths(rows: Sequence[Variant], out: Path | None) -> list[Path]:
    """A file for each row, named by its place, selector and budget; then the sheet and the times."""
    if out is None:
        return []
    names = [f"{place:02d}-{_plain_name(row)}.png" for place, row in enumerate(rows, 1)]
    return [out / name for name in (*names, "sheet.png", "latency.png")]


def _label(row: Variant) -> str:
    return "plain, all tokens" if row.selector == PLAIN else f"{row.selector}, keep {row.keep}"


def _plain_name(row: Variant) -> str:
    """Letters, digits, points and dashes alone: settings of a selector may hold a path."""
    return "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in f"{row.selector}-{row.keep}")[:60]


def write_pictures(rows: Sequence[Variant], image: Any, question: str, paths: Sequence[Path]) -> None:
    """Each answered row with its kept cells, all of them on one sheet, and the times as bars; under the question."""
    from arr_coc.viewing import headed, latency_bars, questions_row, stage_times
    from arr_coc.viewing.clips import Clip, clip_rows
    from arr_coc.viewing.paper import above
    from arr_coc.viewing.saving import save_picture

    draw: Any = partial(clip_rows if isinstance(image, Clip) else questions_row, image)
    done = [(_label(row), row.answer, path) for row, path in zip(rows, paths, strict=False) if row.answer is not None]
    for label, answer, path in done:
        save_picture(headed(draw([(label, answer)]), question), path)
    entries = [(label, answer) for label, answer, _ in done]
    if not entries:
        return
    lines: list[Image.Image] = [draw(entries[start : start + COLUMNS]) for start in range(0, len(entries), COLUMNS)]
    save_picture(headed(above(lines, gap=0), question), paths[-2])
    times = {f"{label}: {answer.text}": stage_times(answer.timings_ms) for label, answer in entries}
    save_picture(headed(latency_bars(times), question), paths[-1])
