"""The API, served for a test in this process: over a model, or over an engine that does as its questions say."""

import base64
import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from demo_server import free_port
from PIL import Image

from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.memory import Memory
from arr_coc.serving.app import Service, make_server
from arr_coc.serving.engine import Engine, Finished
from arr_coc.serving.line import Line
from arr_coc.serving.metrics import Metrics
from arr_coc.serving.reading import Limits


def data_uri(picture: Image.Image) -> str:
    written = io.BytesIO()
    picture.save(written, "PNG")
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def asked(question: str, *addresses: str) -> list[dict]:
    """Messages of one question, the text before the images as most clients send it."""
    images = [{"type": "image_url", "image_url": {"url": address}} for address in addresses]
    return [{"role": "user", "content": [{"type": "text", "text": question}, *images]}]


@contextmanager
def serving(engine: Engine, batch: int = 8, places: int = 32, **settings: object) -> Iterator[tuple[str, Line]]:
    """Address and line of a running server."""
    line = Line(engine, Metrics(), batch, places)
    port = free_port()
    service = Service(line, **{"model": "mini", "limits": Limits(), **settings})
    server = make_server(service, "127.0.0.1", port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}", line
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


class Stub:
    """Answers with the question. "hold" waits until it is let go or left; "fault" and "memory" go wrong."""

    name = "stub"

    def __init__(self) -> None:
        self.memory, self.go = Memory(), threading.Event()
        self.batches: list[list[str]] = []

    def encode(self, wanted, images):
        if wanted.question == "unreadable":
            raise ValueError("the question is too long: ask something shorter")
        return images

    def length(self, wanted, images):
        return 100 if "long" in wanted.question else 10

    def answer(self, batch):
        self.batches.append([ticket.wanted.question for ticket in batch])
        for ticket in batch:
            if "fault" in ticket.wanted.question:
                raise RuntimeError("/home/somebody/secret 0x7f00aa12cd30")
            if "memory" in ticket.wanted.question:
                raise torch.OutOfMemoryError("CUDA out of memory at 0x7f00")
        while any("hold" in ticket.wanted.question and not ticket.left.is_set() for ticket in batch):
            if self.go.wait(0.005):
                break
        for ticket in batch:
            for piece in ticket.wanted.question.split() if ticket.wanted.stream else ():
                ticket.say(piece)
            ticket.deliver(self.outcome(ticket.wanted.question))

    def choose(self, ticket):
        return self.outcome("")

    def outcome(self, text):
        image = ImageSelection((2, 2), torch.tensor([1]), torch.rand(2, 2), {}, {}, {}, "relevance", "because")
        return Finished(text, "stop", 9, 2, [image])
