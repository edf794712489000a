"""arr-coc textures: what ARR-COC sees in an image."""

from pathlib import Path
from typing import Annotated

import typer

from arr_coc.cli.options import Quiet
from arr_coc.cli.sample import sample_image
from arr_coc.cli.show import check_free
from arr_coc.cli.terminal import set_verbosity


def textures(
    image: Annotated[
        Path | None, typer.Argument(metavar="[IMAGE]", help="JPEG, PNG or WebP; the bundled sample if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the pictures.")] = Path("out"),
    force: Annotated[bool, typer.Option("--force", help="Write over files that arr-coc did not make.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show what ARR-COC sees: all texture channels, and the question-blind maps.

    arr-coc textures photo.jpg --out pictures

    The names of the files go to stdout. Files that arr-coc made are written over, others are not.
    """
    from arr_coc.viewing import question_blind_maps, texture_sheet
    from arr_coc.viewing.saving import save_picture

    set_verbosity(quiet)
    source = image or sample_image()
    paths = {out / "textures.png": texture_sheet, out / "question_blind.png": question_blind_maps}
    check_free(paths, source, force)
    pictures = {path: draw(source) for path, draw in paths.items()}
    out.mkdir(parents=True, exist_ok=True)
    for path, picture in pictures.items():
        save_picture(picture, path)
        typer.echo(path)
