"""The server with and without batches: how many questions a second, and do both say the same?

    python -m studies.serving_load                         # mini, 64 images of 512 px, into results/serving.json
    python -m studies.serving_load --shape qwen3-vl-2b --clients 32 --out out/serving-gpu.json     # random weights

`arr-coc serve` runs in a process of its own, one by one (--batch 1) and in batches, in turns, so that a machine that
slows down slows both. Every image is asked about once, with a dial of its own (--dials in turn), by so many clients at
once. Wall time and the seconds that the server's own threads were at work are told, and whether answers and counts of
tokens are equal; in 16 bits rows of a batch may differ from rows alone.
"""

import argparse
import base64
import io
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import torch
from PIL import Image

from arr_coc.cli.typed import parse_keep
from arr_coc.files import read_json_object, write_json
from arr_coc.qwen.shapes import build_random, shape_config
from arr_coc_scenes import draw_scene, make_scene

RESULTS = Path(__file__).parents[1] / "results" / "serving.json"
QUESTIONS = ("What colour is the hand?", "Describe the scene.", "Which word is blue?")
START_SECONDS = 240


def bodies(images: int, side: int, dials: list[Any], model: str, tokens: int) -> list[dict[str, Any]]:
    """One request for each image."""
    found = []
    for number in range(images):
        written = io.BytesIO()
        Image.fromarray(draw_scene(make_scene(number, "seen", (side, side)))).save(written, "PNG")
        address = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
        parts = [
            {"type": "image_url", "image_url": {"url": address}},
            {"type": "text", "text": QUESTIONS[number % len(QUESTIONS)]},
        ]
        asked = {"messages": [{"role": "user", "content": parts}], "keep": dials[number % len(dials)]}
        found.append({"model": model, "max_tokens": tokens, "temperature": 0, **asked})
    return found


def random_folder(shape: str, folder: Path) -> str:
    """A model of a published shape with random weights, that reads with mini's tokenizer."""
    source, config = Path(str(files("arr_coc") / "models" / "mini")), shape_config(shape)
    own = read_json_object(source / "config.json")
    for name in ("image", "video", "vision_start", "vision_end"):
        setattr(config, f"{name}_token_id", own[f"{name}_token_id"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    build_random(config, device, torch.bfloat16).save_pretrained(folder)
    torch.cuda.empty_cache()
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja") and not file.name.startswith(("config", "model", "arr_coc", "familiar")):
            shutil.copy(file, folder)
    return str(folder)


@contextmanager
def served(model: str, batch: int) -> Iterator[tuple[str, int]]:
    """Address and process of the server."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    limits = ["--batch", str(batch), "--queue", "64", "--port", str(port), "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "arr_coc", "serve", "--model", model, *limits])
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    try:
        while True:
            try:
                httpx.get(f"{url}/health").raise_for_status()
                break
            except httpx.HTTPError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("the server did not start") from None
                time.sleep(0.2)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def cpu_seconds(pid: int) -> float:
    """At work so far, all threads together; without its children, which decode the images."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def measure(model: str, batch: int, clients: int, asked: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Times of all requests, and what came of each. The first few are asked beforehand, once."""
    launched = time.perf_counter()
    with served(model, batch) as (url, pid), httpx.Client(timeout=600) as web, ThreadPoolExecutor(clients) as pool:

        def ask(body: dict[str, Any]) -> tuple[str, int, float]:
            began = time.perf_counter()
            told = web.post(f"{url}/v1/chat/completions", json=body).raise_for_status().json()
            kept = told["usage"]["visual_tokens_kept"]
            return told["choices"][0]["message"]["content"], kept, time.perf_counter() - began

        ready = time.perf_counter() - launched
        list(pool.map(ask, asked[:clients]))
        httpx.get(f"{url}/v1/models")
        worked, began = cpu_seconds(pid), time.perf_counter()
        found = list(pool.map(ask, asked[clients:]))
        wall, worked = time.perf_counter() - began, cpu_seconds(pid) - worked
    waited = statistics.median(seconds for *_, seconds in found)
    times = {
        "start_s": round(ready, 1),
        "wall_s": round(wall, 2),
        "cpu_s": round(worked, 2),
        "median_wait_s": round(waited, 3),
    }
    return {"batch": batch, **times}, [one[:2] for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--shape", help="in the place of a model: random weights of that shape")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--side", type=int, default=512, help="pixels")
    parser.add_argument("--dials", nargs="+", type=parse_keep, default=["auto", 0.25, 0.1, 64])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="of an answer at most")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.shape:
            given.model = random_folder(given.shape, Path(folder) / given.shape)
        compare(given)


def compare(given: argparse.Namespace) -> None:
    """Both ways in turns, and what came of it."""
    name = Path(given.model).name if Path(given.model).exists() else given.model
    asked = bodies(given.clients + given.images, given.side, given.dials, name, given.tokens)
    rows, texts = [], []
    for _ in range(given.turns):
        for batch in (1, given.batch):
            row, found = measure(given.model, batch, given.clients, asked)
            print(row, file=sys.stderr)
            rows.append(row)
            texts.append(found)
    alone, together = ([row for row in rows if (row["batch"] == 1) is one] for one in (True, False))
    ratios = {
        f"{kind}_ratio": round(min(row[kind] for row in alone) / min(row[kind] for row in together), 2)
        for kind in ("wall_s", "cpu_s")
    }
    equal = min(sum(one == first for one, first in zip(found, texts[0], strict=True)) for found in texts)
    how = {name: value for name, value in vars(given).items() if name not in ("out", "model", "shape")}
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"a CPU, threads of torch: {threads}"
    write_json(given.out, {"model": name, "device": device, **how, **ratios, "equal": equal, "runs": rows})
    print(f"x{ratios['wall_s_ratio']} by the clock, {equal} of {given.images} equal in every run")


if __name__ == "__main__":
    main()
