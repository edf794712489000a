"""A clip and what was kept of it: a strip of its moments, the overlay as an animation, and the budget over time.

A moment is a pair of frames; its choice is an `ImageSelection` that says when it is.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from arr_coc.files import GENERATOR, write_whole
from arr_coc.images.clips import Clip
from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.viewing.cards import SWATCH, choice_legend, choice_words, entry, headed, kept_page, rows_of, tokens_told
from arr_coc.viewing.overlays import COVERED, RELEVANT, choice_overlay
from arr_coc.viewing.paper import FAINT, INK, PAPER, SMALL, TEXT, above, beside, fitted, font, padded, page, text_block

WIDE = 1120  # px of a strip at most
FRAME = 256  # px of the longer side of a frame in a strip, less where there are many
MOST_SHOWN = 48  # moments of a strip; of a longer clip, those that keep most
HIGH = 150  # px of the budget over time
LONGEST = 512  # px of the longer side of an animation; a small clip is enlarged, by a whole factor
RATE = 10  # pictures of a second of a video: where a player is set to another time, one is near
CUT = (200, 30, 60)


def frame_of(clip: Clip, place: int) -> Image.Image:
    return Image.fromarray(clip.frames_T3hw[place].permute(1, 2, 0).numpy())


def clip_strip(clip: Clip, choices: Sequence[ImageSelection], wide: int = WIDE) -> Image.Image:
    """The first frame of each moment with what was kept of it, under its time; of a long clip, a part of them."""
    ranked = sorted(range(len(choices)), key=lambda n: (-choices[n].cells_kept, n))[:MOST_SHOWN]
    side = max(96, min(FRAME, int(wide / min(6, len(ranked)) - 10)))
    cards = []
    for number in sorted(ranked):
        choice, frame = choices[number], frame_of(clip, 2 * number)
        ratio = side / max(frame.size)
        shown = frame.resize((max(1, round(frame.width * ratio)), max(1, round(frame.height * ratio))))
        cards.append(_moment(shown, choice))
    per_row = max(1, wide // (cards[0].width + 10))
    rows = [beside(cards[start : start + per_row]) for start in range(0, len(cards), per_row)]
    left_out = len(choices) - len(cards)
    said = [text_block(f"{left_out} moments that keep less are not shown.", wide, SMALL, ink=FAINT)] if left_out else []
    return above([*rows, *said])


def _moment(frame: Image.Image, choice: ImageSelection) -> Image.Image:
    """A frame with its kept cells; below it when that is, and how many they are."""
    words = f"{seconds_told(choice)}: {choice.cells_kept} kept" + (", cut" if choice.cut else "")
    line = text_block(words, frame.width, SMALL - 2, ink=CUT if choice.cut else FAINT, most=1)
    return above([choice_overlay(frame, choice), line], gap=2)


def seconds_told(choice: ImageSelection) -> str:
    return "" if choice.seconds is None else f"{choice.seconds:.1f} s"


def budget_plot(choices: Sequence[ImageSelection], wide: int = WIDE) -> Image.Image:
    """Tokens kept of each moment as bars over time, those for coverage in blue; a dashed line marks a cut."""
    width, left, base = wide, 44, HIGH - 20
    block = Image.new("RGB", (wide, HIGH), PAPER)
    draw, face = ImageDraw.Draw(block), font(SMALL - 2)
    most = max(1, *(choice.cells_kept for choice in choices))
    step = (width - left) / len(choices)
    for number, choice in enumerate(choices):
        x, gap = left + number * step, min(3.0, step / 4)
        for cells, colour in ((choice.cells_kept, COVERED), (choice.cells_kept - choice.cells_covered, RELEVANT)):
            top = base - cells * (base - 16) / most
            if cells:
                draw.rectangle((x + gap / 2, top, max(x + gap / 2, x + step - gap), base), fill=colour)
        if choice.cut:
            for y in range(16, base, 8):
                draw.line((x, y, x, min(base, y + 4)), fill=CUT, width=2)
            draw.text((x, 0), "cut", fill=CUT, font=face, anchor="ma")
    draw.line((left, base, width, base), fill=INK)
    draw.text((left - 6, 16), str(most), fill=FAINT, font=face, anchor="rm")
    draw.text((left - 6, base), "0", fill=FAINT, font=face, anchor="rm")
    shown = max(1, -(-80 * len(choices) // width))
    for number in range(0, len(choices), shown):
        place = (left + (number + 0.5) * step, base + 4)
        draw.text(place, seconds_told(choices[number]) or str(number + 1), fill=FAINT, font=face, anchor="ma")
    return block


def budget_page(choices: Sequence[ImageSelection], wide: int = WIDE) -> Image.Image:
    """The budget over time under a line that says what it shows, above its legend."""
    told = text_block("Visual tokens kept of each moment (a pair of frames):", wide, SMALL, ink=FAINT)
    looks, words = {"whole": RELEVANT, "relevant": RELEVANT, "covered": COVERED, "cut": CUT}, choice_words(choices)
    if cuts := sum(one.cut for one in choices):
        words["cut"] = f"another scene begins: {cuts}"
    legend = [entry(Image.new("RGB", SWATCH, looks[name]), said) for name, said in words.items() if name in looks]
    return above([told, budget_plot(choices, wide), rows_of(legend, wide)])


def strip_page(clip: Clip, choices: Sequence[ImageSelection], wide: int = WIDE) -> Image.Image:
    """The moments above their legend."""
    strip = clip_strip(clip, choices, wide)
    return above([strip, rows_of(choice_legend(choices), max(strip.width, LONGEST))])


def moments_of(answer: Answer, number: int = 0) -> list[ImageSelection]:
    """The choices of one of the clips that were asked about."""
    return [one for one in answer.selection if one.clip == number]


def clips_card(shown: Sequence[Image.Image | Clip], question: str, answer: Answer) -> Image.Image:
    """One picture of an answer about clips: question, answer, tokens, each clip's moments and budget over time.

    Images that were shown with them come first.
    """
    stills = [one for one in shown if not isinstance(one, Clip)]
    pages = [kept_page(stills, answer.selection[: len(stills)])] if stills else []
    for number, clip in enumerate(one for one in shown if isinstance(one, Clip)):
        choices = moments_of(answer, number)
        pages.append(page(above([strip_page(clip, choices), budget_page(choices)], gap=18)))
    return headed(above(pages, gap=0), question, answer.text, tokens_told(answer.tokens_kept, answer.tokens_total))


def clip_rows(clip: Clip, entries: Sequence[tuple[str, Answer]]) -> Image.Image:
    """For each way of answering: its name, the answer, the tokens, the moments with what was kept, and the legend."""
    rows = []
    for name, answer in entries:
        lines = [text_block(name, WIDE, TEXT + 2, bold=True), text_block(f"Answer: {answer.text}", WIDE, TEXT + 2)]
        lines += [text_block(tokens_told(answer.tokens_kept, answer.tokens_total), WIDE, SMALL, ink=FAINT)]
        rows.append(above([above(lines, gap=4), strip_page(clip, moments_of(answer))]))
    return page(above(rows, gap=24))


def moment_rows(choices: Sequence[ImageSelection]) -> list[dict[str, Any]]:
    """One row per moment: when it is, cells kept, those for coverage, of how many, whether a scene begins, and why."""
    return [
        {
            "moment": number,
            "seconds": choice.seconds,
            "kept": choice.cells_kept,
            "covered": choice.cells_covered,
            "cells": choice.tokens_total,
            "cut": choice.cut,
            "why": choice.why,
        }
        for number, choice in enumerate(choices)
    ]


# ---------------------------------------------------------------- moving


def save_animation(path: Path, clips: Sequence[Clip], question: str, answer: Answer) -> None:
    """Every frame with its kept cells under question and answer, as fast as it was sampled; clips after each other.

    An MP4 or a GIF, as the name ends.
    """
    times, drawn = [ms for clip in clips for ms in _durations(clip)], _drawn(clips, question, answer)
    if path.suffix.lower() == ".mp4":
        write_whole(path, mp4(drawn, times))
        return
    written = io.BytesIO()
    how: dict[str, Any] = {"save_all": True, "duration": times, "loop": 0, "comment": GENERATOR}
    next(drawn).save(written, "GIF", append_images=drawn, **how)
    write_whole(path, written.getvalue())


def _durations(clip: Clip) -> list[int]:
    """ms that each frame is seen; the last one as long as the others on average."""
    step = (clip.seconds[-1] - clip.seconds[0]) / max(1, len(clip.seconds) - 1)
    ends = [*clip.seconds[1:], clip.seconds[-1] + max(0.1, step)]
    return [max(40, round(1000 * (end - start))) for start, end in zip(clip.seconds, ends, strict=True)]


def _drawn(clips: Sequence[Clip], question: str, answer: Answer) -> Iterator[Image.Image]:
    """Pages of one size, one by one: all of them would fill the memory."""
    told = tokens_told(answer.tokens_kept, answer.tokens_total)

    def drawn(number: int, place: int) -> Image.Image:
        choices = moments_of(answer, number)
        moment = _large(clips[number], choices, place)
        return headed(page(above([moment, *choice_legend(choices)])), question, answer.text, told)

    sizes = [drawn(number, 0).size for number in range(len(clips))]
    width, height = (max(one) for one in zip(*sizes, strict=True))
    for number, clip in enumerate(clips):
        for place in range(len(clip.seconds)):
            yield padded(drawn(number, place), width, height)


def _large(clip: Clip, choices: Sequence[ImageSelection] | None, place: int) -> Image.Image:
    """A frame as an animation shows it, with its kept cells and its time if there is a choice."""
    frame = frame_of(clip, place)
    factor = max(1, LONGEST // max(frame.size))
    frame = frame.resize((factor * frame.width, factor * frame.height), Image.Resampling.NEAREST)
    frame = fitted(frame, LONGEST)
    return frame if choices is None else _moment(frame, choices[place // 2])


def clip_video(clip: Clip, choices: Sequence[ImageSelection] | None = None) -> bytes:
    """Every frame, with its kept cells if there is a choice, and nothing else, as an MP4."""
    return mp4((_large(clip, choices, place) for place in range(len(clip.seconds))), _durations(clip))


def mp4(drawn: Iterable[Image.Image], times: Sequence[int]) -> bytes:
    """A video of pictures of one size, each seen for so many ms: H.264, whose sides are even."""
    import av

    written, now = io.BytesIO(), 0
    with av.open(written, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=RATE, options={"crf": "20", "preset": "veryfast"})
        stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, 1000)
        for picture, ms in zip(drawn, times, strict=True):
            picture = padded(picture, picture.width + picture.width % 2, picture.height + picture.height % 2)
            if not now:
                stream.width, stream.height = picture.size
            frame = av.VideoFrame.from_image(picture)
            for start in range(now, now + ms, 1000 // RATE):
                frame.pts, frame.time_base = start, Fraction(1, 1000)
                container.mux(stream.encode(frame))
            now += ms
        container.mux(stream.encode())
    return written.getvalue()
