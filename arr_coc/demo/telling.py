"""Answers in words: tokens, times, and what to know about them."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from arr_coc.qwen import Answer, ARRCOCQwen
from arr_coc.qwen.turns import words_notice
from arr_coc.viewing import stage_times


@dataclass(frozen=True, slots=True)
class Row:
    """One way to answer, and what came of it."""

    way: str
    answer: str
    kept: int
    total: int
    times_ms: dict[str, float]  # of select, vision, prefill and decode


def share(kept: int, total: int) -> str:
    return f"{100 * kept / max(1, total):.0f} %"


def stats(answer: Answer, notices: Sequence[str] = ()) -> str:
    """Markdown: how many tokens, how long, and why."""
    times = stage_times(answer.timings_ms)
    parts = " · ".join(f"{name} {value:.0f} ms" for name, value in times.items())
    part = share(answer.tokens_kept, answer.tokens_total)
    lines = [
        f"**{answer.tokens_kept}** of {answer.tokens_total} visual tokens ({part} kept)",
        f"**{sum(times.values()):.0f} ms** in all: {parts}",
        f"Why these: {answer.selection[0].reason}.",
        *(f"Note: {notice}." for notice in notices),
    ]
    return "\n\n".join(lines)


def notices_about(owner: ARRCOCQwen, question: str) -> list[str]:
    """What to know about an answer: what the model told, and the words that mini does not know."""
    return [*owner.notices, *words_notice(owner.processor.tokenizer, question)]


def cards(rows: Sequence[Row]) -> str:
    """Answers side by side, as HTML; under each other where the page is narrow."""
    return '<div class="cards">' + "".join(_card(row) for row in rows) + "</div>"


def _card(row: Row) -> str:
    first = sum(value for name, value in row.times_ms.items() if name != "decode")
    figures = (
        f"{row.kept} of {row.total} visual tokens ({share(row.kept, row.total)})",
        f"{first:.0f} ms to the first token",
        f"{sum(row.times_ms.values()):.0f} ms in all",
    )
    lines = "".join(f"<li>{figure}</li>" for figure in figures)
    answer = html.escape(row.answer.strip() or "(no answer)")
    return f'<div class="card"><h4>{html.escape(row.way)}</h4><p class="answer">{answer}</p><ul>{lines}</ul></div>'
