"""Which confidence tells right from wrong answers, and what looking again is worth at the same number of tokens.

T tokens of an answer.

Tokens are those of all looks together. A rule is held against spending as many from the start: a fixed budget for all
questions, or the automatic budget of each times a factor. Between budgets that were asked, scores are interpolated,
question by question, so that differences are paired.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_coc.evaluation.statistics import Clustered, Figure, mean_of
from studies.look_twice.asking_again import CELLS, FIXED, START, Tried, ladder

Best = list[list[float]]  # probabilities of the best two tokens at each step
BINS = 10
RIGHT = 0.999  # score from which an answer counts as right; only descriptions are between


def _words(best: Best) -> np.ndarray:
    """The steps without the end."""
    return np.array(best[:-1] or best)


CANDIDATES: dict[str, Callable[[Best], float]] = {
    "least probability": lambda best: float(np.array(best)[:, 0].min()),
    "least probability, without the end": lambda best: float(_words(best)[:, 0].min()),
    "least probability of the first 4": lambda best: float(np.array(best)[:4, 0].min()),
    "first probability": lambda best: best[0][0],
    "mean (geometric)": lambda best: float(np.exp(np.log(np.array(best)[:, 0]).mean())),
    "mean (geometric), without the end": lambda best: float(np.exp(np.log(_words(best)[:, 0]).mean())),
    "product": lambda best: float(np.array(best)[:, 0].prod()),
    "least margin": lambda best: float((np.array(best)[:, 0] - np.array(best)[:, 1]).min()),
    "least margin, without the end": lambda best: float((_words(best)[:, 0] - _words(best)[:, 1]).min()),
}
CHOSEN = "least probability"


def auroc(confidences: Sequence[float], right: Sequence[bool]) -> float:
    """How often a right answer is surer than a wrong one; ties count half."""
    sure, truth = np.array(confidences), np.array(right, bool)
    above = sure[truth][:, None] - sure[~truth][None]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def separations(tried: Sequence[Tried], k: int) -> dict[str, float]:
    """AUROC of every candidate at a budget."""
    right = [one.scores[k] >= RIGHT for one in tried]
    return {
        name: round(auroc([measure(one.best_T2[k]) for one in tried], right), 4) for name, measure in CANDIDATES.items()
    }


def reliability(tried: Sequence[Tried], k: int, name: str = CHOSEN) -> dict[str, Any]:
    """Bins of confidence with how many answers are right, and the mean distance between the two."""
    sure = np.array([CANDIDATES[name](one.best_T2[k]) for one in tried])
    right = np.array([one.scores[k] >= RIGHT for one in tried], float)
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    bins = [
        {
            "from": number / BINS,
            "n": int((place == number).sum()),
            "confidence": round(float(sure[place == number].mean()), 4),
            "right": round(float(right[place == number].mean()), 4),
        }
        for number in range(BINS)
        if (place == number).any()
    ]
    off = sum(abs(one["confidence"] - one["right"]) * one["n"] for one in bins) / len(tried)
    return {"bins": bins, "calibration_error": round(off, 4)}


# ---------------------------------------------------------------- rules


@dataclass(frozen=True, slots=True)
class Rule:
    """Where the first look starts, how the next ones go on, when it is sure, and which answer is given."""

    automatic: bool  # from keep="auto"; else from START tokens
    goes: str  # "double" up to all, "once" doubled and no further, or "all" at once
    unsure: float  # least probability under which it looks again; 0: one look
    gives: str = "last"  # or "surest"

    def looks(self, one: Tried) -> list[int]:
        start = one.automatic if self.automatic else START
        doubled = ladder(start, 2)
        return {"double": doubled, "once": doubled[:2], "all": sorted({start, CELLS})}[self.goes]

    def walk(self, one: Tried) -> tuple[float, int, int]:
        """Score of the answer given, tokens of all looks, and how many looks there were."""
        best, score, tokens, looks = -1.0, 0.0, 0, 0
        for k in self.looks(one):
            sure = CANDIDATES[CHOSEN](one.best_T2[k])
            tokens, looks = tokens + k, looks + 1
            if self.gives == "last" or sure > best:
                best, score = sure, one.scores[k]
            if sure >= self.unsure:
                break
        return score, tokens, looks


def score_at(one: Tried, k: float) -> float:
    """The expected score of a question at any fixed budget, between those that were asked."""
    return float(np.interp(k, FIXED, [one.scores[asked] for asked in FIXED]))


def outcome(tried: Sequence[Tried], rule: Rule) -> dict[str, Any]:
    """What a rule gives and costs, and what the same tokens give without it."""
    walks = [rule.walk(one) for one in tried]
    scores, tokens, looks = (np.array(column, float) for column in zip(*walks, strict=True))
    fixed = [score_at(one, tokens.mean()) for one in tried]
    made: dict[str, Any] = {
        "unsure": rule.unsure,
        "tokens": round(float(tokens.mean()), 2),
        "share_of_tokens": round(float(tokens.mean()) / CELLS, 4),
        "asked_again": round(float((looks > 1).mean()), 4),
        "looks": round(float(looks.mean()), 3),
        "accuracy": round(float(scores.mean()), 4),
        "over_fixed": _gain(tried, scores, fixed),
    }
    if rule.automatic:
        factor = _factor(tried, float(tokens.mean()))
        scaled = [score_at(one, factor * one.automatic) for one in tried]
        first = np.array([one.scores[one.automatic] for one in tried])
        # Both ends interpolated, so that what interpolation itself adds or takes is not counted as a gain.
        start = [score_at(one, one.automatic) for one in tried]
        made["over_scaled"] = _gain(tried, scores - first, np.array(scaled) - np.array(start))
        made["factor"] = round(factor, 3)
    return made


def _gain(tried: Sequence[Tried], scores: Iterable[float], others: Iterable[float]) -> Figure:
    pairs = zip(tried, scores, others, strict=True)
    return mean_of(Clustered.of((one.image, score - other) for one, score, other in pairs))


def _factor(tried: Sequence[Tried], tokens: float) -> float:
    """What the automatic budgets must be multiplied by to make so many tokens on average."""
    automatic = np.array([one.automatic for one in tried], float)
    low, high = 1.0, float(CELLS)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(middle * automatic, CELLS).mean() < tokens else (low, middle)
    return low


def fixed_curve(tried: Sequence[Tried]) -> list[dict[str, float]]:
    """Accuracy at every fixed budget."""
    return [{"tokens": k, "accuracy": round(float(np.mean([one.scores[k] for one in tried])), 4)} for k in FIXED]
