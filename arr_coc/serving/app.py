"""The server: OpenAI's paths over a line of requests, every limit set, and nothing of a fault but its number told."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, Request
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arr_coc.gateway import Exchange, hurry
from arr_coc.images.reader import read_image
from arr_coc.serving.engine import Delivered, Finished, Ticket
from arr_coc.serving.fetching import SECONDS, check_address, fetch, inline_bytes, is_inline
from arr_coc.serving.line import RETRY_SECONDS, Line
from arr_coc.serving.reading import ApiError, Limits, Wanted, read_chat, read_choice
from arr_coc.serving.telling import Chat, choice, usage

logger = logging.getLogger(__name__)
Made = TypeVar("Made")

MOST_BODIES = 256 << 20  # bytes of the bodies of all requests at once, but any body alone
MOST_OPEN = 64  # requests at once, those whose body is on its way among them; beyond, it still says how it is
LAST_SECONDS = 120  # for what runs, once the system asks to end
DECODING = ThreadPoolExecutor(MOST_OPEN, "decode")  # threads that wait for processes: small images for no large ones
LEFT = 499  # the status of a request whose client did not wait, for the metrics alone


@dataclass(frozen=True, slots=True)
class Service:
    """What a server is made of."""

    line: Line
    model: str  # the name it goes by
    limits: Limits
    key: str | None = None
    domains: tuple[str, ...] = ()  # hosts that images may be fetched from
    local: bool = True  # for this machine alone


class ApiExchange(Exchange):
    """One request to the API. The application's own 500 is held back: the fault is told by its number alone."""

    def __init__(
        self, service: Service, others: set["ApiExchange"], scope: Scope, receive: Receive, send: Send
    ) -> None:
        super().__init__(scope, receive, send, service.limits.body, service.local)
        self.key, self.others, self.status = service.key, others, 0

    def is_crowded(self, size: int) -> bool:
        """Whether a body of that size is too much beside those of the others."""
        held = sum(one.got for one in self.others if one is not self)
        return bool(held) and held + size > MOST_BODIES

    def wrong(self) -> dict[int, bool]:
        full = len(self.others) >= MOST_OPEN or self.is_crowded(self.size)
        return super().wrong() | {429: full and self.scope["method"] == "POST"}

    async def receive(self) -> Message:
        reading = not self.whole
        message = await super().receive()
        return await self._cut(429) if reading and self.is_crowded(self.got) else message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self.answered:
            self.status = message["status"]
        if self.status != 500:
            await super().send(message)

    def refusal(self, status: int) -> dict[str, Any]:
        self.status = status
        return ApiError(self.why(status), status).body()


class Doorkeeper:
    """Every request goes through here."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self.open: set[ApiExchange] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await asyncio.to_thread(self.service.line.close)
            await send({"type": "lifespan.shutdown.complete"})
            return
        exchange = ApiExchange(self.service, self.open, scope, receive, send)
        try:
            if await exchange.is_fit():
                self.open.add(exchange)
                await exchange.run(self.app)
        finally:
            self.open.discard(exchange)
            path = route.path if (route := scope.get("route")) else "other"
            self.service.line.metrics.add("requests_total", path=path, status=exchange.status)


class Visit:
    """One request inside: its place in the line, and what is delivered to it. Closed however it ends."""

    def __init__(self, service: Service, wanted: Wanted, chooses: bool = False) -> None:
        self.service, self.wanted, self.chooses = service, wanted, chooses
        self.pictures: list[Image.Image] = []
        self._delivered: asyncio.Queue[Delivered] = asyncio.Queue()
        self._ticket: Ticket | None = None  # until it is answered
        service.line.take(self)

    async def enter(self) -> None:
        """Read the images, encode, and wait in line."""
        line, wanted, loop = self.service.line, self.wanted, asyncio.get_running_loop()

        def deliver(what: Delivered) -> None:
            loop.call_soon_threadsafe(self._delivered.put_nowait, what)

        try:
            await self._read()
            inputs = await asyncio.to_thread(line.engine.encode, wanted, self.pictures)
            self._ticket = Ticket(wanted, inputs, deliver, self.chooses, line.engine.length(wanted, inputs))
            line.join(self._ticket)
        except ValueError as error:
            raise ApiError(str(error)) from None

    async def _read(self) -> None:
        """The images, one after the other. All of them that are fetched have one deadline."""
        left, most, pixels = SECONDS, self.service.limits.pixels, 0
        for address in self.wanted.images:
            data: bytes | None = None
            if not is_inline(address):
                began = time.monotonic()
                grew = partial(self._hold, pixels)
                data = await fetch(check_address(address, self.service.domains), left, grew)
                left -= time.monotonic() - began
            file = address if data is None else data
            picture = await asyncio.get_running_loop().run_in_executor(DECODING, _decoded, file)
            pixels += picture.width * picture.height
            if pixels > most:
                told = f"the images have over {most / 1e6:g} megapixels together: send them smaller"
                raise ApiError(told, param="messages")
            self._hold(pixels)
            self.pictures.append(picture)

    def _hold(self, pixels: int, fetched: int = 0) -> None:
        """Room for the images, and for so many bytes of the next: three are a pixel's."""
        self.service.line.hold(self, pixels + fetched // 3)

    async def pieces(self) -> AsyncIterator[str | Finished]:
        """Of a streamed answer as they come; at last, for any, the outcome."""
        item: Delivered = ""
        while isinstance(item, str):
            item = await self._delivered.get()
            self._ticket = self._ticket if isinstance(item, str) else None
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Finished):
                self.service.line.note(item)
            yield item

    async def whole(self) -> Finished:
        """All at once. The place is kept until it has been told: a picture of it takes memory, too."""
        await self.enter()
        *_, outcome = [item async for item in self.pieces()]
        assert isinstance(outcome, Finished)
        return outcome

    async def events(self) -> AsyncIterator[str]:
        """Of a stream, once it was entered."""
        told = Chat(self.service.model)
        yield told.event({"role": "assistant", "content": ""})
        try:
            async for item in self.pieces():
                yield told.event({"content": item}) if isinstance(item, str) else told.event({}, item.ended)
                if self.wanted.include_usage and isinstance(item, Finished):
                    yield told.event(None, usage=usage(item))
        except Exception as error:
            if not isinstance(error, ApiError):
                logger.error("error %s of a stream: %s", told.number, type(error).__name__, exc_info=error)
                error = ApiError(f"a fault of the server: its log has it under {told.number}", 500)
            yield f"data: {json.dumps(error.body())}\n\n"
        yield "data: [DONE]\n\n"

    def close(self) -> None:
        if self._ticket is not None:
            self._ticket.left.set()
            self.service.line.metrics.add("left_total")
        self.service.line.give_back(self, self._ticket)
        self._ticket = None


def _decoded(data: bytes | str) -> Image.Image:
    """From a file's bytes or a data URI, in a process of its own."""
    return read_image(inline_bytes(data) if isinstance(data, str) else data, boxed=True)


async def unless_left(request: Request, work: Coroutine[Any, Any, Made]) -> Made:
    """What comes of the work, which is given up as soon as the client leaves."""

    async def leaves() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(leaves())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return await task
    finally:
        task.cancel()
        left.cancel()


class Streamed(StreamingResponse):
    """Events of a visit, which is closed however they end, and even if none is ever sent."""

    media_type = "text/event-stream"

    def __init__(self, visit: Visit) -> None:
        super().__init__(visit.events(), headers={"cache-control": "no-store"})
        self.visit = visit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with closing(self.visit):
            await super().__call__(scope, receive, send)


# ---------------------------------------------------------------- paths


async def _body(request: Request) -> Any:
    raw = await request.body()
    try:
        return json.loads(raw)  # here: no thread reads beside it, and what is read takes up to 30 times the body
    except (ValueError, RecursionError):
        raise ApiError("the body is no JSON that can be read: send a JSON object") from None


async def _told(request: Request, error: Exception) -> Response:
    """A refusal in OpenAI's form."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=LEFT)
    if isinstance(error, HTTPException):
        error = ApiError("there is no such path or method here: see /v1/chat/completions", error.status_code)
    assert isinstance(error, ApiError)
    headers = {"retry-after": str(RETRY_SECONDS)} if error.status == 429 else None
    return JSONResponse(error.body(), error.status, headers)


def build(service: Service) -> ASGIApp:
    """The application with everything that stands before it."""
    line, name = service.line, service.model

    quiet: dict[str, Any] = {"openapi_url": None, "docs_url": None, "redoc_url": None, "redirect_slashes": False}
    told: Any = dict.fromkeys((ApiError, HTTPException, ClientDisconnect), _told)
    app = FastAPI(**quiet, exception_handlers=told)
    served = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "arr-coc"}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        visit = Visit(service, read_chat(await _body(request), service.limits, name))
        with ExitStack() as leaving:
            leaving.callback(visit.close)
            if not visit.wanted.stream:
                return JSONResponse(Chat(name).whole(await unless_left(request, visit.whole())))
            await unless_left(request, visit.enter())
            leaving.pop_all()
            return Streamed(visit)

    @app.post("/v1/arr_coc/select")
    async def select(request: Request) -> Response:
        visit = Visit(service, read_choice(await _body(request), service.limits, name), chooses=True)
        with closing(visit):
            outcome = await unless_left(request, visit.whole())
            asked = visit.wanted.question if visit.wanted.overlay else None
            return JSONResponse(await asyncio.to_thread(choice, name, outcome, visit.pictures, asked))

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [served]})

    @app.get("/health")
    async def health() -> Response:
        told = {"status": "ok" if line.is_well else "lost", "engine": line.engine.name, "model": name}
        return JSONResponse(told, 200 if line.is_well else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(line.metrics.text(line.gauges()))

    return Doorkeeper(app, service)


def make_server(service: Service, host: str, port: int) -> uvicorn.Server:
    """A server that is ready to run, every limit set."""
    how: dict[str, Any] = {"log_level": "error", "server_header": False, "access_log": False, "ws": "none"}
    how["timeout_graceful_shutdown"] = LAST_SECONDS
    how["use_colors"] = False if os.environ.get("NO_COLOR") else None  # None: as the terminal is
    config = uvicorn.Config(build(service), host, port, **how)
    config.load()
    hurry(config)
    return uvicorn.Server(config)


def serve(service: Service, host: str, port: int) -> None:
    """Until Ctrl-C, or until the system asks to end: what runs is finished first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn heeds it first, and hands it on when it is done
    make_server(service, host, port).run()
