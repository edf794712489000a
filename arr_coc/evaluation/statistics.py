"""Means, ratios and differences with 95 % intervals, and tests of paired differences: all of them over images.

Questions about one image are not independent, so images are what is drawn again (bootstrap) or changes its sign
(permutation). S samples, I images, M methods, Q questions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ROUNDS = 1000  # of the bootstrap
SHUFFLES = 50_000  # of a permutation test: the least p is 1 in 50,001, enough for a hundred comparisons
AT_ONCE = 1000  # shuffles that are held in memory
DIGITS = 5

Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Clustered:
    """One value per question, and the image of each."""

    values: np.ndarray
    images: np.ndarray

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, float]]) -> "Clustered":
        """From (image, value) pairs."""
        listed = list(pairs)
        return cls(np.array([value for _, value in listed], float), np.array([image for image, _ in listed], int))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean over the questions; NaN without any."""
        return float(self.values.mean()) if len(self) else float("nan")


def resampled_means(samples: Sequence[Clustered], seed: int = 0) -> np.ndarray:
    """Means `[ROUNDS, S]` of samples of the same images, when images are drawn with replacement.

    NaN where a draw left a sample without questions.
    """
    names = np.unique(np.concatenate([sample.images for sample in samples]))
    drawn = np.random.default_rng(seed).integers(0, len(names), (ROUNDS, len(names)))
    means = np.full((ROUNDS, len(samples)), np.nan)
    for column, sample in enumerate(samples):
        place = np.searchsorted(names, sample.images)
        sums = np.bincount(place, sample.values, minlength=len(names))[drawn].sum(1)
        counts = np.bincount(place, minlength=len(names))[drawn].sum(1)
        np.divide(sums, counts, out=means[:, column], where=counts > 0)
    return means


def _figure(value: float, drawn: np.ndarray, count: int) -> Figure:
    finite = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or not len(finite):
        return {"mean": None, "ci95": None, "n": count}
    limits = [round(float(q), DIGITS) for q in np.quantile(finite, [0.025, 0.975])]
    return {"mean": round(value, DIGITS), "ci95": limits, "n": count}


def mean_of(sample: Clustered) -> Figure:
    """mean, ci95 and n of a sample."""
    drawn = resampled_means([sample])[:, 0] if len(sample) else np.empty(0)
    return _figure(sample.mean, drawn, len(sample))


def compared(a: Clustered, b: Clustered, how: Callable[..., Any]) -> Figure:
    """A figure of two means over the same images, so that what they share does not widen the interval."""
    if not len(a) or not len(b):
        return _figure(float("nan"), np.empty(0), 0)
    drawn = resampled_means([a, b])
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(how(np.float64(a.mean), np.float64(b.mean)))
        return _figure(value, how(drawn[:, 0], drawn[:, 1]), min(len(a), len(b)))


def difference_of(a: Clustered, b: Clustered) -> Figure:
    """Mean of `a` less mean of `b`."""
    return compared(a, b, np.subtract)


def flip_p(differences_QM: np.ndarray, images_Q: np.ndarray, seed: int = 0) -> np.ndarray:
    """Two-sided p of paired differences `[M]`: how often a sum is as large when whole images change their sign."""
    places = np.unique(images_Q, return_inverse=True)[1]
    sums_IM = np.zeros((int(places.max()) + 1, differences_QM.shape[1]))
    np.add.at(sums_IM, places, differences_QM)
    found_M = np.abs(sums_IM.sum(0)) - 1e-9  # sums in another order differ in their last bits
    rng = np.random.default_rng(seed)
    as_large_M = np.zeros(differences_QM.shape[1])
    for _ in range(0, SHUFFLES, AT_ONCE):
        signs = rng.integers(0, 2, (AT_ONCE, len(sums_IM))) * 2.0 - 1.0
        as_large_M += (np.abs(signs @ sums_IM) >= found_M).sum(0)
    p_M: np.ndarray = (as_large_M + 1) / (SHUFFLES + 1)
    return p_M


def holm(p_M: Sequence[float]) -> list[float]:
    """Holm's correction for so many comparisons at once."""
    order = np.argsort(p_M, kind="stable")
    corrected = [0.0] * len(p_M)
    highest = 0.0
    for place, number in enumerate(order.tolist()):
        highest = max(highest, min(1.0, (len(p_M) - place) * p_M[number]))
        corrected[number] = highest
    return corrected
