"""arr-coc eval: methods of the field on the same questions and the same number of tokens."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from arr_coc.cli.options import Offline, Quiet
from arr_coc.cli.terminal import begin_long_run, teller
from arr_coc.cli.typed import parse_keep

FIELD_OUT = Path("out/field.json")


def evaluate(
    model: Annotated[str, typer.Option(help="mini, a folder with a Qwen3-VL, or a hub id.")] = "mini",
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="scenes, coco:BOXES.json:IMAGES, vqa:QUESTIONS.json:ANSWERS.json:IMAGES, docvqa:FILE.json:IMAGES, "
            "chartqa:FILE.json:IMAGES or jsonl:FILE; may be repeated."
        ),
    ] = None,
    selector: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME:KEY=VALUE,...; plain is the model itself; may be repeated. All if left out."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Fraction KEPT (0.25) or number of tokens (64); may be repeated. By the size if left out."),
    ] = None,
    encoding: Annotated[
        list[str] | None, typer.Option(help="sparse, dense; may be repeated. Both if left out.")
    ] = None,
    side: Annotated[list[int] | None, typer.Option(min=96, help="px of square scenes; may be repeated.")] = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions per dataset and size.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Of the questions.")] = 0,
    metric: Annotated[
        str | None, typer.Option(help="Of files: exact, anls, relaxed, vqa; what their kind is scored by if left out.")
    ] = None,
    equal_tokens: Annotated[
        bool, typer.Option("--equal-tokens", help="Moved: python -m studies.equal_tokens, in a checkout.")
    ] = False,
    engine: Annotated[str, typer.Option(help="auto, or plain: every method through ARRCOCQwen's own path.")] = "auto",
    device: Annotated[str | None, typer.Option(help="cuda or cpu; the GPU where there is one.")] = None,
    dtype: Annotated[
        str, typer.Option(help="float32 (the fast engine), or auto, bfloat16, float16 for large models.")
    ] = "float32",
    out: Annotated[
        Path | None,
        typer.Option(help=f"Report; samples lie beside it. {FIELD_OUT} if left out."),
    ] = None,
    quiet: Quiet = False,
    offline: Offline = False,
) -> None:
    """Compare methods: accuracy, evidence, tokens, time. A run that was killed goes on with the same command.

    arr-coc eval --questions 500

    arr-coc eval --selector arr_coc --selector divprune --keep 0.25 --questions 100 --out out/eval.json
    """
    from arr_coc.evaluation.field.main import FieldOptions, evaluate_field

    if equal_tokens:
        raise ValueError("the equal-token test is run in a checkout of the project: python -m studies.equal_tokens")
    begin_long_run(quiet)
    given: dict[str, Any] = {
        "datasets": tuple(data or ()),
        "selectors": tuple(selector or ()),
        "keeps": tuple(parse_keep(one) for one in keep or ()),
        "encodings": tuple(encoding or ()),
        "sides": tuple(side or ()),
    }
    options = FieldOptions(
        model=model,
        questions=questions,
        seed=seed,
        metric=metric,
        engine=engine,
        device=device,
        dtype=dtype,
        bar=not quiet,
        out=out or FIELD_OUT,
        **{name: value for name, value in given.items() if value},
    )
    typer.echo(json.dumps(evaluate_field(options, teller(quiet))))
