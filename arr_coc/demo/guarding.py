"""What stands between the network and the page, beyond what every server of ours has (`arr_coc.gateway`).

A refusal says the number of its request and what to do, and nothing else.
"""

import asyncio
import ctypes
import gc
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from gradio.queueing import Event, Queue
from gradio.server_messages import ProcessCompletedMessage
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arr_coc.gateway import PATIENCE, Exchange
from arr_coc.images.reader import MOST_BYTES

MOST_JSON = 2**20  # bytes of a body that is no upload
MOST_UPLOAD = MOST_BYTES + 2**16  # a file and what is around it
KEPT_FOR = 7200  # seconds that an upload may lie on the disk: an hour, and what the hourly look at it adds
MOST_OF_CLIENT, MOST_STORED = 2**28, 2**31  # bytes of uploads in that time, of one client and in all
MOST_OF_ONE = 8  # questions that one client may have in the queue
PAUSE = 0.02  # seconds between two looks at the queue; a thousand a second would slow the answer in hand
MOST_LANES = 1000  # clients whose last turn is remembered
GONE = 60  # seconds until a page that was closed is forgotten
REST = 1  # seconds after the last of them until memory is given back, all at once
HEARTBEAT = re.compile(r"/heartbeat/([^/]+)$")  # the stream that a page holds open
PUBLIC = ("ask", "compare")  # what may be called by name
# The browser itself refuses to load anything from another place than this server.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; base-uri 'self'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
WHY = {
    403: "this is for the page alone, on the machine that serves it: open it at localhost",
    408: "too slow: send it again over a better line",
    413: f"too large: an image or a clip has {MOST_BYTES // 2**20} MB at most",
    429: "too many uploads: come back in an hour",
    503: "too many questions wait: come back in a minute",
}


@dataclass(frozen=True, slots=True)
class Gate:
    """What all requests to one server share."""

    local: bool  # served for this machine alone
    uploads: list[tuple[float, str, int]] = field(default_factory=list)  # when, by whom, bytes
    read: Counter[str] = field(default_factory=Counter)  # streams of answers that are open, by session or event
    shown: Counter[str] = field(default_factory=Counter)  # pages that are open, by session

    def has_room(self, client: str, size: int) -> bool:
        """Whether so many bytes may be uploaded: what lies on the disk is bounded, by client and in all."""
        self.uploads[:] = [one for one in self.uploads if one[0] > time.monotonic() - KEPT_FOR]
        own = sum(taken for _, who, taken in self.uploads if who == client)
        return own + size <= MOST_OF_CLIENT and sum(taken for *_, taken in self.uploads) + size <= MOST_STORED

    @contextmanager
    def counting(self, path: str, query: str) -> Iterator[str]:
        """While a stream is open, somebody is there: the session, or the event where a call has none, or nobody."""
        page = HEARTBEAT.search(path)
        stream = re.search(r"/call/(?:v2/)?[^/]+/([^/]+)$", path)
        session = parse_qs(query).get("session_hash", [""])[0] if path.endswith("/queue/data") else ""
        count, who = (self.shown, page[1]) if page else (self.read, stream[1] if stream else session)
        count[who] += 1
        try:
            yield who
        finally:
            count[who] -= 1
            if not count[who]:
                del count[who]

    def hears(self, event: Event) -> bool:
        """Whether somebody waits for this; what is not public is for a page that is open."""
        listened = self.read[event.session_hash] or self.read[event._id]
        return bool(listened and (event.fn.api_visibility == "public" or self.shown[event.session_hash]))


class PageExchange(Exchange):
    """One request to the page, and its answer."""

    retry_after, headers_of_ours = 3600, HEADERS

    def __init__(self, gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        self.gate, self.is_upload = gate, str(scope["path"]).endswith("/upload")
        super().__init__(scope, receive, send, MOST_UPLOAD if self.is_upload else MOST_JSON, gate.local)

    def wrong(self) -> dict[int, bool]:
        named = re.search(r"/call/(?:v2/)?([^/]+)/?$", self.path)
        return super().wrong() | {
            404: named is not None and named[1] not in PUBLIC,
            429: self.is_upload and not self.gate.has_room(self.client, self.size or self.limit),
        }

    async def is_fit(self) -> bool:
        if await super().is_fit() and re.search(r"/(?:run|api)/[^/]+/?$", self.path):
            await self._from_page()
        return not self.answered

    async def _from_page(self) -> None:
        """Calls past the queue are for pages that are open; the body is read, and given again."""
        body = b""
        while not self.whole:
            body += (await self.receive()).get("body", b"")
        found = re.search(r'"session_hash"\s*:\s*"([^"]+)"', body.decode(errors="replace"))
        for _ in range(20):  # the page opens its stream at the same time
            if found and self.gate.shown[found[1]]:
                break
            await asyncio.sleep(0.1)
        else:
            await self.refuse(403)
        rest, again = self._receive, [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return again.pop() if again else await rest()

        self._receive = receive

    async def receive(self) -> Message:
        was_whole, message = self.whole, await super().receive()
        if self.whole and not was_whole and self.is_upload and not self.answered:
            self.gate.uploads.append((self.began, self.client, self.got))
        return message

    async def send(self, message: Message) -> None:
        """The application's answer; what it says of its errors stays here."""
        is_start = message["type"] == "http.response.start"
        if is_start and message["status"] >= 400 and message["status"] != 401:  # 401: the page asks for the password
            await self.refuse(message["status"])
        await super().send(message)

    def refusal(self, status: int) -> dict[str, Any]:
        return {"detail": WHY.get(status, HTTPStatus(status).phrase), "request_id": self.number}


class Guard:
    """Every request goes through here."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app, self.gate = app, gate
        self._giving_back: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = PageExchange(self.gate, scope, receive, send)
        if not await exchange.is_fit():
            return
        with self.gate.counting(exchange.path, scope.get("query_string", b"").decode("latin-1")) as who:
            await exchange.run(self.app)
        if who:  # a call by name comes once, a page may come back
            wait = 0 if "/call/" in exchange.path else GONE
            asyncio.get_running_loop().call_later(wait, self._forget, scope["app"], who)

    def _forget(self, app: Any, session: str) -> None:
        """What is kept of a page that is gone and has not come back, or of a call that is over."""
        app.get_blocks()._queue.tidy()
        if self.gate.shown[session] or self.gate.read[session]:
            return
        sessions = app.state_holder
        sessions.session_data.pop(session, None)
        sessions.time_last_used.pop(session, None)
        if self._giving_back:
            self._giving_back.cancel()
        self._giving_back = asyncio.get_running_loop().call_later(REST, self._give_back)

    def _give_back(self) -> None:
        """Memory of what was forgotten, while nobody waits for an answer; requests that are no streams count as ""."""
        if not any(count for who, count in self.gate.read.items() if who):
            gc.collect()  # what is dropped may lie in cycles
            with suppress(OSError, AttributeError):  # the C library keeps what is free, unless it is asked
                ctypes.CDLL(None).malloc_trim(0)


class FairQueue(Queue):
    """Gradio's queue, in which clients take turns, nobody fills it alone, and nothing runs that nobody waits for."""

    gate: Gate
    served: Counter[Any]  # machine, or machine and session -> when it had its last turn

    @classmethod
    def take_over(cls, queue: Any, gate: Gate) -> None:
        """Make a queue, as Gradio made it, one of these."""
        queue.__class__ = cls
        queue.gate, queue.served = gate, Counter()
        queue.sleep_when_free = queue.progress_update_sleep_when_free = PAUSE

    async def push(self, body: Any, request: Any, username: str | None) -> Any:
        lines = self.event_queue_per_concurrency_id.values()
        lanes = Counter(_lane(one.request, one.session_hash, one._id) for line in lines for one in line.queue)
        if lanes[_lane(request, body.session_hash)] >= MOST_OF_ONE:
            return False, WHY[503], "queue_full"
        return await super().push(body, request, username)

    def tidy(self) -> None:
        """Forget the sessions of which nothing waits, runs or is read; Gradio would keep a line of each for ever."""
        for session, ids in list(self.pending_event_ids_session.items()):
            if not any(one in self.event_ids_to_events or self.gate.read[one] for one in (session, *ids)):
                del self.pending_event_ids_session[session]
                self.pending_messages_per_session.pop(session, None)

    def get_events(self) -> Any:
        """Of those that somebody waits for, the one whose client has waited longest for its turn."""
        waiting = []
        for line in self.event_queue_per_concurrency_id.values():
            if line.concurrency_limit is None or line.current_concurrency < line.concurrency_limit:
                line.queue = [event for event in line.queue if self._may_wait(event)]
                waiting.append((line, line.queue))
                line.queue = sorted(filter(self.gate.hears, line.queue), key=self._turn)
        found = super().get_events()
        for line, events in waiting:
            line.queue = [event for event in events if found is None or event not in found[0]]
        if found is not None:
            event, now = found[0][0], max(self.served.values(), default=0) + 1
            if len(self.served) > MOST_LANES:
                self.served.clear()
            lane = _lane(event.request, event.session_hash, event._id)
            self.served[lane[0]] = self.served[lane] = now
        return found

    def _may_wait(self, event: Event) -> bool:
        """False for what nobody has listened for, or what is for a page that has not come: it is given up."""
        if self.gate.hears(event) or time.monotonic() - event.enqueue_time < PATIENCE:
            return True
        self.event_ids_to_events.pop(event._id, None)
        if self.gate.read[event.session_hash]:
            self.send_message(event, ProcessCompletedMessage(output={"error": WHY[403]}, success=False))
        else:
            self.pending_event_ids_session.pop(event.session_hash, None)
        return False

    def _turn(self, event: Event) -> tuple[int, int]:
        lane = _lane(event.request, event.session_hash, event._id)
        return self.served[lane[0]], self.served[lane]


def _lane(request: Any, session: str | None, own: str = "") -> tuple[str, str]:
    """Whose turn it is: the machine, and the session on it; calls whose session is their `own` share a turn."""
    return request.client.host if request.client else "", session if session and session != own else ""
