"""The verbs. Each imports what it needs when it runs."""

from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from arr_coc import __version__

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Ask Qwen3-VL with only the tokens that matter.")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"arr-coc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Ask Qwen3-VL about an image with only the visual tokens that matter for the question."""


@app.command()
def textures(
    image: Annotated[Path | None, typer.Argument(help="JPEG, PNG or WebP; the bundled sample if left out.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("out"),
) -> None:
    """Show what ARR-COC sees: all texture channels, and the question-blind maps.

    Examples:  arr-coc textures   |   arr-coc textures photo.jpg --out pictures
    """
    from arr_coc.viewing import question_blind_maps, texture_sheet

    with as_file(files("arr_coc") / "assets" / "sample.png") as sample:
        source = image or sample
        pictures = {"textures.png": texture_sheet(source), "question_blind.png": question_blind_maps(source)}
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        picture.save(out / name)
        typer.echo(out / name)
