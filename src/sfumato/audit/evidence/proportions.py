# SPDX-License-Identifier: Apache-2.0
"""Shares with confidence intervals: how often an attack was right, and how much more often than another.

An interval of confidence c holds the true share in all but a part 1 - c of such samples, for any number of
rows, by Clopper and Pearson (1934), without a normal approximation. The interval of a difference of two
shares joins their two intervals, each at confidence 1 - (1 - c) / 2; by the union bound both hold together,
so it is rather too wide. Each interval holds separately. Several together hold at a lower confidence.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.audit.evidence.bounds import clopper_pearson
from sfumato.errors import InvalidParameterError

__all__ = ["Interval", "gap", "in_words", "least_rows", "paired_gap", "share"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate, and the ends between which the true value lies with this confidence.

    Attributes:
        value: The estimate.
        low: The lower end.
        high: The upper end.
        confidence: The confidence.
    """

    value: float
    low: float
    high: float
    confidence: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g}, confidence {self.confidence:.4g})"


def share(hits: int, trials: int, *, confidence: float = 0.95) -> Interval:
    """Return the share of hits among trials.

    >>> in_words(share(9, 10))
    '90.0% (55.5% to 99.7%)'
    """
    low, high = _ends(hits, trials, confidence)
    return Interval(value=hits / trials, low=low, high=high, confidence=confidence)


def gap(first: tuple[int, int], second: tuple[int, int], *, confidence: float = 0.95) -> Interval:
    """Return how much larger the first share is, each given as (hits, trials) on different rows.

    >>> in_words(gap((90, 100), (50, 100)))
    '40.0% (19.7% to 57.1%)'
    """
    return _difference(first, second, confidence)


def paired_gap(
    first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_], *, confidence: float = 0.95
) -> Interval:
    """Return how much larger the first share is, if both attacks were tried on the same rows.

    Only rows on which they disagree count, so the interval is narrower than that of `gap`.

    >>> right = np.arange(100) < 90
    >>> in_words(paired_gap(right, np.arange(100) < 80))
    '10.0% (0.1% to 18.8%)'
    """
    if first.shape != second.shape or first.ndim != 1:
        raise InvalidParameterError("both attacks must be tried on the same rows: give one truth for each.")
    gained, lost = int((first & ~second).sum()), int((second & ~first).sum())
    return _difference((gained, len(first)), (lost, len(first)), confidence)


def in_words(interval: Interval) -> str:
    """Return an interval of shares as percentages."""
    return f"{interval.value:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def least_rows(confidence: float) -> int:
    """Return the number of rows that separates an attack that is always right from one that never is.

    >>> least_rows(0.95)
    7
    """
    _check.probability(confidence=confidence)
    return math.floor(-math.log2((1 - confidence) / 4)) + 1


def _difference(first: tuple[int, int], second: tuple[int, int], confidence: float) -> Interval:
    _check.probability(confidence=confidence)
    each = 1 - (1 - confidence) / 2
    (low, high), (other_low, other_high) = (_ends(*counts, each) for counts in (first, second))
    value = first[0] / first[1] - second[0] / second[1]
    return Interval(value=value, low=low - other_high, high=high - other_low, confidence=confidence)


def _ends(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return the ends of the interval of a share: each may fail with half of the error."""
    _check.probability(confidence=confidence)
    return clopper_pearson(hits, trials, confidence=(1 + confidence) / 2)
