"""Answers of mini, how right they are and how sure that is.

An answer is right when it is the expected text. A description is judged by F1 over its (colour, thing) pairs.
Intervals come from a bootstrap over images, since questions about one image are not independent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from arr_coc.evaluation.field.data import DESCRIBE, pair_f1
from arr_coc.evaluation.statistics import Clustered, resampled_means


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question with what was answered."""

    image: int  # number of the image: the cluster of the bootstrap
    family: str
    difficulty: str
    expected: str
    given: str

    @property
    def score(self) -> float:
        """1 or 0, for descriptions anything between."""
        if self.family == DESCRIBE:
            return pair_f1(self.expected, self.given)
        return float(self.expected.strip() == self.given.strip())


def interval(scores: Sequence[float], clusters: Sequence[int]) -> list[float]:
    """95 % interval of the mean score, by resampling clusters with replacement."""
    means = resampled_means([Clustered(np.asarray(scores, float), np.asarray(clusters))])[:, 0]
    return [round(float(q), 4) for q in np.quantile(means, [0.025, 0.975])]


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """accuracy, ci95 and n of some outcomes."""
    scores = [outcome.score for outcome in outcomes]
    if not scores:
        return {"accuracy": None, "ci95": None, "n": 0}
    clusters = [outcome.image for outcome in outcomes]
    accuracy = round(float(np.mean(scores)), 4)
    return {"accuracy": accuracy, "ci95": interval(scores, clusters), "n": len(scores)}


def majority(outcomes: Iterable[Outcome]) -> float:
    """Accuracy of always giving a family's most frequent answer, over all families together."""
    by_family: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_family[outcome.family].append(outcome)
    total = 0.0
    for group in by_family.values():
        answer = Counter(outcome.expected for outcome in group).most_common(1)[0][0]
        total += sum(
            pair_f1(o.expected, answer) if o.family == DESCRIBE else float(o.expected == answer) for o in group
        )
    return round(total / max(1, sum(len(group) for group in by_family.values())), 4)


def by_group(outcomes: Sequence[Outcome], attribute: str) -> dict[str, dict[str, object]]:
    """`summary` and majority baseline per value of `attribute` ("family" or "difficulty")."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[getattr(outcome, attribute)].append(outcome)
    return {name: summary(group) | {"majority": majority(group)} for name, group in sorted(groups.items())}
