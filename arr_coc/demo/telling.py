"""What the page says in words: tokens and times of an answer, what to know about it, and what went wrong."""

import html
import logging
import re
import secrets
from collections.abc import Sequence

from arr_coc.comparing import is_out_of_memory
from arr_coc.qwen import Answer, ARRCOCQwen
from arr_coc.viewing import stage_times

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 240
# Addresses of memory, paths, and what a traceback is made of.
PRIVATE = re.compile(r"\b0x[0-9a-fA-F]{4,}|(?:^|[\s'\"(=:])(?:[A-Za-z]:\\|~?/)[^\s'\"]+|File \"|Traceback")


def share(kept: int, total: int) -> str:
    return f"{100 * kept / max(1, total):.0f} %"


def stats(answer: Answer, notices: Sequence[str] = ()) -> str:
    """Markdown: how many tokens, how long, and why."""
    times = stage_times(answer.timings_ms)
    parts = " · ".join(f"{name} {value:.0f} ms" for name, value in times.items())
    part = share(answer.tokens_kept, answer.tokens_total)
    lines = [
        f"**{answer.tokens_kept}** of {answer.tokens_total} visual tokens ({part} kept)" + _sureness(answer),
        f"**{sum(times.values()):.0f} ms** in all: {parts}",
        f"Why these: {answer.selection[0].reason}.",
        *(f"Note: {notice}." for notice in notices),
    ]
    return "\n\n".join(lines)


def _sureness(answer: Answer) -> str:
    """How sure it is and, where it looked again, after how many looks; nothing where that is not known."""
    if answer.confidence is None:
        return ""
    looks = len(answer.looks)
    return f" · **{answer.confidence:.0%}** sure" + (f" after {looks} looks" if looks > 1 else "")


def notices_about(owner: ARRCOCQwen, answer: Answer) -> list[str]:
    """What to know about an answer: what the model told once, and what it tells of this answer."""
    return [*owner.notices, *answer.notices]


def cards(answers: Sequence[tuple[str, Answer]]) -> str:
    """Answers by their ways, side by side, as HTML; under each other where the page is narrow."""
    return '<div class="cards">' + "".join(_card(way, answer) for way, answer in answers) + "</div>"


def _card(way: str, answer: Answer) -> str:
    times = stage_times(answer.timings_ms)
    first = sum(value for name, value in times.items() if name != "decode")
    figures = (
        f"{answer.tokens_kept} of {answer.tokens_total} visual tokens "
        f"({share(answer.tokens_kept, answer.tokens_total)})",
        f"{first:.0f} ms to the first token",
        f"{sum(times.values()):.0f} ms in all",
    )
    lines = "".join(f"<li>{figure}</li>" for figure in figures)
    said = html.escape(answer.text.strip() or "(no answer)")
    return f'<div class="card"><h4>{html.escape(way)}</h4><p class="answer">{said}</p><ul>{lines}</ul></div>'


def short_message(error: BaseException, number: str | None = None) -> str:
    """What went wrong: our own messages as they are, anything else by a number that stands in the log as well."""
    if is_out_of_memory(error):
        return "out of memory: give a smaller image, or keep fewer tokens"
    text = str(error).strip()
    ours = isinstance(error, ValueError) and text and "\n" not in text and not PRIVATE.search(text)
    if ours and len(text) <= MOST_CHARACTERS:
        return text
    number = number or secrets.token_hex(4)
    logger.error("error %s of the demo", number, exc_info=error)
    return f"something went wrong here: try again, and report error {number} if it stays"
