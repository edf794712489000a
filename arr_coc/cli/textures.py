"""arr-coc textures: what ARR-COC sees in an image."""

from pathlib import Path
from typing import Annotated

import typer

from arr_coc.cli.sample import sample_image


def textures(
    image: Annotated[
        Path | None, typer.Argument(metavar="[IMAGE]", help="JPEG, PNG or WebP; the bundled sample if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("out"),
) -> None:
    """Show what ARR-COC sees: all texture channels, and the question-blind maps.

    arr-coc textures photo.jpg --out pictures
    """
    from arr_coc.viewing import question_blind_maps, texture_sheet

    source = image or sample_image()
    pictures = {"textures.png": texture_sheet(source), "question_blind.png": question_blind_maps(source)}
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        picture.save(out / name)
        typer.echo(out / name)
