"""What stands between the network and the page: from where, how large and how slow a request may be.

Every answer carries the number of its request; a refusal says that number and what to do, and nothing else.
"""

import asyncio
import ipaddress
import json
import logging
import re
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gradio.queueing import Event, Queue
from gradio.server_messages import ProcessCompletedMessage
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arr_coc.images.reader import MOST_BYTES

logger = logging.getLogger(__name__)

MOST_JSON = 2**20  # bytes of a body that is no upload
MOST_UPLOAD = MOST_BYTES + 2**16  # a file and what is around it
PATIENCE = 10  # seconds for a body or for its first lines, and for somebody to listen for an answer
LEAST_RATE = 50_000  # bytes a second, beyond the patience
KEPT_FOR = 7200  # seconds that an upload may lie on the disk: an hour, and what the hourly look at it adds
MOST_OF_CLIENT, MOST_STORED = 2**28, 2**31  # bytes of uploads in that time, of one client and in all
MOST_OF_ONE = 8  # questions that one client may have in the queue
MOST_LANES = 1000  # clients whose last turn is remembered
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
    413: f"too large: an image has {MOST_BYTES // 2**20} MB at most",
    429: "too many uploads: come back in an hour",
    503: "too many questions wait: come back in a minute",
}
AGAIN = {429: b"3600", 503: b"60"}


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _is_local(address: str) -> bool:
    """Whether an address, as in the headers Host and Origin, names this machine: a name that leads here does not."""
    try:
        return is_loopback(urlsplit(address if "//" in address else f"//{address}").hostname)
    except ValueError:
        return False


class Uploads:
    """Bytes that were uploaded of late, by client: what lies on the disk is bounded."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, str, int]] = deque()

    def has_room(self, client: str, size: int) -> bool:
        while self._taken and self._taken[0][0] < time.monotonic() - KEPT_FOR:
            self._taken.popleft()
        own = sum(taken for _, who, taken in self._taken if who == client)
        return own + size <= MOST_OF_CLIENT and sum(taken for *_, taken in self._taken) + size <= MOST_STORED

    def note(self, client: str, size: int) -> None:
        self._taken.append((time.monotonic(), client, size))


@dataclass(frozen=True, slots=True)
class Gate:
    """What all requests to one server share."""

    local: bool  # served for this machine alone
    uploads: Uploads = field(default_factory=Uploads)
    read: Counter[str] = field(default_factory=Counter)  # streams of answers that are open, by session or event
    shown: Counter[str] = field(default_factory=Counter)  # pages that are open, by session

    @contextmanager
    def counting(self, path: str, query: str) -> Iterator[None]:
        """While a stream is open, somebody is there."""
        page = re.search(r"/heartbeat/([^/]+)$", path)
        stream = re.search(r"/call/(?:v2/)?[^/]+/([^/]+)$", path)
        session = parse_qs(query).get("session_hash", [""])[0] if path.endswith("/queue/data") else ""
        count, who = (self.shown, page[1]) if page else (self.read, stream[1] if stream else session)
        count[who] += 1
        try:
            yield
        finally:
            count[who] -= 1
            if not count[who]:
                del count[who]

    def hears(self, event: Event) -> bool:
        """Whether somebody waits for this; what is not public is for a page that is open."""
        listened = self.read[event.session_hash] or self.read[event._id]
        return bool(listened and (event.fn.api_visibility == "public" or self.shown[event.session_hash]))


class Exchange:
    """One request and its answer."""

    def __init__(self, gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        self.gate, self.path, self._receive, self._send = gate, str(scope["path"]), receive, send
        self.headers, self.client = Headers(scope=scope), str((scope.get("client") or ("",))[0])
        self.number, self.began = secrets.token_hex(4), time.monotonic()
        self.is_upload = self.path.endswith("/upload")
        self.limit = MOST_UPLOAD if self.is_upload else MOST_JSON
        self.got, self.whole, self.answered = 0, False, False

    async def is_fit(self) -> bool:
        """Whether the application shall see it; if not, it has been refused."""
        said = self.headers.get("content-length", "")
        size = int(said) if said.isdigit() else self.limit
        named = re.search(r"/call/(?:v2/)?([^/]+)/?$", self.path)
        foreign = self.gate.local and not all(
            _is_local(self.headers[name]) for name in ("host", "origin") if name in self.headers
        )
        if foreign:
            await self.refuse(403)
        elif named and named[1] not in PUBLIC:
            await self.refuse(404)
        elif said.isdigit() and size > self.limit:
            await self.refuse(413)
        elif self.is_upload and not self.gate.uploads.has_room(self.client, size):
            await self.refuse(429)
        elif re.search(r"/(?:run|api)/[^/]+/?$", self.path):
            await self._from_page()
        return not self.answered

    async def _from_page(self) -> None:
        """Calls past the queue are for pages that are open; the body is read, and given again."""
        body = b""
        while not self.whole and not self.answered:
            message = await self.receive()
            body += message.get("body", b"")
        try:
            session = str(json.loads(body)["session_hash"])
        except (ValueError, TypeError, KeyError, RecursionError):
            session = ""
        for _ in range(20):  # the page opens its stream at the same time
            if self.gate.shown[session] or self.answered:
                break
            await asyncio.sleep(0.1)
        else:
            await self.refuse(403)
        rest, again = self._receive, [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return again.pop() if again else await rest()

        self._receive = receive

    async def receive(self) -> Message:
        """The next piece of the body, if it comes in time and is not too much. After it, whatever comes."""
        if self.whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() - time.monotonic() + self.began + PATIENCE + self.got / LEAST_RATE
            ):
                message = await self._receive()
        except TimeoutError:
            return await self._cut(408)
        self.got += len(message.get("body", b""))
        self.whole = not message.get("more_body", False)
        if self.got > self.limit:
            return await self._cut(413)
        if self.whole and self.is_upload:
            self.gate.uploads.note(self.client, self.got)
        return message

    async def _cut(self, status: int) -> Message:
        self.whole = True
        await self.refuse(status)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """The application's answer; what it says of its errors stays here."""
        if message["type"] == "http.response.start":
            if message["status"] >= 400 and message["status"] != 401:  # 401: the page asks for the password
                await self.refuse(message["status"])
            elif not self.answered:
                more = (b"x-request-id", self.number.encode())
                message["headers"] = [*message.get("headers", []), *HEADERS, more]
        if not self.answered:
            await self._send(message)

    async def refuse(self, status: int) -> None:
        """An answer of our own, unless there is one; nothing of the application's follows."""
        if self.answered:
            return
        self.answered = True
        content = {"detail": WHY.get(status, HTTPStatus(status).phrase), "request_id": self.number}
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *HEADERS]
        headers += [(b"x-request-id", self.number.encode()), (b"retry-after", AGAIN.get(status, b"0"))]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": json.dumps(content).encode()})


class Guard:
    """Every request goes through here."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app, self.gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(self.gate, scope, receive, send)
        if not await exchange.is_fit():
            return
        with self.gate.counting(exchange.path, scope.get("query_string", b"").decode("latin-1")):
            try:
                await self.app(scope, exchange.receive, exchange.send)
            except Exception as error:
                if not exchange.answered:
                    logger.error("error %s of the demo", exchange.number, exc_info=error)
                await exchange.refuse(500)


class FairQueue(Queue):
    """Gradio's queue, in which clients take turns, nobody fills it alone, and nothing runs that nobody waits for."""

    gate: Gate
    served: OrderedDict[Any, int]

    @classmethod
    def take_over(cls, queue: Any, gate: Gate) -> None:
        """Make a queue, as Gradio made it, one of these."""
        queue.__class__ = cls
        queue.gate, queue.served = gate, OrderedDict()

    async def push(self, body: Any, request: Any, username: str | None) -> Any:
        mine = _lane(request, body.session_hash)
        if sum(_lane_of(event) == mine for line in self._lines() for event in line.queue) >= MOST_OF_ONE:
            return False, WHY[503], "queue_full"
        return await super().push(body, request, username)

    def _lines(self) -> list[Any]:
        return list(self.event_queue_per_concurrency_id.values())

    def get_events(self) -> Any:
        """Of those that somebody waits for, the one whose client has waited longest for its turn."""
        waiting = []
        for line in self._lines():
            if line.concurrency_limit is None or line.current_concurrency < line.concurrency_limit:
                line.queue = [event for event in line.queue if self._may_wait(event)]
                waiting.append((line, line.queue))
                line.queue = sorted(filter(self.gate.hears, line.queue), key=self._turn)
        found = super().get_events()
        for line, events in waiting:
            line.queue = [event for event in events if found is None or event not in found[0]]
        if found is not None:
            self._note(found[0][0])
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
        host, session = _lane_of(event)
        return self.served.get(host, 0), self.served.get((host, session), 0)

    def _note(self, event: Event) -> None:
        lane, now = _lane_of(event), max(self.served.values(), default=0) + 1
        for key in (lane[0], lane):
            self.served[key] = now
            self.served.move_to_end(key)
        while len(self.served) > MOST_LANES:
            self.served.popitem(last=False)


def _lane(request: Any, session: str | None) -> tuple[str, str]:
    """Whose turn it is: the machine, and the session on it; calls without one share a turn."""
    return request.client.host if request.client else "", session or ""


def _lane_of(event: Event) -> tuple[str, str]:
    return _lane(event.request, "" if event.session_hash == event._id else event.session_hash)


class Hurried:
    """Of a connection: its first lines come in time, or it is closed. Mixed into the server's own protocol."""

    cycle: Any
    loop: Any
    transport: Any

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.loop.call_later(PATIENCE, self._look, None)

    def _look(self, before: Any) -> None:
        """Between two looks a request has begun, or one is under way; else somebody holds the line."""
        if self.cycle is before and (before is None or before.response_complete):
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(PATIENCE, self._look, self.cycle)
