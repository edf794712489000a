"""vLLM's offline engine with the plugin, in the place of the model of this process: it makes up batches by itself."""

import os
import time
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from PIL import Image

from arr_coc.qwen.memory import Memory
from arr_coc.qwen.processor import Conversation, check_question, encode_one
from arr_coc.serving.engine import Finished, Ticket
from arr_coc.serving.reading import Wanted
from arr_coc.vllm import engine_arguments, trouble, variables
from arr_coc.vllm.choosing import front_chooser


def check_vllm() -> None:
    """Refuse, in one line, where vLLM is not here."""
    if why := trouble():
        raise ValueError(f"--engine vllm: {why}")


class OfflineEngine:
    """An engine for a line of rows. What is kept is chosen here too: the plugin finds what was seen of the image."""

    name = "vllm"

    def __init__(self, model: str, selector: str, encoding: str | None, **more: Any) -> None:
        check_vllm()
        settings = engine_arguments(model, selector=selector, encoding=encoding, **more)
        os.environ.update(variables())  # read when vLLM is imported
        from vllm import LLM

        self.llm = LLM(**settings)
        self.chooser, self.memory = front_chooser(model, selector, encoding, None).chooser, Memory()

    def encode(self, wanted: Wanted, images: Sequence[Image.Image]) -> tuple[dict[str, Any], list[Any]]:
        """What vLLM is asked, with one placeholder an image, and what will be kept of each."""
        check_question(wanted.question, ())
        asked = Conversation(images, wanted.question)
        ids, _ = encode_one(self.chooser.processor, asked, (repeat(1), iter(())))
        prompt = {"prompt_token_ids": ids, "multi_modal_data": {"image": list(images)}}
        chosen = self.chooser.choose(list(images), wanted.question, wanted.keep)
        return {**prompt, "mm_processor_kwargs": {"keep": wanted.keep}}, chosen

    def length(self, wanted: Wanted, inputs: Any) -> int:
        """Nothing is padded: all go together."""
        return 1

    def answer(self, batch: Sequence[Ticket]) -> None:
        began, settings = time.perf_counter(), self.llm.get_default_sampling_params()
        settings.max_tokens = batch[0].wanted.max_tokens
        if not self.chooser.model.generation_config.do_sample:
            settings.temperature = 0.0  # vLLM's own is 1
        answers = self.llm.generate([ticket.inputs[0] for ticket in batch], settings, use_tqdm=False)
        ms = (time.perf_counter() - began) * 1e3 / len(batch)
        for ticket, answer in zip(batch, answers, strict=True):
            (said,), seen = answer.outputs, len(answer.prompt_token_ids)
            how = (said.finish_reason, seen, len(said.token_ids), ticket.inputs[1], {"generate": ms})
            ticket.deliver(Finished(said.text, *how))

    def choose(self, ticket: Ticket) -> Finished:
        return Finished("", "", 0, 0, ticket.inputs[1])
