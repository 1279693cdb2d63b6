# SPDX-License-Identifier: Apache-2.0
"""Private histograms: counts by bin or by category of a public domain.

Guarantee  A unit of at most k rows changes all counts together by k, however many bins there are: each bin
           gets noise for the whole epsilon. The noise is discrete Laplace (geometric), or discrete Gaussian
           if delta is given, so counts stay whole. `Histogram.probabilities` and `Histogram.sample`
           (synthetic rows) are post-processing: they cost nothing, however often they are used.
Neighbors  Replacing a unit changes the counts by 2 k in L1 norm, and by sqrt(2) k in L2 norm.
Edge cases A value outside the edges counts in the first or the last bin; a category that is not named is not
           counted. There is one interval for each count, which covers the noise.
Source     Dwork, McSherry, Nissim, Smith 2006.
Not here   Categories that are not known in advance: `stable_histograms`.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator, words
from sfumato.statistics.arrays import Floats
from sfumato.statistics.columns.categories import Categories, categories_of
from sfumato.statistics.columns.columns import Column, column_of
from sfumato.statistics.columns.input_values import is_missing
from sfumato.statistics.intervals import Law, around, whole_half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Interval, Parts, Release
from sfumato.statistics.terms import Terms

__all__ = [
    "BinCounts",
    "CategoryCounts",
    "Histogram",
    "checked_categories",
    "counts_answer",
    "histogram",
    "whole_counts",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """Noisy counts of bins or of categories.

    Args:
        counts: The noisy counts, whole numbers that may be negative.
        edges: The edges of the bins, one more than counts. None for categories.
        categories: The categories, one for each count. None for bins.

    Raises:
        InvalidParameterError: If not exactly one of `edges` and `categories` fits the counts.

    >>> drinks = Histogram(categories=("tea", "coffee"), counts=(30, -2))
    >>> drinks.probabilities()
    array([1., 0.])
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...] | None = None
    categories: tuple[Hashable, ...] | None = None

    def __post_init__(self) -> None:
        kinds = (self.edges is None) + (self.categories is None)
        bins = len(self.edges) - 1 if self.edges is not None else len(self.categories or ())
        if kinds != 1 or bins != len(self.counts):
            raise InvalidParameterError("pass edges, one more than counts, or categories, as many as counts.")

    def parts(self) -> Parts:
        """Return the bins or categories with their counts, as a release exports them.

        Returns:
            The labels and the counts.
        """
        if self.edges is None:
            return Parts(labels={"category": self.categories or ()}, numbers=self.counts)
        return Parts(labels={"bin_lower": self.edges[:-1], "bin_upper": self.edges[1:]}, numbers=self.counts)

    def probabilities(self) -> Floats:
        """Return the probability distribution nearest to the counts, some of which may be negative.

        Nearest in Euclidean distance: one number is subtracted from all shares, and negative results become
        0, so that the rest adds up to 1. If the counts do not add up to a positive number, all entries are
        equally likely.

        Returns:
            One probability for each count.
        """
        if not self.counts:
            return np.zeros(0)
        total = sum(self.counts)
        if total <= 0:
            return np.full(len(self.counts), 1 / len(self.counts))
        shares = np.array(self.counts, dtype=np.float64) / total
        falling = np.sort(shares)[::-1]
        excess = (np.cumsum(falling) - 1) / np.arange(1, shares.size + 1)
        kept = int(np.flatnonzero(falling > excess)[-1])
        nearest = np.maximum(shares - excess[kept], 0.0)
        return nearest / nearest.sum()

    def sample(self, size: int, *, generator: Generator | None = None) -> npt.NDArray[Any]:
        """Draw synthetic rows: categories, or numbers spread evenly over their bin.

        Args:
            size: The number of rows to draw.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The rows. Drawing them costs no budget.

        Raises:
            InvalidParameterError: If `size` is not a positive count, or the histogram is empty.

        >>> bool((Histogram(edges=(0.0, 1.0, 2.0), counts=(0, 50)).sample(3) >= 1.0).all())
        True
        """
        _check.count(size=size)
        if not self.counts:
            raise InvalidParameterError("a histogram without categories has no rows to draw.")
        ends = np.cumsum(self.probabilities())
        chosen = np.minimum(np.searchsorted(ends, _uniform(size, generator), side="right"), ends.size - 1)
        if self.edges is None:
            named = np.empty(len(self.counts), dtype=object)
            named[:] = self.categories
            return named[chosen]
        edges = np.array(self.edges)
        return edges[chosen] + (edges[chosen + 1] - edges[chosen]) * _uniform(size, generator)


def _uniform(count: int, generator: Generator | None) -> Floats:
    return (words(count, generator) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, kw_only=True, slots=True)
class BinCounts(Terms):
    """The number of values in each bin.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.
        edges: The edges of the bins, rising, public. Values outside count in the first or the last bin.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> BinCounts(edges=(0, 10, 20), epsilon=0.5).event()
    DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1)
    """

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        object.__setattr__(self, "edges", _checked_edges(self.edges))

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"histogram of {self.column}"

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return _noise(self, len(self.edges) - 1).event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[Histogram]:
        """Return the counts with noise.

        Args:
            data: The private column.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The noisy histogram and one interval for each count.
        """
        noise = _noise(self, len(self.edges) - 1)
        noisy = whole_counts(noise.add(data.histogram(np.array(self.edges)), generator=generator))
        return counts_answer(Histogram(edges=self.edges, counts=noisy), noise.law, self.level)


@dataclass(frozen=True, kw_only=True, slots=True)
class CategoryCounts(Terms):
    """The number of rows of each of these categories.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.
        categories: The categories to count, public and distinct. Other values are not counted.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> CategoryCounts(categories=("tea", "coffee"), epsilon=0.5).name
    'histogram of values'
    """

    categories: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        object.__setattr__(self, "categories", checked_categories(self.categories))

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"histogram of {self.column}"

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        return _noise(self, len(self.categories)).event()

    def answer(self, data: Categories, *, generator: Generator | None) -> Answer[Histogram]:
        """Return the counts with noise.

        Args:
            data: The private column of categories.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The noisy histogram and one interval for each count.
        """
        noise = _noise(self, len(self.categories))
        noisy = whole_counts(noise.add(data.tally(self.categories), generator=generator))
        return counts_answer(Histogram(categories=self.categories, counts=noisy), noise.law, self.level)


def histogram(
    values: Any,
    *,
    edges: Sequence[float] | None = None,
    categories: Sequence[Hashable] | None = None,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Histogram]:
    """Release counts by bin or by category, with discrete Laplace noise; discrete Gaussian if delta is above
    0.

    Args:
        values: Numbers or categories in a list, array or series, or a column of a private table.
        edges: The edges of the bins, rising, public. Values outside count in the first or the last bin. Pass
            either `edges` or `categories`.
        categories: The categories to count, public and distinct. Other values are not counted.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        level: The confidence level of the interval, between 0 and 1.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value, its confidence interval and its guarantee.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` do not fit the edges or categories.
            Nothing is charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> release = histogram(["tea"] * 300 + ["coffee"] * 200, categories=["tea", "coffee"], epsilon=1.0)
    >>> release.value.categories, release.value.sample(1000).size
    (('tea', 'coffee'), 1000)
    """
    if (edges is None) == (categories is None):
        raise InvalidParameterError(
            "pass either edges=[...] of bins for numbers, or categories=[...]; both are public. For "
            "categories that are not known in advance use stable_histogram."
        )
    by_bin = edges is not None
    data = column_of(values) if by_bin else categories_of(values)
    kind = BinCounts if by_bin else CategoryCounts
    domain: dict[str, Any] = {"edges": tuple(edges)} if by_bin else {"categories": tuple(categories or ())}
    question = kind(
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
        **domain,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)


def checked_categories(categories: Sequence[Hashable]) -> tuple[Hashable, ...]:
    """Return public categories. Raises unless they are distinct and not missing."""
    known = tuple(categories)
    try:
        distinct = len(set(known)) == len(known)
    except TypeError:
        distinct = False
    if not known or not distinct or any(is_missing(category) for category in known):
        raise InvalidParameterError("categories must be one or more distinct values, none of them missing.")
    return known


def _checked_edges(edges: Sequence[float]) -> tuple[float, ...]:
    for edge in edges:
        _check.finite(edge=edge)
    known = tuple(inputs.parameter("edges", edge) for edge in edges)
    if len(known) < 2 or not all(a < b for a, b in pairwise(known)):
        raise InvalidParameterError(f"edges must be two or more rising numbers, but {edges!r} was given.")
    return known


def _noise(terms: Terms, bins: int) -> WholeNoise:
    reach = terms.contribution_bound * terms.relation.diameter
    return WholeNoise(
        epsilon=terms.epsilon,
        delta=terms.delta,
        relation=terms.relation,
        kind=Kind.COUNTS,
        l1_sensitivity=reach,
        l2_sensitivity=l2_of_counts(terms.contribution_bound, terms.relation),
        coordinates=min(bins, reach),
    )


def whole_counts(noisy: Floats) -> tuple[int, ...]:
    """Return noisy counts as Python integers."""
    return tuple(int(count) for count in noisy)


def counts_answer(value: Histogram, law: Law, level: float) -> Answer[Histogram]:
    """Return a histogram as an answer, with one interval for each count."""
    return Answer(value=value, interval=_intervals(value.counts, law, level), parts=value.parts())


def _intervals(counts: tuple[int, ...], law: Law, level: float) -> tuple[Interval, ...]:
    distance = whole_half_width(law, level=level)
    return tuple(around(count, distance, level=level, within=(0.0, math.inf)) for count in counts)
