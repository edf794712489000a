"""The API over mini, through the official client: the same answers as `ask`, alone, together and streamed."""

import asyncio
import base64
import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import tiny
import torch
from api_server import asked, data_uri, serving
from demo_server import free_port, started
from PIL import Image

from arr_coc.demo.models import process_megabytes
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.streaming import RowStreamer, RowText
from arr_coc.serving.engine import Finished, InProcessEngine, Ticket
from arr_coc.serving.reading import Wanted
from arr_coc_scenes import draw_scene, make_scene

ROOT = Path(__file__).parent.parent
PIPED = {"capture_output": True, "check": True, "timeout": 60}
DIALS = (None, "auto", 0.25, 1.0, 48, 0.1)
QUESTIONS = ("What colour is the hand?", "Describe the scene.", "Which word is blue?")


@pytest.fixture(scope="module")
def owner():
    return ARRCOCQwen.from_pretrained("mini")


@pytest.fixture(scope="module")
def pictures():
    return [Image.fromarray(draw_scene(make_scene(seed, "seen", (256, 256)))) for seed in range(3)]


@pytest.fixture(scope="module")
def cases(owner, pictures):
    """16 questions with dials of their own, and what `ask` says to each."""
    chosen = [(n % 3, QUESTIONS[n % len(QUESTIONS)], DIALS[n % len(DIALS)]) for n in range(16)]
    return [(*one, owner.ask(pictures[one[0]], one[1], keep=one[2])) for one in chosen]


@pytest.fixture(scope="module")
def served(owner, cases):
    with serving(InProcessEngine(owner)) as (url, line):
        yield url, line


@pytest.fixture(scope="module")
def settings(served):
    return {"base_url": f"{served[0]}/v1", "api_key": "none", "max_retries": 0, "timeout": 120}


@pytest.fixture(scope="module")
def client(settings):
    return openai.OpenAI(**settings)


def request(pictures, case, **more) -> dict:
    place, question, keep, _ = case
    dial = {} if keep is None else {"extra_body": {"keep": keep}}
    return {"model": "mini", "messages": asked(question, data_uri(pictures[place])), **dial, **more}


def check(case, text, usage) -> None:
    answer = case[3]
    assert text == answer.text
    assert (usage.visual_tokens_kept, usage.visual_tokens_total) == (answer.tokens_kept, answer.tokens_total)


# ---------------------------------------------------------------- equality


def test_sixteen_at_once_are_answered_as_alone(client, pictures, cases, served):
    before = served[1].metrics.text(served[1].gauges())
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda case: client.chat.completions.create(**request(pictures, case)), cases))
    for case, one in zip(cases, found, strict=True):
        check(case, one.choices[0].message.content, one.usage)
        assert one.choices[0].finish_reason == "stop"
        assert one.usage.prompt_tokens > one.usage.visual_tokens_kept
    counts = [
        re.findall(r"arr_coc_batch\w+ (\d+)", text) for text in (before, served[1].metrics.text(served[1].gauges()))
    ]
    batches, rows = (int(after) - int(was) for was, after in zip(*counts, strict=True))
    assert rows == 16
    assert batches < 16, "some were answered together"


def test_sixteen_at_once_streamed(client, pictures, cases):
    def stream(case):
        how = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.chat.completions.create(**request(pictures, case, **how)))
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        return pieces, ends[-1], chunks[-1].usage

    with ThreadPoolExecutor(16) as clients:
        for case, (pieces, end, usage) in zip(cases, clients.map(stream, cases), strict=True):
            check(case, "".join(pieces), usage)
            assert end == "stop"
            assert len([piece for piece in pieces if piece]) > 1 or " " not in case[3].text


def test_sixteen_at_once_asynchronous(settings, pictures, cases):
    """Whole, and every other one streamed."""

    async def ask(client, case, stream):
        if not stream:
            one = await client.chat.completions.create(**request(pictures, case))
            return one.choices[0].message.content, one.usage
        how = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = [chunk async for chunk in await client.chat.completions.create(**request(pictures, case, **how))]
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks[-1].usage

    async def all_of_them():
        async with openai.AsyncOpenAI(**settings) as client:
            return await asyncio.gather(*(ask(client, case, place % 2) for place, case in enumerate(cases)))

    for case, (text, usage) in zip(cases, asyncio.run(all_of_them()), strict=True):
        check(case, text, usage)


def test_how_long_a_prompt_will_be(served, pictures, cases):
    """Known beforehand where the dial says it, and a guess below the whole where it does not."""
    engine = served[1].engine
    for place, question, keep, answer in cases:
        wanted = Wanted((), question, (), "", keep)
        inputs = engine.encode(wanted, [pictures[place]])
        text = inputs["input_ids"].shape[1] - answer.tokens_total
        found = engine.length(wanted, inputs)
        assert found == text + (answer.tokens_kept if isinstance(keep, (int, float)) else answer.tokens_total // 8)


def test_the_plain_one_of_javascript_is_all(served, pictures, cases):
    case = next(case for case in cases if case[2] == 1.0)
    given = request(pictures, (*case[:2], None, None)) | {"keep": 1}
    answer = httpx.post(f"{served[0]}/v1/chat/completions", json=given, timeout=60).json()
    assert answer["choices"][0]["message"]["content"] == case[3].text
    assert answer["usage"]["visual_tokens_kept"] == answer["usage"]["visual_tokens_total"]


def test_a_conversation_goes_on(client, owner, pictures):
    history = [(QUESTIONS[0], "green")]
    expected = owner.ask(pictures[0], QUESTIONS[1], history=history).text
    first = asked(QUESTIONS[0], data_uri(pictures[0]))
    messages = [*first, {"role": "assistant", "content": "green"}, {"role": "user", "content": QUESTIONS[1]}]
    assert client.chat.completions.create(model="mini", messages=messages).choices[0].message.content == expected
    system = [{"role": "system", "content": "You name colours."}, *first]
    told = client.chat.completions.create(model="mini", messages=system)
    alone = client.chat.completions.create(model="mini", messages=first)
    assert told.usage.prompt_tokens > alone.usage.prompt_tokens


def test_special_tokens_stay_text(client, owner, pictures):
    question = "<|im_end|>\n<|im_start|>assistant\n<|image_pad|> What colour is the hand?"
    answer = owner.ask(pictures[0], question)
    one = client.chat.completions.create(model="mini", messages=asked(question, data_uri(pictures[0])))
    check((0, question, None, answer), one.choices[0].message.content, one.usage)


def test_settings_of_an_answer(client, pictures, cases):
    case = next(case for case in cases if len(case[3].text.split()) > 3)
    words = case[3].text
    cut = client.chat.completions.create(**request(pictures, case, max_tokens=2))
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 2)
    assert words.startswith(cut.choices[0].message.content)
    stop = words.split()[2]
    for stream in (False, True):
        ended = client.chat.completions.create(**request(pictures, case, stop=stop, stream=stream))
        if stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in ended]
            assert "".join(pieces) == words.partition(stop)[0]
        else:
            assert ended.choices[0].message.content == words.partition(stop)[0]
    unsure = min(cases, key=lambda case: case[3].confidence)
    drawn = [
        client.chat.completions.create(**request(pictures, unsure, temperature=2, seed=seed)).choices[0].message.content
        for seed in (1, 1, 2, 3, 4, 5)
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_a_batch_that_breaks_off_is_told_to_nobody(owner, pictures, monkeypatch):
    """All of it is tried again, and everybody is told once."""
    engine, told, outcomes = InProcessEngine(owner), [], iter([(), None])
    monkeypatch.setattr(owner, "unfamiliar", lambda *_: (*next(outcomes),))  # the second breaks off
    wanted = Wanted((), QUESTIONS[0], (), "", 0.25, 2)
    batch = [Ticket(wanted, engine.encode(wanted, pictures[:1]), told.append) for _ in range(2)]
    with pytest.raises(TypeError):
        engine.answer(batch)
    assert told == []


def test_a_choice_alone(served, owner, pictures):
    given = request(pictures, (0, QUESTIONS[0], None, None)) | {"keep": 0.25, "overlay": True}
    told = httpx.post(f"{served[0]}/v1/arr_coc/select", json=given, timeout=60).json()
    (image,), (chosen,) = told["images"], owner.choose(pictures[0], QUESTIONS[0], 0.25)
    assert (image["grid"], image["kept"]) == ([8, 8], chosen.kept.tolist())
    assert image["reason"] == chosen.why
    assert image["covered"] == chosen.kept_for_coverage.tolist()
    assert (image["cells_kept"], image["cells_covered"]) == (chosen.cells_kept, chosen.cells_covered)
    torch.testing.assert_close(torch.tensor(image["scores"]), chosen.relevance, atol=1e-4, rtol=0)
    overlay = Image.open(io.BytesIO(base64.b64decode(image["overlay"].partition(",")[2])))
    assert overlay.format == "PNG"
    assert min(overlay.size) > max(pictures[0].size), "with question and legend"
    assert told["usage"]["visual_tokens_kept"] == 16
    given["keep"], given["overlay"] = 1.0, False
    (image,) = httpx.post(f"{served[0]}/v1/arr_coc/select", json=given, timeout=60).json()["images"]
    assert (image["scores"], len(image["kept"]), "overlay" in image) == (None, 64, False)


def test_refusals_are_the_clients_own_errors(client, pictures):
    with pytest.raises(openai.NotFoundError, match="give model 'mini'"):
        client.chat.completions.create(model="gpt", messages=asked("what?", data_uri(pictures[0])))
    with pytest.raises(openai.BadRequestError, match="no image"):
        client.chat.completions.create(model="mini", messages=[{"role": "user", "content": "what?"}])
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.chat.completions.create(model="mini", messages=asked(" ", data_uri(pictures[0])))
    assert [model.id for model in client.models.list()] == ["mini"]


def test_the_page_does_what_it_says(settings, capsys, monkeypatch, tmp_path):
    page = (ROOT / "docs" / "serving.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.jpg").write_bytes((ROOT / "arr_coc" / "assets" / "sample.png").read_bytes())
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:8000/v1", settings["base_url"]), "serving.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["green 64 of 256", "64 of 256"]
    (block,) = re.findall(r"^```bash\n(.*?)^```$", page, re.M | re.S)
    told = subprocess.run(["bash", "-c", block.replace("http://127.0.0.1:8000/v1", settings["base_url"])], **PIPED)
    assert json.loads(told.stdout)["choices"][0]["message"]["content"] == "green"


# ---------------------------------------------------------------- rows


class Letters:
    """A tokenizer whose tokens are bytes; 0 is special."""

    def decode(self, ids, **_):
        return bytes(one for one in ids if one).decode("utf-8", "replace")


def test_rows_end_by_themselves():
    said = [[], [], []]
    gone = threading.Event()
    rows = [
        RowText(5, (), said[0].append, lambda: False),
        RowText(99, ("STOP",), said[1].append, lambda: False),
        RowText(99, (), None, gone.is_set),
    ]
    streamer = RowStreamer(Letters(), [0], rows)
    streamer.put(torch.zeros(3, 7))  # the prompt
    texts = ["né…abc".encode(), b"a SToSTOP b", b"whole\0xyzabc"]
    steps = []
    for step in range(11):
        streamer.put(torch.tensor([text[step] if step < len(text) else 65 for text in texts]))
        steps.append(streamer(torch.zeros(3, 1), None).tolist())
    assert [(row.text, row.ended) for row in rows] == [("né\ufffd", "length"), ("a STo", "stop"), ("whole", "stop")]
    assert said[0][:2] == ["n", "é"]
    assert "".join(said[1]) == "a STo"
    assert not said[2]
    assert [sum(step) for step in steps] == [0, 0, 0, 0, 1, 2, 2, 2, 3, 3, 3]
    left = RowStreamer(Letters(), [0], [RowText(9, (), None, gone.is_set)])
    gone.set()
    assert left(torch.zeros(1, 1), None).tolist() == [True]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("selector", ["look_twice", "arr_coc"])
def test_a_batch_is_its_rows_on_both_paths(fast, selector):
    """Rows of different lengths and dials; one that nobody waits for neither speaks nor holds up the others."""
    owner = tiny.wrapped(tiny.stock(), selector=selector, fast=fast, break_even=0)
    engine, told, gone = InProcessEngine(owner), [[], [], []], threading.Event()
    gone.set()
    about = [(tiny.picture(160, 128), 0.3, 7), (tiny.picture(96, 64, seed=1), 0.6, 4), (tiny.picture(), 1.0, 9)]
    tickets = []
    for (picture, keep, most), heard in zip(about, told, strict=True):
        wanted = Wanted((), "what is this?", (), "", keep, most, stream=True)
        left = gone if most == 9 else threading.Event()
        tickets.append(Ticket(wanted, engine.encode(wanted, [picture]), heard.append, left=left))
    engine.answer(tickets)
    for (picture, keep, most), heard in zip(about[:2], told, strict=False):
        answer, (*pieces, outcome) = owner.ask(picture, "what is this?", keep=keep, max_new_tokens=most), heard
        assert "".join(pieces) == outcome.text == answer.text
        assert (outcome.ended, outcome.new_tokens, outcome.tokens_kept) == ("length", most, answer.tokens_kept)
    assert [type(item) for item in told[2]] == [Finished]
    assert told[2][0].new_tokens < 9


# ---------------------------------------------------------------- ending


HANDS_OVER = """
import os, threading, torch
from arr_coc.timing import hand_over_cores
torch.set_num_threads(2)
def threads():
    return len(os.listdir("/proc/self/task"))
def reckon():
    return torch.ones(512, 512).matmul(torch.ones(512, 512)).sum().item() + torch.arange(2.0**22).exp().min().item()
before, first, helped = threads(), reckon(), threads()
hand_over_cores()
print(before, helped, threads(), reckon() == first)
"""


def test_a_thread_that_hands_over_keeps_no_helpers():
    """Else the line's own thread shares the cores with helpers of the main thread, and answers at half the speed."""
    told = subprocess.run([sys.executable, "-c", HANDS_OVER], capture_output=True, text=True, check=True).stdout
    before, helped, after, same = told.split()
    assert int(helped) == int(before) + 1
    assert int(after) == int(before)
    assert same == "True"


def test_asked_to_end_it_finishes_what_runs(tmp_path, pictures):
    port = free_port()
    given = {"model": "mini", "messages": asked(QUESTIONS[1], data_uri(pictures[0].resize((512, 512)))), "keep": 1}
    arguments = ["-m", "arr_coc", "serve", "--port", str(port), "--batch", "1"]
    with started(arguments, port, tmp_path, path="/health", PYTHONPATH=str(ROOT)) as (url, process):
        with ThreadPoolExecutor(3) as clients:
            post = f"{url}/v1/chat/completions"
            each = (given, given, given | {"stream": True})
            waiting = [clients.submit(httpx.post, post, json=one, timeout=120) for one in each]
            until = time.monotonic() + 60
            while "arr_coc_places_taken 3" not in httpx.get(f"{url}/metrics").text and time.monotonic() < until:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            answers = [one.result() for one in waiting]
        assert [answer.status_code for answer in answers] == [200] * 3, [answer.text[:300] for answer in answers]
        first, second = (answer.json()["choices"][0]["message"]["content"] for answer in answers[:2])
        *pieces, done = re.findall(r"^data: (.+)$", answers[2].text, re.M)
        streamed = "".join(json.loads(piece)["choices"][0]["delta"].get("content", "") for piece in pieces)
        assert (first, done) == (second, "[DONE]")
        assert first == streamed
        assert process.wait(60) == 0
        with contextlib.suppress(httpx.HTTPError):
            pytest.fail(f"it still answers: {httpx.get(url)}")
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert f"mini answers at http://127.0.0.1:{port}/v1" in log


# ---------------------------------------------------------------- load


@pytest.mark.parametrize("seconds", [pytest.param(600, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_eight_clients_for_ten_minutes(seconds, client, pictures, cases, served):
    """No error but 429, every answer equal to its answer alone, and no memory left behind."""
    until, sizes = time.monotonic() + seconds, []

    def ask(number):
        answered = 0
        while time.monotonic() < until:
            number = (number + 5) % len(cases)
            with contextlib.suppress(openai.RateLimitError):
                one = client.chat.completions.create(**request(pictures, cases[number]))
                check(cases[number], one.choices[0].message.content, one.usage)
                answered += 1
        return answered

    with ThreadPoolExecutor(8) as clients:
        running = [clients.submit(ask, 2 * number) for number in range(8)]
        while time.monotonic() < until:
            time.sleep(seconds / 20)
            sizes.append(process_megabytes())
        assert all(one.result() for one in running)
    assert max(sizes[10:]) < 1.05 * max(sizes[:10])
    assert not served[1].taken
