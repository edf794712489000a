"""arr-coc ask: one question about one or several images. The answer alone goes to stdout."""

import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_coc.cli.options import (
    Encoding,
    KeepDial,
    MaxNewTokens,
    Model,
    Offline,
    Quiet,
    Seed,
    SelectorName,
    is_offline,
)
from arr_coc.cli.sample import sample_image
from arr_coc.cli.terminal import is_terminal, note, quieten_libraries, set_verbosity

PICTURES = (".png", ".jpg", ".jpeg", ".webp")

if TYPE_CHECKING:
    from PIL.Image import Image

    from arr_coc.qwen import Answer, ARRCOCQwen
    from arr_coc.selectors import Selector


def ask(
    words: Annotated[
        list[str], typer.Argument(metavar="[IMAGE]... QUESTION", help="JPEG, PNG or WebP files, then the question.")
    ],
    model: Model = "mini",
    keep: KeepDial = None,
    selector: SelectorName = "auto",
    encoding: Encoding = None,
    max_new_tokens: MaxNewTokens = 128,
    overlay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of what was kept, or of where it looked.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the answer.")] = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    offline: Offline = False,
) -> None:
    """Answer a question about an image. Without an image, the bundled sample is asked.

    arr-coc ask "Which word is blue?"

    arr-coc ask photo.jpg "What colour is the door?" --keep 0.25 --overlay why.png

    arr-coc ask photo.jpg "What colour is the door?" --model Qwen/Qwen3-VL-2B-Instruct --json
    """
    from arr_coc.qwen.images import read_images

    set_verbosity(quiet)
    images, question = split_words(words)
    check_picture(overlay, images)
    dial = None if keep is None else parse_keep(keep)
    pictures = read_images(images)  # before the model: a mistake is told at once
    loaded = load(model, selector, encoding, seed=seed, quiet=quiet)
    dial = default_keep(loaded) if dial is None else dial
    answer = loaded.ask(pictures, question, keep=dial, max_new_tokens=max_new_tokens)
    notices = notices_about(loaded, question)
    if as_json:
        typer.echo(json.dumps(as_document(answer, model, dial, [*loaded.notices, *notices]), ensure_ascii=False))
    else:
        typer.echo(answer.text)
    if not quiet:
        for line in (*notices, summary(answer)):
            note(line)
    if overlay is not None:  # last: should it fail, the answer is not lost
        write_overlay(overlay, loaded, pictures, question, answer)


def split_words(words: Sequence[str]) -> tuple[list[Path], str]:
    """The images and the question of a command line; the bundled sample where there is no image."""
    *files, question = words
    if is_image_name(question):
        if all(map(is_image_name, files)):
            raise ValueError(f"{question} is an image without a question: write the question after it, in quotes")
        raise ValueError(f"{question} stands where the question goes: images come first, then the question, in quotes")
    for word in files:
        if not Path(word).suffix and not os.path.exists(word):
            raise ValueError(f"{word}: no such image file; if it is a part of the question, put that in quotes")
    return [Path(word) for word in files] or [sample_image()], question


def is_image_name(word: str) -> bool:
    """Whether a word of the command line is meant as a file: it ends like a picture, or there is such a file."""
    return Path(word).suffix.lower() in PICTURES or os.path.isfile(word)  # isfile bears what no file can be called


def check_picture(path: Path | None, images: Sequence[Path] = ()) -> None:
    """Whether a picture can be written there, as far as its name tells; the images themselves are never overwritten."""
    if path is None:
        return
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{path.name}: an overlay is a picture; end its name in {', '.join(PICTURES)}")
    if any(path.exists() and image.exists() and path.samefile(image) for image in images):
        raise ValueError(f"{path.name} is the image that is asked about: give the overlay another name")


def load(
    model: str, selector: str = "auto", encoding: str | None = None, *, seed: int = 0, quiet: bool = False
) -> "ARRCOCQwen":
    """Load a model with everything but errors kept off the terminal; bars on a terminal, for models of some size.

    `selector` is NAME or NAME:KEY=VALUE,...; `seed` is for sampling and for the selector "random".
    """
    import torch

    from arr_coc.evaluation.field_methods import settings_of
    from arr_coc.qwen import ARRCOCQwen
    from arr_coc.qwen.loading import EMBEDDED, ModelNotFound
    from arr_coc.selectors import make_selector

    name, settings = settings_of(selector)
    refuse_plain(name)
    settings = check_settings(name, {"seed": seed, **settings} if name == "random" else settings)
    elsewhere = model not in EMBEDDED and not Path(model).exists()
    quieten_libraries(bars=model not in EMBEDDED and not quiet and is_terminal(sys.stderr))
    if elsewhere and not quiet and not is_offline() and model.count("/") == 1:
        note(f"looking for {model} in the cache and on the hub (--offline: in the cache alone)")
    torch.manual_seed(seed)
    try:
        loaded = ARRCOCQwen.from_pretrained(model, selector=name, encoding=encoding)
    except ModelNotFound:
        if elsewhere and is_offline() and model.count("/") == 1:
            way = "go online once (without --offline), or give mini or a folder with a Qwen3-VL"
            raise ModelNotFound(f"no model {model!r} in the cache, and the hub is off: {way}") from None
        raise
    if settings:
        loaded.selector = make_selector(name, loaded.config, loaded.layer, **settings).to(loaded.device).eval()
    refuse_told(selector, loaded.selector)
    return loaded


def refuse_plain(name: str) -> None:
    """The model itself is no selector, though it stands beside them in comparisons."""
    from arr_coc.evaluation.field_methods import PLAIN

    if name == PLAIN:
        raise ValueError("selector 'plain' chooses nothing: give --keep 1.0 for the plain model")


def refuse_told(spec: str, selector: "Selector") -> None:
    """One that must be told where the answer is cannot be used on a question."""
    if selector.reads_evidence:
        raise ValueError(
            f"selector {spec!r} must be told where the answer is, which a question does not say: leave it out, or run "
            "`arr-coc eval`, whose scenes know it"
        )


def check_settings(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a selector as they are, if each that should be a number is one."""
    from arr_coc.selectors import SELECTORS

    known = inspect.signature(SELECTORS[name]).parameters if name in SELECTORS else {}
    for key, value in settings.items():
        wanted = known[key].annotation if key in known else None
        if wanted in (int, float) and not isinstance(value, (int, wanted)):
            raise ValueError(f"selector {name}: {key}={value} is no {wanted.__name__}; write such as {name}:{key}=1")
    return settings


def default_keep(loaded: "ARRCOCQwen") -> float | str:
    """The dial where none is given: a choice where one was learned, else all."""
    return "auto" if loaded.config.trained else 1.0


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
    from arr_coc.qwen.turns import words_notice

    return words_notice(loaded.processor.tokenizer, question)


def summary(answer: "Answer") -> str:
    """One line about tokens and time; the first token comes after all but the decoding of the later ones."""
    share = 100 * answer.tokens_kept / max(1, answer.tokens_total)
    times = answer.timings_ms
    vision, generate = times.get("vision", 0.0), times.get("generate", 0.0)
    total = sum(value for name, value in times.items() if name != "prefill")
    first = total - generate + times.get("prefill", 0.0)
    return (
        f"visual tokens {answer.tokens_total} -> {answer.tokens_kept} ({share:.0f} % kept) · "
        f"select {total - vision - generate:.0f} ms · vision {vision:.0f} ms · first token after {first:.0f} ms · "
        f"{total:.0f} ms in all"
    )


def as_document(answer: "Answer", model: str, keep: float | int | str, notices: list[str]) -> dict[str, Any]:
    """The answer as `ask.schema.json` says."""
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


def write_overlay(
    path: Path,
    loaded: "ARRCOCQwen",
    pictures: Sequence["Image"],
    question: str,
    answer: "Answer",
    history: Sequence[tuple[str, str]] = (),
) -> None:
    """Each image with what was kept; if all was kept, with where the answer's tokens attended. Several side by side."""
    from arr_coc.qwen.attention import answer_attention
    from arr_coc.qwen.images import read_images
    from arr_coc.qwen.processor import Conversation, encode, text_ids
    from arr_coc.viewing import heat_overlay, kept_overlay, side_by_side

    pictures = read_images(list(pictures))
    if answer.tokens_kept < answer.tokens_total:
        drawn = [kept_overlay(one, made.mask) for one, made in zip(pictures, answer.selection, strict=True)]
    else:
        import torch

        inputs = encode(loaded.processor, [Conversation(pictures, question, history)])
        said = torch.tensor(text_ids(loaded.processor.tokenizer, answer.text), dtype=torch.long)
        looked = answer_attention(loaded.model, inputs, said)
        drawn = [heat_overlay(one, heat) for one, heat in zip(pictures, looked, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    side_by_side(drawn).save(path)
