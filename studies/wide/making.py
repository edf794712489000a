"""Seed -> wide scene: choose a look and a layout, fill it, pose it, ask about it, draw it."""

from dataclasses import dataclass
from random import Random

import numpy as np

from arr_coc_scenes.draft import Layout
from arr_coc_scenes.drawing import CLUTTER_PX, fill, frame_sides
from arr_coc_scenes.making import FAMILIES, LAYOUTS, SMALLEST, UNSEEN_LAYOUTS, ask_all
from arr_coc_scenes.masks import char_mask
from arr_coc_scenes.types import Mark, Question, Scene
from studies.mini.styles import PRACTICE_LAYOUTS, practice_style
from studies.wide.capture import capture
from studies.wide.draft import WideDraft
from studies.wide.grounds import paint_ground
from studies.wide.held_out import SPLITS
from studies.wide.layouts import WIDE_LAYOUTS
from studies.wide.looks import choose_look
from studies.wide.pose import choose_pose, inner_size, outer_size, pose_draft, warp
from studies.wide.sprites import Sprite, paint
from studies.wide.wording import fit_chart, reworded

REPHRASED = 0.4  # share of questions in the wordings of practice
REWORDED = 0.6  # share of questions with other spelling, capitals, synonyms
FINE = 15  # px of letters under which a soft capture would hide them
ALIKE = ("grid", "odd_ring")  # layouts in which one thing is odd
_ATTEMPTS = 60
TRAINED: dict[str, Layout] = {**LAYOUTS, **PRACTICE_LAYOUTS, **WIDE_LAYOUTS}
# Many layouts are documents: scenes of things alone keep a share of about a quarter.
TRAINED["free"] = (6.0, *LAYOUTS["free"][1:])


@dataclass(slots=True)
class Wide:
    """A wide scene with what it takes to draw it again."""

    scene: Scene
    draft: WideDraft
    ground: np.ndarray
    """uint8 [H, W, 3], before anything lies on it; larger than the picture where that is posed."""
    sprites: list[list[Sprite]]
    """Per element, at flat places."""
    pose: np.ndarray | None
    capture_seed: int

    @property
    def pixels(self) -> np.ndarray:
        """The picture, uint8 [H, W, 3]."""
        fine = any(0 < e.px < FINE for e in self.scene.elements if e.kind == "text")
        return capture(self.picture(), self.draft.chosen.capture, Random(self.capture_seed), fine)

    def picture(self, without: int = -1) -> np.ndarray:
        """The picture before capture, with one element left out (-1: none): for tests of its box."""
        canvas = self.ground.copy()
        flat = canvas
        if self.pose is not None:
            (width, height), whole = inner_size((self.scene.width, self.scene.height)), canvas.shape
            left, top = (whole[1] - width) // 2, (whole[0] - height) // 2
            flat = canvas[top : top + height, left : left + width]
        for mark in self.draft.marks:
            draw_mark(flat, mark)
        for sprite in self.draft.under:
            paint(flat, sprite)
        for number, sprites in enumerate(self.sprites):
            for sprite in sprites if number != without else ():
                paint(flat, sprite)
        if self.pose is None:
            return canvas
        moved = self.pose @ np.array([[1, 0, -left], [0, 1, -top], [0, 0, 1.0]])
        return warp(canvas, moved, (self.scene.width, self.scene.height))


def draw_mark(canvas: np.ndarray, mark: Mark) -> None:
    """Draw a plate, a line, a frame or a stroke of clutter on [H, W, 3]; what lies outside is cut."""
    x0, y0, x1, y1 = (max(0, v) for v in mark.box)
    if mark.shape == "rect":
        fill(canvas[y0:y1, x0:x1], mark.ink)
    elif mark.shape == "frame":
        for side in frame_sides((x0, y0, x1, y1)):
            fill(canvas[side[1] : side[3], side[0] : side[2]], mark.ink)
    else:
        paint(canvas, Sprite(char_mask("sans", CLUTTER_PX, mark.shape).ink, x0, y0, mark.ink))


def _choose_layout(rng: Random, split: str, wanted: frozenset[str]) -> tuple[str, Layout]:
    """A layout that asks the wanted families, the more often the more it asks them."""
    able = UNSEEN_LAYOUTS if split == "layouts" else TRAINED
    fitting = {name: lay for name, lay in able.items() if wanted & set(lay[2])}
    shares = [
        lay[0] * sum(w for f, w in lay[2].items() if f in wanted) / sum(lay[2].values()) for lay in fitting.values()
    ]
    name = rng.choices(list(fitting), shares)[0]
    return name, fitting[name]


def _attempt(
    rng: Random, seed: int, split: str, size: tuple[int, int], crowd: float, wanted: frozenset[str]
) -> Wide | None:
    hard = rng.random() < 0.2
    name, (_, lay, weights) = _choose_layout(rng, split, wanted)
    look = choose_look(rng, split, hard, min(size))
    flat_size = inner_size(size) if look.posed else size
    style = practice_style(mirrored=rng.random() < 0.3, rephrased=REPHRASED)
    old_split = "seen" if split == "pairs" else "val"  # whose pairs and words may be drawn
    draft = WideDraft(rng, old_split, *flat_size, hard, crowd, style=style, look=look, alike=name in ALIKE)
    if len(draft.colours) < 5 or not lay(draft):
        return None
    draft.add_clutter()
    sprites = [draft.sprites_of(number) for number in range(len(draft.elements))]
    pose = choose_pose(rng, size) if look.posed else None
    if pose is not None:
        pose_draft(draft, sprites, pose)
        draft.width, draft.height = size
    questions = [_said(rng, question, draft.chart) for question in ask_all(draft, weights, wanted)]
    if not questions:
        return None
    difficulty = "hard" if hard else "plain"
    elements, marks = tuple(draft.elements), tuple(draft.marks)
    scene = Scene(seed, split, *size, name, difficulty, elements, tuple(questions), draft.background, marks)
    ground = paint_ground(rng, look.ground, outer_size(size) if look.posed else size, look.low, look.high)
    return Wide(scene, draft, ground, sprites, pose, rng.randrange(2**30))


def _said(rng: Random, question: Question, chart: str) -> Question:
    question = fit_chart(question, chart)
    return reworded(question, rng) if rng.random() < REWORDED else question


def make_wide(
    seed: int,
    split: str = "train",
    size: tuple[int, int] = (512, 512),
    crowd: float = 1.0,
    families: tuple[str, ...] | None = None,
) -> Wide:
    """Scene number `seed` of a split of the wide world.

    Args:
        seed: any whole number; the same seed gives another scene in another split.
        split: "train", "seen", or an axis of `held_out.py`.
        size: (width, height) in px.
        crowd: 0 (one or two things) to 1 (the full world).
        families: ask only these; None: all.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: use one of {', '.join(SPLITS)}")
    if min(size) < SMALLEST:
        raise ValueError(f"a scene of {size[0]}x{size[1]} has no room: use at least {SMALLEST} pixels a side")
    wanted = frozenset(FAMILIES if families is None else families)
    for attempt in range(_ATTEMPTS):
        wide = _attempt(Random(f"wide/{split}/{seed}/{attempt}"), seed, split, size, crowd, wanted)
        if wide is not None:
            return wide
    raise ValueError(f"no scene of {size} with questions of {', '.join(sorted(wanted))} was found: use a larger size")
