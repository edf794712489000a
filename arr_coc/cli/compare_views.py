"""The rows of `arr-coc compare` for people: a table, and pictures of what was kept and of the times."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arr_coc.cli.compare_rows import Row, measures

if TYPE_CHECKING:
    from PIL import Image
    from rich.table import Table

COLUMNS = 3  # rows of the table beside each other on the sheet of pictures


def print_table(rows: Sequence[Row], question: str) -> None:
    """On a terminal as wide as that is; in a pipe wide enough that nothing is cut."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table(rows, question))


def table(rows: Sequence[Row], question: str) -> "Table":
    """Numbers first and never wrapped, the answer last with the room that is left: 80 columns must do."""
    from rich.table import Table
    from rich.text import Text

    from arr_coc.viewing.latency import milliseconds

    total = max((row.answer.tokens_total for row in rows if row.answer is not None), default=0)
    made = Table(
        title=Text(question),
        caption=f"of {total} visual tokens; times in ms",
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    made.add_column("selector", overflow="fold", max_width=24)
    for name in ("keep", "tokens", "kept", "select", "vision", "prefill", "total"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("answer", overflow="fold")
    for row in rows:
        values = measures(row)
        said = Text(f"({row.error})" if row.answer is None else row.answer.text)
        numbers = ["-"] * 6
        if row.answer is not None:
            times = [milliseconds(values[f"{stage}_ms"]) for stage in ("select", "vision", "prefill", "total")]
            numbers = [str(row.answer.tokens_kept), f"{100 * values['share_kept']:.0f} %", *times]
        made.add_row(Text(row.selector), str(row.keep), *numbers, said)
    return made


def picture_paths(rows: Sequence[Row], out: Path | None) -> list[Path]:
    """A file for each row, named by its place, selector and budget; then the sheet and the times."""
    if out is None:
        return []
    names = [f"{place:02d}-{_plain_name(row)}.png" for place, row in enumerate(rows, 1)]
    return [out / name for name in (*names, "sheet.png", "latency.png")]


def _plain_name(row: Row) -> str:
    """Letters, digits, points and dashes alone: settings of a selector may hold a path."""
    return "".join(sign if sign.isalnum() or sign in "._" else "-" for sign in f"{row.selector}-{row.keep}")[:60]


def write_pictures(rows: Sequence[Row], image: "Image.Image", paths: Sequence[Path]) -> None:
    """Each answered row with its kept cells, all of them on one sheet, and the times as bars."""
    from arr_coc.viewing import latency_bars, questions_row, stage_times
    from arr_coc.viewing.paper import above
    from arr_coc.viewing.saving import save_picture

    paths[0].parent.mkdir(parents=True, exist_ok=True)
    done = [(row.label, row.answer, path) for row, path in zip(rows, paths, strict=False) if row.answer is not None]
    for label, answer, path in done:
        save_picture(questions_row(image, [(label, answer)]), path)
    entries = [(label, answer) for label, answer, _ in done]
    if not entries:
        return
    lines: list[Image.Image] = [
        questions_row(image, entries[start : start + COLUMNS]) for start in range(0, len(entries), COLUMNS)
    ]
    save_picture(above(lines, gap=0), paths[-2])
    save_picture(latency_bars({label: stage_times(answer.timings_ms) for label, answer in entries}), paths[-1])
