"""The API from outside: what it refuses and how, what it fetches, who waits, who left. No model is loaded here."""

import asyncio
import base64
import contextlib
import http.client
import json
import re
import socket
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from queue import SimpleQueue
from types import SimpleNamespace

import httpx
import pytest
import torch
from api_server import Stub, asked, data_uri, serving
from PIL import Image

from arr_coc.cli import run
from arr_coc.images import box
from arr_coc.serving import app, fetching
from arr_coc.serving.engine import Ticket
from arr_coc.serving.fetching import check_address, fetch, is_public, resolve
from arr_coc.serving.line import Line
from arr_coc.serving.metrics import Metrics
from arr_coc.serving.reading import ApiError, Limits, read_chat, read_choice

PICTURE = data_uri(Image.new("RGB", (64, 64), "red"))
KEY = "a key that is long"
LIMITS = Limits(body=200_000, pixels=100_000, tokens=64)
CHAT, SELECT = "/v1/chat/completions", "/v1/arr_coc/select"
LEAKS = re.compile(r"Traceback|File \"|/home|/work|0x[0-9a-f]{6}|site-packages|\.py\b")


def body(**changes) -> dict:
    """A good request, changed."""
    return {"model": "mini", "messages": asked("what is this?", PICTURE)} | changes


@pytest.fixture(scope="module")
def engine():
    return Stub()


@pytest.fixture(scope="module")
def served(engine):
    domains = ("images.example.org", "localhost", "127.0.0.1", "[::1]", "0.0.0.0", "example.org:8080")
    with serving(engine, 4, 6, limits=LIMITS, key=KEY, domains=domains) as (url, line):
        yield url, line


@pytest.fixture(scope="module")
def web(served):
    with httpx.Client(base_url=served[0], headers={"authorization": f"Bearer {KEY}"}, timeout=30) as client:
        yield client


@pytest.fixture
def held(engine):
    engine.go.clear()
    engine.batches.clear()
    yield engine
    engine.go.set()


def refused(answer: httpx.Response) -> dict:
    """The error of a refusal, in OpenAI's form and with nothing of ours in it."""
    assert not LEAKS.search(answer.text), answer.text
    assert re.fullmatch(r"[0-9a-f]{8}", answer.headers["x-request-id"])
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def head(size: int | None) -> bytes:
    """The first lines of a request whose body is so large, or comes in chunks."""
    how = "Transfer-Encoding: chunked" if size is None else f"Content-Length: {size}"
    lines = (f"POST {CHAT} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {KEY}", how)
    return "\r\n".join((*lines, "", "")).encode()


def place_of(served) -> tuple[str, int]:
    return "127.0.0.1", int(served[0].rpartition(":")[2])


def wait_for(true) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        time.sleep(0.005)


# ---------------------------------------------------------------- bad input

BAD = {
    "keep 0": ({"keep": 0}, 400, "fraction kept"),
    "keep -0.5": ({"keep": -0.5}, 400, "fraction kept"),
    "keep 1.5": ({"keep": 1.5}, 400, "fraction kept"),
    "keep text": ({"keep": "most"}, 400, "fraction kept"),
    "keep true": ({"keep": True}, 400, "fraction kept"),
    "keep NaN": ({"keep": float("nan")}, 400, "fraction kept"),
    "keep list": ({"keep": [0.5]}, 400, "fraction kept"),
    "keep twice": ({"keep": 0.5, "extra_body": {"keep": 0.25}}, 400, "give it once"),
    "extra_body": ({"extra_body": {"kept": 0.5}}, 400, "keep and nothing else"),
    "model": ({"model": "gpt-4o"}, 404, "give model 'mini'"),
    "no model": ({"model": None}, 404, "give model 'mini'"),
    "unknown field": ({"keeps": 0.5}, 400, "leave it out"),
    "n": ({"n": 2}, 400, "leave it out"),
    "tools": ({"tools": [{"type": "function"}]}, 400, "leave it out"),
    "no messages": ({"messages": None}, 400, "1 to 256 messages"),
    "empty messages": ({"messages": []}, 400, "1 to 256 messages"),
    "messages text": ({"messages": "hello"}, 400, "1 to 256 messages"),
    "text only": ({"messages": [{"role": "user", "content": "hello"}]}, 400, "no image"),
    "no image": ({"messages": asked("what is this?")}, 400, "no image"),
    "20 images": ({"messages": asked("what?", *[PICTURE] * 20)}, 400, "8 at most"),
    "no question": ({"messages": [*asked("what?", PICTURE), {"role": "assistant", "content": "a"}]}, 400, "last one"),
    "two questions": ({"messages": asked("what?", PICTURE) * 2}, 400, "take turns"),
    "system late": ({"messages": [*asked("what?", PICTURE), {"role": "system", "content": "a"}]}, 400, "comes first"),
    "role": ({"messages": [{"role": "tool", "content": "a"}]}, 400, "give role"),
    "tool calls": ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, 400, "leave out tool_calls"),
    "video": (
        {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:video/mp4,"}}]}]},
        400,
        "video_url cannot be read",
    ),
    "video uri": ({"messages": asked("what?", "data:video/mp4;base64,AAAA")}, 400, "begin it with data:image"),
    "part": ({"messages": [{"role": "user", "content": [5]}]}, 400, "cannot be read"),
    "base64": ({"messages": asked("what?", "data:image/png;base64,!!!!")}, 400, "base64 is broken"),
    "base64 short": ({"messages": asked("what?", PICTURE[:-3])}, 400, "base64 is broken"),
    "no picture": ({"messages": asked("what?", "data:image/png;base64,aGVsbG8=")}, 400, "JPEG"),
    "cut picture": ({"messages": asked("what?", PICTURE[:120])}, 400, "image"),
    "pixels": ({"messages": asked("what?", data_uri(Image.new("RGB", (400, 300))))}, 400, "megapixels"),
    "max_tokens 0": ({"max_tokens": 0}, 400, "give 1 to 64"),
    "max_tokens many": ({"max_completion_tokens": 65}, 400, "give 1 to 64"),
    "max_tokens 1.5": ({"max_tokens": 1.5}, 400, "give 1 to 64"),
    "temperature": ({"temperature": 3}, 400, "from 0 to 2"),
    "temperature text": ({"temperature": "hot"}, 400, "from 0 to 2"),
    "top_p": ({"top_p": 0}, 400, "from 0.001 to 1"),
    "seed": ({"seed": -1}, 400, "whole number"),
    "stop": ({"stop": [""]}, 400, "up to 4 texts"),
    "stream": ({"stream": "yes"}, 400, "true or false"),
    "stream_options": ({"stream": True, "stream_options": {"x": 1}}, 400, "include_usage alone"),
    "include_usage": ({"stream": True, "stream_options": {"include_usage": "yes"}}, 400, "true or false"),
    "half a character": ({"\ud800": 1}, 400, "leave it out"),
    "half a type": ({"messages": [{"role": "user", "content": [{"type": "\ud800"}]}]}, 400, "cannot be read"),
    "half a key": ({"messages": [{"role": "user", "content": "a", "\ud800": 1}]}, 400, "leave out"),
    "too long": ({"messages": asked("unreadable", PICTURE)}, 400, "ask something shorter"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_told_with_what_to_do(what, web):
    changes, status, told = BAD[what]
    answer = web.post(CHAT, content=json.dumps(body(**changes)))
    error = refused(answer)
    assert (answer.status_code, error["type"]) == (status, "invalid_request_error")
    assert told in error["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 10**5, b'{"model": NaN}'])
def test_a_body_that_is_no_request(raw, web):
    answer = web.post(CHAT, content=raw)
    refused(answer)
    assert answer.status_code in (400, 404)


def test_a_choice_takes_no_settings_of_answers(web):
    answer = web.post(SELECT, json=body(max_tokens=5))
    assert (answer.status_code, refused(answer)["param"]) == (400, "max_tokens")
    assert refused(web.post(SELECT, json=body(overlay="yes")))["param"] == "overlay"


def test_what_changes_nothing_may_be_said():
    nothing = {"n": 1, "presence_penalty": 0, "response_format": {"type": "text"}, "user": "me", "stop": None}
    assert read_chat(body(**nothing), LIMITS, "mini") == read_chat(body(), LIMITS, "mini")
    assert read_choice(body(), Limits(), "mini") == read_chat(body(), Limits(), "mini")


@pytest.mark.parametrize("said", [1, 1.0, json.loads("1"), json.loads("1.0")])
def test_a_plain_one_is_all(said):
    for place in ({"keep": said}, {"extra_body": {"keep": said}}, {"mm_processor_kwargs": {"keep": said}}):
        keep = read_chat(body(**place), LIMITS, "mini").keep
        assert (type(keep), keep) == (float, 1.0)
    assert read_chat(body(keep=2), LIMITS, "mini").keep == 2
    assert read_chat(body(), LIMITS, "mini").keep is None


def test_a_conversation_is_read_in_order():
    system = [{"role": "system", "content": "be"}, {"role": "developer", "content": "short"}]
    answer = {"role": "assistant", "content": "a hand", "refusal": None, "annotations": [], "tool_calls": []}
    wanted = read_chat(
        body(messages=[*system, *asked("what?", "one", "two"), answer, *asked("more?", "three")]), LIMITS, "mini"
    )
    assert (wanted.images, wanted.question, wanted.history) == (
        ("one", "two", "three"),
        "more?",
        (("what?", "a hand"),),
    )
    assert wanted.system == "be\n\nshort"


def test_requests_go_together_where_they_are_answered_alike():
    def options(**changes):
        return read_chat(body(**changes), LIMITS, "mini").options

    assert options() == {}
    assert options(temperature=0) == options(temperature=0, top_p=0.5) == {"do_sample": False}
    assert options(temperature=1e-300) == options(temperature=0), "nothing is divided by almost nothing"
    assert options(temperature=0.5, top_p=0.9) == {"do_sample": True, "temperature": 0.5, "top_p": 0.9}


# ---------------------------------------------------------------- addresses

SSRF = [
    *("http://127.0.0.1/a.png", "http://localhost/a.png", "https://localhost/a.png", "http://127.1/a.png"),
    *("http://2130706433/a.png", "http://0x7f000001/a.png", "http://0177.0.0.1/a.png", "http://127.0.0.1:22/"),
    *("http://0/", "http://0.0.0.0/a.png", "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.1.1/"),
    *("http://169.254.169.254/latest/meta-data/", "http://100.64.0.1/", "http://192.0.2.1/", "http://198.18.0.1/"),
    *("http://224.0.0.1/", "http://255.255.255.255/", "http://[::1]/a.png", "http://[::]/a.png", "http://[::ffff:127.0.0.1]/"),
    *("http://[::ffff:7f00:1]/", "http://[fe80::1]/", "http://[fc00::1]/", "http://[fec0::1]/", "http://[ff02::1]/"),
    *("http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/", "http://[2001:0:7f00:1::]/", "http://[::127.0.0.1]/"),
    *("http://metadata.google.internal/", "http://images.example.org.evil.com/a.png", "http://evil.com/images.example.org"),
    *("http://images.example.org@evil.com/", "http://evil.com@images.example.org/", "http://evil.com#@images.example.org/"),
    *("http://images.example.org:22/a.png", "https://images.example.org:80/a.png", "http://example.org/a.png"),
    *("http://example.org:8081/a.png", "http://images.example.org%2eevil.com/", "http://images.example.org%00.evil.com/"),
    *("http://images.example.org\\@evil.com/", "http:\\\\images.example.org/", "http://images.example.org\t/a.png"),
    *("http://images.example.org/a.png\r\nHost: evil", "http://images.example.org /a", " http://images.example.org/"),
    *("http:images.example.org/a.png", "//images.example.org/a.png", "images.example.org/a.png", "http:///a.png"),
    *("file:///etc/passwd", "ftp://images.example.org/a.png", "gopher://127.0.0.1:70/_x", "dict://localhost:11211/stat"),
    *("jar:http://localhost!/", "http://ⓛocalhost/a.png", "http://images。example。org/", "http://[::1%25eth0]/", "http://["),
]  # fmt: skip
PATHS = [
    *("/etc/passwd", "../../etc/passwd", "..\\..\\windows\\win.ini", "C:\\windows\\win.ini", "\\\\host\\share\\a.png"),
    *("/proc/self/environ", "/dev/zero", "/dev/stdin", "~/.ssh/id_rsa", "./arr_coc/assets/sample.png", "a.png", ""),
    *("file:/etc/passwd", "file://localhost/etc/passwd", "FILE:///etc/passwd", "%2e%2e%2fetc%2fpasswd"),
    "\x00/etc/passwd",
    *("data:text/plain,hello", "data:image/png,hello", "data:image/png;base64", "data:image/svg+xml;base64,PHN2Zy8+"),
    *("data:;base64,aGVsbG8=", "DATA:text/html;base64,aGVsbG8=", "data:image/png;charset=utf-8;base64,aGVsbG8="),
    *("javascript:alert(1)", "blob:http://localhost/1", "about:blank", "unix:///var/run/docker.sock", "s3://bucket/a.png"),
    *("http+unix://%2Fvar%2Frun%2Fdocker.sock/", "netdoc:///etc/passwd", "php://filter/resource=/etc/passwd"),
]  # fmt: skip
ROUTES = ["/../../etc/passwd", "/v1/../../etc/passwd", "/v1/models/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
          "/v1/models/%2fetc%2fpasswd", "/static/..%5c..%5cetc", "/v1/chat/completions/../../x", "//etc/passwd",
          "/metrics/..;/admin", "/.git/config", "/docs", "/openapi.json"]  # fmt: skip


@pytest.fixture
def network(monkeypatch):
    """What is asked of the network: names that are looked up, and places that are connected to."""
    looked, reached = [], []
    known = {"localhost": "127.0.0.1", "images.example.org": "10.0.0.7"}

    def look_up(host, port, **_):
        looked.append(host)
        return [(2, 1, 6, "", (known.get(host, host.strip("[]")), port))]

    monkeypatch.setattr(fetching.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(fetching.asyncio, "open_connection", lambda *place, **_: reached.append(place))
    return looked, reached


def fetched(address: str, domains: tuple[str, ...] = ("images.example.org",), seconds: float = 10) -> bytes:
    return asyncio.run(fetch(check_address(address, domains), seconds, lambda size: None))


def test_there_are_enough_of_them():
    assert len(set(SSRF)) >= 60
    assert len({*PATHS, *ROUTES}) >= 40


@pytest.mark.parametrize("address", SSRF)
def test_nothing_is_fetched_that_is_not_public_and_named(address, network, web):
    """Even where the operator named localhost, or a name leads inside."""
    with pytest.raises(ApiError) as refusal:
        fetched(
            address, ("images.example.org", "localhost", "127.0.0.1", "[::1]", "::1", "0.0.0.0", "example.org:8080")
        )
    assert refusal.value.status == 400
    assert network[1] == []


@pytest.mark.parametrize("address", PATHS)
def test_a_path_is_no_image(address, web):
    answer = web.post(CHAT, json=body(messages=asked("what?", address)))
    assert answer.status_code == 400
    assert "root:" not in refused(answer)["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_path_is_no_route(path, served):
    line = http.client.HTTPConnection(served[0].removeprefix("http://"))
    line.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})
    answer = line.getresponse()
    assert answer.status == 404
    assert json.loads(answer.read())["error"]["code"] in ("not_found", "model_not_found")
    line.close()


def test_without_domains_nothing_is_looked_up(network):
    with pytest.raises(ApiError, match="send it as data:image"):
        fetched("https://images.example.org/a.png", ())
    assert network == ([], [])


@pytest.mark.parametrize("family", ["v4", "v6", "inside"])
def test_addresses_that_are_not_public(family):
    """Those of this machine and of networks inside, and those that hold another address, even a public one."""
    known = {
        "v4": "0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 169.254.169.254 172.31.0.1 192.168.0.1 198.18.0.1 224.0.0.1",
        "v6": ":: ::1 fe80::1 fe80::1%eth0 fc00::1 fd12::1 fec0::1 ff02::1 2001:db8::1 ::ffff:10.0.0.1",
        "inside": "64:ff9b::808:808 64:ff9b:1::808:808 2002:808:808:: 2001:0:808:808:: ::8.8.8.8",
    }
    assert [address for address in known[family].split() if is_public(address)] == []


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8"])
def test_public_addresses(address):
    assert is_public(address)


class Host(BaseHTTPRequestHandler):
    """Serves a picture, redirects, and does it slowly."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers["Host"]))
        while self.path == "/drops":  # until it is hung up on
            self.wfile.write(b"H")
            time.sleep(0.05)
        self.send_response(302 if self.path == "/away" else 200)
        self.send_header("Location", "http://127.0.0.1/")
        self.end_headers()
        pieces = [b"x" * 10] * 100 if self.path in ("/slow", "/large") else [b"picture"]
        for piece in pieces:
            self.wfile.write(piece)
            time.sleep(0.05 if self.path == "/slow" else 0)

    def log_message(self, *_):
        pass


@pytest.fixture
def host(monkeypatch):
    """A host of pictures on this machine, under a name that is looked up as it says."""
    server = HTTPServer(("127.0.0.1", 0), Host)
    server.handle_error = lambda *_: None  # whoever gives up, leaves
    server.asked, server.looked = [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def look_up(name, port, **_):  # the second answer would lead inside: a name that is bound anew
        server.looked.append(name)
        return [(2, 1, 6, "", ("93.184.216.34" if len(server.looked) == 1 else "127.0.0.1", port))]

    connect = asyncio.open_connection

    async def to_here(*place):
        assert place == ("93.184.216.34", 80), "it connects to the address that was checked"
        return await connect(*server.server_address)

    monkeypatch.setattr(fetching.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(fetching.asyncio, "open_connection", to_here)
    yield server
    server.shutdown()
    server.server_close()


def test_a_named_host_is_looked_up_once_and_asked_for_the_file(host):
    assert fetched("http://Images.example.org/a/b.png?c=d") == b"picture"
    assert host.asked == [("/a/b.png?c=d", "images.example.org")]
    assert host.looked == ["images.example.org"]


@pytest.mark.parametrize(
    ("path", "told"),
    [("/away", "redirects are not followed"), ("/slow", "in time"), ("/drops", "in time"), ("/large", "MB")],
)
def test_what_leads_away_is_slow_or_large_is_given_up(path, told, host, monkeypatch):
    monkeypatch.setattr(fetching, "MOST_BYTES", 500 if path == "/large" else 10**6)
    with pytest.raises(ApiError, match=told):
        fetched(f"http://images.example.org{path}", seconds=0.3)
    assert len(host.asked) == 1


def test_one_address_inside_is_enough(monkeypatch):
    places = [(2, 1, 6, "", ("93.184.216.34", 80)), (2, 1, 6, "", ("10.0.0.7", 80))]
    monkeypatch.setattr(fetching.socket, "getaddrinfo", lambda *_, **__: places)
    with pytest.raises(ApiError, match="public network"):
        resolve("images.example.org", 80)


@pytest.fixture
def slow(monkeypatch):
    """A server that fetches from a host which takes connections and answers none; `lines` are they."""
    lines, connect = [], asyncio.open_connection

    def take():
        with contextlib.suppress(OSError):  # until it is closed
            while True:
                lines.append(host.accept()[0])

    monkeypatch.setattr(fetching, "resolve", lambda name, port: ("93.184.216.34", port))
    monkeypatch.setattr(fetching.asyncio, "open_connection", lambda *_: connect(*host.getsockname()))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as host:
        threading.Thread(target=take, daemon=True).start()
        with serving(Stub(), places=40, domains=("images.example.org",)) as (url, line):
            yield url, line, lines
        host.shutdown(socket.SHUT_RDWR)


def from_afar(count: int) -> dict:
    return body(messages=asked("what?", *["http://images.example.org/a.png"] * count))


def answer_with(line: socket.socket, data: bytes) -> None:
    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)


def test_slow_hosts_hold_up_nobody_else(slow):
    """More of them than threads decode and encode, on any machine."""
    url, line, lines = slow
    with ThreadPoolExecutor(33) as clients:
        waiting = [clients.submit(httpx.post, url + CHAT, json=from_afar(8), timeout=30) for _ in range(33)]
        wait_for(lambda: len(lines) == 33)
        assert httpx.post(url + CHAT, json=body()).status_code == 200
        assert len(line.taken) == 33
        for one in lines:
            one.close()
        assert [one.result().status_code for one in waiting] == [400] * 33


def test_images_of_a_request_share_a_deadline(slow, monkeypatch):
    given, fetching_for = app.fetch, []

    async def fetch_slowly(parts, seconds, grew):
        fetching_for.append(seconds)
        await asyncio.sleep(0.05)
        return await given(parts, seconds, grew)

    monkeypatch.setattr(app, "fetch", fetch_slowly)
    url, _, lines = slow
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(httpx.post, url + CHAT, json=from_afar(3), timeout=30)
        for number in range(3):
            wait_for(lambda number=number: len(lines) > number)
            answer_with(lines[number], base64.b64decode(PICTURE.partition(",")[2]))
        assert answer.result().status_code == 200
    assert fetching_for[0] == app.SECONDS
    assert all(later <= sooner - 0.05 for sooner, later in pairwise(fetching_for))


def test_who_leaves_ends_what_is_on_its_way_for_him(slow):
    _, line, lines = slow
    raw = json.dumps(from_afar(8)).encode()
    with socket.create_connection(place_of(slow)) as client:
        client.sendall(head(len(raw)) + raw)
        wait_for(lambda: len(lines) == 1)
    lines[0].settimeout(5)
    while lines[0].recv(1000):  # what was asked, and then the end
        pass
    wait_for(lambda: not line.taken)
    assert len(lines) == 1, "nor is another begun"


def test_what_comes_from_afar_takes_room_as_it_comes(slow, held, monkeypatch):
    """As images do that were sent, of all requests together. Any request alone is let in."""
    monkeypatch.setattr("arr_coc.serving.line.MOST_PIXELS_IN_ALL", 5000)
    url, line, lines = slow
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(httpx.post, url + CHAT, json=from_afar(1), timeout=30)
        wait_for(lambda: len(lines) == 1)
        lines[0].sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 12_000)
        wait_for(lambda: [*line.taken.values()] == [4000])
        second = clients.submit(httpx.post, url + CHAT, json=from_afar(1), timeout=30)
        wait_for(lambda: len(lines) == 2)
        lines[1].sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 6_000)
        assert second.result().status_code == 429
        lines[0].sendall(b"x" * 12_000)
        lines[0].close()
        assert first.result().status_code == 400, "no picture"


# ---------------------------------------------------------------- the door


@pytest.mark.parametrize(
    "given", ["", "Bearer", f"Bearer {KEY}x", f"bearer {KEY}", KEY, f"Bearer {KEY[:-1]}", "Bearer ü"]
)
def test_without_the_key_nothing_is_told(given, served):
    for path in (CHAT, "/v1/models", "/metrics"):
        answer = httpx.request(
            "POST" if path == CHAT else "GET", served[0] + path, headers={"authorization": given.encode()}
        )
        assert (answer.status_code, refused(answer)["code"]) == (401, "invalid_api_key")
    assert httpx.get(f"{served[0]}/health").json() == {"status": "ok", "engine": "stub", "model": "mini"}


def test_the_key_is_compared_in_constant_time(monkeypatch, web):
    seen = []
    monkeypatch.setattr(
        "arr_coc.gateway.secrets.compare_digest", lambda one, two: seen.append((one, two)) or one == two
    )
    web.get("/v1/models")
    assert seen == [(f"Bearer {KEY}".encode(),) * 2]


def test_a_name_that_leads_here_is_refused(web):
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        answer = web.post(CHAT, json=body(), headers=headers)
        assert (answer.status_code, refused(answer)["type"]) == (403, "invalid_request_error")


def test_a_body_over_the_limit_is_not_read(served, web):
    """Neither one that says its size, of which not a byte is sent, nor one that does not. Both are counted so."""
    for size in (LIMITS.body + 1, None):
        with socket.create_connection(place_of(served), timeout=10) as line:
            line.sendall(head(size))
            for _ in range(0 if size else 4):
                line.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            told = line.recv(4096)
        assert told.startswith(b"HTTP/1.1 413")
        path = "other" if size else CHAT  # the first comes to no path
        wait_for(lambda path=path: f'requests_total{{path="{path}",status="413"}}' in web.get("/metrics").text)


def test_a_slow_body_is_cut_off(served, monkeypatch):
    monkeypatch.setattr("arr_coc.gateway.PATIENCE", 0.2)
    with socket.create_connection(place_of(served), timeout=10) as line:
        line.sendall(head(9))
        assert line.recv(4096).startswith(b"HTTP/1.1 408")


def test_an_answer_that_is_not_read_is_broken_off(served, monkeypatch):
    """Else whoever asks and never reads keeps a place for ever."""
    monkeypatch.setattr("arr_coc.gateway.PATIENCE", 0.2)
    raw = json.dumps(body(messages=asked("a " * 60_000, PICTURE), stream=True)).encode()  # 14 MB of events
    with socket.create_connection(place_of(served), timeout=10) as line:
        line.sendall(head(len(raw)) + raw)
        wait_for(lambda: served[1].taken)
        wait_for(lambda: not served[1].taken)


def test_so_many_at_once(monkeypatch, web):
    monkeypatch.setattr(app, "MOST_OPEN", 0)
    answer = web.post(CHAT, json=body())
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert refused(answer)["code"] == "rate_limit_exceeded"
    assert web.get("/health").status_code == web.get("/metrics").status_code == 200


def test_so_many_bytes_at_once(held, web, served, monkeypatch):
    """Bodies are bounded together, and not only each: whether one says its size or not. Any one alone is let in."""
    raw = json.dumps(body(messages=asked("hold", PICTURE))).encode()
    monkeypatch.setattr(app, "MOST_BODIES", len(raw) + 10)
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(web.post, CHAT, content=raw)
        wait_for(lambda: held.batches)
        for size in (99, None):
            with socket.create_connection(place_of(served), timeout=10) as line:
                line.sendall(head(size) + (b"" if size else b"20\r\n" + b" " * 32 + b"\r\n"))
                told = line.recv(4096)
            assert told.startswith(b"HTTP/1.1 429")
            assert b"retry-after: 1" in told
        assert web.get("/health").status_code == 200
        held.go.set()
        assert first.result().status_code == 200
    assert web.post(CHAT, json=body()).status_code == 200


# ---------------------------------------------------------------- the line


def test_bodies_are_read_one_after_the_other(web, monkeypatch):
    """A list of empty objects takes 30 times the bytes of its JSON."""
    reading, most = [], []

    def loads(raw):
        reading.append(raw)
        most.append(len(reading))
        time.sleep(0.05)
        reading.pop()
        return json.loads(raw)

    monkeypatch.setattr(app, "json", SimpleNamespace(loads=loads, dumps=json.dumps))
    with ThreadPoolExecutor(4) as clients:
        for one in [clients.submit(web.post, CHAT, json=body()) for _ in range(4)]:
            assert one.result().status_code == 200
    assert most == [1] * 4


def test_those_who_wait_are_answered_together(held, web, served):
    with ThreadPoolExecutor(8) as clients:
        first = clients.submit(web.post, CHAT, json=body(messages=asked("hold", PICTURE)))
        wait_for(lambda: held.batches)
        others = []
        for number in range(4):
            others.append(clients.submit(web.post, CHAT, json=body(messages=asked(f"question {number}", PICTURE))))
            wait_for(lambda: len(served[1].waiting) == len(others))
        held.go.set()
        texts = [one.result().json()["choices"][0]["message"]["content"] for one in (first, *others)]
    assert texts == ["hold", *(f"question {number}" for number in range(4))]
    assert held.batches == [["hold"], [f"question {number}" for number in range(4)]]


def test_seeds_and_other_settings_are_not_mixed(held, web, served):
    changes = [{"seed": 1}, {"temperature": 0.5}, {"seed": 1}, {"temperature": 0.5}]
    with ThreadPoolExecutor(8) as clients:
        waiting = [clients.submit(web.post, CHAT, json=body(messages=asked("hold", PICTURE)))]
        wait_for(lambda: held.batches)
        for number, change in enumerate(changes):
            waiting.append(clients.submit(web.post, CHAT, json=body(messages=asked(str(number), PICTURE), **change)))
            wait_for(lambda: len(served[1].waiting) == len(waiting) - 1)
        held.go.set()
        assert all(one.result().status_code == 200 for one in waiting)
    assert held.batches == [["hold"], ["0"], ["1", "3"], ["2"]]


def test_long_and_short_are_not_mixed(held, web, served):
    """Rows of a batch are padded to the longest."""
    with ThreadPoolExecutor(8) as clients:
        waiting = [clients.submit(web.post, CHAT, json=body(messages=asked("hold", PICTURE)))]
        wait_for(lambda: held.batches)
        for question in ("a", "long b", "c", "long d"):
            waiting.append(clients.submit(web.post, CHAT, json=body(messages=asked(question, PICTURE))))
            wait_for(lambda: len(served[1].waiting) == len(waiting) - 1)
        held.go.set()
        assert all(one.result().status_code == 200 for one in waiting)
    assert held.batches == [["hold"], ["a", "c"], ["long b", "long d"]]


def test_those_who_ask_the_same_go_first_and_whoever_waits_longest_always(held, web, served):
    """A batch takes as many steps as its longest answer, and answers to one question are about as long."""
    with ThreadPoolExecutor(6) as clients:
        waiting = []
        for question in ("hold", "one", "two", "three", "four", "one"):
            waiting.append(clients.submit(web.post, CHAT, json=body(messages=asked(question, PICTURE))))
            wait_for(lambda: held.batches and len(served[1].waiting) == len(waiting) - 1)
        held.go.set()
        assert all(one.result().status_code == 200 for one in waiting)
    assert held.batches == [["hold"], ["one", "one", "two", "three"], ["four"]]


def test_a_full_line_says_when_to_come_back(held, web, served):
    with ThreadPoolExecutor(6) as clients:
        waiting = [clients.submit(web.post, CHAT, json=body(messages=asked("hold", PICTURE))) for _ in range(6)]
        wait_for(lambda: len(served[1].taken) == 6)
        answer = web.post(CHAT, json=body())
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert refused(answer)["code"] == "rate_limit_exceeded"
        held.go.set()
        assert all(one.result().status_code == 200 for one in waiting)
    assert web.post(CHAT, json=body()).status_code == 200


def test_small_images_do_not_wait_for_large_ones(monkeypatch):
    """Which are decoded two at once: as many as there may be wait for that, and hold up nobody."""
    large = data_uri(Image.new("RGB", (128, 64)))
    monkeypatch.setattr(box, "LARGE", 64 * 64)
    rooms = [threading.BoundedSemaphore(1) for _ in range(2)]
    monkeypatch.setattr(box.BOX, "_rooms", rooms)
    with serving(Stub(), places=40) as (url, line), ThreadPoolExecutor(33) as clients, rooms[0]:
        post = partial(httpx.post, url + CHAT, timeout=30)
        waiting = [clients.submit(post, json=body(messages=asked("what?", large))) for _ in range(33)]
        wait_for(lambda: len(line.taken) == 33)
        assert post(json=body()).status_code == 200
        assert len(line.taken) == 33
        rooms[0].release()
        assert {one.result().status_code for one in waiting} == {200}
        rooms[0].acquire()


def test_so_many_pixels_at_once(held, web, served, monkeypatch):
    monkeypatch.setattr("arr_coc.serving.line.MOST_PIXELS_IN_ALL", 5000)
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(web.post, CHAT, json=body(messages=asked("hold", PICTURE)))
        wait_for(lambda: held.batches)
        assert web.post(CHAT, json=body()).status_code == 429
        held.go.set()
        assert first.result().status_code == 200
    assert served[1].taken == {}


def test_a_place_is_kept_until_the_choice_is_told(web, served, monkeypatch):
    """A picture of it takes time and memory, which places bound."""
    drawing, drawn, choice = threading.Event(), threading.Event(), app.choice

    def slowly(*given):
        drawing.set()
        assert drawn.wait(10)
        return choice(*given)

    monkeypatch.setattr(app, "choice", slowly)
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(web.post, SELECT, json=body())
        assert drawing.wait(10)
        taken = len(served[1].taken)
        drawn.set()
        assert (first.result().status_code, taken) == (200, 1)
    wait_for(lambda: not served[1].taken)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(stream, held, web, served):
    line = served[1]
    streamed = body(messages=asked("hold", PICTURE), stream=True)
    way = web.stream("POST", CHAT, json=streamed) if stream else socket.create_connection(place_of(served))
    with way as client:
        if not stream:
            raw = json.dumps(body(messages=asked("hold", PICTURE))).encode()
            client.sendall(head(len(raw)) + raw)
        wait_for(lambda: held.batches and len(line.taken) == 1)
    began = time.monotonic()
    wait_for(lambda: not line.taken)
    assert time.monotonic() - began < 2
    assert web.post(CHAT, json=body()).status_code == 200, "and the engine is free again"
    assert (len(line.taken), len(line.waiting)) == (0, 0)


def test_who_leaves_while_waiting_is_never_answered(held, web, served):
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(web.post, CHAT, json=body(messages=asked("hold", PICTURE)))
        wait_for(lambda: held.batches)
        with web.stream("POST", CHAT, json=body(messages=asked("gone", PICTURE), stream=True)):
            wait_for(lambda: len(served[1].waiting) == 1)
        wait_for(lambda: len(served[1].taken) == 1)
        assert not served[1].waiting, "nor are its images held until its turn would come"
        held.go.set()
        first.result()
    assert web.post(CHAT, json=body()).status_code == 200
    assert held.batches == [["hold"], ["what is this?"]]


@pytest.mark.parametrize(("question", "status"), [("fault", 500), ("memory", 503)])
def test_a_fault_is_told_by_its_number(question, status, held, web, caplog):
    answer = web.post(CHAT, json=body(messages=asked(question, PICTURE)))
    error = refused(answer)
    assert (answer.status_code, error["type"]) == (status, "server_error")
    if status == 500:
        assert answer.headers["x-request-id"] in error["message"]
        assert any(
            answer.headers["x-request-id"] in record.getMessage() and record.exc_info for record in caplog.records
        )
    streamed = web.post(CHAT, json=body(messages=asked(question, PICTURE), stream=True)).text
    assert not LEAKS.search(streamed)
    *_, last, done = [line for line in streamed.splitlines() if line]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    assert done == "data: [DONE]"


def test_one_bad_question_harms_no_other(held, web, served):
    with ThreadPoolExecutor(4) as clients:
        waiting = [clients.submit(web.post, CHAT, json=body(messages=asked("hold", PICTURE)))]
        wait_for(lambda: held.batches)
        for question in ("good", "fault", "better"):
            waiting.append(clients.submit(web.post, CHAT, json=body(messages=asked(question, PICTURE))))
            wait_for(lambda: len(served[1].waiting) == len(waiting) - 1)
        held.go.set()
        assert [one.result().status_code for one in waiting] == [200, 200, 500, 200]
    assert held.batches[1:] == [["good", "fault", "better"], ["good"], ["fault"], ["better"]]


def test_what_a_batch_ran_out_of_memory_with_is_given_back_before_each_is_tried_alone():
    class Large:
        pass

    held, came, engine = [], SimpleQueue(), Stub()

    def answer(batch):
        if len(batch) > 1:
            large = Large()
            held.append(weakref.ref(large))
            raise torch.OutOfMemoryError("CUDA out of memory")
        batch[0].deliver(held[0]())

    engine.answer = answer
    line = Line(engine, Metrics())
    with line._changed:  # both before its thread looks
        for _ in range(2):
            line.join(Ticket(read_chat(body(), LIMITS, "mini"), None, came.put, length=1))
    assert [came.get(timeout=10) for _ in range(2)] == [None, None]
    line.close()


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (RuntimeError("shapes do not fit"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("CUDA error: out of memory"), False),
    ],
    ids=str,
)
def test_a_lost_device_is_told_by_the_health(error, lost):
    """Nobody is asked again in vain, and whoever looks after the server sees that it must be started anew."""
    engine = Stub()

    def answer(batch):
        engine.batches.append(batch)
        raise error

    engine.answer = answer
    with serving(engine) as (url, _), httpx.Client(base_url=url) as web:
        assert web.get("/health").json()["status"] == "ok"
        assert web.post(CHAT, json=body()).status_code in (500, 503)
        health = web.get("/health")
        assert (health.status_code, health.json()["status"]) == ((503, "lost") if lost else (200, "ok"))
        again = web.post(CHAT, json=body())
        assert ("started anew" in refused(again)["message"]) == lost
        assert len(engine.batches) == (1 if lost else 2)
        assert f"arr_coc_lost {int(lost)}" in web.get("/metrics").text


def test_who_ends_it_at_once_leaves_nobody_without_an_answer(capfd, monkeypatch):
    """As by Ctrl-C twice: what runs is told that the server ends, and no traceback is left."""
    engine, made = Stub(), []
    monkeypatch.setattr("api_server.make_server", lambda *how: made.append(app.make_server(*how)) or made[0])
    with ThreadPoolExecutor(1) as clients, serving(engine) as (url, _):
        waiting = clients.submit(httpx.post, url + CHAT, json=body(messages=asked("hold", PICTURE)))
        wait_for(lambda: engine.batches)
        made[0].force_exit = made[0].should_exit = True
    assert (waiting.result().status_code, refused(waiting.result())["type"]) == (503, "server_error")
    assert "Traceback" not in capfd.readouterr().err


# ---------------------------------------------------------------- what is told


def test_models_and_metrics(held, web, served):
    held.go.set()
    (model,) = web.get("/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("mini", "model")
    before, after = web.get("/metrics").text, None
    web.post(CHAT, json=body())
    web.get("/nowhere")
    after = web.get("/metrics").text

    def value(text, name):
        return float(re.search(rf"^arr_coc_{re.escape(name)} (.+)$", text, re.M)[1])

    for name, step in (("visual_tokens_total", 4), ("visual_tokens_kept_total", 1), ("completion_tokens_total", 2)):
        assert value(after, name) - value(before, name) == step
    assert value(after, f'requests_total{{path="{CHAT}",status="200"}}') >= 1
    assert value(after, "places_taken") == value(after, "waiting") == 0
    assert 'arr_coc_requests_total{path="other",status="404"}' in after


def test_every_line_of_the_metrics_can_be_read():
    metrics = Metrics()
    metrics.add("requests_total", path="/v1/models", status=200)
    metrics.add("requests_total", 10**9, path="/v1/models", status=200)
    gauges = dict.fromkeys(
        ("lost", "places_taken", "waiting", "cache_bytes", "cache_hits_total", "cache_misses_total"), 7
    )
    text = metrics.text(gauges)
    assert 'arr_coc_requests_total{path="/v1/models",status="200"} 1000000001' in text
    assert "# TYPE arr_coc_cache_hits_total counter\narr_coc_cache_hits_total 7\n" in text
    assert all(
        re.fullmatch(r'(# (HELP|TYPE) .+|arr_coc_\w+(\{(\w+="[^"]*",?)+\})? [\d.e+-]+)', one)
        for one in text.splitlines()
    )


def test_without_its_libraries_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("arr_coc.cli.serve.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "arr_coc.gateway", None)  # which needs them
    assert run.run(["serve"]) == 3
    assert capsys.readouterr().err == "arr-coc: the server needs FastAPI and uvicorn: pip install 'arr-coc[serve]'\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--engine", "vllm"], "leave --engine out"),
        (["--engine", "fast"], "give auto, plain, vllm"),
        (["--host", "0.0.0.0"], "set a key in ARR_COC_API_KEY"),
        (["--api-key", "short"], "12 or more"),
        (["--keep", "1"], "give 1.0 for all"),
        (["--model", "nothing-here"], "no model"),
        (["--host", "no.such.host.invalid", "--api-key", KEY], "no such address"),
    ],
)
def test_a_server_that_cannot_be_is_refused_in_one_line(arguments, told, capsys, monkeypatch):
    monkeypatch.setattr(app, "serve", lambda *_: pytest.fail("it must not start"))
    assert run.run(["serve", "--port", "18999", *arguments]) in (3, 4)
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
