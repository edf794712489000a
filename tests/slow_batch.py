"""An engine for `arr-coc batch` that takes its time and needs no model."""

import time

import torch

from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.memory import Memory
from arr_coc.serving.engine import Finished


class Slow:
    """Answers with the question, so many milliseconds a batch; "fault" in a question is a fault of its batch."""

    name = "slow"

    def __init__(self, ms: float) -> None:
        self.memory, self.ms = Memory(), ms

    def encode(self, wanted, images):
        return images

    def length(self, wanted, images):
        return 1

    def answer(self, tickets):
        time.sleep(self.ms / 1000)
        for ticket in tickets:
            if "fault" in ticket.wanted.question:
                raise RuntimeError("something\nbroke")
        for ticket in tickets:
            kept = torch.tensor([0, 3, 8])
            images = [ImageSelection((3, 3), kept, None, {}, {}, {}, "relevance", "") for _ in ticket.inputs]
            ticket.deliver(Finished(f"{ticket.wanted.question} {ticket.wanted.keep}", "stop", 9, 2, images, {"all": 2}))


def slowly(ms: float):
    """In the place of what loads an engine."""
    return lambda *_: Slow(ms)
