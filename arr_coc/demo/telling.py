"""What the page says in words: tokens and times of an answer, what to know about it, and what went wrong."""

import html
import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from arr_coc.comparing import is_out_of_memory
from arr_coc.qwen import Answer, ARRCOCQwen
from arr_coc.qwen.answers import ImageSelection, total_ms
from arr_coc.qwen.familiar import is_mini
from arr_coc.qwen.request import Box, evidence_mask
from arr_coc.viewing import stage_times
from arr_coc.viewing.cards import choice_words

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 240
SCALE = '<span>low <i class="scale"></i> high: {}</span>'
MINI_KNOWS = "It knows drawn things, signs, tables and charts, and no photographs."
# Addresses of memory, paths, and what a traceback is made of.
PRIVATE = re.compile(r"\b0x[0-9a-fA-F]{4,}|(?:^|[\s'\"(=:])(?:[A-Za-z]:\\|~?/)[^\s'\"]+|File \"|Traceback")


def share(kept: int, total: int) -> str:
    return f"{100 * kept / max(1, total):.0f} %"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a question beforehand."""

    answer: str
    evidence: tuple[Box, ...]  # what carries the answer

    def mark(self, text: str) -> str:
        """HTML: whether an answer is right, and the right one if it is not."""
        if text.strip().lower() == self.answer.lower():
            return '<span class="mark right">✓ right</span>'
        return f'<span class="mark wrong">✗ wrong: it is {html.escape(self.answer)}</span>'


def figures(answer: Answer, known: Known | None = None, plain: Answer | None = None) -> str:
    """HTML: whether it is right, and its tokens and time beside those of the plain model, as far as they are known."""
    rows = [("ARR-COC", answer.tokens_kept, total_ms(answer.timings_ms))]
    if answer.tokens_kept == answer.tokens_total:
        rows = [("Plain model", *rows[0][1:])]
    elif plain is not None:
        rows.append(("Plain model", plain.tokens_kept, total_ms(plain.timings_ms)))
    else:
        rows.append(("Plain model", answer.tokens_total, 0.0))
    longest = max(ms for *_, ms in rows)
    lines = "".join(
        f'<tr><th scope="row">{name}</th>{_bar(tokens / max(1, answer.tokens_total), f"{tokens} visual tokens")}'
        + (_bar(ms / longest, f"{ms:,.0f} ms") if ms else '<td class="faint">see Compare</td>')
        + "</tr>"
        for name, tokens, ms in rows
    )
    return f'<p class="verdict">{_verdict(answer, known, plain)}</p><table class="figures">{lines}</table>'


def _bar(part: float, words: str) -> str:
    return f'<td><span class="bar" style="--part: {100 * part:.1f}%"></span>{words}</td>'


def _verdict(answer: Answer, known: Known | None, plain: Answer | None) -> str:
    told = []
    if known is not None:
        told = [known.mark(answer.text), *([] if is_played(answer) else [evidence_line(answer, known)])]
    told.append(f"<span><b>{share(answer.tokens_kept, answer.tokens_total)}</b> of the visual tokens</span>")
    if plain is not None and answer.tokens_kept < answer.tokens_total:
        times = total_ms(plain.timings_ms) / total_ms(answer.timings_ms)
        told.append(f"<span><b>{max(times, 1 / times):.1f} times</b> as {'fast' if times >= 1 else 'slow'}</span>")
    if answer.confidence is not None:
        looks = f" after {len(answer.looks)} looks" if len(answer.looks) > 1 else ""
        told.append(f"<span><b>{100 * answer.confidence:.0f} %</b> sure{looks}</span>")
    return "".join(told)


def evidence_line(answer: Answer, known: Known) -> str:
    """How much of what carries the answer was kept."""
    choice = answer.selection[0]
    cells_HW = evidence_mask(known.evidence, choice.grid)
    cells, held = int(cells_HW.sum()), int((cells_HW & choice.mask.cpu()).sum())
    words = f"<b>{held} of {cells}</b> evidence cells kept" if cells else "nothing in it is evidence"
    return f"<span>{words}</span>"


def is_played(answer: Answer) -> bool:
    """Whether it is about a clip."""
    return answer.selection[0].clip is not None


def stats(answer: Answer) -> str:
    """Markdown: where the time went, and why these cells."""
    times = stage_times(answer.timings_ms)
    parts = " · ".join(f"{name} {value:.0f} ms" for name, value in times.items())
    why = answer.selection[0].why
    if is_played(answer):
        used = sum(one.cells_kept > 0 for one in answer.selection)
        why = f"of {len(answer.selection)} moments (pairs of frames), {used} keep some"
    kept = f"**{answer.tokens_kept}** of {answer.tokens_total} visual tokens: {why}."
    return f"{kept}\n\n**{sum(times.values()):.0f} ms** in all: {parts}"


def legend(choices: Sequence[ImageSelection]) -> str:
    """HTML: what the two pictures of an image show, or the player of a clip."""
    looks_at = "what the answer looked at" if choices[0].relevance is None else "relevance for the question"
    scale = SCALE.format(looks_at) if choices[0].clip is None else ""
    looks = choice_words(choices).items()
    return f"<p>{''.join(f'<span><i class={look}></i> {words}</span>' for look, words in looks)}{scale}</p>"


def notices(owner: ARRCOCQwen, answer: Answer) -> str:
    """HTML that stands above an answer: what the model told once, and what it tells of this answer."""
    return "".join(note(f"{one.rstrip('.')}.") for one in dict.fromkeys((*owner.notices, *answer.notices)))


def note(text: str, kind: str = "notice") -> str:
    """A line of HTML that is to be seen: a notice, or a trouble."""
    return f'<p class="{kind}" role="alert">{html.escape(text)}</p>'


def about(name: str, owner: ARRCOCQwen) -> str:
    """HTML: the model that answers, and what it knows."""
    size = sum(weight.numel() for weight in owner.model.parameters()) / 1e6
    many = f"{size / 1000:.1f} billion" if size >= 1000 else f"{size:.0f} million"
    place = "the CPU" if owner.device.type == "cpu" else "a GPU"
    knows = MINI_KNOWS if is_mini(owner.processor.tokenizer) else "What it knows, its own card says."
    return f"<b>{html.escape(name)}</b> answers here, a Qwen3-VL of {many} parameters on {place}. {knows}"


def cards(answers: Sequence[tuple[str, Answer]], known: Known | None = None) -> str:
    """Answers by their ways, side by side, as HTML; under each other where the page is narrow."""
    return '<div class="cards">' + "".join(_card(way, answer, known) for way, answer in answers) + "</div>"


def _card(way: str, answer: Answer, known: Known | None) -> str:
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
    mark = "" if known is None else known.mark(answer.text)
    return f'<div class="card"><h4>{html.escape(way)}</h4><p class="answer">{said}</p>{mark}<ul>{lines}</ul></div>'


def short_message(error: BaseException, number: str | None = None) -> str:
    """What went wrong: our own messages as they are, anything else by a number that stands in the log as well."""
    if is_out_of_memory(error):
        return "out of memory: give a smaller image or a shorter clip, or keep fewer tokens"
    text = str(error).strip()
    ours = isinstance(error, ValueError) and text and "\n" not in text and not PRIVATE.search(text)
    if ours and len(text) <= MOST_CHARACTERS:
        return text
    number = number or secrets.token_hex(4)
    logger.error("error %s of the demo", number, exc_info=error)
    return f"something went wrong here: try again, and report error {number} if it stays"
