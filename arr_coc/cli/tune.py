"""arr-coc tune: what looking twice is worth on one's own model and card, and the settings that suit them."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from arr_coc.cli import typed
from arr_coc.cli.checks import check_machine, check_model, check_sources
from arr_coc.cli.terminal import begin_long_run, teller


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
    metric: Annotated[str | None, typer.Option(help="Of files: short, exact, anls, relaxed, vqa.")] = None,
    device: typed.Device = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the result. If left out: beside the model, or in the user's cache; found from there."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
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
    check_sources([data])
    check_model(model, quiet)
    from arr_coc.cli.run import EXIT_INTERRUPTED
    from arr_coc.evaluation.advice import lines_of, run_tuning, write_result
    from arr_coc.evaluation.tuning import TuneOptions

    begin_long_run(quiet)
    options = TuneOptions(model, data, minutes, seed, metric, device, not quiet, started)
    report = run_tuning(options, teller(quiet))
    typer.echo(json.dumps(report) if as_json else "\n".join(lines_of(report)))
    teller(quiet)(write_result(report, model, out))
    if not report["complete"]:
        raise typer.Exit(EXIT_INTERRUPTED)
