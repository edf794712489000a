"""arr-coc batch: many questions from a file or a folder, their answers into a file."""

import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_coc.cli import typed
from arr_coc.cli.terminal import begin_long_run, note, teller

if TYPE_CHECKING:
    from arr_coc.serving.engine import Engine

ADDRESS = re.compile(r"auto|local|(ray://)?[^/\s]+:\d+")  # of a cluster of Ray
SIZES = {"plain": 8, "vllm": 64}  # of a batch, by the engine


def batch(
    source: Annotated[Path, typer.Argument(metavar="IN", help="JSONL, CSV or Parquet file, or a folder of images.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="JSONL or Parquet file, which is added to.")],
    model: typed.Model = "mini",
    keep: typed.KeepDial = None,
    selector: typed.SelectorName = "auto",
    encoding: typed.Encoding = None,
    max_new_tokens: typed.MaxNewTokens = 128,
    question: Annotated[
        typed.Texts, typer.Option(metavar="TEXT", help="Asked of every image of a folder; may be repeated.")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="That the paths of images are relative to. If left out: where IN lies."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--batch",
            min=1,
            max=1024,
            metavar="N",
            help="Rows answered together at most. If left out: 8, by Ray on cores 24, with vLLM 64.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(metavar="NAME", help="plain (the process itself) or vllm.")] = "plain",
    ray: Annotated[
        str | None,
        typer.Option(metavar="[ADDRESS]", help="By workers of Ray: on this machine, or on the cluster at ADDRESS."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, max=4096, metavar="N", help="Of Ray. 0: one for each GPU, else for each core.")
    ] = 0,
    quiet: typed.Quiet = False,
    offline: typed.Offline = False,
) -> None:
    """Answer many questions, from a file or a folder into a file. Whatever stopped it, the same command goes on.

    arr-coc batch questions.jsonl answers.jsonl

    arr-coc batch photos answers.parquet --question "What is shown?" --keep 0.25

    arr-coc batch questions.parquet answers.parquet --ray --workers 2

    A row has `image` (a path relative to the file, or several), `question`, and if it likes `id` and `keep`. A row that
    cannot be answered becomes a row with `error`; the others go on. Rows whose id is in OUT are not asked again.
    """
    from arr_coc.batch.asked import place_of, read_asked
    from arr_coc.batch.job import BatchJob, Cluster, Desk, check_ray, run
    from arr_coc.batch.results import Results

    dial = "auto" if keep is None else typed.parse_keep(keep)
    check_engine(engine)
    if ray is not None:
        check_ray()
    place = place_of(source)
    if out.exists() and place.exists() and out.samefile(place):
        raise ValueError(f"{out.name} is the file of questions: give another OUT")
    results, rows = Results(out), partial(read_asked, source, tuple(question or ()))
    next(rows(), None)  # what is wrong with the file as a whole is told before anything is written
    folder = (images or (place if place.is_dir() else place.parent)).resolve()
    named = Path(model).absolute()
    load = partial(load_engine, engine, str(named.resolve()) if named.exists() else model, selector, encoding)
    job = BatchJob(load, named.name if named.exists() else model, dial, folder, max_new_tokens, size or SIZES[engine])
    begin_long_run(quiet)
    with results.held():
        progress = Progress([results.is_done(job.record(row, "")) for row in rows()], quiet)
        if progress.left:
            desk: Any = Desk(job) if ray is None else Cluster(job, ray, workers, size is not None)
            try:
                with progress.began():
                    run(job, rows(), desk.answer, results, progress.note)
            finally:
                desk.close()
    teller(quiet)(f"{progress.summary()} -> {out}")


def with_address(words: Sequence[str]) -> list[str]:
    """What was typed, with an address after a bare --ray: what follows it is taken for one only if it looks so."""
    typed_words = list(words)
    for place, word in enumerate(typed_words):
        after = typed_words[place + 1] if place + 1 < len(typed_words) else ""
        if word == "--ray" and not ADDRESS.fullmatch(after):
            typed_words[place] = "--ray=local"
    return typed_words


def check_engine(engine: str) -> None:
    """Refuse an engine that is not here."""
    from arr_coc.batch.offline import check_vllm

    if engine not in SIZES:
        raise ValueError(f"--engine {engine}: give {' or '.join(SIZES)}")
    if engine == "vllm":
        check_vllm()


def load_engine(engine: str, model: str, selector: str, encoding: str | None) -> "Engine":
    """What answers, in the process that calls this."""
    from arr_coc.batch.offline import OfflineEngine
    from arr_coc.cli.loading import load
    from arr_coc.serving.engine import InProcessEngine

    if engine == "vllm":
        return OfflineEngine(model, selector, encoding)
    return InProcessEngine(load(model, selector, encoding, quiet=True))


class Progress:
    """How far a run is: a bar on a terminal, and at the end one line. `done` says of every row whether it was done."""

    def __init__(self, done: list[bool], quiet: bool) -> None:
        self.rows, self.before = len(done), sum(done)
        self.left = self.rows - self.before
        self.errors = self.kept = self.total = 0
        if not self.rows:
            raise ValueError("there are no rows to ask: give a file with some")
        if self.before and not quiet:
            note(f"{self.before:,} of {self.rows:,} rows are there already")
        self.quiet, self._since = quiet, time.monotonic()

    def began(self) -> Any:
        """The bar, once what answers is ready; what it took to get ready is not counted."""
        from tqdm import tqdm  # type: ignore[import-untyped]

        self._since = time.monotonic()
        how = {"unit": " rows", "file": sys.stderr, "smoothing": 0.05, "disable": True if self.quiet else None}
        self.bar = tqdm(total=self.rows, initial=self.before, **how)
        return self.bar

    def note(self, record: dict[str, Any]) -> None:
        self.errors += record["error"] is not None
        self.kept += record["tokens_kept"] or 0
        self.total += record["tokens_total"] or 0
        self.bar.update()

    def summary(self) -> str:
        if not self.left:
            return "nothing is left to ask"
        took = time.monotonic() - self._since
        rate = f", {self.left / max(took, 1e-3):.1f} rows a second"
        share = f", {self.kept:,} of {self.total:,} visual tokens kept" if self.total else ""
        return f"{self.left:,} rows answered, {self.errors:,} of them with an error{share}{rate}"
