"""What all measures of a selector share: the scenes, what is kept of them, and the answers. Each is made once.

Scenes are those of the split "seen", 512 px a side and, a quarter as many questions, 1024 px.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from arr_coc.config import ARRCOCConfig, Keep
from arr_coc.evaluation.field.data import SPREAD
from arr_coc.evaluation.statistics import Clustered
from arr_coc.layer import ARRCOCLayer
from studies.answering import Answerer, Row
from studies.asked import Asked, ask_about
from studies.mini.evaluation import dense_rows
from studies.outcomes import Outcome
from studies.selector.selection import Chooser, Chosen, Glances, at_random

KEEPS: tuple[Keep, ...] = (0.06, 0.1, 0.25, 0.5)  # fractions KEPT that are reported
RANDOM_KEEPS: tuple[Keep, ...] = (0.06, 0.1, 0.25)  # fractions KEPT of the control
WHOLE = "all cells"  # name of the answers to whole images
ALL_QUESTIONS = 4000  # of a whole report; counts of the smaller tests are meant for it

Ways = Mapping[str, tuple[Sequence[Chosen], str]]
"""Name -> what is kept for every question, and how it is encoded ("dense" or "sparse")."""

Known = dict[tuple[object, ...], str]
"""Answers found before, by image, question, cells and encoding."""


@dataclass
class Study:
    """A model with a selector, and everything that was already found out about them."""

    answerer: Answerer
    config: ARRCOCConfig
    layer: ARRCOCLayer
    questions: int = ALL_QUESTIONS
    size: int = 512  # px a side; the larger scenes have twice that
    seed: int = 0
    log: Callable[[str], None] = print
    _asked: dict[int, list[Asked]] = field(default_factory=dict)
    _chosen: dict[int, dict[Keep, list[Chosen]]] = field(default_factory=dict)
    _full: dict[int, list[Outcome]] = field(default_factory=dict)
    _known: Known = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.glances = Glances(self.answerer.model)
        self.chooser = self.chooser_of(self.layer)

    def chooser_of(self, layer: ARRCOCLayer) -> Chooser:
        """A chooser with another layer before the same model."""
        return Chooser(self.answerer.model, self.answerer.turns, layer, self.glances)

    def some(self, count: int) -> int:
        """`count` in a whole report, fewer where fewer questions were asked for."""
        return max(1, min(count, round(count * self.questions / ALL_QUESTIONS)))

    def asked(self, px: int) -> list[Asked]:
        """The scenes of `px` a side with their questions, drawn."""
        if px not in self._asked:
            count = self.questions if px == self.size else max(1, self.questions // 4)
            with self.told(f"draw {count} questions at {px} px"):
                self._asked[px] = ask_about("seen", count, (px, px), self.seed)
        return self._asked[px]

    def first(self, px: int, count: int) -> list[Asked]:
        """The first of these scenes, with about `count` questions."""
        taken: list[Asked] = []
        while sum(len(one.questions) for one in taken) < count and len(taken) < len(self.asked(px)):
            taken.append(self.asked(px)[len(taken)])
        return taken

    def chosen(self, px: int) -> dict[Keep, list[Chosen]]:
        """What the selector keeps for these questions, at every dial."""
        if px not in self._chosen:
            asked = self.asked(px)
            with self.told(f"choose at {px} px"):
                self._chosen[px] = self.chooser.over(asked, [*KEEPS, "auto"])
        return self._chosen[px]

    def random(self, px: int, keep: Keep) -> list[Chosen]:
        """As many cells for the same questions, drawn evenly."""
        return at_random(self.chosen(px)["auto"], keep, self.seed)

    def full(self, px: int) -> list[Outcome]:
        """Answers when every cell is seen."""
        if px not in self._full:
            self.answers(px, {})
        return self._full[px]

    def answers(self, px: int, ways: Ways) -> dict[str, list[Outcome]]:
        """Answers to the questions at `px` under each way; those of the whole image are found on the way."""
        found = self.answers_about(self.asked(px), ways, px not in self._full)
        if WHOLE in found:
            self._full[px] = found.pop(WHOLE)
        return found

    def answers_about(self, asked: Sequence[Asked], ways: Ways, whole: bool = False) -> dict[str, list[Outcome]]:
        """Answers to the questions of some scenes under each way, see `answer_ways`."""
        with self.told(f"answer: {', '.join([*ways, *([WHOLE] if whole else [])])}"):
            return answer_ways(self.answerer, asked, ways, whole, self._known)

    def told(self, what: str) -> "Announced":
        """Says what was done and how long it took."""
        return Announced(what, self.log)


class Announced:
    """A line at the end of a piece of work."""

    def __init__(self, what: str, log: Callable[[str], None]) -> None:
        self.what, self.log = what, log

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.log(f"{time.perf_counter() - self.started:7.1f} s  {self.what}")


def answer_ways(
    answerer: Answerer, asked: Sequence[Asked], ways: Ways, whole: bool = False, known: Known | None = None
) -> dict[str, list[Outcome]]:
    """Answers under each way, in the order of the questions; with `whole`, under WHOLE those that see all cells.

    A way keeps something for every question of `asked`, in order. All ways run in one go, so that an image is encoded
    once for all its dense rows. Rows that are the same, or `known`, are not answered again; `known` learns new ones.
    """
    known = {} if known is None else known
    plan = {name: [_row(asked, one, encoding) for one in chosen] for name, (chosen, encoding) in ways.items()}
    new = {_key(row): row for listed in plan.values() for row in listed if _key(row) not in known}
    answers = answerer.answer([*new.values(), *(dense_rows(asked) if whole else [])])
    known |= {key: answers[place][0] for place, key in enumerate(new)}
    texts = {name: [known[_key(row)] for row in listed] for name, listed in plan.items()}
    if whole:
        texts[WHOLE] = [text for row in answers[len(new) :] for text in row]
    facts = [(n, a.scene.difficulty, q) for n, a in enumerate(asked) for q in a.questions]
    return {
        name: [
            Outcome(n, q.family, difficulty, q.answer, text)
            for (n, difficulty, q), text in zip(facts, listed, strict=True)
        ]
        for name, listed in texts.items()
    }


def _row(asked: Sequence[Asked], one: Chosen, encoding: str) -> Row:
    about = asked[one.image]
    return Row(about.image, (about.questions[one.question].text,), one.cells, encoding)


def _key(row: Row) -> tuple[object, ...]:
    return id(row.image), row.questions, row.cells, row.encoding


def scores(outcomes: Sequence[Outcome], localised: bool = False) -> Clustered:
    """How right the answers are; of localised families alone, or of all."""
    return Clustered.of((one.image, one.score) for one in outcomes if not (localised and one.family in SPREAD))


def recalls(chosen: Sequence[Chosen], localised: bool = True) -> Clustered:
    """Recall of every question with evidence; of localised families alone, or of all."""
    return Clustered.of((one.image, one.recall) for one in chosen if (one.localised if localised else one.evidence))
