"""Several questions about one image, packed into one row of tokens.

B images, T text tokens, A answer tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from studies.turns import IGNORE, Turns

ANSWER_TOKENS = 128  # room for the answers of one row


class Asking(Protocol):
    """A question of any kind."""

    @property
    def text(self) -> str: ...

    @property
    def answer(self) -> str: ...


@dataclass(slots=True)
class PackedText:
    """Rows of turns. Padding has turn -1 and label IGNORE."""

    ids_BT: np.ndarray  # int32
    turns_BT: np.ndarray  # int32, number of the turn inside its row
    offsets_BT: np.ndarray  # int32, place of the token inside its turn
    sources_BA: np.ndarray  # int32, the token that predicts each answer token
    labels_BA: np.ndarray  # int32, that answer token

    @classmethod
    def empty(cls, rows: int, tokens: int, pad_id: int) -> "PackedText":
        """Rows of padding only."""
        text, answers = (rows, tokens), (rows, ANSWER_TOKENS)
        return cls(
            np.full(text, pad_id, np.int32),
            np.full(text, -1, np.int32),
            np.zeros(text, np.int32),
            np.zeros(answers, np.int32),
            np.full(answers, IGNORE, np.int32),
        )

    def trimmed(self, multiple: int = 16) -> "PackedText":
        """Without columns that are padding in every row; widths stay multiples of `multiple`."""
        text = _width(self.turns_BT != -1, multiple)
        answers = _width(self.labels_BA != IGNORE, multiple)
        return PackedText(
            self.ids_BT[:, :text],
            self.turns_BT[:, :text],
            self.offsets_BT[:, :text],
            self.sources_BA[:, :answers],
            self.labels_BA[:, :answers],
        )

    def tensors(self, use: str, start: int = 0) -> dict[str, torch.Tensor]:
        """The rows as a batch holds them for a use; `start` is added to the places."""
        text = np.stack([self.ids_BT, self.turns_BT, self.offsets_BT + start])
        answers = np.stack([self.sources_BA, self.labels_BA])
        return {f"{use}_text": torch.from_numpy(text), f"{use}_answers": torch.from_numpy(answers)}


def _width(used_BX: np.ndarray, multiple: int) -> int:
    return max(1, -(-int(used_BX.any(0).sum()) // multiple)) * multiple


Q = TypeVar("Q", bound=Asking)


def pack_row(packed: PackedText, row: int, questions: Sequence[Q], turns: Turns) -> list[Q]:
    """Write as many of `questions`, in order, as fit into `row`; returns those that did."""
    place = answers = 0
    written: list[Q] = []
    for question in questions:
        ids, before = turns.answered(question.text, question.answer)
        count = len(ids) - before
        if place + len(ids) > packed.ids_BT.shape[1] or answers + count > ANSWER_TOKENS:
            continue
        packed.ids_BT[row, place : place + len(ids)] = ids
        packed.turns_BT[row, place : place + len(ids)] = len(written)
        packed.offsets_BT[row, place : place + len(ids)] = np.arange(len(ids))
        packed.sources_BA[row, answers : answers + count] = np.arange(place + before - 1, place + len(ids) - 1)
        packed.labels_BA[row, answers : answers + count] = ids[before:]
        place += len(ids)
        answers += count
        written.append(question)
    return written
