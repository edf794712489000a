"""Rows answered through a line in front of an engine, here or by workers of Ray: whatever stops, it goes on by ids.

While a batch is answered the images of the next rows are read; rows with prompts of about one length go together.
"""

import json
import logging
import os
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.batch.asked import AskedRow
from arr_coc.batch.results import Record, Results, record_of
from arr_coc.comparing import is_device_lost
from arr_coc.config import Keep
from arr_coc.images.reader import MOST_PIXELS_IN_ALL, read_images
from arr_coc.serving.engine import Delivered, Engine, Finished, Ticket
from arr_coc.serving.line import Line
from arr_coc.serving.metrics import Metrics
from arr_coc.serving.reading import ApiError, Wanted

AHEAD = 4  # batches of rows that are read before they are answered
MOST_PIXELS = MOST_PIXELS_IN_ALL // 4  # of their images, but any row alone
LONGEST_ERROR = 500  # characters
HERE = "local"  # the address of no cluster: Ray is started on this machine, for this job
WRITTEN_FOR = "2.60.0"  # of Ray
ON_A_CORE = 24  # rows that a worker with one core answers together: fewer steps, where no core waits for another
AT_A_CARD = 2  # batches that a worker with a GPU is given at once
LEAST = 3  # of a block: as many of the smallest, at the end, are one

Answer = Callable[[Iterable[AskedRow]], Iterable[Record]]


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What answers rows, and how. It is sent to workers: `load` can be pickled."""

    load: Callable[[], Engine]
    model: str  # its name
    keep: Keep  # of rows that do not say
    images: Path  # the folder that their paths are relative to
    max_tokens: int = 128
    batch: int = 8  # rows that are answered together

    def record(self, row: AskedRow, outcome: Finished | str) -> Record:
        return record_of(row, self.model, self.keep, outcome)


def run(
    job: BatchJob, rows: Iterable[AskedRow], answer: Answer, results: Results, note: Callable[[Record], None]
) -> None:
    """Answer what has no record yet; every record is told to `note` once it is written."""
    waiting = (row for row in rows if not results.is_done(job.record(row, "")))
    for record in answer(waiting):
        results.add([record])
        note(record)


class Desk:
    """A model in this process that rows are brought to."""

    def __init__(self, job: BatchJob) -> None:
        self.job, self.line = job, Line(job.load(), Metrics(), job.batch)

    def answer(self, rows: Iterable[AskedRow]) -> Iterator[Record]:
        """The record of every row, as they are answered: not always in their order."""
        came: queue.SimpleQueue[tuple[AskedRow, Delivered]] = queue.SimpleQueue()
        held: dict[str, int] = {}  # rows on their way -> pixels of their images

        def next_one() -> Record:
            row, outcome = came.get()
            del held[row.id]
            return self._record(row, outcome)

        for row in rows:
            read = self._read(row)
            pixels = 0 if isinstance(read, str) else sum(one.width * one.height for one in read)
            full = AHEAD * self.job.batch
            while held and (len(held) >= full or sum(held.values()) + pixels > MOST_PIXELS or not came.empty()):
                yield next_one()
            held[row.id] = pixels
            self._send(row, read, came)
        while held:
            yield next_one()

    def close(self) -> None:
        self.line.close(at_once=True)  # what waits still was broken off: nobody would write its answer

    def _read(self, row: AskedRow) -> list[Image.Image] | str:
        """The images of a row, or what is wrong with it."""
        try:
            return row.error or read_images([self.job.images / name for name in row.image])
        except ValueError as error:
            return str(error)

    def _send(
        self, row: AskedRow, read: Sequence[Image.Image] | str, came: "queue.SimpleQueue[tuple[AskedRow, Delivered]]"
    ) -> None:
        """To the line, or back at once with what is wrong."""
        engine = self.line.engine
        wanted = Wanted((), row.question, (), "", row.keep or self.job.keep, self.job.max_tokens)

        def deliver(outcome: Delivered) -> None:
            came.put((row, outcome))

        try:
            if isinstance(read, str):
                raise ValueError(read)
            inputs = engine.encode(wanted, read)
            self.line.join(Ticket(wanted, inputs, deliver, length=engine.length(wanted, inputs)))
        except ValueError as error:
            deliver(error)

    def _record(self, row: AskedRow, outcome: Delivered) -> Record:
        assert not isinstance(outcome, str), "nothing is streamed"
        if isinstance(outcome, Finished):
            return self.job.record(row, outcome)
        if is_device_lost(outcome):
            raise outcome
        told = str(outcome) if isinstance(outcome, (ValueError, ApiError)) else f"{type(outcome).__name__}: {outcome}"
        return self.job.record(row, " ".join(told.split())[:LONGEST_ERROR])


# ---------------------------------------------------------------- the same by workers of Ray Data, each with a model
# On this machine or on a cluster. A worker that dies is started anew and its rows are asked again. Records come back to
# the process that writes them, so that the file is the same, and goes on the same way, whoever answered.


def check_ray() -> None:
    """Refuse, in one line, where Ray is not there."""
    if find_spec("ray") is None:
        raise ValueError(f"--ray needs Ray {WRITTEN_FOR}: pip install 'arr-coc[ray]'")


class Worker:
    """In a process of its own: a desk that is given tables of rows and gives tables of records."""

    def __init__(self, job: BatchJob, threads: int = 0) -> None:
        """`threads` 0: as many as torch takes. What a shell sets for all processes would crowd the cores of workers."""
        if threads:
            import torch

            torch.set_num_threads(threads)
        self.desk = Desk(job)

    def __call__(self, table: Any) -> Any:
        import pyarrow

        rows = [AskedRow(**{**one, "image": tuple(one["image"])}) for one in map(json.loads, table["row"].to_pylist())]
        try:
            return pyarrow.table({"record": [json.dumps(record) for record in self.desk.answer(rows)]})
        except RuntimeError as error:
            if is_device_lost(error):
                os._exit(1)  # Ray starts another in its place
            raise


def shared_out(rows: int, size: int, workers: int) -> list[slice]:
    """Blocks of so many rows, and of less at the end, where the last block keeps all others waiting."""
    starts, start = [], 0
    while start < rows:
        starts.append(start)
        start += min(size, max(-(-size // LEAST), -(-(rows - start) // (2 * workers))))
    return [slice(*ends) for ends in pairwise([*starts, rows])]


class Cluster:
    """Ray, as long as a job needs it. `workers` 0: one for each GPU, else for each core but one.

    Where nobody asked for the job's `batch`, workers with a core each take more rows together.
    """

    def __init__(self, job: BatchJob, address: str, workers: int = 0, asked: bool = True) -> None:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it is read when Ray is imported
        import ray
        import ray.data

        self.ray, self.job = ray, job
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == HERE:
            wanted = workers or os.cpu_count() or 1
            # One more than workers: Ray Data needs a core for its own.
            ray.init(num_cpus=wanted + 1, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
        found = ray.cluster_resources()
        self.gpus = int(found.get("GPU", 0))
        if not asked and not self.gpus:
            self.job = replace(job, batch=max(job.batch, ON_A_CORE))
        self.workers = workers or self.gpus or max(1, int(found.get("CPU", 2)) - 1)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False

    def answer(self, rows: Iterable[AskedRow]) -> Iterator[Record]:
        """The record of every row, as blocks of them are answered."""
        import pyarrow

        data, items = self.ray.data, [json.dumps(asdict(row)) for row in rows]
        if not items:
            return
        # Blocks from the start: what Ray splits later goes to one worker, so that the others wait at the end. A card
        # wants a batch to be read while it answers another.
        size = self.job.batch * (AT_A_CARD if self.gpus else 1)
        blocks = [pyarrow.table({"row": items[part]}) for part in shared_out(len(items), size, self.workers)]
        each: dict[str, Any] = {"num_gpus": 1} if self.gpus else {"num_cpus": 1}
        answered = data.from_arrow(blocks).map_batches(
            Worker,
            fn_constructor_args=(self.job, 0 if self.gpus else 1),
            batch_size=None,
            batch_format="pyarrow",
            compute=data.ActorPoolStrategy(size=min(self.workers, len(blocks)), max_tasks_in_flight_per_actor=2),
            **each,
        )
        for table in answered.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from map(json.loads, table["record"].to_pylist())

    def close(self) -> None:
        self.ray.shutdown()
