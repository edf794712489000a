"""More questions of chosen kinds about a scene, in the wording of the world.

A scene asks a few questions by its own dice, and rarely those that are hard to learn: one lookup in four goes from
the value to the row. Practice asks further ones of the kinds that are weak. The scene itself stays as it is.
"""

from collections.abc import Callable, Sequence

from arr_coc_scenes import Question
from arr_coc_scenes import asking_texts as texts
from arr_coc_scenes.draft import Draft
from arr_coc_scenes.making import ASKERS

Maker = Callable[[Draft], Question | None]


def _lookup(inverse: bool) -> Maker:
    def make(draft: Draft) -> Question | None:
        rows = [row for row in draft.rows if not inverse or row.word != "total"]
        if not rows:
            return None
        row = draft.rng.choice(rows)
        return texts.lookup_question(draft, row, draft.rng.choice(sorted(row.values)), inverse)

    return make


def _extreme(draft: Draft) -> Question | None:
    return texts.chart_extreme(draft) if draft.bars else None


def _bar_value(draft: Draft) -> Question | None:
    return texts.chart_value(draft, draft.rng.choice(draft.bars)) if draft.bars else None


def _which_bar(draft: Draft) -> Question | None:
    return texts.chart_value(draft, draft.rng.choice(draft.bars), inverse=True) if draft.bars else None


KINDS: dict[str, Maker] = {
    **{family: askers[0] for family, askers in ASKERS.items()},
    "value_of_row": _lookup(inverse=False),
    "row_of_value": _lookup(inverse=True),
    "extreme": _extreme,
    "bar_value": _bar_value,
    "which_bar": _which_bar,
}


def practice_questions(draft: Draft, kinds: Sequence[str], most: int, asked: Sequence[Question]) -> list[Question]:
    """Up to `most` questions of `kinds` (keys of KINDS), none with the answer and evidence of one in `asked`."""
    known = {_key(question) for question in asked}
    found: list[Question] = []
    for _ in range(3 * most if kinds else 0):
        if len(found) == most:
            break
        question = KINDS[draft.rng.choice(kinds)](draft)
        if question is not None and _key(question) not in known:
            known.add(_key(question))
            found.append(question)
    return found


def _key(question: Question) -> tuple[object, ...]:
    return question.family, question.answer, frozenset(question.evidence) or question.text
