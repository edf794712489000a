"""What stands between the network and a server of ours: from where, how large and how slow a request may be.

Every answer carries the number of its request. A refusal is given before the body is read where its head says enough.
"""

import asyncio
import ipaddress
import json
import logging
import secrets
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

PATIENCE = 10  # seconds for a body or for its first lines
LEAST_RATE = 50_000  # bytes a second, beyond the patience
MOST_CONNECTIONS = 512
LEAST_SECRET = 12  # characters
OPEN_PATHS = ("/health",)  # without a key
WHY = {
    401: "the API key is missing or wrong: send it as Authorization: Bearer KEY",
    403: "this server is for its own machine: ask it at localhost",
    408: "the body came too slowly: send it again over a better line",
    503: "the server ends: ask again once it was started anew",
}


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def is_local(address: str) -> bool:
    """Whether an address, as in the headers Host and Origin, names this machine: a name that leads here does not."""
    try:
        return is_loopback(urlsplit(address if "//" in address else f"//{address}").hostname)
    except ValueError:
        return False


def check_port(host: str, port: int) -> None:
    """Refuse a port or an address that cannot be listened on, before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror:
            raise ValueError(f"--host {host}: no such address; leave it out to stay on this machine") from None
        except OSError as error:
            raise ValueError(f"port {port} of {host}: {error.strerror}; give another with --port") from None


def check_secret(host: str, secret: str | None, kind: str, variable: str) -> None:
    """Whoever reaches the server uses this machine: from elsewhere, only with a secret (a password, a key)."""
    if secret is not None and len(secret) < LEAST_SECRET:
        raise ValueError(f"the {kind} has {len(secret)} characters: give one of {LEAST_SECRET} or more")
    if secret is None and not is_loopback(host):
        raise ValueError(f"--host {host} can be reached by others: set a {kind} in {variable}, or leave --host out")


def is_secret(given: str, secret: str) -> bool:
    """Compared in a time that does not tell how much of it is right."""
    return secrets.compare_digest(given.encode(), secret.encode())


class Exchange:
    """One request and its answer. `limit` are the bytes of its body at most, `local` that it is for this machine."""

    retry_after = 1  # seconds, where there was no room
    key: str | None = None  # what clients must send, if anything
    headers_of_ours: tuple[tuple[bytes, bytes], ...] = ((b"x-content-type-options", b"nosniff"),)

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int, local: bool) -> None:
        self.scope, self.path, self._receive, self._send = scope, str(scope["path"]), receive, send
        self.headers, self.client = Headers(scope=scope), str((scope.get("client") or ("",))[0])
        self.number, self.began = secrets.token_hex(4), time.monotonic()
        self.limit, self.local = limit, local
        said = self.headers.get("content-length", "")
        self.size = int(said) if said.isascii() and said.isdigit() else 0  # as it is said
        self.got, self.whole = 0, False
        self.started, self.answered = False, False  # whether the application's answer has begun, or ours was given

    def wrong(self) -> dict[int, bool]:
        """What can be wrong with the head of a request, by status."""
        hosts = [self.headers[name] for name in ("host", "origin") if name in self.headers]
        given = self.headers.get("authorization", "")
        is_let_in = not self.key or self.path in OPEN_PATHS or is_secret(given, f"Bearer {self.key}")
        return {401: not is_let_in, 403: self.local and not all(map(is_local, hosts)), 413: self.size > self.limit}

    async def is_fit(self) -> bool:
        """Whether the application shall see it; if not, it has been refused."""
        for status in (status for status, found in self.wrong().items() if found):
            await self.refuse(status)
        return not self.answered

    async def run(self, app: ASGIApp) -> None:
        """Hand it to the application, whose errors stay here."""
        try:
            await app(self.scope, self.receive, self.send)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # whoever ends the server did not want to wait any longer
            await self.refuse(503)
        except Exception as error:
            if not self.answered:  # once an answer has begun, it is the client that has gone
                why = None if self.started else error
                logger.error("error %s of the server: %s", self.number, type(error).__name__, exc_info=why)
            await self.refuse(500)

    async def receive(self) -> Message:
        """The next piece of the body, if it comes in time and is not too much. After it, whatever comes."""
        if self.whole:
            return await self._receive()
        left = self.began + PATIENCE + self.got / LEAST_RATE - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, left))
        except TimeoutError:
            return await self._cut(408)
        self.got += len(message.get("body", b""))
        self.whole = not message.get("more_body", False)
        if self.got > self.limit:
            return await self._cut(413)
        return message

    async def _cut(self, status: int) -> Message:
        self.whole = True
        await self.refuse(status)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """The application's answer, unless ours was given."""
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *self._own_headers()]
        if not self.answered:
            self.started = True
            await self._send(message)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        return [*self.headers_of_ours, (b"x-request-id", self.number.encode())]

    def refusal(self, status: int) -> dict[str, Any]:
        """What a refusal says, as JSON."""
        raise NotImplementedError

    def why(self, status: int) -> str:
        """What was wrong, and what to do about it; of a fault, its number alone."""
        here = {
            413: f"the body is too large: at most {self.limit >> 20} MB",
            429: f"too many requests at once: come back in {self.retry_after} s",
        }
        return (WHY | here).get(status, f"a fault of the server: its log has it under {self.number}")

    async def refuse(self, status: int) -> None:
        """An answer of our own, unless one has begun; nothing of the application's follows."""
        if self.answered or self.started:
            return
        self.answered = True
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *self._own_headers()]
        headers += [(b"retry-after", str(self.retry_after).encode())] if status == 429 else []
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": json.dumps(self.refusal(status)).encode()})


class Hurried:
    """Of a connection: its first lines come in time and its answers are read, or it ends. Mixed into a protocol."""

    cycle: Any
    loop: Any
    transport: Any

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.loop.call_later(PATIENCE, self._look, None, 0)

    def _look(self, over: Any, unread: int) -> None:
        """What was `over` at the last look, and nothing since, or so many bytes unread: somebody holds the line.

        One that has just been answered is left open: the next request may be on its way.
        """
        rests, left = self.cycle is None or self.cycle.response_complete, self.transport.get_write_buffer_size()
        if left and left == unread:
            self.transport.abort()  # to close it would be to wait for the reader
        elif rests and self.cycle is over and not left:
            self.transport.close()
        elif left or not self.transport.is_closing():
            self.loop.call_later(PATIENCE, self._look, self.cycle if rests else self, left)


def hurry(config: Any) -> None:
    """Set a server's limits on connections; `config` is uvicorn's, loaded, and read anew for every connection.

    Heads of requests are read by h11: what uvicorn prefers where it is installed takes them however long they are.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    config.limit_concurrency = MOST_CONNECTIONS
    config.timeout_keep_alive = 2 * PATIENCE  # longer than clients keep a line, who would write to one just closed
    config.http_protocol_class = type("HurriedProtocol", (Hurried, H11Protocol), {})
