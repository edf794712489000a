"""arr-coc train selector, tune and scenes make: a selector learns or practises; what it learns on is drawn to files."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from arr_coc.cli import typed
from arr_coc.cli.checks import check_choice, check_machine, check_model, check_sources
from arr_coc.cli.terminal import begin_long_run, teller

RUN = Path("runs/selector")


def selector(
    out: Annotated[Path, typer.Option(help="Folder for the adapter, metrics, pictures and checkpoints.")] = RUN,
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
    data: Annotated[str | None, typer.Option(help=f"{typed.DATA}.")] = None,
    boxes: Annotated[
        str | None, typer.Option(help="A detector's output (COCO results), to give boxes to data without.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="What maps learn from: boxes, attention (the model's own), or auto: that where none are known."
        ),
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="Stage 2: score, straight_through, gumbel or reinforce.")] = None,
    adapt: Annotated[
        str | None, typer.Option(help="Stage 2, what of the model learns: none, lora, last4, all.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Time budget; the schedule follows the clock.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps, if no time budget is given.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that read or draw images; as many as fit if left out.")
    ] = None,
    cells_per_batch: Annotated[
        int | None, typer.Option(min=1, help="Cells of all questions of a pass; as many as fit if left out.")
    ] = None,
    max_pixels: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of an image from a file, in training and afterwards.")
    ] = None,
    min_pixels: typed.MinPixels = None,
    max_broken: typed.MaxBroken = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights and data.")] = None,
    quiet: typed.Quiet = False,
    offline: typed.Offline = False,
) -> None:
    """Train a selector. The same command goes on from the newest checkpoint in OUT.

    arr-coc train selector --stage 1 --out runs/one --steps 2000

    arr-coc train selector --stage 3 --init-from runs/one --out runs/three --steps 500

    arr-coc train selector --model Qwen/Qwen3-VL-2B-Instruct --data jsonl:photos.jsonl --out runs/mine

    accelerate launch --multi_gpu --num_processes 2 -m arr_coc train selector --stage 1 --out runs/one   (CPUs too)
    """
    check_sources([data] if data else ())
    from arr_coc.training.config import read_selector_config

    what = {"stage": stage, "model": model, "data": data, "pseudo_boxes": boxes, "target": target}
    how = {"strategy": strategy, "adapt": adapt, "seconds": seconds, "steps": steps, "workers": workers, "seed": seed}
    limits = {"cells_per_batch": cells_per_batch, "max_pixels": max_pixels, "min_pixels": min_pixels}
    settings = read_selector_config(config, max_broken=max_broken, **what, **how, **limits)
    examples = settings.read_files()  # every row is checked before anything large is loaded
    from arr_coc.training.main import Places, train_selector

    begin_long_run(quiet)
    train_selector(settings, Places(out, init_from), teller(quiet), examples=examples)


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
    quiet: typed.Quiet = False,
) -> None:
    """Draw scenes with their questions, answers and evidence boxes (COCO style).

    arr-coc scenes make out/scenes --count 20 --split seen --size 512
    """
    from arr_coc_scenes.export import export

    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: give a new folder, so that old and new scenes do not mix")
    square = None if size is None else (size, size)
    counts = export(out, split, count, first_seed, file_format, square, difficulty)
    teller(quiet)(", ".join(f"{number} {what}" for what, number in counts.items()))


def tune(
    model: typed.Model = "mini",
    data: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help="scenes, or questions of your own: coco:, vqa:, docvqa:, chartqa: or jsonl:, as for `arr-coc eval`.",
        ),
    ] = "scenes",
    minutes: Annotated[float, typer.Option(min=0.2, help="Time that it may take, in all.")] = 5.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the questions.")] = 0,
    metric: typed.Metric = None,
    max_broken: typed.MaxBroken = None,
    device: typed.Device = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the result. If left out: beside the model, or in the user's cache; found from there."
        ),
    ] = None,
    as_json: typed.AsJson = False,
    quiet: typed.Quiet = False,
    offline: typed.Offline = False,
) -> None:
    """Practise: find the settings that suit a model on this machine, and show what looking twice is worth on it.

    arr-coc tune --model mini --minutes 3

    arr-coc tune --model Qwen/Qwen3-VL-2B-Instruct

    arr-coc tune --model models/mine --data jsonl:photos.jsonl --minutes 10

    The fourth way of knowing, the procedural one: a skill that comes from practice. Nothing is trained. One half of the
    questions picks the size of the small copy, the layers that read it, the exponents and the steepness of automatic
    budgets; the other half is what the table tells. Loading the model again finds the result, and looks twice that
    way. Ctrl-C ends it early, with what it has.
    """
    started = time.monotonic()
    check_machine(device, "auto")
    if metric is not None:
        check_choice("metric", metric, typed.METRICS)
    check_sources([data])
    check_model(model, quiet)
    from arr_coc.cli.run import EXIT_INTERRUPTED
    from arr_coc.evaluation.advice import lines_of, run_tuning, write_result
    from arr_coc.evaluation.tuning import TuneOptions

    begin_long_run(quiet)
    options = TuneOptions(model, data, minutes, seed, metric, max_broken, device, not quiet, started)
    report = run_tuning(options, teller(quiet))
    typer.echo(json.dumps(report) if as_json else "\n".join(lines_of(report)))
    teller(quiet)(write_result(report, model, out))
    if not report["complete"]:
        raise typer.Exit(EXIT_INTERRUPTED)
