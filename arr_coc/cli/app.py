"""The verbs. Each lives in a file of its own and imports what it needs when it runs."""

from typing import Annotated

import typer

from arr_coc import __version__
from arr_coc.cli.ask import ask
from arr_coc.cli.bench import bench
from arr_coc.cli.chat import chat
from arr_coc.cli.compare import compare
from arr_coc.cli.demo import demo
from arr_coc.cli.env import env
from arr_coc.cli.eval import evaluate
from arr_coc.cli.helping import Verbs
from arr_coc.cli.report import report
from arr_coc.cli.scenes import scenes
from arr_coc.cli.show import show
from arr_coc.cli.textures import textures
from arr_coc.cli.train import train

app = Verbs()
app.command()(ask)
app.command()(chat)
app.command()(bench)
app.command()(compare)
app.command()(demo)
app.command()(env)
app.command("eval")(evaluate)
app.command()(report)
app.command()(show)
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

    arr-coc chat photo.jpg

    arr-coc VERB --help

    The answer goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 unexpected (ARR_COC_DEBUG=1 shows where),
    2 usage, 3 bad input, 4 model not found, 5 out of memory, 130 interrupted.
    """
