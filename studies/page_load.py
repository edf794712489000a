"""The page under load of slow bodies, open sessions and a greedy client: how long does somebody else wait?

    python -m studies.page_load                   # 100 slow bodies, 64 sessions, into results/page-load.json

The demo runs in a process of its own. Times are of one question from the call to its last event, alone and under load.
Memory is what the system counts of that process, before and after each load, when all pages are closed and forgotten:
what leaks grows with every load.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

from arr_coc.demo.guarding import GONE
from arr_coc.files import write_json

LOADS = 3  # one after the other
RESULTS = Path(__file__).parents[1] / "results" / "page-load.json"
QUESTION = "What colour is the hand?"
API = "gradio_api"
START_SECONDS = 240


class Server:
    """`arr-coc demo` on a free port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        command = [sys.executable, "-m", "arr_coc", "demo", "--quiet", "--port", str(self.port)]
        self.process = subprocess.Popen(command)
        self.url = f"http://127.0.0.1:{self.port}"

    async def ready(self, web: httpx.AsyncClient) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            try:
                (await web.get(self.url)).raise_for_status()
                return
            except httpx.HTTPError:
                await asyncio.sleep(0.5)
        raise RuntimeError("the demo did not start")

    def megabytes(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss / 1e6)

    async def idle_megabytes(self) -> float:
        """When closed pages are forgotten."""
        await asyncio.sleep(GONE + 5)
        return self.megabytes()

    async def watch(self, most: list[float]) -> None:
        """The largest memory so far, for ever."""
        while True:
            most[0] = max(most[0], self.megabytes())
            await asyncio.sleep(0.1)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


async def upload(web: httpx.AsyncClient, url: str) -> dict[str, Any]:
    sample = (files("arr_coc") / "assets" / "sample.png").read_bytes()
    (path,) = (await web.post(f"{url}/{API}/upload", files={"files": ("sample.png", sample)})).json()
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


async def answer(web: httpx.AsyncClient, url: str, session: str, fn: int, data: list[Any]) -> dict[str, Any] | None:
    """What the queue says at the end of one event of a session; None where there was no room in it."""
    body = {"data": data, "fn_index": fn, "session_hash": session}
    if (await web.post(f"{url}/{API}/queue/join", json=body)).status_code == 503:
        return None
    async with web.stream("GET", f"{url}/{API}/queue/data", params={"session_hash": session}) as stream:
        async for line in stream.aiter_lines():
            told = json.loads(line[6:]) if line.startswith("data: ") else {}
            if told.get("msg") == "process_completed":
                return dict(told)
    raise RuntimeError("the stream ended before the answer")


class Load:
    """All that is put on one server."""

    def __init__(self, web: httpx.AsyncClient, server: Server, image: dict[str, Any], fns: dict[str, int]) -> None:
        self.web, self.server, self.fns = web, server, fns
        self.url, self.port = server.url, server.port
        self.asked = [image, QUESTION, 0]
        self.cut = self.greedy_done = self.greedy_refused = self.most_between = 0

    async def ask(self, session: str) -> tuple[str, float]:
        """(answer, seconds)"""
        began = time.monotonic()
        told = await answer(self.web, self.url, session, self.fns["ask"], [*self.asked, "mini"])
        if told is None or not told["success"]:
            raise RuntimeError(f"no answer: {told}")
        return str(told["output"]["data"][0]), time.monotonic() - began

    async def look(self, session: str) -> None:
        """What a session remembers longest."""
        told = await answer(self.web, self.url, session, self.fns["look_at"], [*self.asked, "mini"])
        if told is None or not told["success"]:
            raise RuntimeError(f"no look: {told}")

    async def be_open(self, session: str) -> None:
        """A page that stays open."""
        async with self.web.stream("GET", f"{self.url}/{API}/heartbeat/{session}") as stream:
            async for _ in stream.aiter_lines():
                pass

    async def be_slow(self) -> None:
        """A byte a second of a body that is said to be long, until somebody hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"POST /{API}/queue/join HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n".encode())
        reading = asyncio.create_task(reader.read(100))
        while not reading.done():
            writer.write(b" ")
            await asyncio.sleep(1)
        self.cut += b"408" in reading.result()
        writer.close()

    async def be_greedy(self) -> None:
        """Question after question, as many at once as are taken, for ever."""

        async def one() -> None:
            body = {"data": [*self.asked, "mini"]}
            while True:
                told = await self.web.post(f"{self.url}/{API}/call/ask", json=body)
                if told.status_code == 200:
                    await self.web.get(f"{self.url}/{API}/call/ask/{told.json()['event_id']}")
                    self.greedy_done += 1
                else:
                    self.greedy_refused += 1
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(one() for _ in range(12)))

    async def all_at_once(self, name: str, slow: int, sessions: int, rounds: int) -> tuple[list[Any], float]:
        """One load; then pages are closed. What a second client is told under it, and megabytes with all sessions."""
        opened = [asyncio.create_task(self.be_open(f"{name}-{number}")) for number in range(sessions)]
        for number in range(sessions):
            await self.look(f"{name}-{number}")
        looked = self.server.megabytes()
        others = [asyncio.create_task(self.be_slow()) for _ in range(slow)]
        greedy = asyncio.create_task(self.be_greedy())
        await asyncio.sleep(2)
        told = []
        for number in range(rounds):
            await asyncio.sleep(random.random())  # people think before they ask again
            done = self.greedy_done
            told.append(await self.ask(f"second-{name}-{number}"))
            self.most_between = max(self.most_between, self.greedy_done - done)
        greedy.cancel()
        await asyncio.gather(*others)
        for page in opened:
            page.cancel()
        return told, looked


async def measure(slow: int, sessions: int, rounds: int) -> dict[str, Any]:
    server = Server()
    limits = httpx.Limits(max_connections=None)
    try:
        async with httpx.AsyncClient(timeout=600, limits=limits) as web:
            await server.ready(web)
            config = (await web.get(f"{server.url}/config")).json()
            fns = {one["api_name"]: one["id"] for one in config["dependencies"]}
            load = Load(web, server, await upload(web, server.url), fns)
            await load.all_at_once("warm", 0, 1, 1)
            alone = [await load.ask(f"alone-{number}") for number in range(rounds)]
            idle, most = [await server.idle_megabytes()], [0.0]
            watching = asyncio.create_task(server.watch(most))
            loaded, looked, last = [], [], []
            for number in range(LOADS):
                told, megabytes = await load.all_at_once(f"load-{number}", slow, sessions, rounds)
                loaded += told
                looked.append(megabytes)
                last += [await load.ask(f"last-{number}-{again}") for again in range(rounds)]
                idle.append(await server.idle_megabytes())
            watching.cancel()
            last.append(await load.ask("last"))
    finally:
        code = server.end()
    medians = [statistics.median(seconds for _, seconds in runs) for runs in (alone, loaded, last)]
    return {
        "command": "python -m studies.page_load",
        "cores": os.cpu_count(),
        "loads": LOADS,
        "slow_bodies": slow,
        "slow_bodies_cut_off": load.cut,
        "sessions": sessions,
        "greedy_answers": load.greedy_done,
        "greedy_refused": load.greedy_refused,
        "most_answers_of_others_between": load.most_between,
        "seconds_alone": round(medians[0], 2),
        "seconds_under_load": round(medians[1], 2),
        "times_alone": round(medians[1] / medians[0], 2),
        "seconds_after": round(medians[2], 2),
        "megabytes_before": round(idle[0]),
        "megabytes_with_sessions": round(looked[0]),
        "megabytes_a_session": round((looked[0] - idle[0]) / sessions, 2),
        "megabytes_at_most": round(most[0]),
        "megabytes_after": [round(one) for one in idle[1:]],
        "answers_equal": len({text for text, _ in [*alone, *loaded, *last]}) == 1,
        "exit_code": code,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The page under load.")
    parser.add_argument("--slow", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    found = asyncio.run(measure(chosen.slow, chosen.sessions, chosen.rounds))
    write_json(RESULTS, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
