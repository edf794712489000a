"""Means, ratios and differences with 95 % intervals, and permutation tests: all of them over images.

Questions about one image are not independent, so images are what is drawn again (bootstrap) or given another label
(permutation). S samples, I images.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ROUNDS = 1000  # of the bootstrap
SHUFFLES = 4000  # of a permutation test: the least p is 1 in 4,001
DIGITS = 5

Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One value per question, and the image of each."""

    values: np.ndarray
    images: np.ndarray

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, float]]) -> "Sample":
        """From (image, value) pairs."""
        listed = list(pairs)
        return cls(np.array([value for _, value in listed], float), np.array([image for image, _ in listed], int))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean over the questions; NaN without any."""
        return float(self.values.mean()) if len(self) else float("nan")

    def per_image(self) -> np.ndarray:
        """Mean of each image that has questions."""
        numbers = np.unique(self.images, return_inverse=True)[1]
        means: np.ndarray = np.bincount(numbers, self.values) / np.bincount(numbers)
        return means


def resampled_means(samples: Sequence[Sample], seed: int = 0) -> np.ndarray:
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


def mean_of(sample: Sample) -> Figure:
    """mean, ci95 and n of a sample."""
    if not len(sample):
        return _figure(float("nan"), np.empty(0), 0)
    return _figure(sample.mean, resampled_means([sample])[:, 0], len(sample))


def _compared(a: Sample, b: Sample, how: Callable[..., Any]) -> Figure:
    """A figure of two means over the same images, so that what they share does not widen the interval."""
    if not len(a) or not len(b):
        return _figure(float("nan"), np.empty(0), 0)
    drawn = resampled_means([a, b])
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(how(np.float64(a.mean), np.float64(b.mean)))
        return _figure(value, how(drawn[:, 0], drawn[:, 1]), min(len(a), len(b)))


def ratio_of(a: Sample, b: Sample) -> Figure:
    """Mean of `a` over mean of `b`."""
    return _compared(a, b, np.divide)


def difference_of(a: Sample, b: Sample) -> Figure:
    """Mean of `a` less mean of `b`."""
    return _compared(a, b, np.subtract)


def permutation_p(a: Sample, b: Sample, seed: int = 0) -> float:
    """How often chance alone makes the mean of `a` exceed that of `b` by as much: one-sided.

    One value per image and sample. Images that are in both count as two, which widens what chance can do.
    """
    first, second = a.per_image(), b.per_image()
    both = np.concatenate([first, second])
    found = first.mean() - second.mean()
    rng = np.random.default_rng(seed)
    as_much = 0
    for _ in range(SHUFFLES):
        mixed = rng.permutation(both)
        # A hair of slack: sums in another order differ in their last bits.
        as_much += mixed[: len(first)].mean() - mixed[len(first) :].mean() >= found - 1e-12
    return round((as_much + 1) / (SHUFFLES + 1), 6)
