"""Looking again: where an answer is not sure enough, the question is asked once more with twice the tokens, up to all.

A further look chooses more cells by the same map. Of a first look at a small copy, what the images gave is remembered:
only the question's words are read again. Encoding, prompt and answer are paid anew for each look.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from arr_coc.qwen.answers import Answer
from arr_coc.qwen.streaming import Held

UNSURE = 0.95  # confidence under which the eye goes back: who asks for this wants few mistakes, not few tokens
TIMES = 2  # as many tokens with each look


def look_until_sure(look: Callable[[Any, Any], Answer], keep: Any, streamer: Any) -> Answer:
    """The last answer of as many `look(keep, streamer)` as it takes, streamed once it is final."""
    held = Held()
    answer = look(keep, held)
    looks = answer.looks
    while _unsure(answer):
        wanted = TIMES * answer.tokens_kept
        held = Held()
        answer = look(wanted if wanted < answer.tokens_total else 1.0, held)
        looks += answer.looks
    if streamer is not None:
        held.release(streamer)
    return replace(answer, looks=looks)


def _unsure(answer: Answer) -> bool:
    sure = answer.confidence is None or answer.confidence >= UNSURE
    return not sure and answer.tokens_kept < answer.tokens_total
