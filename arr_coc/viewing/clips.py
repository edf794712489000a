"""A clip and what was kept of it: a strip of its moments, the overlay as an animation, and the budget over time.

A moment is a pair of frames; its choice is an `ImageSelection` that says when it is.
"""

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from arr_coc.files import write_whole
from arr_coc.images.clips import Clip
from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.viewing.cards import choice_legend, headed, rows_of, tokens_told
from arr_coc.viewing.overlays import COVERED, RELEVANT, choice_overlay
from arr_coc.viewing.paper import FAINT, INK, PAPER, SMALL, above, beside, fitted, font, page, text_block

WIDE = 1120  # px of a strip at most
FRAME = 256  # px of the longer side of a frame in a strip, less where there are many
MOST_SHOWN = 48  # moments of a strip; of a longer clip, those that keep most
PLOT = (1120, 150)  # px of the budget over time
LONGEST = 480  # px of the longer side of an animation
CUT = (200, 30, 60)


def pictures(clip: Clip) -> list[Image.Image]:
    """Its frames."""
    return [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in clip.frames_T3hw]


def clip_strip(clip: Clip, choices: Sequence[ImageSelection]) -> Image.Image:
    """The first frame of each moment with what was kept of it, under its time; of a long clip, a part of them."""
    frames = pictures(clip)[::2]
    ranked = sorted(range(len(choices)), key=lambda n: (-choices[n].cells_kept, n))[:MOST_SHOWN]
    side = max(96, min(FRAME, int(WIDE / min(6, len(ranked)) - 10)))
    cards = []
    for number in sorted(ranked):
        choice, frame = choices[number], frames[number]
        ratio = side / max(frame.size)
        shown = frame.resize((max(1, round(frame.width * ratio)), max(1, round(frame.height * ratio))))
        cards.append(_moment(shown, choice))
    per_row = max(1, WIDE // (cards[0].width + 10))
    rows = [beside(cards[start : start + per_row]) for start in range(0, len(cards), per_row)]
    left_out = len(choices) - len(cards)
    said = [text_block(f"{left_out} moments that keep less are not shown.", WIDE, SMALL, ink=FAINT)] if left_out else []
    return above([*rows, *said])


def _moment(frame: Image.Image, choice: ImageSelection) -> Image.Image:
    """A frame with its kept cells; below it when that is, and how many they are."""
    words = f"{seconds_told(choice)}: {choice.cells_kept} kept" + (", cut" if choice.cut else "")
    line = text_block(words, frame.width, SMALL - 2, ink=CUT if choice.cut else FAINT, most=1)
    return above([choice_overlay(frame, choice), line], gap=2)


def seconds_told(choice: ImageSelection) -> str:
    return "" if choice.seconds is None else f"{choice.seconds:.1f} s"


def budget_plot(choices: Sequence[ImageSelection]) -> Image.Image:
    """Tokens kept of each moment as bars over time, those for coverage in blue; a dashed line marks a cut."""
    (width, height), left, foot = PLOT, 44, 20
    block = Image.new("RGB", PLOT, PAPER)
    draw, face = ImageDraw.Draw(block), font(SMALL - 2)
    most = max(1, *(choice.cells_kept for choice in choices))
    step, base = (width - left) / len(choices), height - foot
    for number, choice in enumerate(choices):
        x, gap = left + number * step, min(3.0, step / 4)
        for cells, colour in ((choice.cells_kept, COVERED), (choice.cells_kept - choice.cells_covered, RELEVANT)):
            top = base - cells * (base - 16) / most
            if cells:
                draw.rectangle((x + gap / 2, top, max(x + gap / 2, x + step - gap), base), fill=colour)
        if choice.cut:
            for y in range(12, base, 8):
                draw.line((x, y, x, min(base, y + 4)), fill=CUT, width=2)
            draw.text((x, 0), "cut", fill=CUT, font=face, anchor="ma")
    draw.line((left, base, width, base), fill=INK)
    draw.text((left - 6, 16), str(most), fill=FAINT, font=face, anchor="rm")
    draw.text((left - 6, base), "0", fill=FAINT, font=face, anchor="rm")
    shown = max(1, -(-len(choices) // 14))
    for number in range(0, len(choices), shown):
        place = (left + (number + 0.5) * step, base + 4)
        draw.text(place, seconds_told(choices[number]) or str(number + 1), fill=FAINT, font=face, anchor="ma")
    return block


def clip_card(clip: Clip, question: str, answer: Answer, number: int = 0) -> Image.Image:
    """One picture of an answer about a clip: question, answer, tokens, its moments, the budget over time, a legend."""
    choices = [one for one in answer.selection if one.clip == number]
    strip, plot = clip_strip(clip, choices), budget_plot(choices)
    told = text_block("Visual tokens kept of each moment (a pair of frames):", WIDE, SMALL, ink=FAINT)
    legend = rows_of(choice_legend(choices), max(strip.width, plot.width))
    made = page(above([strip, legend, told, plot]))
    return headed(made, question, answer.text, tokens_told(answer.tokens_kept, answer.tokens_total))


def save_animation(path: Path, clip: Clip, question: str, answer: Answer, number: int = 0) -> None:
    """Every frame with its kept cells under question and answer, as a GIF or WebP as fast as it was sampled."""
    choices = [one for one in answer.selection if one.clip == number]
    legend, told = choice_legend(choices), tokens_told(answer.tokens_kept, answer.tokens_total)
    frames = pictures(clip)
    moments = [_moment(fitted(frame, LONGEST), choices[place // 2]) for place, frame in enumerate(frames)]
    drawn = [headed(page(above([one, *legend])), question, answer.text, told) for one in moments]
    ends = [*clip.seconds[1:], clip.seconds[-1] + max(0.1, clip.seconds[-1] / max(1, len(frames) - 1))]
    times = [max(40, round(1000 * (end - start))) for start, end in zip(clip.seconds, ends, strict=True)]
    kind = "WEBP" if path.suffix.lower() == ".webp" else "GIF"
    written = io.BytesIO()
    drawn[0].save(written, kind, save_all=True, append_images=drawn[1:], duration=times, loop=0)
    write_whole(path, written.getvalue())
