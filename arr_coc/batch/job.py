"""Rows answered through a line in front of an engine, here or by workers of Ray: whatever stops, it goes on by ids.

While a batch is answered the images of the next rows are read; rows with prompts of about one length go together.
"""

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        self.line.close()

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
        engine, wanted = (
            self.line.engine,
            Wanted((), row.question, (), "", row.keep or self.job.keep, self.job.max_tokens),
        )

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
