"""arr-coc ask: one question about one or several images. The answer alone goes to stdout."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_coc.cli import typed
from arr_coc.cli.answers import harmless, looks_line, summary, write_overlay
from arr_coc.cli.loading import Asking, asking
from arr_coc.cli.terminal import notes, open_file, waited

if TYPE_CHECKING:
    from arr_coc.qwen import Answer


@asking
def ask(
    words: Annotated[
        typed.Texts,
        typer.Argument(
            metavar="[IMAGE]... [QUESTION]",
            help=f"{typed.KINDS} files, videos, folders of frames, or - for stdin, then the question. Without both: "
            "the sample.",
        ),
    ] = None,
    keep: typed.KeepDial = None,
    selector: typed.SelectorName = "auto",
    look_again: Annotated[
        bool,
        typer.Option("--look-again", help="Ask again with twice the tokens, up to all, until it is sure."),
    ] = False,
    max_pixels: typed.MaxPixels = None,
    min_pixels: typed.MinPixels = None,
    system: typed.System = "",
    temperature: typed.Temperature = None,
    overlay: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a picture of what was kept, or of where it looked; of a clip also a GIF or MP4."
        ),
    ] = None,
    open_overlay: Annotated[
        bool, typer.Option("--open", help="Open that picture; without --overlay, one among the temporary files.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the answer.")] = False,
    *,
    how: Asking,
) -> None:
    """Answer a question about an image. Without an image, the bundled sample is asked.

    arr-coc ask "Which word is blue?"

    arr-coc ask photo.jpg "What colour is the door?" --keep 25% --overlay why.png --open

    arr-coc ask photo.jpg "What colour is the door?" --model Qwen/Qwen3-VL-2B-Instruct --json

    arr-coc ask clip.mp4 "Which way does it go?" --keep 10% --overlay why.gif

    Several images or clips before the question are shown to the model together.
    """
    images, question = typed.split_words(words)
    typed.check_question(question)
    typed.check_picture(overlay, images)
    dial = None if keep is None else typed.parse_keep(keep)
    loaded, pictures = how.open(images, [selector], selector, max_pixels=max_pixels, min_pixels=min_pixels)
    dial = loaded.keep if dial is None else dial
    options: dict[str, Any] = {"max_new_tokens": how.max_new_tokens, "system": system, **typed.sampling(temperature)}
    answer = loaded.ask(pictures, question, keep=dial, look_again=look_again, **options)
    notes(answer.notices, how.quiet)
    if as_json:
        document = as_document(answer, how.model, dial, [*loaded.notices, *answer.notices])
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        typer.echo(harmless(answer.text))
    asked = [] if words else [f"the bundled sample was asked: {question}"]
    if len(images) > 1:
        asked = [f"{len(images)} images were shown together; arr-coc batch asks about each by itself"]
    notes((*asked, *looks_line(answer), summary(answer, waited())), how.quiet)
    if open_overlay and overlay is None:
        overlay = Path(tempfile.mkdtemp(prefix="arr-coc-")) / "overlay.png"
    if overlay is not None:  # last: should it fail, the answer is not lost
        write_overlay(overlay, loaded, pictures, question, answer)
        if open_overlay:
            open_file(overlay)


def as_document(answer: "Answer", model: str, keep: float | int | str, notices: list[str]) -> dict[str, Any]:
    """The answer as `ask.schema.json` says."""
    return {
        "answer": answer.text,
        "model": model,
        "keep": keep,
        "tokens_total": answer.tokens_total,
        "tokens_kept": answer.tokens_kept,
        "confidence": _rounded(answer.confidence),
        "looks": [
            {"tokens_kept": look.tokens_kept, "confidence": _rounded(look.confidence), "ms": round(look.ms, 2)}
            for look in answer.looks
        ],
        "images": [
            {
                "grid": list(image.grid),
                "kept": image.kept.tolist(),
                "covered": image.kept_for_coverage.tolist(),
                "periphery": None if image.periphery is None else list(image.periphery),
                "strategy": image.strategy,
                "reason": image.why,
                "clip": image.clip,
                "seconds": image.seconds,
                "cut": image.cut,
            }
            for image in answer.selection
        ],
        "timings_ms": {name: round(value, 2) for name, value in answer.timings_ms.items()},
        "notices": notices,
    }


def _rounded(confidence: float | None) -> float | None:
    return None if confidence is None else round(confidence, 4)
