"""The rows of `arr-coc compare`: a selector with a budget each, and what came of asking with it."""

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from arr_coc.cli.loading import chosen_selector
from arr_coc.cli.run import is_out_of_memory
from arr_coc.cli.terminal import is_terminal

if TYPE_CHECKING:
    from arr_coc.qwen import Answer, ARRCOCQwen
    from arr_coc.selectors import Selector

PLAIN = "plain"
Ask = Callable[[float | int | str], "Answer"]  # keep -> the answer


@dataclass(frozen=True, slots=True)
class Row:
    """One way of answering, and what came of it."""

    selector: str
    keep: float | int | str
    answer: "Answer | None" = None
    error: str | None = None

    @property
    def label(self) -> str:
        return "plain, all tokens" if self.selector == PLAIN else f"{self.selector}, keep {self.keep}"


def plan(keeps: Sequence[float | int | str], selectors: Sequence[str]) -> list[Row]:
    """Every selector with every budget, each once; all tokens are the plain model, whatever the selector."""
    rows = [Row(PLAIN if keep == 1.0 else spec, keep) for keep in keeps for spec in selectors]
    return list(dict.fromkeys(rows))


def make_selectors(loaded: "ARRCOCQwen", asked: Sequence[Row], seed: int) -> dict[str, "Selector"]:
    """The selectors of the rows by what they are asked for as; the plain model's is never used."""
    names = dict.fromkeys(row.selector for row in asked)
    return {name: loaded.selector if name == PLAIN else chosen_selector(loaded, name, seed) for name in names}


def answer_rows(
    loaded: "ARRCOCQwen", asked: Sequence[Row], selectors: dict[str, "Selector"], ask: Ask, quiet: bool
) -> list[Row]:
    """Each row answered twice, the second answer counts. A row that runs out of memory says so and the rest goes on."""
    from rich.console import Console
    from rich.progress import track

    loaded.break_even = 0  # "auto" is compared as a choice, whether it pays on this device or not
    before, rows = loaded.selector, []
    hidden = quiet or not is_terminal(sys.stderr)
    try:
        for row in track(asked, "asking", console=Console(stderr=True), disable=hidden, transient=True):
            loaded.selector = selectors[row.selector]
            named = replace(row, selector=loaded.selector.name) if row.selector == "auto" else row
            rows.append(answer_row(named, ask))
    finally:
        loaded.selector = before
    return rows


def answer_row(row: Row, ask: Ask) -> Row:
    try:
        ask(row.keep)  # the warm-up
        return replace(row, answer=ask(row.keep))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler: what ran out of memory is still held by the error's traceback inside it.
    release_memory()
    return replace(row, error="out of memory")


def release_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measures(row: Row) -> dict[str, Any]:
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
