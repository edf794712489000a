"""vLLM's engines for tests, questions to them, and what the project says to the same."""

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from PIL import Image

from arr_coc.vllm import engine_arguments

MINI = str(files("arr_coc") / "models" / "mini")
QUESTIONS = ("What colour is the hand?", "Describe the scene.", "Which word is blue?")
DIALS = ("auto", 0.25, 1.0)


@dataclass(frozen=True, eq=False)
class Case:
    images: tuple[Image.Image, ...]
    question: str
    history: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Said:
    text: str
    kept: int  # visual tokens
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: int  # tokens of the prompt that were in the cache


def cases_of(pictures: list[Image.Image], questions: tuple[str, ...] = QUESTIONS) -> list[Case]:
    return [Case((picture,), question) for picture in pictures for question in questions]


class Engines:
    """By model and settings; several live side by side."""

    @lru_cache  # noqa: B019  (one object for the whole run)
    def get(self, model: str = "mini", **more: Any) -> "Asked":
        return Asked(**engine_arguments(model, max_model_len=4096, **more))

    @lru_cache  # noqa: B019
    def stock(self) -> "Asked":
        """vLLM as it is: no architecture of ours."""
        how = engine_arguments(MINI, max_model_len=4096)
        return Asked(**{name: value for name, value in how.items() if name != "hf_overrides"})


class Asked:
    """One engine."""

    def __init__(self, **how: Any) -> None:
        import vllm

        self.llm = vllm.LLM(**how)
        self.greedy = vllm.SamplingParams(temperature=0, max_tokens=128, logprobs=0)
        self.image_id = self.llm.llm_engine.model_config.hf_config.image_token_id

    def prompt(self, case: Case, keep: Any = None) -> dict[str, Any]:
        """A request; without a dial, the engine's."""
        shown = [{"type": "image"} for _ in case.images]
        turns: list[dict[str, Any]] = []
        for asked, answered in case.history:
            turns += [{"role": "user", "content": [{"type": "text", "text": asked}]}]
            turns += [{"role": "assistant", "content": [{"type": "text", "text": answered}]}]
        turns += [{"role": "user", "content": [{"type": "text", "text": case.question}]}]
        turns[0]["content"] = [*shown, *turns[0]["content"]]
        text = self.llm.get_tokenizer().apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        dial = {} if keep is None else {"mm_processor_kwargs": {"keep": keep}}
        return {"prompt": text, "multi_modal_data": {"image": list(case.images)}, **dial}

    def ask(self, asked: list[tuple[Case, Any]]) -> list[Said]:
        """All at once."""
        given = [self.prompt(case, keep) for case, keep in asked]
        return [self._said(one) for one in self.llm.generate(given, self.greedy, use_tqdm=False)]

    def _said(self, one: Any) -> Said:
        (output,) = one.outputs
        ids = tuple(output.token_ids)
        logprobs = tuple(found[token].logprob for token, found in zip(ids, output.logprobs, strict=True))
        kept = one.prompt_token_ids.count(self.image_id)
        return Said(output.text, kept, ids, logprobs, one.num_cached_tokens or 0)

    def forget(self) -> None:
        """All caches empty."""
        self.llm.reset_mm_cache()
        assert self.llm.reset_prefix_cache()
        self.llm.llm_engine.reset_encoder_cache()
