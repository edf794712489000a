"""The line in front of an engine: so many places, and one thread that answers whoever waits, in batches.

While a batch is answered others gather, and make up the next one: nobody is kept waiting for company.
"""

import logging
import threading
from collections import deque

from arr_coc.comparing import is_device_lost, is_out_of_memory, release_memory
from arr_coc.images.reader import MOST_PIXELS_IN_ALL
from arr_coc.serving.engine import Engine, Finished, Ticket
from arr_coc.serving.metrics import Metrics
from arr_coc.serving.reading import ApiError
from arr_coc.timing import hand_over_cores

logger = logging.getLogger(__name__)

MOST_BATCH = 8  # questions that are answered together
MOST_PLACES = 32  # requests between their body and their answer
RETRY_SECONDS = 1
LOST = "the server's device is lost: ask again once the server was started anew"


class Line:
    """Places and the thread. A request takes a place before its images are read, and gives it back however it ends."""

    def __init__(self, engine: Engine, metrics: Metrics, batch: int = MOST_BATCH, places: int = MOST_PLACES) -> None:
        self.engine, self.metrics, self.batch, self.places = engine, metrics, batch, places
        self.taken: dict[object, int] = {}  # whoever has a place -> pixels of its images
        self.waiting: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._closed = self.lost = False  # lost: the device is, and with it every later answer
        hand_over_cores()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def is_well(self) -> bool:
        """Whether it can answer at all."""
        return not self.lost and self._thread.is_alive()

    def _refuse(self) -> ApiError:
        self.metrics.add("refused_full_total")
        return ApiError(f"too many requests wait: come back in {RETRY_SECONDS} s", 429)

    def take(self, who: object) -> None:
        """A place, if there is one."""
        with self._changed:
            if not self.is_well:
                raise ApiError(LOST, 503)
            if len(self.taken) >= self.places:
                raise self._refuse()
            self.taken[who] = 0

    def hold(self, who: object, pixels: int) -> None:
        """Room for the pixels of a request: so many of all requests together, but any request alone."""
        with self._changed:
            held = sum(self.taken.values()) - self.taken.get(who, 0)
            if held and held + pixels > MOST_PIXELS_IN_ALL:
                raise self._refuse()
            self.taken[who] = pixels

    def give_back(self, who: object, ticket: Ticket | None) -> None:
        """The place, and the ticket if it waits: its images take memory as long as it does."""
        with self._changed:
            self.taken.pop(who, None)
            if ticket is not None and ticket in self.waiting:
                self.waiting.remove(ticket)

    def join(self, ticket: Ticket) -> None:
        with self._changed:
            self.waiting.append(ticket)
            self._changed.notify()

    def close(self, at_once: bool = False) -> None:
        """After those who wait now; `at_once`: after those who are being answered."""
        with self._changed:
            self._closed = True
            if at_once:
                self.waiting.clear()
            self._changed.notify()
        self._thread.join()

    def _next(self) -> list[Ticket]:
        """Whoever waits longest and others that go with it; nobody once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.waiting or self._closed)
            if not self.waiting:
                return []
            first = self.waiting[0]
            fit = [one for one in self.waiting if one is first or one.goes_with(first)]
            # The same question first: its answers are about as long, and a batch takes as many steps as its longest.
            batch = sorted(fit, key=lambda one: one.wanted.question != first.wanted.question)[: self.batch]
            for ticket in batch:
                self.waiting.remove(ticket)
            return batch

    def _work(self) -> None:
        while batch := self._next():
            self._serve(batch)

    def _serve(self, batch: list[Ticket]) -> None:
        """Answer a batch. If it goes wrong, each alone, so that nobody suffers from another's question."""
        self.metrics.add("batches_total")
        self.metrics.add("batch_rows_total", len(batch))
        try:
            if batch[0].chooses:
                batch[0].deliver(self.engine.choose(batch[0]))
            else:
                self.engine.answer(batch)
            return
        except Exception as error:
            told: Exception = error
            if is_device_lost(error) and not self.lost:
                self.lost = True
                logger.error("the device is lost, and the server must be started anew", exc_info=error)
            if is_out_of_memory(error):
                told = ApiError("out of memory: keep fewer tokens, or send a smaller image", 503)
        # Outside the handler: what ran out of memory is still held by the error's traceback inside it.
        if isinstance(told, ApiError):
            release_memory()
        for ticket in batch:
            if len(batch) > 1 and not ticket.spoke.is_set() and not self.lost:
                self._serve([ticket])
            else:
                ticket.deliver(told)

    def note(self, outcome: Finished) -> None:
        """Count what came of a request."""
        counts = {"visual_tokens_total": outcome.tokens_total, "visual_tokens_kept_total": outcome.tokens_kept}
        counts |= {"prompt_tokens_total": outcome.prompt_tokens, "completion_tokens_total": outcome.new_tokens}
        for name, value in counts.items():
            self.metrics.add(name, value)
        for stage, ms in outcome.timings_ms.items():
            self.metrics.add("stage_seconds_total", ms / 1e3, stage=stage.replace(" ", "_"))

    def gauges(self) -> dict[str, float]:
        memory = self.engine.memory
        places = {"lost": 0 if self.is_well else 1, "places_taken": len(self.taken), "waiting": len(self.waiting)}
        looks = {"cache_hits_total": memory.hits, "cache_misses_total": memory.misses}
        return {**places, "cache_bytes": memory.size, **looks}
