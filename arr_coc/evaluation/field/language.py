"""Greedy answers over prefixes that several questions may share, one question per row.

U prefixes (an image and its kept cells), R rows, T prompt tokens, L all tokens so far, A rows that are not done.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from arr_coc.qwen.batched.forward import PrefixCache, logits, run_text
from arr_coc.timing import Stopwatch


def share_cache(cache_U: PrefixCache, prefix_R: Tensor) -> PrefixCache:
    """The keys and values of each row's own prefix."""
    return [(key[prefix_R], value[prefix_R]) for key, value in cache_U]


def answer_rows(
    model: Any,
    cache: PrefixCache,
    prompts: Sequence[Sequence[int]],
    start: int,
    stop_id: int,
    most_tokens: int,
    stopwatch: Stopwatch,
) -> list[list[int]]:
    """Token ids of each row's answer, without the stop token. `start` is the position of the first prompt token.

    The prompts' own pass is timed as "prefill", the steps after the first token as "decode". `cache` is used up.
    """
    device, dtype = cache[0][0].device, cache[0][0].dtype
    lengths_R = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(lengths_R.max())
    rows, prefix = len(prompts), cache[0][0].shape[2]
    ids_RT = torch.tensor([[*prompt, *[stop_id] * (longest - len(prompt))] for prompt in prompts], device=device)
    columns_T = torch.arange(longest, device=device)
    with stopwatch.part("prefill"):
        # Padding stands after the prompt, so that being causal hides it.
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        mask = torch.cat([causal.new_ones(longest, prefix), causal], dim=1).expand(rows, 1, -1, -1)
        hidden_RTD = run_text(model, ids_RT, (start + columns_T).expand(rows, -1), mask, cache, grow=True)
        last_RD = hidden_RTD[torch.arange(rows, device=device), lengths_R - 1]
        token_A = logits(model, last_RD, dtype).argmax(-1)
    with stopwatch.part("decode"):
        valid_AL = torch.cat([causal.new_ones(rows, prefix), columns_T < lengths_R[:, None]], dim=1)
        return _go_on(model, cache, token_A, valid_AL, start + lengths_R, stop_id, most_tokens)


def _go_on(
    model: Any, cache: PrefixCache, token_A: Tensor, valid_AL: Tensor, next_A: Tensor, stop_id: int, most_tokens: int
) -> list[list[int]]:
    """The rest of the answers, token by token. Rows that are done leave the batch when they are a quarter of it."""
    dtype = cache[0][0].dtype
    found: list[list[int]] = [[] for _ in range(token_A.shape[0])]
    row_A = torch.arange(token_A.shape[0], device=token_A.device)
    done_A = torch.zeros_like(row_A, dtype=torch.bool)
    for step in range(most_tokens):
        done_A = done_A | (token_A == stop_id)
        done = done_A.tolist()
        for row, token, over in zip(row_A.tolist(), token_A.tolist(), done, strict=True):
            if not over:
                found[row].append(token)
        if all(done) or step + 1 == most_tokens:
            break
        if 4 * sum(done) >= len(done):
            left = (~done_A).nonzero().squeeze(-1)
            row_A, token_A, valid_AL, next_A, done_A = (x[left] for x in (row_A, token_A, valid_AL, next_A, done_A))
            cache[:] = [(key[left], value[left]) for key, value in cache]
        valid_AL = torch.cat([valid_AL, valid_AL.new_ones(valid_AL.shape[0], 1)], dim=1)
        hidden_A1D = run_text(
            model, token_A.unsqueeze(1), (next_A + step).unsqueeze(1), valid_AL[:, None, None], cache, grow=True
        )
        token_A = logits(model, hidden_A1D[:, 0], dtype).argmax(-1)
    return found
