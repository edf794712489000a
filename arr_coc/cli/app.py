"""The verbs. Each lives in a file of its own and imports what it needs when it runs."""

from typing import Annotated

import typer

from arr_coc import __version__
from arr_coc.cli.ask import ask
from arr_coc.cli.bench import bench
from arr_coc.cli.eval import evaluate
from arr_coc.cli.scenes import scenes
from arr_coc.cli.textures import textures
from arr_coc.cli.train import train

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(ask)
app.command()(bench)
app.command("eval")(evaluate)
app.command()(textures)
app.add_typer(scenes, name="scenes")
app.add_typer(train, name="train")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"arr-coc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Ask Qwen3-VL about an image with only the visual tokens that matter for the question.

    arr-coc ask photo.jpg "What colour is the door?"

    Exit codes: 0 ok, 1 unexpected, 2 usage, 3 bad input, 4 model not found, 130 interrupted.
    """
