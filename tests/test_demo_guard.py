"""What stands before the page, by itself: sizes, slowness, hosts, uploads, turns. Nothing is served here."""

import asyncio
import json
import re
import socket
import time
from collections import Counter
from types import SimpleNamespace

import gradio
import pytest
from gradio.queueing import EventQueue
from uvicorn.protocols.http.h11_impl import H11Protocol

from arr_coc import gateway
from arr_coc.cli.answers import harmless
from arr_coc.demo import guarding, serving
from arr_coc.demo.guarding import FairQueue, Gate, Guard
from arr_coc.demo.page import HOUR
from arr_coc.demo.parts import in_a_line, toast

JOIN, UPLOAD = "/gradio_api/queue/join", "/gradio_api/upload"


class Asked:
    """A request to the guard, whose application reads the body and says how long it was; all that came back."""

    def __init__(self, path=JOIN, *, pieces=(b"",), pause=0.0, gate=None, app=None, query=b"", **headers):
        self.sent, self.seen = [], []
        self.pieces, self.pause = list(pieces), pause
        named = {"host": "localhost:7860"} | {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [(name.encode(), value.encode()) for name, value in named.items() if value is not None]
        scope = {"type": "http", "path": path, "query_string": query, "headers": lines, "client": ("127.0.0.1", 5)}
        asyncio.run(Guard(app or self.app, gate or Gate(local=True))(scope, self.receive, self.send))

    async def receive(self):
        await asyncio.sleep(self.pause)
        if not self.pieces:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.pieces.pop(0), "more_body": bool(self.pieces)}

    async def send(self, message):
        self.sent.append(message)

    async def app(self, scope, receive, send):
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RuntimeError("the client has gone away from /somewhere/secret")
            size, more = size + len(message["body"]), message["more_body"]
        self.seen.append(size)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    @property
    def status(self) -> int:
        (start,) = [message for message in self.sent if message["type"] == "http.response.start"]
        return start["status"]

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> dict:
        return json.loads(b"".join(message.get("body", b"") for message in self.sent[1:]))


# ---------------------------------------------------------------- what is refused


def test_what_is_in_bounds_passes_and_has_a_number():
    asked = Asked(pieces=[b"a" * 1000, b"b"])
    assert (asked.status, asked.seen) == (200, [1001])
    assert re.fullmatch(rb"[0-9a-f]{8}", asked.headers[b"x-request-id"])
    assert b"content-security-policy" in asked.headers


def test_a_body_that_says_it_is_too_large_is_not_read():
    asked = Asked(pieces=[b"x"], content_length=str(guarding.MOST_JSON + 1))
    assert (asked.status, asked.seen, asked.pieces) == (413, [], [b"x"])
    assert asked.body["request_id"].encode() == asked.headers[b"x-request-id"]
    assert asked.headers[b"connection"] == b"close"
    assert Asked(UPLOAD, content_length=str(guarding.MOST_JSON + 1)).status == 200
    assert Asked(UPLOAD, content_length=str(guarding.MOST_UPLOAD + 1)).status == 413


@pytest.mark.parametrize("said", ["7", None, "-1", "many"])
def test_a_body_that_lies_about_its_size_ends_at_the_limit(said, monkeypatch):
    monkeypatch.setattr(guarding, "MOST_JSON", 1000)
    asked = Asked(pieces=[b"x" * 400] * 10**4, content_length=said)
    assert (asked.status, asked.seen) == (413, [])
    assert len(asked.pieces) == 10**4 - 3


def test_a_slow_body_is_cut_off_and_a_steady_one_is_not(monkeypatch):
    monkeypatch.setattr(gateway, "PATIENCE", 0.2)
    asked = Asked(UPLOAD, pieces=[b"x"] * 1000, pause=0.05)
    assert (asked.status, asked.seen) == (408, [])
    assert len(asked.pieces) > 900
    monkeypatch.setattr(gateway, "LEAST_RATE", 1)
    assert Asked(UPLOAD, pieces=[b"x" * 100] * 10, pause=0.05).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.com",
        "127.0.0.1.evil.com:7860",
        "10.0.0.5:7860",
        "[::2]:80",
        "[::",
        "",
        "0.0.0.0",
    ],
)
def test_a_name_that_leads_here_is_not_this_machine(host):
    assert Asked(host=host).status == 403
    assert Asked(origin=f"http://{host}").status == 403
    assert Asked(host=host, gate=Gate(local=False)).status == 200


@pytest.mark.parametrize("host", ["localhost", "localhost:7860", "127.0.0.1:7860", "127.1.2.3", "[::1]:7860"])
def test_this_machine_by_any_of_its_names(host):
    assert Asked(host=host, origin=f"http://{host}").status == 200


def test_errors_of_the_application_say_nothing_of_it():
    async def failing(scope, receive, send):
        raise RuntimeError("/home/somebody/secret 0x7f00aa12cd30")

    async def refusing(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b'{"detail":"no file /home/somebody/secret"}'})

    for app, status in ((failing, 500), (refusing, 404)):
        asked = Asked(app=app)
        assert asked.status == status
        assert asked.body.keys() == {"detail", "request_id"}
        assert "/" not in asked.body["detail"]


def test_an_answer_that_breaks_off_is_not_begun_again():
    async def breaking(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("the client has gone")

    assert [message["status"] for message in Asked(app=breaking).sent] == [200]


def test_messages_of_the_page_have_a_number():
    assert re.fullmatch(
        r"no question yet: write one \(error [0-9a-f]{8}\)", in_a_line(ValueError("no question yet: write one"))
    )
    assert len(re.findall(r"\b[0-9a-f]{8}\b", in_a_line(RuntimeError("x")))) == 1
    assert toast("<b>.png: too small").message == "&lt;b&gt;.png: too small"


def test_only_what_is_public_is_called_by_name():
    for name in ("measure", "answer_it", "look_at", "lambda_1"):
        assert Asked(f"/gradio_api/call/{name}").status == 404
        assert Asked(f"/gradio_api/call/v2/{name}").status == 404
    for name in guarding.PUBLIC:
        assert Asked(f"/gradio_api/call/{name}").status == 200


def test_calls_past_the_queue_are_for_an_open_page(monkeypatch):
    sleep = asyncio.sleep
    monkeypatch.setattr(guarding.asyncio, "sleep", lambda seconds: sleep(seconds / 100))
    body = json.dumps({"session_hash": "s1", "fn_index": 2}).encode()
    gate = Gate(local=True)
    for sent in (body, b"{", b"[]", b"null", b"[" * 10**5):
        assert Asked("/gradio_api/run/predict", pieces=[sent], gate=gate).status == 403
    gate.shown["s1"] += 1
    asked = Asked("/gradio_api/run/predict", pieces=[body[:9], body[9:]], gate=gate)
    assert (asked.status, asked.seen) == (200, [len(body)])  # all of it, again


# ---------------------------------------------------------------- uploads


def test_uploads_are_bounded_by_client_and_in_all(monkeypatch):
    monkeypatch.setattr(guarding, "MOST_OF_CLIENT", 300)
    monkeypatch.setattr(guarding, "MOST_STORED", 500)
    gate = Gate(local=True)
    assert Asked(UPLOAD, pieces=[b"x" * 200], content_length="200", gate=gate).status == 200
    assert Asked(UPLOAD, pieces=[b"x" * 200], content_length="200", gate=gate).status == 429
    assert Asked(UPLOAD, pieces=[b"x"], content_length=None, gate=gate).status == 429  # it might be anything
    assert gate.has_room("another", 300)
    gate.uploads.append((time.monotonic(), "another", 290))
    assert not gate.has_room("a third", 11)


def test_uploads_count_for_as_long_as_they_lie_on_the_disk(monkeypatch):
    gate = Gate(local=True, uploads=[(time.monotonic(), "one", guarding.MOST_OF_CLIENT)])
    assert not gate.has_room("one", 1)
    later = time.monotonic() + guarding.KEPT_FOR + 1
    monkeypatch.setattr(guarding.time, "monotonic", lambda: later)
    assert gate.has_room("one", 1)
    assert gate.uploads == []
    assert guarding.KEPT_FOR >= 2 * HOUR


# ---------------------------------------------------------------- the queue


def event(session: str, number: int, host: str = "127.0.0.1", *, public: bool = True, age: float = 0.0):
    fn = SimpleNamespace(api_visibility="public" if public else "private", batch=False)
    request = SimpleNamespace(client=SimpleNamespace(host=host))
    own = session or f"event-{number}"
    return SimpleNamespace(
        **{"_id": f"event-{number}", "session_hash": own, "fn": fn, "request": request, "concurrency_id": "models"},
        enqueue_time=time.monotonic() - age,
    )


def queue_of(*events, listening: str = "all") -> FairQueue:
    queue = FairQueue.__new__(FairQueue)
    queue.gate, queue.served = Gate(local=True), Counter()
    line = EventQueue("models", 1)
    line.queue = list(events)
    queue.event_queue_per_concurrency_id = {"models": line}
    queue.event_ids_to_events = {one._id: one for one in events}
    queue.pending_event_ids_session = {one.session_hash: {one._id} for one in events}
    for one in events:
        queue.gate.read[one.session_hash] += listening == "all"
    return queue


def order(queue: FairQueue) -> list[str]:
    """The events one after the other, as they are begun."""
    names = []
    while found := queue.get_events():
        names.append(found[0][0]._id.removeprefix("event-"))
    return names


def test_clients_take_turns():
    greedy = [event("greedy", number) for number in range(5)]
    assert order(queue_of(*greedy, event("other", 9), event("third", 8))) == ["0", "9", "8", "1", "2", "3", "4"]
    many = [event(f"forged-{number}", number, host="10.0.0.1") for number in range(4)]
    assert order(queue_of(*many, event("other", 9, host="10.0.0.2"))) == ["0", "9", "1", "2", "3"]
    unnamed = [event("", number) for number in range(3)]
    assert order(queue_of(*unnamed, event("other", 9))) == ["0", "9", "1", "2"]


def test_nothing_begins_that_nobody_waits_for():
    queue = queue_of(event("gone", 1, age=guarding.PATIENCE + 1), event("soon", 2), listening="none")
    assert order(queue) == []
    assert [one._id for one in queue.event_queue_per_concurrency_id["models"].queue] == ["event-2"]
    assert queue.event_ids_to_events.keys() == {"event-2"}
    queue.gate.read["event-2"] += 1
    assert order(queue) == ["2"]


def test_what_is_not_public_is_for_an_open_page():
    queue = queue_of(event("script", 1, public=False), event("page", 2, public=False))
    queue.gate.shown["page"] += 1
    assert order(queue) == ["2"]
    sent = []
    queue.send_message = lambda one, message: sent.append((one._id, message.success))
    queue.event_queue_per_concurrency_id["models"].queue[0].enqueue_time -= guarding.PATIENCE
    assert order(queue) == []
    assert sent == [("event-1", False)]


def test_nobody_fills_the_queue_alone():
    full = queue_of(*(event("greedy", number) for number in range(guarding.MOST_OF_ONE)))
    request = SimpleNamespace(client=SimpleNamespace(host="127.0.0.1"))
    body = SimpleNamespace(session_hash="greedy", fn_index=None)
    assert asyncio.run(full.push(body, request, None))[2] == "queue_full"
    body.session_hash = "other"
    assert asyncio.run(full.push(body, request, None))[2] == "error"  # no function: it went on to Gradio's own
    assert guarding.MOST_OF_ONE * 4 <= serving.MOST_WAITING


def test_open_streams_are_counted_by_whom_they_are_for():
    gate = Gate(local=True)
    for path, query, count, who in (
        ("/gradio_api/queue/data", "session_hash=s1", gate.read, "s1"),
        ("/gradio_api/call/ask/e1", "", gate.read, "e1"),
        ("/gradio_api/heartbeat/s1", "", gate.shown, "s1"),
    ):
        with gate.counting(path, query), gate.counting(path, query):
            assert count[who] == 2
        assert not count


def test_a_page_that_is_gone_and_a_call_that_is_over_are_forgotten(monkeypatch):
    queue = queue_of(event("", 1), event("open", 2), event("closed", 3), event("waits", 4), listening="none")
    kept = ["event-1", "open", "closed"]
    sessions = SimpleNamespace(session_data=dict.fromkeys(kept), time_last_used=dict.fromkeys(kept))
    queue.pending_messages_per_session = dict.fromkeys(queue.pending_event_ids_session)
    queue.gate.shown["open"] += 1  # in another tab, or again

    async def answered(scope, receive, send):
        scope["app"] = SimpleNamespace(state_holder=sessions, get_blocks=lambda: SimpleNamespace(_queue=queue))
        queue.event_ids_to_events = {"event-4": None}

    async def visit(*paths):
        for path in paths:
            scope = {"type": "http", "path": f"/gradio_api/{path}", "headers": [(b"host", b"localhost")]}
            await Guard(answered, queue.gate)(scope, None, None)
        await asyncio.sleep(0.05)

    asyncio.run(visit("heartbeat/closed", "heartbeat/open", "call/ask/event-1"))
    assert sessions.session_data.keys() == {"open", "closed"}  # who closed a page may come back to it
    monkeypatch.setattr(guarding, "GONE", 0)
    monkeypatch.setattr(guarding, "REST", 0)
    given_back = []
    monkeypatch.setattr(guarding.gc, "collect", lambda: given_back.append(1))
    asyncio.run(visit("heartbeat/closed", "heartbeat/open"))
    assert given_back
    assert sessions.session_data.keys() == sessions.time_last_used.keys() == {"open"}
    assert queue.pending_event_ids_session.keys() == queue.pending_messages_per_session.keys() == {"waits"}


def test_what_somebody_reads_is_not_tidied_away():
    queue = queue_of(event("session", 1), event("called", 2), listening="none")
    queue.pending_messages_per_session = dict.fromkeys(queue.pending_event_ids_session)
    queue.event_ids_to_events = {}  # both are done, and what they say is on its way
    queue.gate.read["session"] += 1
    queue.gate.read["event-2"] += 1
    queue.tidy()
    assert queue.pending_event_ids_session.keys() == {"session", "called"}
    queue.gate.read.clear()
    queue.tidy()
    assert not queue.pending_event_ids_session
    assert not queue.pending_messages_per_session


class Line:
    def connection_made(self, transport):
        self.transport, self.cycle, self.loop = transport, None, self
        self.waiting = []

    def call_later(self, seconds, call, *arguments):
        self.waiting.append((call, arguments))

    def pass_time(self):
        for call, arguments in [self.waiting.pop()] if self.waiting else []:
            call(*arguments)


class Transport:
    closed = aborted = False
    unread = 0  # bytes of an answer

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return self.unread


def test_a_line_that_is_held_is_closed():
    lines = _, answering, between, answered = [type("Both", (gateway.Hurried, Line), {})() for _ in range(4)]
    for line in lines:
        line.connection_made(Transport())
    answering.cycle, between.cycle = SimpleNamespace(response_complete=False), SimpleNamespace(response_complete=True)
    answered.cycle = SimpleNamespace(response_complete=False)
    for look in range(3):
        answered.cycle.response_complete = look == 2  # just now: the next request may be on its way
        for line in lines:
            line.pass_time()
    assert [line.transport.closed for line in lines] == [True, False, True, False]
    answered.pass_time()
    assert answered.transport.closed


@pytest.mark.parametrize("closed", [False, True])
def test_an_answer_that_nobody_reads_is_broken_off(closed):
    """Whether all of it was written or not, and even where the line was to be closed after it."""
    for over in (False, True):
        line = type("Both", (gateway.Hurried, Line), {})()
        line.connection_made(Transport())
        line.cycle, line.transport.closed = SimpleNamespace(response_complete=over), closed
        for line.transport.unread in (9000, 7000, 5000):  # slowly, but read
            line.pass_time()
        assert (line.transport.closed, line.transport.aborted) == (closed, False)
        line.pass_time()
        assert line.transport.aborted


# ---------------------------------------------------------------- what is set


def test_every_limit_of_the_server_is_set(monkeypatch):
    given = {}

    def launch(self, **settings):
        given.update(settings)
        self.server = SimpleNamespace(
            config=SimpleNamespace(limit_concurrency=None, http_protocol_class=asyncio.Protocol)
        )

    monkeypatch.setattr(gradio.Blocks, "launch", launch)
    monkeypatch.setattr(serving, "build_page", lambda models: gradio.Blocks(delete_cache=(HOUR, HOUR)))
    page = serving.serve(None, "127.0.0.1", 7860, wait=False)
    assert page._queue.max_size == serving.MOST_WAITING == 32
    assert isinstance(page._queue, FairQueue)
    assert given["state_session_capacity"] == serving.MOST_SESSIONS == 64
    assert given["max_file_size"] == guarding.MOST_BYTES
    assert (given["share"], given["allowed_paths"], given["show_error"], given["auth"]) == (False, [], False, None)
    assert page.server.config.limit_concurrency == gateway.MOST_CONNECTIONS
    assert page.server.config.timeout_keep_alive > gateway.PATIENCE
    assert issubclass(page.server.config.http_protocol_class, gateway.Hurried)
    assert issubclass(page.server.config.http_protocol_class, H11Protocol), "whose heads have an end"
    serving.serve(None, "0.0.0.0", 7860, wait=False, password="a long password")
    assert given["auth"]("anyone", "a long password")
    assert not given["auth"]("anyone", "a long passwörd")
    with pytest.raises(ValueError, match="set a password"):
        serving.serve(None, "0.0.0.0", 7860, wait=False)


def test_old_files_are_deleted(monkeypatch):
    """Gradio looks after them as often as it is told."""
    from arr_coc.demo import page as pages

    seen = []

    def blocks(**settings):
        seen.append(settings)
        raise RuntimeError("enough")

    monkeypatch.setattr(pages.gr, "Blocks", blocks)
    with pytest.raises(RuntimeError, match="enough"):
        pages.build_page(None)
    assert seen[0]["delete_cache"] == (3600, 3600)


def test_what_could_steer_a_terminal_is_left_out():
    assert harmless("a\x1b[31mred\x07\r\x9b2J\u202eback\tand\nmore \u200d✓é") == "a[31mred2Jback\tand\nmore \u200d✓é"


def test_an_address_that_is_taken_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ValueError, match="give another with --port"):
        gateway.check_port("127.0.0.1", taken.getsockname()[1])
