"""How sure an answer is, from the probabilities that the model gave its tokens.

B rows, T new tokens, V vocabulary, L all tokens so far.

Of the candidates that were measured (docs/concepts.md), the least likely token, the end included, tells right from
wrong answers as well as any, and does not depend on how long the answer is.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor


def log_probability(logits_BV: Tensor, token_B: Tensor) -> Tensor:
    """Of the token that was picked in each row, before any temperature: `[B]` fp32."""
    logits_BV = logits_BV.float()
    return logits_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1) - logits_BV.logsumexp(-1)


def confidence(log_probability_T: Tensor) -> float:
    """Probability of the least likely token of an answer, in [0, 1]; 0 where it is not a number."""
    return float(log_probability_T.min().exp().nan_to_num(0.0).clamp(0, 1))


class TokenProbabilities(LogitsProcessor):
    """Notes, on the device, how likely each picked token was while transformers generates; changes nothing."""

    def __init__(self) -> None:
        self._noted: list[Tensor] = []
        self._last: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._note(input_ids[:, -1])
        self._last = scores
        return scores

    def _note(self, token_B: Tensor) -> None:
        if self._last is not None:
            self._noted.append(log_probability(self._last, token_B))

    def confidence(self, new_BT: Tensor) -> float | None:
        """Of the one answer that came out; None where there are several, or tokens were not picked one by one."""
        rows = 0 if self._last is None else self._last.shape[0]
        if rows != 1 or new_BT.shape != (1, len(self._noted) + 1):
            return None
        self._note(new_BT[:, -1])
        return confidence(torch.cat(self._noted))


def noting(options: dict[str, Any]) -> tuple[TokenProbabilities, dict[str, Any]]:
    """What notes, and generate's keywords with it after the caller's own processors."""
    noted = TokenProbabilities()
    return noted, {**options, "logits_processor": [*(options.get("logits_processor") or ()), noted]}
