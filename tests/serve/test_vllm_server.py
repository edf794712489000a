"""`arr-coc serve --engine vllm` through the official client: answers as those of `ask`, alone and together."""

import asyncio
import base64
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from engines import QUESTIONS

ROOT = Path(__file__).parents[2]
KEY = "a key of our own"
DIALS = (None, "auto", 0.25, 1.0, 48, 0.1)
START_SECONDS = 600


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def data_uri(picture) -> str:
    written = io.BytesIO()
    picture.save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def asked(question, *addresses) -> list[dict]:
    images = [{"type": "image_url", "image_url": {"url": address}} for address in addresses]
    return [{"role": "user", "content": [*images, {"type": "text", "text": question}]}]


@pytest.fixture(scope="module")
def cases(own, pictures):
    """16 questions with dials of their own, and what `ask` says to each."""
    chosen = [(n % 3, QUESTIONS[n % 3], DIALS[n % len(DIALS)]) for n in range(16)]
    return [(*one, own.ask(pictures[one[0]], one[1], keep=one[2])) for one in chosen]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Address and process; the command is the one of the page."""
    page, port = (ROOT / "docs" / "serving.md").read_text(), free_port()
    (line,) = re.findall(r"^arr-coc (serve .*--engine vllm.*)$", page, re.M)
    words = [str(Path(sys.executable).parent / "arr-coc"), *line.split(), "--port", str(port)]
    log, named = tmp_path_factory.mktemp("log") / "server.log", {"ARR_COC_API_KEY": KEY, "VLLM_LOGGING_LEVEL": "INFO"}
    with log.open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, env={**os.environ, **named})
    until, url = time.monotonic() + START_SECONDS, f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                httpx.get(f"{url}/health").raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < until, log.read_text()[-3000:]
                time.sleep(0.5)
        yield url, process, log
    finally:
        process.kill()
        process.wait(60)


@pytest.fixture(scope="module")
def settings(served):
    return {"base_url": f"{served[0]}/v1", "api_key": KEY, "max_retries": 0, "timeout": 250}


@pytest.fixture(scope="module")
def client(settings):
    return openai.OpenAI(**settings)


def request(pictures, case, **more) -> dict:
    """The dial beside the messages, or where vLLM wants it."""
    place, question, keep, _ = case
    body = {"keep": keep} if question == QUESTIONS[0] else {"mm_processor_kwargs": {"keep": keep}}
    dial = {} if keep is None else {"extra_body": body}
    return {"model": "mini", "messages": asked(question, data_uri(pictures[place])), **dial, **more}


def check(case, text, usage) -> None:
    answer = case[3]
    assert text == answer.text
    assert usage.prompt_tokens_details.multimodal_tokens["image"] == answer.tokens_kept


def test_it_says_its_command_and_what_choosing_takes(served):
    told = served[2].read_text()
    assert "-m vllm.entrypoints.openai.api_server --model" in told
    assert re.search(r"ARR-COC chooses by arr_coc with 0\.\d\d GB on cpu beside the engine", told)
    assert KEY not in told


def test_sixteen_at_once_are_answered_as_alone(client, pictures, cases):
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda case: client.chat.completions.create(**request(pictures, case)), cases))
    for case, one in zip(cases, found, strict=True):
        check(case, one.choices[0].message.content, one.usage)
        assert one.choices[0].finish_reason == "stop"


def test_sixteen_at_once_streamed(client, pictures, cases):
    def stream(case):
        how = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.chat.completions.create(**request(pictures, case, **how)))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks[-1].usage

    with ThreadPoolExecutor(16) as clients:
        for case, (text, usage) in zip(cases, clients.map(stream, cases), strict=True):
            check(case, text, usage)


def test_sixteen_at_once_asynchronous(settings, pictures, cases):
    async def all_of_them():
        async with openai.AsyncOpenAI(**settings) as client:
            return await asyncio.gather(*(client.chat.completions.create(**request(pictures, case)) for case in cases))

    for case, one in zip(cases, asyncio.run(all_of_them()), strict=True):
        check(case, one.choices[0].message.content, one.usage)


def post(served, body, path="/v1/chat/completions", **headers):
    head = {"authorization": f"Bearer {KEY}", **headers}
    return httpx.post(served[0] + path, json=body, headers=head, timeout=120)


def test_the_plain_one_of_javascript_is_all(served, pictures, cases):
    case = next(case for case in cases if case[2] == 1.0)
    given = request(pictures, (*case[:2], None, None))
    for dial in ({"keep": 1}, {"mm_processor_kwargs": {"keep": 1}}):
        answer = post(served, given | dial).json()
        assert answer["choices"][0]["message"]["content"] == case[3].text
        assert answer["usage"]["prompt_tokens_details"]["multimodal_tokens"]["image"] == 256


def test_what_is_refused(served, pictures):
    given = request(pictures, (0, QUESTIONS[0], None, None))
    for more, why in (
        ({"keep": 7.5}, "keep=7.5"),
        ({"mm_processor_kwargs": {"size": 4}}, "give keep alone"),
        ({"keep": 0.5, "mm_processor_kwargs": {"keep": 0.25}}, "keep given twice"),
        ({"messages": asked("What <|image_pad|>?", data_uri(pictures[0]))}, "2 image placeholders for 1 images"),
        ({"messages": asked("What?", "https://example.org/a.png")}, "example.org|domain"),
        ({"messages": asked("What?", *[data_uri(pictures[0])] * 9)}, "8"),
    ):
        answer = post(served, given | more)
        assert answer.status_code == 400, answer.text
        assert re.search(why, answer.json()["error"]["message"])
        assert "Traceback" not in answer.text
    assert post(served, given | {"model": "gpt"}).status_code == 404
    for path in ("/v1/chat/completions", "/invocations", "/tokenize"):
        assert post(served, given, path, authorization="Bearer no").status_code == 401
    assert post(served, given, "/invocations").status_code == 200, "it answers there too"
    assert post(served, given, host="example.org").status_code == 403
    large = post(served, {"model": "x" * (33 << 20)})
    assert (large.status_code, "32 MB" in large.json()["error"]["message"]) == (413, True)


@pytest.fixture
def blocks(monkeypatch, tmp_path):
    """Python of the page that needs vLLM, with the files that it speaks of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.jpg").write_bytes((ROOT / "arr_coc" / "assets" / "sample.png").read_bytes())
    page = (ROOT / "docs" / "serving.md").read_text()
    return re.findall(r"^```py\n(.*?)^```$", page, re.M | re.S)


def test_the_page_does_what_it_says(settings, blocks, capsys):
    online, offline = blocks
    online = online.replace("http://127.0.0.1:8000/v1", settings["base_url"]).replace('"none"', json.dumps(KEY))
    exec(compile(online, "serving.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["green 64"]
    Path("offline.py").write_text(offline)
    variables = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    made = subprocess.run([sys.executable, "offline.py"], env=variables, capture_output=True, text=True, timeout=600)
    assert made.stdout.splitlines()[-1:] == ["green"], made.stderr[-3000:]


def test_without_the_plugin_it_does_not_start(tmp_path):
    """And never serves without choosing."""
    words = [str(Path(sys.executable).parent / "arr-coc"), "serve", "--engine", "vllm", "--port", str(free_port())]
    variables = {**os.environ, "VLLM_PLUGINS": "lora_filesystem_resolver"}
    made = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=START_SECONDS)
    assert made.returncode != 0
    assert "ARRCOCQwen3VLForConditionalGeneration" in made.stderr
    assert "not supported" in made.stderr


def test_it_ends_when_it_is_asked_to(served):
    served[1].send_signal(signal.SIGTERM)
    assert served[1].wait(60) == 0
