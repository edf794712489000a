"""arr-coc train: teach a selector, on drawn scenes or on your own images."""

from pathlib import Path
from typing import Annotated, Any

import typer

from arr_coc.cli.helping import Verbs
from arr_coc.cli.options import Offline, Quiet
from arr_coc.cli.terminal import begin_long_run, teller

train = Verbs()


@train.callback()
def root() -> None:
    """Train a selector.

    arr-coc train selector --stage 1 --out runs/one --steps 2000
    """


@train.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def mini() -> None:
    """Moved: mini is made in a checkout, by `python -m studies.mini.train`."""
    raise ValueError("mini is made in a checkout of the project: python -m studies.mini.train --help")


@train.command()
def selector(
    out: Annotated[Path, typer.Option(help="Folder for the adapter, metrics, pictures and checkpoints.")] = Path(
        "runs/selector"
    ),
    stage: Annotated[
        int | None, typer.Option(min=1, max=3, help="1 maps from boxes, 2 answers end to end, 3 hard variants.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="JSON with settings, as in configs/.")
    ] = None,
    init_from: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Start from the adapter in this folder.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="mini, a folder, a hub id, or shape:qwen3-vl-2b for random weights.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="scenes, coco:BOXES.json:IMAGES, vqa:QUESTIONS.json:ANSWERS.json:IMAGES or jsonl:FILE."),
    ] = None,
    boxes: Annotated[
        str | None, typer.Option(help="A detector's output (COCO results), to give boxes to data without.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="What maps learn from: boxes, or attention (the model's own, without boxes).")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="Stage 2: score, straight_through, gumbel or reinforce.")] = None,
    adapt: Annotated[
        str | None, typer.Option(help="Stage 2, what of the model learns: none, lora, last4, all.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Time budget; the schedule follows the clock.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps, if no time budget is given.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes that read or draw images.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights and data.")] = None,
    quiet: Quiet = False,
    offline: Offline = False,
) -> None:
    """Train a selector. The same command goes on from the newest checkpoint in OUT.

    arr-coc train selector --stage 1 --out runs/one --steps 2000

    arr-coc train selector --stage 3 --init-from runs/one --out runs/three --steps 500

    arr-coc train selector --stage 1 --model Qwen/Qwen3-VL-2B-Instruct --data jsonl:photos.jsonl --target attention

    accelerate launch --multi_gpu --num_processes 2 -m arr_coc train selector --stage 1 --out runs/one   (CPUs too)
    """
    from arr_coc.training.config import read_selector_config
    from arr_coc.training.main import Places, train_selector

    begin_long_run(quiet)
    given: dict[str, Any] = {
        "stage": stage,
        "model": model,
        "data": data,
        "pseudo_boxes": boxes,
        "target": target,
        "strategy": strategy,
    }
    given |= {"adapt": adapt, "seconds": seconds, "steps": steps, "workers": workers, "seed": seed}
    settings = read_selector_config(config, **given)
    train_selector(settings, Places(out, init_from), teller(quiet))
