# SPDX-License-Identifier: Apache-2.0
"""Aggregators: how the votes of teachers become answers, with noise.

Each answers all queries at once. An answer is the number of a class, or `NO_ANSWER`.

| aggregator | what it does |
| --- | --- |
| `LNMax` | the class with the most votes, after Laplace noise |
| `GNMax` | the same after Gaussian noise |
| `ConfidentGNMax` | GNMax, if the largest count is above a threshold, after noise of its own |
| `InteractiveGNMax` | GNMax, if teachers disagree with a student; else what the student predicts |

Guarantee  A unit that is in one teacher of weight `weight` can change that teacher's vote in every query. One
           changed vote lowers one count and raises another, each by `weight`. So the counts of a query move
           by `weight` sqrt(2) in L2 norm, and their maximum by `weight`. `event` states the noise relative to
           that. Noise of the comparison and noise of the answer are drawn separately.
Neighbors  Stated for one unit added or removed. A replaced unit may change two teachers; accountants double
           the distance there.
Edge cases Equal counts are decided by noise. A query without any vote gets noise like others. Counts that are
           not finite are refused: `teachers` never makes such.
Source     Papernot et al. 2017, arXiv:1610.05755 (LNMax); Papernot et al. 2018, arXiv:1802.08908, Algorithms
           1 and 2. Comparison and answer have noises of their own: docs/errata.md, R4-4.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import DpEvent, UnsampledDpEvent, compose
from sfumato.accounting.upstream import dp_event as dp
from sfumato.accounting.votes import Votes
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import arrays
from sfumato.mechanisms.random import Generator, resolve

__all__ = ["NO_ANSWER", "Aggregator", "ConfidentGNMax", "GNMax", "LNMax", "noisy_counts"]

Counts = npt.NDArray[np.float64]
Answers = npt.NDArray[np.int64]

NO_ANSWER = -1


@runtime_checkable
class Aggregator(Protocol):
    """What turns counts of votes into answers, and knows what that costs."""

    @property
    def name(self) -> str:
        """The name in statements."""
        ...

    def event(self, queries: int, *, weight: float = 1.0) -> DpEvent:
        """Return the event of a job, for a unit in one teacher.

        Args:
            queries: How many queries are asked.
            weight: The weight of the teacher's vote.

        Returns:
            The event.
        """
        ...

    def answer(self, counts: Counts, *, generator: Generator | None = None) -> Answers:
        """Answer all queries.

        Args:
            counts: The votes for each class, [queries, classes]. They are private.
            generator: Source of randomness.

        Returns:
            The class of each query, or `NO_ANSWER`.
        """
        ...


class Comparing(Protocol):
    """The numbers of an aggregator that compares with a threshold before it answers."""

    @property
    def threshold(self) -> float:
        """The smallest noisy value that is answered."""
        ...

    @property
    def threshold_stddev(self) -> float:
        """The standard deviation of the noise in the comparison."""
        ...

    @property
    def stddev(self) -> float:
        """The standard deviation of the noise in each count of an answer."""
        ...

    @property
    def max_answers(self) -> int | None:
        """After how many answers the job ends."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LNMax:
    """The class with the most votes after Laplace noise.

    Args:
        scale: The scale of the noise in each count: 1 / gamma of the paper.

    Raises:
        InvalidParameterError: If the scale is not positive.

    >>> from sfumato.accounting import price
    >>> round(price(LNMax(scale=20.0).event(100), delta=1e-5).epsilon, 2)  # 100 answers
    2.89
    """

    scale: float

    def __post_init__(self) -> None:
        _check.positive(scale=self.scale)

    @property
    def name(self) -> str:
        """The name in statements."""
        return f"LNMax (noise of scale {self.scale:g})"

    def event(self, queries: int, *, weight: float = 1.0) -> DpEvent:
        """Return the event of a job: two counts of each query move by `weight`.

        Args:
            queries: How many queries are answered.
            weight: The weight of the teacher's vote.

        Returns:
            The event.
        """
        _check_job(queries, weight)
        return _repeated(dp.LaplaceDpEvent(self.scale / weight), 2 * queries)

    def answer(self, counts: Counts, *, generator: Generator | None = None) -> Answers:
        """Answer all queries.

        Args:
            counts: The votes for each class, [queries, classes]. They are private.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The class of each query.

        Raises:
            InvalidParameterError: If the counts are not a table of finite numbers. The message shows none.
        """
        known = checked_counts(counts)
        noise = arrays.laplace(known.size, scale=self.scale, generator=generator)
        return (known + noise.reshape(known.shape)).argmax(axis=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class GNMax:
    """The class with the most votes after Gaussian noise.

    Args:
        stddev: The standard deviation of the noise in each count.

    Raises:
        InvalidParameterError: If it is not positive.

    >>> GNMax(stddev=40.0).answer(np.array([[0.0, 5000.0], [5000.0, 0.0]]))
    array([1, 0])
    """

    stddev: float

    def __post_init__(self) -> None:
        _check.positive(stddev=self.stddev)

    @property
    def name(self) -> str:
        """The name in statements."""
        return f"GNMax (noise of standard deviation {self.stddev:g})"

    @property
    def votes(self) -> Votes:
        """The noise, for prices that depend on the votes."""
        return Votes(stddev=self.stddev)

    def event(self, queries: int, *, weight: float = 1.0) -> DpEvent:
        """Return the event of a job.

        Args:
            queries: How many queries are answered.
            weight: The weight of the teacher's vote.

        Returns:
            The event.
        """
        _check_job(queries, weight)
        return _repeated(dp.GaussianDpEvent(self.stddev / (math.sqrt(2) * weight)), queries)

    def answer(self, counts: Counts, *, generator: Generator | None = None) -> Answers:
        """Answer all queries.

        Args:
            counts: The votes for each class, [queries, classes]. They are private.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The class of each query.

        Raises:
            InvalidParameterError: If the counts are not a table of finite numbers. The message shows none.
        """
        return noisy_counts(counts, stddev=self.stddev, generator=generator).argmax(axis=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfidentGNMax:
    """GNMax for the queries on which many teachers agree.

    The largest count of a query gets noise of its own and is compared with a threshold. Only above it GNMax
    answers. Which queries are above is released, and paid for.

    Args:
        threshold: The smallest noisy count that is answered.
        threshold_stddev: The standard deviation of the noise in the comparison.
        stddev: The standard deviation of the noise in each count of an answer.
        max_answers: After so many answers the job ends, and later queries are not answered. The fewer, the
            less the job costs. None: as many as there are queries.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> aggregator = ConfidentGNMax(threshold=2000.0, threshold_stddev=150.0, stddev=40.0)
    >>> aggregator.answer(np.array([[0.0, 5000.0], [500.0, 600.0]]))
    array([ 1, -1])
    """

    threshold: float
    threshold_stddev: float
    stddev: float
    max_answers: int | None = None

    def __post_init__(self) -> None:
        _check.finite(threshold=self.threshold)
        _check.positive(threshold_stddev=self.threshold_stddev, stddev=self.stddev)
        if self.max_answers is not None:
            _check.count(max_answers=self.max_answers)

    @property
    def name(self) -> str:
        """The name in statements."""
        return (
            f"Confident-GNMax (threshold {self.threshold:g} with noise {self.threshold_stddev:g}, answers "
            f"with noise {self.stddev:g})"
        )

    @property
    def votes(self) -> Votes:
        """The noise, for prices that depend on the votes."""
        return Votes(stddev=self.stddev, threshold=self.threshold, threshold_stddev=self.threshold_stddev)

    def event(self, queries: int, *, weight: float = 1.0) -> DpEvent:
        """Return the event of a job: a comparison for each query, and at most `max_answers` answers.

        Args:
            queries: How many queries are asked.
            weight: The weight of the teacher's vote.

        Returns:
            The event.
        """
        return compared_event(self, queries, weight)

    def answer(self, counts: Counts, *, generator: Generator | None = None) -> Answers:
        """Answer the queries on which teachers agree.

        Args:
            counts: The votes for each class, [queries, classes]. They are private.
            generator: Source of randomness. None uses the secure generator; any other kind is for study only.

        Returns:
            The class of each query, or `NO_ANSWER`.

        Raises:
            InvalidParameterError: If the counts are not a table of finite numbers. The message shows none.
        """
        known, source = checked_counts(counts), resolve(generator)
        above = above_threshold(self, known.max(axis=1), source)
        chosen = noisy_counts(known, stddev=self.stddev, generator=source).argmax(axis=1)
        return np.where(above, chosen, NO_ANSWER)


# --- what they share --------------------------------------------------------------------------------------


def noisy_counts(counts: Counts, *, stddev: float, generator: Generator | None = None) -> Counts:
    """Return counts with Gaussian noise in each. They cost as many answers as there are rows."""
    known = checked_counts(counts)
    noise = arrays.gaussian(known.size, stddev=stddev, generator=generator)
    return known + noise.reshape(known.shape)


def above_threshold(
    rule: Comparing, values: npt.NDArray[np.float64], generator: Generator
) -> npt.NDArray[np.bool_]:
    """Return which values are above the threshold after noise, up to the last that may be answered."""
    noise = arrays.gaussian(len(values), stddev=rule.threshold_stddev, generator=generator)
    above = values + noise >= rule.threshold
    return above & before_the_end(above, rule.max_answers)


def before_the_end(above: npt.NDArray[np.bool_], max_answers: int | None) -> npt.NDArray[np.bool_]:
    """Return which queries come before the job ends; what was compared after that is not shown."""
    if max_answers is None:
        return np.ones_like(above)
    return np.cumsum(above) - above < max_answers


def compared_event(rule: Comparing, queries: int, weight: float) -> DpEvent:
    _check_job(queries, weight)
    answers = queries if rule.max_answers is None else min(queries, rule.max_answers)
    compared = dp.GaussianDpEvent(rule.threshold_stddev / weight)
    answered = dp.GaussianDpEvent(rule.stddev / (math.sqrt(2) * weight))
    return compose(_repeated(compared, queries), _repeated(answered, answers))


def _repeated(event: DpEvent, count: int) -> DpEvent:
    # A unit is no summand of the counts, so that no sample of units amplifies this.
    whole = UnsampledDpEvent(event)
    return dp.SelfComposedDpEvent(whole, count) if count > 1 else whole


def _check_job(queries: int, weight: float) -> None:
    _check.count(queries=queries)
    _check.positive(weight=weight)


def checked_counts(counts: Counts) -> Counts:
    known = np.asarray(counts, dtype=np.float64)
    if known.ndim != 2 or known.shape[1] < 1 or not np.isfinite(known).all():
        raise InvalidParameterError(
            "counts must be a table of finite numbers, a row for each query and a column for each class."
        )
    return known
