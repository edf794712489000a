"""The demo over HTTP: what it serves, what it refuses, and many people at once."""

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from demo_server import free_port, serving, started
from gradio_client import Client, handle_file
from PIL import Image
from test_clips_in import moving

from arr_coc.demo import scenes as worlds
from arr_coc.demo import serving as serving_module
from arr_coc.demo.models import Models, process_megabytes
from arr_coc_scenes import make_scene

ROOT = Path(__file__).parent.parent
CLIENTS, EACH = 8, 2
MOST_GROWTH = 32  # megabytes that 16 questions may leave behind
web = httpx.Client(timeout=120)  # a machine under load is slow, and that is no failure


@pytest.fixture(scope="module")
def models():
    return Models(["mini"])


@pytest.fixture(scope="module")
def url(models):
    with serving(models) as address:
        yield address


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("sample") / "scene.png"
    worlds.picture_of(worlds.scene_of(529, worlds.ANY)).save(path)
    return path


def call(url: str, image: dict | None, question: str = "What colour is the hand?", model: str = "mini") -> list[str]:
    """The events of one question, as the server sends them."""
    data = [image, question, 0, model]
    number = web.post(f"{url}/gradio_api/call/ask", json={"data": data}).json()["event_id"]
    return web.get(f"{url}/gradio_api/call/ask/{number}").text.splitlines()


def file_data(path: str, **more: str) -> dict:
    return {"path": path, "meta": {"_type": "gradio.FileData"}, **more}


def test_a_question_over_http(url, sample):
    answer, overlay, heat, figures, *_ = Client(url, verbose=False).predict(
        handle_file(sample), "What colour is the hand?", 0, "mini", api_name="/ask"
    )
    assert answer == "green"
    with Image.open(overlay) as picture:
        assert picture.size == (512, 512)
    assert Path(heat).is_file()
    assert "256 visual tokens" in figures


def test_a_gif_that_moves_is_a_clip_over_http_too(url, tmp_path):
    shown = moving(tmp_path / "a.gif", "GIF")
    *_, player, moments = Client(url, verbose=False).predict(
        handle_file(shown), "What moves?", 50, "mini", api_name="/ask"
    )
    assert Path(str(player["video"] if isinstance(player, dict) else player)).stat().st_size > 1000
    with Image.open(moments) as picture:
        assert picture.width > 600


def test_only_asking_and_comparing_are_for_others(url):
    named = web.get(f"{url}/gradio_api/info").json()["named_endpoints"]
    assert set(named) == {"/ask", "/compare"}


def test_the_page_loads_nothing_from_outside(url):
    answer = web.get(url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    loaded = [line for line in answer.text.split("<") if line.startswith(("script", "link")) and "http" in line]
    assert [line for line in loaded if url not in line.split(">")[0] and "http" in line.split(">")[0]] == []


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        str(ROOT / "pyproject.toml"),
        "pyproject.toml",
        "../../../../etc/passwd",
        "%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/proc/self/environ",
        "/ETC/PASSWD",
        "//etc/passwd",
        "C:\\Windows\\win.ini",
        "http://127.0.0.1:1/x.png",
    ],
)
def test_no_file_of_the_server_is_served(url, path):
    for route in ("gradio_api/file=", "file=", "gradio_api/file/"):
        assert web.get(f"{url}/{route}{path}").status_code in (400, 403, 404, 405)


@pytest.mark.parametrize("path", ["/etc/passwd", str(ROOT / "arr_coc" / "assets" / "sample.png"), "../x.png"])
def test_an_image_is_never_a_path_of_the_server(url, path):
    events = call(url, file_data(path))
    assert "event: error" in events
    assert not any("green" in line or path in line for line in events)


def test_an_image_is_never_an_address(url):
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(1)
        address = f"http://127.0.0.1:{trap.getsockname()[1]}/scene.png"
        for image in (file_data(address), file_data(address, url=address), file_data("x.png", url=address)):
            assert "event: error" in call(url, image)
        with pytest.raises(TimeoutError):
            trap.accept()


def test_too_much_is_refused(url):
    upload = {"files": ("huge.png", b"\x89PNG" + bytes(21 * 2**20))}
    assert web.post(f"{url}/gradio_api/upload", files=upload).status_code == 413


def test_a_model_that_was_not_named_is_refused(url, sample):
    (path,) = web.post(f"{url}/gradio_api/upload", files={"files": sample.open("rb")}).json()
    events = call(url, file_data(path), model="Qwen/Qwen3-VL-2B-Instruct")
    assert "event: error" in events


def test_errors_are_short_and_ours(url, sample, tmp_path):
    (tmp_path / "broken.png").write_bytes(sample.read_bytes()[:500])
    (path,) = web.post(f"{url}/gradio_api/upload", files={"files": (tmp_path / "broken.png").open("rb")}).json()
    events = call(url, file_data(path))
    (told,) = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
    assert told["error"].startswith("broken.png: the image is damaged")
    assert "/" not in told["error"]
    events = call(url, None)
    assert any("upload one, or click an example" in line for line in events)


def questions() -> list[tuple[Image.Image, str]]:
    """An image and a question for each of those that will be asked at once: small, and every image different."""
    found: list[tuple[Image.Image, str]] = []
    for seed in range(60, 60 + CLIENTS * EACH):
        scene = make_scene(seed, "seen", (256, 256))
        found.append((worlds.picture_of(scene), scene.questions[0].text))
    return found


def settled_megabytes() -> float:
    """Memory in use once what is free has gone back to the system; each thread's allocator likes to keep some."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return process_megabytes() or 0.0


def test_many_at_once_answer_as_alone_and_leave_no_memory_behind(url, models, tmp_path):
    """Eight clients, two questions each, after every question alone and all of them once to warm up."""
    asked = questions()
    with models.use("mini") as owner:
        alone = [owner.ask(image, text, keep="auto").text for image, text in asked]
    assert len(set(alone)) > len(alone) // 2
    for number, (image, _) in enumerate(asked):
        image.save(tmp_path / f"{number}.png")
    clients = [Client(url, verbose=False) for _ in range(CLIENTS)]

    def answers(numbers: Iterable[int]) -> dict[int, str]:
        """Of these questions, each put by the client whose turn it is, all clients at once."""
        told: dict[int, str] = {}

        def work(client: int) -> None:
            for number in numbers:
                if number % CLIENTS == client:
                    inputs = (handle_file(tmp_path / f"{number}.png"), asked[number][1], 0, "mini")
                    told[number] = clients[client].predict(*inputs, api_name="/ask")[0]

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(work, range(CLIENTS)))
        return told

    answers(range(len(asked)))
    growth = MOST_GROWTH
    for _ in range(3):  # threads may each take a piece of memory once more; what leaks grows every time
        if growth >= MOST_GROWTH:
            before = settled_megabytes()
            together = answers(range(len(asked)))
            assert [together[number] for number in range(len(asked))] == alone
            growth = settled_megabytes() - before
    assert growth < MOST_GROWTH


def test_nobody_else_runs_what_the_page_runs(url):
    """By name, past the queue, or in the queue: without an open page, none of it is begun."""
    for called in web.get(f"{url}/config").json()["dependencies"]:
        if called["api_visibility"] != "public":
            assert web.post(f"{url}/gradio_api/call/{called['api_name']}", json={"data": []}).status_code == 404
    private = next(one for one in web.get(f"{url}/config").json()["dependencies"] if one["api_name"] == "turned")
    body = {"data": [9, 0, "mini"], "fn_index": private["id"], "session_hash": "nobody"}
    assert web.post(f"{url}/gradio_api/run/predict", json=body).status_code == 403
    body = {"data": [None, "mini"], "fn_index": private["id"] - 1, "session_hash": "nobody"}
    assert web.post(f"{url}/gradio_api/queue/join", json=body).status_code == 200
    told = web.get(f"{url}/gradio_api/queue/data", params={"session_hash": "nobody"}).text
    assert "this is for the page alone" in told
    assert "process_starts" not in told


def test_another_name_for_this_machine_is_refused(url):
    answer = web.get(url, headers={"host": "rebound.example"})
    assert answer.status_code == 403
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_large_bodies_are_not_read(url):
    assert web.post(f"{url}/gradio_api/queue/join", content=b" " * 2**21).status_code == 413
    pieces = (b" " * 2**16 for _ in range(64))  # without a length
    with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
        assert web.post(f"{url}/gradio_api/call/ask", content=pieces).status_code == 413


@pytest.mark.soak
@pytest.mark.parametrize("first", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_line_that_is_held_is_closed(url, first):
    """Nothing, or half a head: after a while the server hangs up."""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as line:
        line.sendall(first)
        line.settimeout(120)
        assert line.recv(100) == b""


def test_those_who_ask_to_end_are_heard(monkeypatch):
    """As SIGTERM is at the Space; `nohup` says that the end of the terminal is not meant."""
    set_to = {}
    monkeypatch.setattr(signal, "signal", set_to.__setitem__)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)
    serving_module._heed_signals()
    assert set_to.keys() == {signal.SIGTERM, signal.SIGHUP}
    for heard in set_to.values():
        with pytest.raises(SystemExit) as ended:
            heard(None, None)
        assert ended.value.code == 0
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number == signal.SIGHUP else None)
    set_to.clear()
    serving_module._heed_signals()
    assert set_to.keys() == {signal.SIGTERM}


def listening(process: int) -> list[tuple[str, int]]:
    """Addresses and ports at which a process waits for others."""
    own = {os.readlink(one) for one in Path(f"/proc/{process}/fd").iterdir()}
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            here, state, inode = fields[1], fields[3], fields[9]
            if state == "0A" and f"socket:[{inode}]" in own:
                host, _, port = here.partition(":")
                words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
                found.append((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGHUP, 0, marks=pytest.mark.soak)]
)
def test_the_command_serves_until_it_is_ended(tmp_path, number, code):
    port = free_port()
    with started(["-m", "arr_coc", "demo", "--port", str(port)], port, tmp_path) as (_, process):
        assert listening(process.pid) == [("127.0.0.1", port)]
        process.send_signal(number)
        assert process.wait(60) == code
    said = (tmp_path / "log").read_text()
    assert f"the demo is at http://127.0.0.1:{port}" in said
    assert "Traceback" not in said
    assert not list((tmp_path / "temporary").glob("arr-coc-demo-*"))
