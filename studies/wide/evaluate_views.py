"""How well a model answers about several images and clips: each test by name, with its controls.

    clips                 new clips of what training draws          clips_shuffled   the same, frames in another order
    clips_held_out        a held-out axis per clip, by axis          clips_blank      grey frames
    clips_sparse25        25 % of the cells, evidence among them     clips_another    the frames of another clip

Several images likewise. `foveated25` is the wide world of single images: a small copy, then windows at full size, 25 %
of the tokens in all; `foveated25_missed` where half of the evidence is left out, `sparse25_missed` the same without a
small copy. Those with 128 in their name: 128 of the 1,024 tokens of images of twice the side.

R rows, K kept cells.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch

from arr_coc.config import FirstLook
from arr_coc.evaluation.field.data import PER_IMAGE
from arr_coc.qwen.batched import share_cache
from arr_coc.qwen.periphery import periphery_grid
from studies.answering import Answerer, cut_rows
from studies.asked import Asked
from studies.batched.forward import answer_rows
from studies.cells import CELL, boxes_cells, fill_evenly
from studies.mini.seeing import ViewTables, clip_patches, encode_views, image_patches, run_views, view_tables
from studies.mini.view_batches import prompts, shrink, spread
from studies.mini.views import Form, Grid, ShownViews, ViewQuestion, prefix_of
from studies.outcomes import Outcome
from studies.wide.clip_questions import STORY, TIMED
from studies.wide.clips import CLIP_FORMS, make_clip
from studies.wide.several import SEVERAL_FORMS, make_several

FIRST_SEED = 9_000_000  # of the tests, as in `evaluate.py`
HELD_OUT = ("styles", "fonts", "pairs", "wordings")  # of a clip; several images have layouts too
KEPT = 0.25  # share of the cells KEPT in the sparse tests
_CELLS = {"cuda": 49_152, "cpu": 1024}  # visual tokens that run together


@dataclass(frozen=True, slots=True)
class ViewRow:
    """Views with the questions asked of them, the cells that may be seen (None: all), and a name to group by."""

    shown: ShownViews
    questions: tuple[ViewQuestion, ...]
    cells: tuple[int, ...] | None = None
    group: str = ""
    dense: bool = False
    """Whether the ViT sees every cell, and those are taken of what it makes."""


Show = Callable[[Sequence[ViewRow]], list[ViewRow]]


def ask_views(kind: str, splits: Sequence[str], questions: int) -> list[ViewRow]:
    """Rows of "clips" or "several" with `questions` questions in all; forms and splits take turns."""
    make, forms = {"clips": (make_clip, CLIP_FORMS), "several": (make_several, SEVERAL_FORMS)}[kind]
    rows: list[ViewRow] = []
    left, number = questions, 0
    while left > 0:
        split = splits[number % len(splits)]
        shown = make(FIRST_SEED + number, split, forms[number // len(splits) % len(forms)])
        able = [question for question in shown.questions if question.family != STORY]
        order = np.random.default_rng([2, number]).permutation(len(able))
        chosen = tuple(able[i] for i in order[: min(PER_IMAGE, left)].tolist())
        rows.append(ViewRow(shown, chosen, group=split))
        left, number = left - len(chosen), number + 1
    return rows


# ---- controls --------------------------------------------------------------------------------------------


def _with_pictures(row: ViewRow, pictures: Sequence[np.ndarray]) -> ViewRow:
    return replace(row, shown=replace(row.shown, pictures=tuple(pictures)))


def blank(rows: Sequence[ViewRow]) -> list[ViewRow]:
    """Grey pictures: what can be guessed from the questions alone."""
    return [_with_pictures(row, [np.full_like(picture, 128) for picture in row.shown.pictures]) for row in rows]


def another(rows: Sequence[ViewRow]) -> list[ViewRow]:
    """The pictures of the next row of the same form; rows that are alone in theirs are left out."""
    found = []
    for number, row in enumerate(rows):
        others = [one for one in (*rows[number + 1 :], *rows[:number]) if one.shown.form == row.shown.form]
        found += [_with_pictures(row, other.shown.pictures) for other in others[:1]]
    return found


def shuffled(rows: Sequence[ViewRow]) -> list[ViewRow]:
    """The questions that need time, with the frames in an order drawn at random."""
    found = []
    for number, row in enumerate(rows):
        order = np.random.default_rng([3, number]).permutation(len(row.shown.pictures)).tolist()
        timed = tuple(question for question in row.questions if question.family in TIMED)
        if timed:
            mixed = _with_pictures(row, [row.shown.pictures[frame] for frame in order])
            found.append(replace(mixed, questions=timed))
    return found


def in_time(rows: Sequence[ViewRow]) -> list[ViewRow]:
    """The same questions as `shuffled`, with the frames in their order."""
    timed = [replace(row, questions=tuple(q for q in row.questions if q.family in TIMED)) for row in rows]
    return [row for row in timed if row.questions]


def with_evidence(rows: Sequence[ViewRow]) -> list[ViewRow]:
    """Per question its evidence and others, KEPT of the cells, or all of a larger evidence."""
    rng, found = np.random.default_rng(4), []
    for row in rows:
        budget = round(KEPT * row.shown.form.cells)
        for question in row.questions:
            cells = spread(row.shown.evidence(question), budget, row.shown.form.grids, rng)
            found.append(replace(row, questions=(question,), cells=tuple(cells)))
    return found


# ---- a small copy, then windows --------------------------------------------------------------------------


def window_rows(asked: Sequence[Asked], kept: float, copied: bool, missed: float) -> list[ViewRow]:
    """Per question its evidence and an even grid, both less the share `missed` of it; `copied`: after a small copy."""
    rng, found = np.random.default_rng(5), []
    for a in asked:
        grid: Grid = (a.scene.height // CELL, a.scene.width // CELL)
        budget = round(kept * grid[0] * grid[1])
        small = periphery_grid(grid, FirstLook().grid(grid), budget) if copied else None
        shown = _after_copy(a, small)
        first = shown.form.cells - grid[0] * grid[1]
        for q in a.questions:
            evidence = boxes_cells(q.evidence, *grid)
            lost = {c for c in sorted(evidence) if rng.random() < missed}
            windows = fill_evenly(evidence - lost, budget - first, *grid, lost)
            cells = (*range(first), *(first + cell for cell in windows))
            found.append(ViewRow(shown, (ViewQuestion(q.text, q.answer, q.family, ()),), cells))
    return found


def _after_copy(a: Asked, small: Grid | None) -> ShownViews:
    """An image as a view, after a small copy of so many cells (None: alone)."""
    size, elements = (a.scene.width, a.scene.height), a.scene.elements
    if small is None:
        return ShownViews(Form((size,)), (a.image,), (elements,), ())
    form = Form(((small[1] * CELL, small[0] * CELL), size))
    return ShownViews(form, (shrink(a.image, small), a.image), ((), elements), ())


# ---- answers ---------------------------------------------------------------------------------------------


class ViewAnswerer:
    """Answers rows of several views with a model on one device."""

    def __init__(self, answerer: Answerer) -> None:
        self.one, self.device = answerer, answerer.device
        self._tables: dict[tuple[Grid, ...], ViewTables] = {}

    @torch.no_grad()
    def answer(self, rows: Sequence[ViewRow]) -> list[list[str]]:
        """Texts in the order of rows and questions. Rows of one form and number of cells run together."""
        groups: dict[tuple[Form, int | None, bool], list[int]] = {}
        for number, row in enumerate(rows):
            kept = None if row.cells is None else len(row.cells)
            groups.setdefault((row.shown.form, kept, row.dense), []).append(number)
        answers: list[list[str]] = [[] for _ in rows]
        for (form, kept, dense), members in groups.items():
            sparse = kept is not None and not dense
            size = max(1, _CELLS[self.device.type] // max(kept or 0, form.cells // 4 if sparse else form.cells))
            for start in range(0, len(members), size):
                part = members[start : start + size]
                for number, texts in zip(part, self._answer_group([rows[n] for n in part], form), strict=True):
                    answers[number] = texts
        return answers

    def _answer_group(self, rows: Sequence[ViewRow], form: Form) -> list[list[str]]:
        model, turns, dtype = self.one.model, self.one.turns, self.one.dtype
        pictures = [np.stack([row.shown.pictures[n] for row in rows]) for n in range(len(rows[0].shown.pictures))]
        shown = [torch.from_numpy(each).to(self.device) for each in pictures]
        patches = clip_patches(torch.stack(shown, 1), dtype) if form.frames else image_patches(shown, dtype)
        if form.grids not in self._tables:
            self._tables[form.grids] = view_tables(model, form.grids, self.device)
        cells = None if rows[0].cells is None else np.array([row.cells for row in rows])
        cells_RK = None if cells is None else torch.from_numpy(cells).to(self.device)
        seen = encode_views(model, patches, self._tables[form.grids], None if rows[0].dense else cells_RK)
        if rows[0].dense:
            seen = cut_rows(seen, torch.arange(len(rows), device=self.device), cells_RK)
        laid = {name: value.long().to(self.device) for name, value in prompts("asked", turns, form, cells).items()}
        cache = run_views(model, seen, laid["asked_prompt"], laid["asked_slots"])
        counts = torch.tensor([len(row.questions) for row in rows], device=self.device)
        row_of = torch.arange(len(rows), device=self.device).repeat_interleave(counts)
        asked = [turns.prompt(question.text) for row in rows for question in row.questions]
        start = prefix_of(turns, form).start
        said = answer_rows(model, share_cache(cache, row_of), asked, start, turns.stop_id, self.one.most_tokens)
        texts = iter([turns.decode(one.ids) for one in said])
        return [[next(texts) for _ in row.questions] for row in rows]


def view_outcomes(answerer: Answerer, rows: Sequence[ViewRow]) -> list[Outcome]:
    """Ask everything and pair the answers with what was expected; the group stands as the difficulty."""
    answers = ViewAnswerer(answerer).answer(rows)
    return [
        Outcome(number, question.family, row.group, question.answer, given)
        for number, (row, texts) in enumerate(zip(rows, answers, strict=True))
        for question, given in zip(row.questions, texts, strict=True)
    ]


def view_tests(
    questions: int, asked: Callable[[], list[Asked]], larger: Callable[[], list[Asked]]
) -> Iterator[tuple[str, Callable[[], list[ViewRow]]]]:
    """(name, how its rows are drawn), the most telling first; `asked` and `larger` draw the scenes of small copies."""
    clips, several = (cache(partial(ask_views, kind, ("seen",), questions)) for kind in ("clips", "several"))
    yield "clips", clips
    yield "several", several
    yield "clips_in_time", lambda: in_time(clips())
    yield "clips_shuffled", lambda: shuffled(clips())
    for shown, name, kept in ((asked, "25", KEPT), (larger, "128", KEPT / 2)):
        for copied, missed in ((True, 0.0), (True, 0.5), (False, 0.5), (False, 0.0)):
            if copied or missed or shown is larger:  # `sparse25` of whole images is a test of its own
                label = f"{'foveated' if copied else 'sparse'}{name}{'_missed' if missed else ''}"
                yield label, partial(_windows, shown, kept, copied, missed)
    yield "clips_held_out", partial(ask_views, "clips", HELD_OUT, questions)
    yield "several_held_out", partial(ask_views, "several", (*HELD_OUT, "layouts"), questions)
    controls: tuple[tuple[str, Show], ...] = (("blank", blank), ("another", another), ("sparse25", with_evidence))
    for name, show in controls:
        yield f"clips_{name}", partial(_shown, show, clips)
        yield f"several_{name}", partial(_shown, show, several)


def _windows(asked: Callable[[], list[Asked]], kept: float, copied: bool, missed: float) -> list[ViewRow]:
    return window_rows(asked(), kept, copied, missed)


def _shown(show: Show, rows: Callable[[], list[ViewRow]]) -> list[ViewRow]:
    return show(rows())
