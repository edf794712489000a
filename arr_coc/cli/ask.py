"""arr-coc ask: one question about one or several images. The answer alone goes to stdout."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_coc.cli.sample import sample_image

PICTURES = (".png", ".jpg", ".jpeg", ".webp")

if TYPE_CHECKING:
    from arr_coc.qwen import Answer, ARRCOCQwen


def ask(
    words: Annotated[
        list[str], typer.Argument(metavar="[IMAGE]... QUESTION", help="JPEG, PNG or WebP files, then the question.")
    ],
    model: Annotated[str, typer.Option(help="mini, a folder with a Qwen3-VL, or a hub id.")] = "mini",
    keep: Annotated[
        str | None,
        typer.Option(help='Part KEPT: a fraction such as 0.25, a number of tokens such as 256, or "auto".'),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=4096, help="Length of the answer at most.")] = 128,
    overlay: Annotated[
        Path | None, typer.Option(help="Write a picture of what was kept, or of where the answer looked.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the answer.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Nothing on stderr.")] = False,
) -> None:
    """Answer a question about an image. Without an image, the bundled sample is asked.

    arr-coc ask "Which word is blue?"

    arr-coc ask photo.jpg "What colour is the door?" --model Qwen/Qwen3-VL-2B-Instruct --keep 0.25 --overlay why.png
    """
    logging.getLogger("arr_coc").setLevel(logging.ERROR if quiet else logging.WARNING)
    if len(words) == 1 and (Path(words[0]).suffix.lower() in PICTURES or Path(words[0]).is_file()):
        raise ValueError(f"{words[0]} is an image without a question: write the question after it, in quotes")
    if overlay is not None and overlay.suffix.lower() not in PICTURES:
        raise ValueError(f"{overlay.name}: an overlay is a picture; end its name in {', '.join(PICTURES)}")
    images, question = [Path(word) for word in words[:-1]] or [sample_image()], words[-1]
    loaded = load(model)
    dial = parse_keep(keep) if keep is not None else ("auto" if loaded.config.trained else 1.0)
    answer = loaded.ask(images, question, keep=dial, max_new_tokens=max_new_tokens)
    notices = notices_about(loaded, question)
    if as_json:
        typer.echo(json.dumps(as_document(answer, model, dial, [*loaded.notices, *notices]), ensure_ascii=False))
    else:
        typer.echo(answer.text)
    if not quiet:
        for line in (*notices, summary(answer)):
            typer.echo(line, err=True)
    if overlay is not None:  # last: should it fail, the answer is not lost
        write_overlay(overlay, loaded, images, question, answer)


def load(model: str) -> "ARRCOCQwen":
    """Load a model with everything but errors kept off the terminal."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    from arr_coc.qwen import ARRCOCQwen

    hub_logging.set_verbosity(logging.CRITICAL)  # our own line says that a model cannot be reached
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    return ARRCOCQwen.from_pretrained(model)


def parse_keep(text: str) -> float | int | str:
    """The dial as typed: a whole number is a number of tokens, one with a point a fraction."""
    from arr_coc.config import check_keep

    for kind in (int, float):
        try:
            return check_keep(kind(text))
        except ValueError as error:
            if "keep=" in str(error):
                raise
    return check_keep(text)


def notices_about(loaded: "ARRCOCQwen", question: str) -> list[str]:
    """What the user should know about this answer: the words that mini does not know."""
    from arr_coc.qwen.turns import is_mini, outside_words

    if not is_mini(loaded.processor.tokenizer):
        return []
    unknown = outside_words(loaded.processor.tokenizer, question)
    return [f"mini only knows drawn scenes, and not the words: {', '.join(unknown)}"] if unknown else []


def summary(answer: "Answer") -> str:
    """One line about tokens and time."""
    share = 100 * answer.tokens_kept / max(1, answer.tokens_total)
    times = answer.timings_ms
    total = sum(value for name, value in times.items() if name != "prefill")
    return (
        f"visual tokens {answer.tokens_total} -> {answer.tokens_kept} ({share:.0f} % kept) · "
        f"vision {times.get('vision', 0):.0f} ms · first token {times.get('prefill', 0):.0f} ms · {total:.0f} ms in all"
    )


def as_document(answer: "Answer", model: str, keep: float | int | str, notices: list[str]) -> dict[str, object]:
    return {
        "answer": answer.text,
        "model": model,
        "keep": keep,
        "tokens_total": answer.tokens_total,
        "tokens_kept": answer.tokens_kept,
        "images": [
            {"grid": list(image.grid), "kept": image.kept.tolist(), "strategy": image.strategy, "reason": image.reason}
            for image in answer.selection
        ],
        "timings_ms": {name: round(value, 2) for name, value in answer.timings_ms.items()},
        "notices": notices,
    }


def write_overlay(path: Path, loaded: "ARRCOCQwen", images: list[Path], question: str, answer: "Answer") -> None:
    """Each image with what was kept; if all was kept, with where the answer's tokens attended. Several side by side."""
    from arr_coc.qwen.attention import answer_attention
    from arr_coc.qwen.images import read_image
    from arr_coc.qwen.processor import Conversation, encode, text_ids
    from arr_coc.viewing import heat_overlay, kept_overlay, side_by_side

    pictures = [read_image(image) for image in images]
    if answer.tokens_kept < answer.tokens_total:
        drawn = [kept_overlay(one, made.mask) for one, made in zip(pictures, answer.selection, strict=True)]
    else:
        import torch

        inputs = encode(loaded.processor, [Conversation(pictures, question)])
        said = torch.tensor(text_ids(loaded.processor.tokenizer, answer.text))
        looked = answer_attention(loaded.model, inputs, said)
        drawn = [heat_overlay(one, heat) for one, heat in zip(pictures, looked, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    side_by_side(drawn).save(path)
