"""arr-coc compare: one question, several budgets and selectors. The table, or JSON, goes to stdout.

The JSON document:

    format    "arr-coc compare 1"; the number is raised when a reader of the old form would go wrong
    question, model, device, dtype
    image     name of the file
    rows      one object per row, in the order asked for:
        selector      as asked for, "auto" by the name of what it is here; "plain" where keep is 1.0: all tokens are
                      the model without ARR-COC, whatever the selector
        keep          the dial: a fraction KEPT, a number of tokens, or "auto"
        answer        null where there was none
        tokens_kept, tokens_total, share_kept     share_kept is tokens_kept / tokens_total
        select_ms, vision_ms, prefill_ms, decode_ms, total_ms     after a warm-up; total is their sum
        error         null, or "out of memory"
    notices   lines that a person should know
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_coc.cli.answers import notices_about
from arr_coc.cli.compare_rows import Row, answer_rows, make_selectors, measures, plan
from arr_coc.cli.compare_views import picture_paths, print_table, write_pictures
from arr_coc.cli.loading import load
from arr_coc.cli.options import Encoding, MaxNewTokens, Model, Offline, Quiet, Seed
from arr_coc.cli.run import EXIT_NO_MEMORY
from arr_coc.cli.terminal import note, set_verbosity
from arr_coc.cli.typed import check_free, one_image, parse_keep

if TYPE_CHECKING:
    from arr_coc.qwen import ARRCOCQwen

FORMAT = "arr-coc compare 1"
KEEPS = ("0.06", "0.25", "1.0")


def compare(
    words: Annotated[list[str], typer.Argument(metavar="[IMAGE] QUESTION", help="A JPEG, PNG or WebP, the question.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help=f"Part KEPT, as in ask; may be repeated. If left out: {', '.join(KEEPS)}. 1.0 is the plain model.",
        ),
    ] = None,
    selector: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="auto, arr_coc, divprune, random:seed=1, ...; may be repeated."),
    ] = None,
    model: Model = "mini",
    encoding: Encoding = None,
    max_new_tokens: MaxNewTokens = 128,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write pictures there: each row, sheet.png, latency.png.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that arr-coc did not make.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    offline: Offline = False,
) -> None:
    """Compare answers, tokens and times over budgets and selectors. Without an image, the bundled sample is asked.

    arr-coc compare "Which word is blue?"

    arr-coc compare photo.jpg "What is on the sign?" --keep 0.1 --keep 1.0 --selector arr_coc --selector divprune

    arr-coc compare photo.jpg "What is on the sign?" --out pictures --json

    Times are in ms, of a second run after a warm-up; the total is the whole answer, its later tokens included.
    """
    from arr_coc.images.reader import read_image

    set_verbosity(quiet)
    source, question = one_image(words)
    asked = plan([parse_keep(text) for text in keep or KEEPS], selector or ["auto"])
    paths = picture_paths(asked, out)
    check_free(paths, source, force)
    image = read_image(source)
    loaded = load(model, encoding=encoding, seed=seed, quiet=quiet)
    selectors = make_selectors(loaded, asked, seed)
    ask = partial(loaded.ask, image, question, max_new_tokens=max_new_tokens)
    rows = answer_rows(loaded, asked, selectors, lambda keep: ask(keep=keep), quiet)
    notices = notices_about(loaded, question)
    if as_json:
        typer.echo(json.dumps(document(rows, loaded, model, source, question, notices), ensure_ascii=False))
    else:
        print_table(rows, question)
    if not quiet:
        for line in notices:
            note(line)
    if paths:
        write_pictures(rows, image, paths)
        if not quiet:
            note(f"pictures in {out}")
    if all(row.error for row in rows):
        raise typer.Exit(EXIT_NO_MEMORY)


def document(
    rows: Sequence[Row], loaded: "ARRCOCQwen", model: str, image: Path, question: str, notices: Sequence[str]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "question": question,
        "image": image.name,
        "model": model,
        "device": loaded.device.type,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "rows": [measures(row) for row in rows],
        "notices": [*loaded.notices, *notices],
    }
