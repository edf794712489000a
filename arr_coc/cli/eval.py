"""arr-coc eval, bench and report: answers of many methods, time and memory, and a page about all of it.

Tables go to stdout, documents to files; with --json the document goes to stdout, and tables to stderr.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from arr_coc.cli import typed
from arr_coc.cli.checks import PLAIN, check_choice, check_machine, check_model, check_selectors, check_sources
from arr_coc.cli.terminal import begin_long_run, teller
from arr_coc.config import ENCODINGS, settings_of

FIELD_OUT = Path("out/field.json")
SCORES = ("answers", "evidence")
SHAPES = ("qwen3-vl-2b", "qwen3-vl-4b", "qwen3-vl-8b")
AsJson = Annotated[bool, typer.Option("--json", help="Print the document instead of the table.")]
RESULTS, PAGES = Path("results"), Path("docs/report")


def evaluate(
    model: Annotated[str, typer.Option(help=f"{typed.MODELS}.")] = "mini",
    data: Annotated[typed.Texts, typer.Option(help=f"{typed.DATA}; may be repeated.")] = None,
    selector: Annotated[
        typed.Texts,
        typer.Option(help="NAME or NAME:KEY=VALUE,...; plain is the model itself; may be repeated. All if left out."),
    ] = None,
    keep: Annotated[
        typed.Texts,
        typer.Option(help="Fraction KEPT (0.25) or number of tokens (64); may be repeated. By the size if left out."),
    ] = None,
    encoding: Annotated[
        typed.Texts, typer.Option(help="sparse, foveated, dense; may be repeated. sparse and dense if left out.")
    ] = None,
    side: Annotated[typed.Numbers, typer.Option(min=96, help="px of square scenes; may be repeated.")] = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions per dataset and size.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Of the questions.")] = 0,
    metric: typed.Metric = None,
    prompt: Annotated[
        str | None, typer.Option(help="Behind every question of files, '' for none; what suits them if left out.")
    ] = None,
    score: Annotated[
        str, typer.Option(help="answers, or evidence: what of boxes or fixations is kept; nothing is generated.")
    ] = "answers",
    max_pixels: typed.MaxPixels = None,
    min_pixels: typed.MinPixels = None,
    max_broken: typed.MaxBroken = None,
    engine: Annotated[str, typer.Option(help="auto, or plain: every method through ARRCOCQwen's own path.")] = "auto",
    device: typed.Device = None,
    dtype: Annotated[
        str, typer.Option(help="float32 (the fast engine), or auto, bfloat16, float16 for large models.")
    ] = "float32",
    out: Annotated[Path | None, typer.Option(help=f"Report; samples lie beside it. {FIELD_OUT} if left out.")] = None,
    as_json: AsJson = False,
    quiet: typed.Quiet = False,
    offline: typed.Offline = False,
) -> None:
    """Compare methods: accuracy, evidence, tokens, time. A run that was killed goes on with the same command.

    arr-coc eval --questions 500

    arr-coc eval --selector arr_coc --selector divprune --keep 0.25 --questions 100 --out out/eval.json

    arr-coc eval --data jsonl:photos.jsonl --score evidence --keep 0.25
    """
    keeps = [typed.parse_keep(one) for one in keep or ()]
    check_selectors(one for one in selector or () if settings_of(one)[0] not in (PLAIN, "oracle"))
    for one in encoding or ():
        check_choice("encoding", one, ENCODINGS)
    check_choice("engine", engine, ("auto", "plain"))
    if metric is not None:
        check_choice("metric", metric, typed.METRICS)
    check_machine(device, dtype)
    check_sources(data or ())
    check_model(model, quiet)
    check_choice("score", score, SCORES)
    from arr_coc.evaluation.field.evidence import score_evidence
    from arr_coc.evaluation.field.main import FieldOptions, evaluate_field

    begin_long_run(quiet)
    lists = {"datasets": data, "selectors": selector, "keeps": keeps, "encodings": encoding, "sides": side}
    given: dict[str, Any] = {name: tuple(values) for name, values in lists.items() if values}
    single: dict[str, Any] = {"model": model, "questions": questions, "seed": seed, "metric": metric, "prompt": prompt}
    single |= {"dtype": dtype, "max_pixels": max_pixels, "min_pixels": min_pixels, "max_broken": max_broken}
    options = FieldOptions(engine=engine, device=device, bar=not quiet, out=out or FIELD_OUT, **single, **given)
    run = score_evidence if score == "evidence" else evaluate_field
    done = run(options, teller(quiet), None if as_json else typer.echo)
    if as_json:
        typer.echo(json.dumps(done))
    else:
        teller(quiet)(f"the report is in {options.out}")


def bench(
    model: Annotated[str, typer.Option(help=f"{typed.MODELS}.")] = "mini",
    shape: Annotated[
        str | None, typer.Option(help="Random weights of that shape: qwen3-vl-2b, qwen3-vl-4b, qwen3-vl-8b.")
    ] = None,
    side: Annotated[typed.Numbers, typer.Option(help="px of a square image; may be repeated.")] = None,
    batch: Annotated[typed.Numbers, typer.Option(help="Images at once; may be repeated.")] = None,
    kept: Annotated[typed.Numbers, typer.Option(help="Visual tokens KEPT of each image; may be repeated.")] = None,
    encoding: Annotated[
        typed.Texts, typer.Option(help="dense, after-vit, sparse; may be repeated. All if left out.")
    ] = None,
    mode: Annotated[
        typed.Texts, typer.Option(help="eager, graphs, compiled; may be repeated. The first two if left out.")
    ] = None,
    sight: Annotated[
        typed.Texts,
        typer.Option(help="What chooses: textures, stem, glance, look of ARR-COC, or look_twice; may be repeated."),
    ] = None,
    text: Annotated[int, typer.Option(min=4, help="Text tokens.")] = 50,
    decode: Annotated[int, typer.Option(min=0, help="Tokens after the first whose time is taken, at batch 1.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs whose median is taken.")] = 10,
    device: typed.Device = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Results; out/speed-gpu.json or out/speed-cpu.json if left out.")
    ] = None,
    as_json: AsJson = False,
    append: Annotated[bool, typer.Option("--append", help="Keep the rows that are in that file.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write pictures there.")] = None,
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace of the last case there.")] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Say what fits cards of 16, 24 and 32 GB.")] = False,
    quiet: typed.Quiet = False,
    offline: typed.Offline = False,
) -> None:
    """Measure time and memory: all tokens, fewer after the ViT, fewer before it; plain and over graphs.

    arr-coc bench --side 512 --kept 64 --out out/bench.json

    arr-coc bench --shape qwen3-vl-2b --side 1024 --side 2048 --kept 200 --plot pictures --fit --out out/2b.json
    """
    check_machine(device, dtype)
    if shape is None:
        check_model(model, quiet)
    else:
        check_choice("shape", shape, SHAPES)
    from arr_coc.evaluation.bench.cases import ENCODINGS, MODES, SHAPE
    from arr_coc.evaluation.bench.main import bench as run

    begin_long_run(quiet)
    what = {"sides": side or [1024], "batches": batch or [1], "kept": kept or [200], "sights": sight or ["stem"]}
    how = {"text": text, "decode": decode, "repeats": repeats, "device": device, "dtype": dtype}
    where = {"out": out, "append": append, "plot": plot, "profile": profile, "fit": fit}
    subject = {"model": model if shape is None else SHAPE + shape, "encodings": encoding or ENCODINGS[:3]}
    options = SimpleNamespace(**subject, modes=mode or MODES[:2], **what, **how, **where)
    done = run(options, teller(quiet), show=None if as_json else typer.echo)
    if as_json:
        typer.echo(json.dumps(done))


def report(
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where field.json and its like lie.")] = RESULTS,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For the pages and their pictures.")] = PAGES,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the paths of the pages.")] = False,
) -> None:
    """Write one page about all results: plots, tables, who beats whom; HTML and Markdown.

    arr-coc report

    arr-coc report --results out --out out/report
    """
    from arr_coc.evaluation.report.main import write_report

    for path in write_report(results, out, teller(quiet)):
        typer.echo(path)
