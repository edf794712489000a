"""arr-coc bench: what kept tokens cost and save, side by side. The table goes to stderr, JSON to stdout."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import typer

from arr_coc.cli.options import Offline, Quiet
from arr_coc.cli.terminal import begin_long_run, teller


def bench(
    model: Annotated[str, typer.Option(help="mini, a folder with a Qwen3-VL, or a hub id.")] = "mini",
    shape: Annotated[
        str | None, typer.Option(help="Random weights of that shape: qwen3-vl-2b, qwen3-vl-4b, qwen3-vl-8b.")
    ] = None,
    side: Annotated[list[int] | None, typer.Option(help="px of a square image; may be repeated.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Images at once; may be repeated.")] = None,
    kept: Annotated[list[int] | None, typer.Option(help="Visual tokens KEPT of each image; may be repeated.")] = None,
    encoding: Annotated[
        list[str] | None, typer.Option(help="dense, after-vit, sparse; may be repeated. All if left out.")
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="eager, graphs, compiled; may be repeated. The first two if left out."),
    ] = None,
    sight: Annotated[
        list[str] | None, typer.Option(help="Of a shape's selector: textures, stem, glance; may be repeated.")
    ] = None,
    text: Annotated[int, typer.Option(min=4, help="Text tokens.")] = 50,
    decode: Annotated[int, typer.Option(min=0, help="Tokens after the first whose time is taken, at batch 1.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs whose median is taken.")] = 10,
    promised: Annotated[
        bool, typer.Option("--promised", help="Moved: python -m studies.speed.bench --promised, in a checkout.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; the GPU where there is one.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Results; out/speed-gpu.json or out/speed-cpu.json if left out.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Keep the rows that are in that file.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write pictures there.")] = None,
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace of the last case there.")] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Say what fits cards of 16, 24 and 32 GB.")] = False,
    quiet: Quiet = False,
    offline: Offline = False,
) -> None:
    """Measure time and memory: all tokens, fewer after the ViT, fewer before it; plain and over graphs.

    arr-coc bench --side 512 --kept 64 --out out/bench.json

    arr-coc bench --shape qwen3-vl-2b --side 1024 --side 2048 --kept 200 --plot pictures --fit --out out/2b.json
    """
    from arr_coc.evaluation.bench.cases import ENCODINGS, MODES, SHAPE
    from arr_coc.evaluation.bench.main import bench as run

    if promised:
        raise ValueError("the project's own rows are measured in a checkout: python -m studies.speed.bench --promised")
    begin_long_run(quiet)
    options = SimpleNamespace(
        model=model if shape is None else SHAPE + shape,
        sides=side or [1024],
        batches=batch or [1],
        kept=kept or [200],
        encodings=encoding or ENCODINGS,
        modes=mode or MODES[:2],
        sights=sight or ["stem"],
        text=text,
        decode=decode,
        repeats=repeats,
        device=device,
        dtype=dtype,
        out=out,
        append=append,
        plot=plot,
        profile=profile,
        fit=fit,
    )
    typer.echo(json.dumps(run(options, teller(quiet))))
