"""arr-coc show: one choice in pictures and numbers, of an image or a clip. arr-coc textures: what is seen in an image.

The names of the files go to stdout, an answer to stderr.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_coc.cli import typed
from arr_coc.cli.answers import summary
from arr_coc.cli.loading import Asking, asking, chosen_selector
from arr_coc.cli.terminal import notes, open_file, set_verbosity, waited

if TYPE_CHECKING:
    from PIL import Image

    from arr_coc.images.clips import Clip
    from arr_coc.qwen.answers import Answer

NAMES = (
    *("kept", "information", "perspectival", "participatory", "relevance"),
    *("scorers", "homunculus", "slider", "tokens"),
)
OF_CLIPS = ("strip", "animation", "budget", "moments", "tokens")
FILES = {"slider": "slider.html", "animation": "animation.gif", "moments": "moments.csv", "tokens": "tokens.csv"}


@asking
def show(
    words: typed.OneImage = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the files.")] = Path("out"),
    keep: typed.KeepDial = None,
    selector: typed.SelectorName = "auto",
    only: Annotated[
        typed.Texts,
        typer.Option(
            metavar="NAME",
            help=f"Only this; may be repeated: {', '.join(NAMES)}. Of a clip: {', '.join(OF_CLIPS)}.",
        ),
    ] = None,
    force: typed.Force = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the slider, or the first file written.")] = False,
    *,
    how: Asking,
) -> None:
    """Show which cells were kept for a question and why. Without an image, the bundled sample is shown.

    arr-coc show "Which word is blue?" --out why

    arr-coc show photo.jpg "What colour is the door?" --out why --keep 0.25 --only kept --only tokens

    arr-coc show clip.mp4 "Which way does it go?" --out why --keep 10%

    The names of the files go to stdout. Files that arr-coc made are written over, others are not.
    """
    image, question = typed.one_image(words)
    typed.check_question(question)
    dial = None if keep is None else typed.parse_keep(keep)
    wanted = check_names(only, OF_CLIPS if typed.clips_of([image]) else NAMES)
    paths = {name: out / file_name(name) for name in wanted}
    typed.check_free(paths.values(), image, force)
    loaded, (picture,) = how.open([image], [selector])
    loaded.selector = chosen_selector(loaded, selector, how.seed)
    loaded.break_even = 0  # a choice is what is asked for, whether it pays on this device or not
    answer = loaded.ask(picture, question, keep=dial, max_new_tokens=how.max_new_tokens)
    selection = answer.selection[0]
    write = writers(picture, question, answer)
    missing = [name for name in wanted if name not in write]
    written = {name: path for name, path in paths.items() if name in write}
    for name, path in written.items():
        write[name](path)
    for path in written.values():
        typer.echo(path)
    if missing and only:
        raise ValueError(
            f"no {', '.join(missing)} to show: {selection.reason}; leave it out, or choose with --keep 0.25 "
            "--selector arr_coc"
        )
    lines = [f"without {', '.join(missing)}: {selection.reason}"] if missing else []
    notes((*lines, *answer.notices, f"answer: {answer.text}", summary(answer, waited())), how.quiet)
    if open_page and written:
        open_file(written.get("slider") or next(iter(written.values())))


def check_names(only: list[str] | None, names: Sequence[str] = NAMES) -> list[str]:
    """The names asked for, in their order and each once; all if none was."""
    for name in only or ():
        if name not in names:
            raise ValueError(f"--only {name}: expected one of {', '.join(names)}")
    return [name for name in names if not only or name in only]


def file_name(name: str) -> str:
    return FILES.get(name, f"{name}.png")


def clip_writers(clip: "Clip", question: str, answer: "Answer") -> dict[str, Callable[[Path], None]]:
    """What an answer about a clip has to show, as `writers` of one about an image."""
    from arr_coc.viewing import headed, token_rows, tokens_told
    from arr_coc.viewing.clips import budget_page, moment_rows, save_animation, strip_page
    from arr_coc.viewing.paper import page
    from arr_coc.viewing.saving import save_picture, save_table

    choices, told = answer.selection, tokens_told(answer.tokens_kept, answer.tokens_total)

    def pictured(draw: Callable[..., "Image.Image"], *of: Any) -> Callable[[Path], None]:
        return lambda path: save_picture(headed(page(draw(*of)), question, answer.text, told), path)

    cells = ({"moment": n, "seconds": one.seconds, **row} for n, one in enumerate(choices) for row in token_rows(one))
    return {
        "strip": pictured(strip_page, clip, choices),
        "animation": lambda path: save_animation(path, [clip], question, answer),
        "budget": pictured(budget_page, choices),
        "moments": lambda path: save_table(moment_rows(choices), path),
        "tokens": lambda path: save_table(list(cells), path),
    }


def writers(image: "Image.Image | Clip", question: str, answer: "Answer") -> dict[str, Callable[[Path], None]]:
    """What an answer's choice has to show, by name: functions that write it to a file, under question and answer."""
    from arr_coc.images.clips import Clip

    if isinstance(image, Clip):
        return clip_writers(image, question, answer)
    from arr_coc.config import SCORERS
    from arr_coc.files import write_whole
    from arr_coc.qwen.answers import WAYS
    from arr_coc.viewing import headed, heatmap, kept_page, scorer_panels, slider_page, token_rows, tokens_told
    from arr_coc.viewing.heatmaps import weight_told
    from arr_coc.viewing.saving import save_picture, save_table
    from arr_coc.viewing.warping import homunculus_page

    (selection,), told = answer.selection, tokens_told(answer.tokens_kept, answer.tokens_total)

    def pictured(draw: Callable[..., "Image.Image"], *of: Any, **more: Any) -> Callable[[Path], None]:
        return lambda path: save_picture(headed(draw(*of, **more), question, answer.text, told), path)

    relevance, cells = selection.relevance, {"kept_HW": selection.mask, "covered_HW": selection.covered_mask}
    made: dict[str, Callable[[Path], None]] = {
        "kept": pictured(kept_page, [image], [selection]),
        "scorers": pictured(scorer_panels, image, selection),
        "slider": lambda path: write_whole(path, slider_page(image, question, answer)),
        "tokens": lambda path: save_table(token_rows(selection), path),
    }
    if relevance is not None:
        made["relevance"] = pictured(heatmap, image, relevance, **cells, title="relevance: what the maps give together")
        made["homunculus"] = pictured(homunculus_page, image, relevance)
    for name in set(SCORERS) & set(selection.maps):
        weight = selection.weights[name]
        title = f"{name}: {WAYS[name]}, {weight_told(weight)}"
        made[name] = pictured(heatmap, image, selection.maps[name], title=title, weight=weight)
    return made


def textures(
    image: Annotated[
        Path | None,
        typer.Argument(metavar="[IMAGE]", help=f"{typed.KINDS}, or - for stdin; the bundled sample if left out."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the pictures.")] = Path("out"),
    force: typed.Force = False,
    quiet: typed.Quiet = False,
) -> None:
    """Show what ARR-COC sees: all texture channels, and the question-blind maps.

    arr-coc textures photo.jpg --out pictures

    The names of the files go to stdout. Files that arr-coc made are written over, others are not.
    """
    set_verbosity(quiet)
    source = image or typed.sample_image()
    paths = [out / "textures.png", out / "question_blind.png"]
    typed.check_free(paths, source, force)
    (picture,) = typed.read_typed([source])
    from arr_coc.viewing import question_blind_maps, texture_sheet
    from arr_coc.viewing.saving import save_picture

    drawn = [draw(picture) for draw in (texture_sheet, question_blind_maps)]
    for path, made in zip(paths, drawn, strict=True):
        save_picture(made, path)
        typer.echo(path)
