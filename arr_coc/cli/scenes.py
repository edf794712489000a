"""arr-coc scenes: the synthetic world, drawn to files."""

from pathlib import Path
from typing import Annotated

import typer

from arr_coc.cli.helping import Verbs
from arr_coc.cli.options import Quiet
from arr_coc.cli.terminal import teller

scenes = Verbs()


@scenes.callback()
def root() -> None:
    """The synthetic world that mini knows, as files.

    arr-coc scenes make out/scenes --count 20 --split seen --size 512
    """


@scenes.command()
def make(
    out: Annotated[Path, typer.Argument(help="Folder for the images, questions and boxes.")],
    count: Annotated[int, typer.Option(min=1, help="Number of scenes.")] = 100,
    split: Annotated[str, typer.Option(help="train, val, seen or unseen.")] = "train",
    first_seed: Annotated[int, typer.Option(min=0, help="Seed of the first scene.")] = 0,
    file_format: Annotated[str, typer.Option("--format", help="Of the questions: jsonl or parquet.")] = "jsonl",
    size: Annotated[
        int | None, typer.Option(min=96, max=4096, help="Side in px; drawn from the seed if left out.")
    ] = None,
    difficulty: Annotated[str | None, typer.Option(help="plain or hard; drawn from the seed if left out.")] = None,
    quiet: Quiet = False,
) -> None:
    """Draw scenes with their questions, answers and evidence boxes (COCO style).

    arr-coc scenes make out/scenes --count 20 --split seen --size 512
    """
    from arr_coc.scenes.export import export

    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: give a new folder, so that old and new scenes do not mix")
    square = None if size is None else (size, size)
    counts = export(out, split, count, first_seed, file_format, square, difficulty)
    teller(quiet)(", ".join(f"{number} {what}" for what, number in counts.items()))
