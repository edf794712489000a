"""Prompts of several views: images one after another, or a clip's pairs of frames with their timestamps.

A view is what the ViT encodes by itself: an image, or two frames. Cells are numbered through all views of a prompt:

    images   user\\n <|vision_start|> cells <|vision_end|> <|vision_start|> cells <|vision_end|> QUESTION
    clip     user\\n <|vision_start|> <0.2 seconds> <|vision_start|> cells <|vision_end|> ... <|vision_end|> QUESTION

which is what the chat template and the stock Qwen3-VL processor make of them, outer marks of a clip included. Older
processors, and vLLM's, leave these out: a bare clip.

S tokens of the prefix, N cells of all views, K kept cells.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from arr_coc_scenes.types import Box, Element
from studies.cells import CELL, box_cells
from studies.turns import Turns

FPS = 2.0  # frames per second of a clip, Qwen's own default
Grid = tuple[int, int]  # cells: height, width


@dataclass(frozen=True, slots=True)
class Form:
    """What a batch shows: images of some sizes (width, height) in px, or a clip of `frames` frames of one size."""

    sizes: tuple[tuple[int, int], ...]
    frames: int = 0
    fps: float = FPS
    bare: bool = False
    """Whether a clip lacks the outer marks."""

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Cells of each view."""
        grids = tuple((height // CELL, width // CELL) for width, height in self.sizes)
        return grids * (self.frames // 2) if self.frames else grids

    @property
    def cells(self) -> int:
        """Cells of all views."""
        return sum(height * width for height, width in self.grids)


@dataclass(frozen=True, slots=True)
class ViewQuestion:
    """A question about several views; evidence is (number of the view or, of a clip, of the frame; box in px)."""

    text: str
    answer: str
    family: str
    evidence: tuple[tuple[int, Box], ...]


@dataclass(frozen=True, slots=True)
class ShownViews:
    """Pictures with what is asked about them: images, or the frames of a clip."""

    form: Form
    pictures: tuple[np.ndarray, ...]  # uint8 [H, W, 3]
    elements: tuple[tuple[Element, ...], ...]
    """What lies in each picture."""
    questions: tuple[ViewQuestion, ...]

    def evidence(self, question: ViewQuestion) -> set[int]:
        """The cells, numbered through all views, that hold a question's evidence."""
        starts, per_view = first_cells(self.form.grids), 2 if self.form.frames else 1
        found: set[int] = set()
        for picture, box in question.evidence:
            view = picture // per_view
            found |= {starts[view] + cell for cell in box_cells(box, *self.form.grids[view])}
        return found


def first_cells(grids: tuple[Grid, ...]) -> list[int]:
    """The number of each view's first cell."""
    counts = [height * width for height, width in grids]
    return [sum(counts[:view]) for view in range(len(grids))]


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The tokens before the question, with the places that the stock model gives them."""

    ids_S: np.ndarray  # int32; at visual tokens the pad's number
    places_3S: np.ndarray  # int32: (t, h, w)
    columns_N: np.ndarray  # int32, the token of each cell
    start: int  # position of the first token after it

    def kept(self, cells_K: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(ids and places [4, S'], columns of the kept cells [K]) with the other cells left out; None: all are kept."""
        whole = np.concatenate([self.ids_S[None], self.places_3S])
        if cells_K is None:
            return whole, self.columns_N
        stays = np.ones(len(self.ids_S), bool)
        stays[self.columns_N] = False
        stays[self.columns_N[cells_K]] = True
        columns = np.flatnonzero(stays)
        return whole[:, columns], np.searchsorted(columns, self.columns_N[cells_K]).astype(np.int32)


def timestamps(frames: int, fps: float) -> list[str]:
    """What stands before each pair of frames: the mean of their times, as Qwen3-VL writes it."""
    return [f"<{(frame + frame + 1) / 2 / fps:.1f} seconds>" for frame in range(0, frames, 2)]


@lru_cache(maxsize=256)
def prefix_of(turns: Turns, form: Form) -> Prefix:
    """The prefix of a form."""
    opening, closing = turns.lead_ids[-1], turns.end_id
    ids = list(turns.lead_ids[:-1] if form.bare else turns.lead_ids)
    pieces: list[tuple[list[int], Grid]] = []
    if form.frames:
        for time, grid in zip(timestamps(form.frames, form.fps), form.grids, strict=True):
            pieces.append(([*turns.question(time), opening], grid))
    else:
        pieces = [([opening] if view else [], grid) for view, grid in enumerate(form.grids)]
    pad = turns.video_id if form.frames else turns.image_id
    columns: list[int] = []
    places = _text_places(0, len(ids))
    now = len(ids)
    for before, (height, width) in pieces:
        ids += before
        places += _text_places(now, len(before))
        now += len(before)
        columns += range(len(ids), len(ids) + height * width)
        ids += [pad] * (height * width)
        places += [(now, now + row, now + column) for row in range(height) for column in range(width)]
        now += max(height, width)
        ids.append(closing)
        places += _text_places(now, 1)
        now += 1
    if form.frames and not form.bare:
        ids.append(closing)
        places += _text_places(now, 1)
        now += 1
    return Prefix(np.array(ids, np.int32), np.array(places, np.int32).T.copy(), np.array(columns, np.int32), now)


def _text_places(start: int, count: int) -> list[tuple[int, int, int]]:
    return [(place, place, place) for place in range(start, start + count)]
