"""Questions and answers as tokens, in the one layout that training, evaluation and the chat template share.

    <|im_start|>user\\n<|vision_start|> IMAGE <|vision_end|>
    QUESTION<|im_end|>\\n<|im_start|>assistant\\nANSWER<|im_end|>

The first line is the prefix of `studies.batched`, the second a turn; nothing stands between them.
"""

from functools import lru_cache
from typing import Any

from arr_coc.qwen.processor import cut_tokens

IGNORE = -100  # label of tokens that carry no loss


class Turns:
    """Encodes turns with a tokenizer of the Qwen family; strings seen before come from a cache."""

    def __init__(self, tokenizer: Any) -> None:
        # `backend_tokenizer.encode` is an order of magnitude faster than the tokenizer's own call.
        self._encode = lru_cache(maxsize=65536)(self._encode_text)
        self._backend = tokenizer.backend_tokenizer
        self._special_names = tuple(token.content for token in tokenizer.added_tokens_decoder.values())
        self.lead_ids = self._special("<|im_start|>user\n<|vision_start|>")
        self.end_id = self._special("<|vision_end|>")[0]
        self.image_id, self.video_id = self._special("<|image_pad|><|video_pad|>")
        self.stop_id = self._special("<|im_end|>")[0]
        self.pad_id = self._special("<|endoftext|>")[0]
        self._bridge = self._special("<|im_end|>\n<|im_start|>assistant\n")

    def _special(self, text: str) -> tuple[int, ...]:
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def _encode_text(self, text: str) -> tuple[int, ...]:
        """User text; special tokens are not read out of it, for a question is never part of the template."""
        parts = cut_tokens(text, self._special_names)
        return tuple(index for part in parts for index in self._backend.encode(part, add_special_tokens=False).ids)

    def question(self, text: str) -> tuple[int, ...]:
        """A user's text alone, as the processor encodes it."""
        return self._encode(text)

    def prompt(self, question: str) -> tuple[int, ...]:
        """The turn up to the place where the answer begins."""
        return self._encode(question) + self._bridge

    def answered(self, question: str, answer: str) -> tuple[tuple[int, ...], int]:
        """(the whole turn with its stop token, the number of tokens before the answer)."""
        prompt = self.prompt(question)
        return (*prompt, *self._encode(answer), self.stop_id), len(prompt)

    def decode(self, ids: list[int]) -> str:
        """Text of answer tokens up to the stop token."""
        if self.stop_id in ids:
            ids = ids[: ids.index(self.stop_id)]
        return str(self._backend.decode(ids, skip_special_tokens=True)).strip()
