"""What is told beside an answer: notices, a line about tokens and time, a picture of what it was made from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arr_coc.qwen import Answer, ARRCOCQwen


# Control characters but tab and line break, and those that turn the direction of what follows.
UNSEEN = dict.fromkeys(set(range(32)) - {9, 10} | {*range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)})


def harmless(text: str) -> str:
    """An answer as a terminal may show it: without what moves its cursor, changes its colours or turns its lines."""
    return text.translate(UNSEEN)


def summary(answer: "Answer", seconds: float | None = None) -> str:
    """One line about tokens and time; the first token comes after all but the decoding of the later ones.

    `seconds` are what was waited in all, loading included; if left out, the answer alone is counted.
    """
    from arr_coc.qwen.answers import total_ms

    share = 100 * answer.tokens_kept / max(1, answer.tokens_total)
    times = answer.timings_ms
    vision, generate = times.get("vision", 0.0), times.get("generate", 0.0)
    total = total_ms(times)
    covered = sum(image.cells_covered for image in answer.selection)
    spread = f", {covered} of them for coverage" if covered else ""
    first = total - generate + times.get("prefill", 0.0)
    return (
        f"visual tokens {answer.tokens_total} -> {answer.tokens_kept} ({share:.0f} % kept{spread}) · "
        f"select {total - vision - generate:.0f} ms · vision {vision:.0f} ms · first token after {first:.0f} ms · "
        f"{f'{total:.0f} ms' if seconds is None else f'{seconds:.1f} s'} in all"
    )


def looks_line(answer: "Answer") -> list[str]:
    """What each look gave and cost, where there was more than one."""
    if len(answer.looks) < 2:
        return []
    told = (f"{look.tokens_kept} tokens, {sureness(look.confidence)}, {look.ms:.0f} ms" for look in answer.looks)
    return [f"looked {len(answer.looks)} times: {'; '.join(told)}"]


def sureness(confidence: float | None) -> str:
    return "not known how sure" if confidence is None else f"{confidence:.0%} sure"


def write_overlay(
    path: Path,
    loaded: "ARRCOCQwen",
    pictures: Sequence[Any],
    question: str,
    answer: "Answer",
    history: Sequence[tuple[str, str]] = (),
) -> None:
    """Each image with what was kept; if all was kept, with where the answer's tokens attended. Several side by side.

    Of a clip, its moments; where the name ends in gif or mp4, the overlay as an animation.
    """
    from arr_coc.images.clips import Clip
    from arr_coc.images.reader import read_images
    from arr_coc.viewing import answer_card
    from arr_coc.viewing.saving import save_as
    from arr_coc.viewing.tokens import looked_at

    if clips := [one for one in pictures if isinstance(one, Clip)]:
        from arr_coc.viewing.clips import clips_card, save_animation

        if path.suffix.lower() in (".gif", ".mp4"):
            save_animation(path, clips, question, answer)
        else:
            save_as(clips_card(pictures, question, answer), path)
        return
    pictures, heats = read_images(list(pictures)), None
    if answer.tokens_kept >= answer.tokens_total:
        heats = looked_at(loaded, pictures, question, answer.text, history)
    save_as(answer_card(pictures, question, answer, heats), path)
