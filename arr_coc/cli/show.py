"""arr-coc show: one choice in pictures and numbers. The names of the files go to stdout, the answer to stderr."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_coc.cli.answers import notices_about, summary
from arr_coc.cli.loading import chosen_selector, load
from arr_coc.cli.options import Encoding, MaxNewTokens, Model, Offline, Quiet, Seed, SelectorName
from arr_coc.cli.terminal import note, set_verbosity
from arr_coc.cli.typed import check_free, one_image, parse_keep

if TYPE_CHECKING:
    from PIL import Image

    from arr_coc.qwen.answers import ImageSelection

NAMES = (
    *("kept", "information", "perspectival", "participatory", "relevance"),
    *("scorers", "homunculus", "slider", "tokens"),
)


def show(
    words: Annotated[list[str], typer.Argument(metavar="[IMAGE] QUESTION", help="A JPEG, PNG or WebP, the question.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the files.")] = Path("out"),
    model: Model = "mini",
    keep: Annotated[
        str,
        typer.Option(
            metavar="PART", help='Part KEPT: a fraction such as 0.25, a number of tokens such as 256, or "auto".'
        ),
    ] = "auto",
    selector: SelectorName = "auto",
    encoding: Encoding = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=f"Only this; may be repeated: {', '.join(NAMES)}.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that arr-coc did not make.")] = False,
    max_new_tokens: MaxNewTokens = 128,
    seed: Seed = 0,
    quiet: Quiet = False,
    offline: Offline = False,
) -> None:
    """Show which cells were kept for a question and why. Without an image, the bundled sample is shown.

    arr-coc show "Which word is blue?" --out why

    arr-coc show photo.jpg "What colour is the door?" --out why --keep 0.25 --only kept --only tokens

    The names of the files go to stdout. Files that arr-coc made are written over, others are not.
    """
    from arr_coc.images.reader import read_image

    set_verbosity(quiet)
    image, question = one_image(words)
    dial, wanted = parse_keep(keep), check_names(only)
    paths = {name: out / file_name(name) for name in wanted}
    check_free(paths.values(), image, force)
    picture = read_image(image)
    loaded = load(model, encoding=encoding, seed=seed, quiet=quiet)
    loaded.selector = chosen_selector(loaded, selector, seed)
    loaded.break_even = 0  # a choice is what is asked for, whether it pays on this device or not
    answer = loaded.ask(picture, question, keep=dial, max_new_tokens=max_new_tokens)
    (selection,) = answer.selection
    written, missing = write_files(picture, selection, paths)
    for path in written:
        typer.echo(path)
    if missing and only:
        raise ValueError(
            f"no {', '.join(missing)} to show: {selection.reason}; leave it out, or choose with --keep 0.25 "
            "--selector arr_coc"
        )
    if not quiet:
        if missing:
            note(f"without {', '.join(missing)}: {selection.reason}")
        for line in (*notices_about(loaded, question), f"answer: {answer.text}", summary(answer)):
            note(line)


def check_names(only: list[str] | None) -> list[str]:
    """The names asked for, in their order and each once; all if none was."""
    for name in only or ():
        if name not in NAMES:
            raise ValueError(f"--only {name}: expected one of {', '.join(NAMES)}")
    return [name for name in NAMES if not only or name in only]


def file_name(name: str) -> str:
    return {"slider": "slider.html", "tokens": "tokens.csv"}.get(name, f"{name}.png")


def write_files(
    image: "Image.Image", selection: "ImageSelection", paths: dict[str, Path]
) -> tuple[list[Path], list[str]]:
    """Write what this selection has to show; the paths written, and the names of what it has not."""
    from arr_coc.viewing import before_after, slider_html, token_rows
    from arr_coc.viewing.saving import save_picture, save_table

    drawn = pictures(image, selection)
    written: list[Path] = []
    for name, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "slider":
            path.write_text(slider_html(*before_after(image, selection)), encoding="utf-8")
        elif name == "tokens":
            save_table(token_rows(selection), path)
        elif name in drawn:
            save_picture(drawn[name](), path)
        else:
            continue
        written.append(path)
    return written, [name for name, path in paths.items() if path not in written]


def pictures(image: "Image.Image", selection: "ImageSelection") -> dict[str, Callable[[], "Image.Image"]]:
    """What can be drawn of a selection, by name."""
    from arr_coc.config import SCORERS
    from arr_coc.viewing import heatmap, homunculus, kept_overlay, scorer_panels
    from arr_coc.viewing.heatmaps import ABOUT

    kept, relevance = selection.mask, selection.relevance
    made: dict[str, Callable[[], Image.Image]] = {
        "kept": lambda: kept_overlay(image, kept),
        "scorers": lambda: scorer_panels(image, selection),
    }
    if relevance is not None:
        made["relevance"] = lambda: heatmap(image, relevance, kept_HW=kept, title="relevance")
        made["homunculus"] = lambda: homunculus(image, relevance)
    for name in SCORERS:
        if name in selection.maps:
            values, title = selection.maps[name], f"{name}: {ABOUT[name]}, weight {selection.weights[name]:.2f}"
            made[name] = lambda values=values, title=title: heatmap(image, values, title=title)  # type: ignore[misc]
    return made
