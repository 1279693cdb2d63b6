# SPDX-License-Identifier: Apache-2.0
"""Private histograms: counts by bin or by category, for a public domain and for an unknown one.

Guarantee  A unit of at most k rows moves all counts together by k, however many bins there are: each bin gets
           noise for the whole epsilon. Replacing a unit moves them by 2 k added up, sqrt(2) k in norm.
Noise      Discrete Laplace (geometric), or discrete Gaussian where delta is given. Counts stay whole.
Public     `BinCounts` and `CategoryCounts` count what the caller names. A value outside the edges counts in
           the first or the last bin; a category that is not named is not counted.
Unknown    `StableCounts` finds the categories in the data: a category is shown only where its noisy count
           reaches a threshold, so high that those which one unit alone brings in pass with probability at
           most delta. Categories that nobody has cannot appear. It costs its noise, and (0, delta): given
           that no such category passes, both runs are noise on the same categories.
Use        The value is a `Histogram`: `probabilities` makes it a distribution, `sample` draws synthetic rows
           from it. Both are post-processing: they cost nothing, however often they are used.
Interval   One for each count, covering the noise. A count that is shown because it passed a threshold is one
           whose noise was rather high: intervals of those near the threshold are too optimistic.
Source     Dwork, McSherry, Nissim, Smith 2006; Korolova, Kenthapadi, Mishra, Ntoulas 2009 (threshold);
           Bun, Nissim, Stemmer 2016 (stability-based histograms).
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.events import ApproximateDpEvent, DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms import inputs
from sfumato.mechanisms.random import Generator, words
from sfumato.statistics.columns.categories import Categories, categories_of
from sfumato.statistics.columns.columns import Column, column_of, is_missing
from sfumato.statistics.intervals import Law, around, whole_half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Interval, Parts, Release
from sfumato.statistics.terms import Terms

__all__ = [
    "BinCounts",
    "CategoryCounts",
    "Histogram",
    "StableCounts",
    "histogram",
    "stable_histogram",
]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """Noisy counts of bins, which have `edges`, or of `categories`.

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
            raise InvalidParameterError(
                "a histogram has edges, one more than counts, or categories, as many as counts."
            )

    def parts(self) -> Parts:
        """Return the bins or the categories with their counts, as a release keeps them."""
        if self.edges is None:
            return Parts(labels={"category": self.categories or ()}, numbers=self.counts)
        return Parts(labels={"bin_lower": self.edges[:-1], "bin_upper": self.edges[1:]}, numbers=self.counts)

    def probabilities(self) -> Floats:
        """Return the distribution nearest to the counts, whose noise may have made some negative.

        Nearest in Euclidean distance: one number is taken off all counts, and what falls below 0 becomes 0,
        so that the rest adds up to 1. Where the counts add up to nothing, all are equally likely.
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

        >>> bool((Histogram(edges=(0.0, 1.0, 2.0), counts=(0, 50)).sample(3) >= 1.0).all())
        True
        """
        _check.count(size=size)
        if not self.counts:
            raise InvalidParameterError("a histogram without bins has no rows to draw.")
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
    """How many values lie in each bin?

    >>> BinCounts(edges=(0, 10, 20), epsilon=0.5).event()
    DiscreteLaplaceDpEvent(noise_parameter=0.5, sensitivity=1)
    """

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        object.__setattr__(self, "edges", _checked_edges(self.edges))

    @property
    def name(self) -> str:
        """What is asked."""
        return f"histogram of {self.column}"

    def event(self) -> DpEvent:
        """Return what asking costs."""
        return _noise(self, len(self.edges) - 1).event()

    def answer(self, data: Column, *, generator: Generator | None) -> Answer[Histogram]:
        """Return the counts with noise."""
        noise = _noise(self, len(self.edges) - 1)
        noisy = _whole(noise.add(data.histogram(np.array(self.edges)), generator=generator))
        return _answer(Histogram(edges=self.edges, counts=noisy), noise.law, self.level)


@dataclass(frozen=True, kw_only=True, slots=True)
class CategoryCounts(Terms):
    """How many rows are of each of these categories?

    >>> CategoryCounts(categories=("tea", "coffee"), epsilon=0.5).name
    'histogram of values'
    """

    categories: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        object.__setattr__(self, "categories", checked_categories(self.categories))

    @property
    def name(self) -> str:
        """What is asked."""
        return f"histogram of {self.column}"

    def event(self) -> DpEvent:
        """Return what asking costs."""
        return _noise(self, len(self.categories)).event()

    def answer(self, data: Categories, *, generator: Generator | None) -> Answer[Histogram]:
        """Return the counts with noise."""
        noise = _noise(self, len(self.categories))
        noisy = _whole(noise.add(data.tally(self.categories), generator=generator))
        return _answer(Histogram(categories=self.categories, counts=noisy), noise.law, self.level)


@dataclass(frozen=True, kw_only=True, slots=True)
class StableCounts(Terms):
    """Which categories are common, and how many rows has each? For a domain that is not known.

    >>> StableCounts(epsilon=1.0, delta=1e-6).threshold
    15
    """

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        if self.delta == 0:
            raise InvalidParameterError(
                "finding categories in the data needs a delta above 0: with delta=0 nothing could be shown "
                "that is not in every data set. Give delta=..., or name the categories."
            )

    @property
    def name(self) -> str:
        """What is asked."""
        return f"common categories of {self.column}"

    @property
    def threshold(self) -> int:
        """Return the least noisy count that is shown.

        A unit alone may bring k rows of one new category, or one row in each of k, or anything between. As
        tails fall exponentially, the worst of m new categories is one of k - m + 1 rows and others of one.
        """
        least, most = self.contribution_bound + 1, self.contribution_bound + 2
        while self._passing(most) > self.delta:
            least, most = most, 2 * most
        while least < most:
            middle = (least + most) // 2
            least, most = (least, middle) if self._passing(middle) <= self.delta else (middle + 1, most)
        return least

    def event(self) -> DpEvent:
        """Return what asking costs: the noise, and delta for a category that only one unit has."""
        return compose(self._noise().event(), ApproximateDpEvent(0.0, self.delta))

    def answer(self, data: Categories, *, generator: Generator | None) -> Answer[Histogram]:
        """Return the noisy counts that reach the threshold, largest first."""
        counted = data.tallies()
        # In an order that does not depend on the rows' order, as that may tell who came first.
        found = sorted(counted, key=_order)
        noise, threshold = self._noise(), self.threshold
        noisy = _whole(noise.add([counted[category] for category in found], generator=generator))
        shown = [(n, c) for n, c in zip(noisy, found, strict=True) if n >= threshold]
        shown.sort(key=lambda pair: (-pair[0], _order(pair[1])))
        counts = tuple(count for count, _ in shown)
        value = Histogram(categories=tuple(category for _, category in shown), counts=counts)
        return _answer(value, noise.law, self.level)

    def _passing(self, threshold: int) -> float:
        """Return the most likely that a unit's own categories pass, rounding included."""
        law, rows = self._noise().law, self.contribution_bound

        def one(count: int) -> float:
            return law.whole_tail(threshold - count - 1) / 2

        return (1 + 1e-9) * max((m - 1) * one(1) + one(rows - m + 1) for m in range(1, rows + 1))

    def _noise(self) -> WholeNoise:
        reach = self.contribution_bound * self.relation.diameter
        return WholeNoise(
            epsilon=self.epsilon,
            delta=0.0,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=reach,
            l2_sensitivity=l2_of_counts(self.contribution_bound, self.relation),
            coordinates=reach,
        )


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
    """Release counts by bin or by category, with discrete Laplace noise; discrete Gaussian if delta is given.

    >>> release = histogram(["tea"] * 300 + ["coffee"] * 200, categories=["tea", "coffee"], epsilon=1.0)
    >>> release.value.categories, release.value.sample(1000).size
    (('tea', 'coffee'), 1000)
    """
    if (edges is None) == (categories is None):
        raise InvalidParameterError(
            "say either edges=[...], of bins for numbers, or categories=[...]; both are public. For "
            "categories that are not known beforehand see stable_histogram."
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


def stable_histogram(
    values: Any,
    *,
    epsilon: float,
    delta: float,
    relation: Relation | str = Relation.ADD_REMOVE,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[Histogram]:
    """Release the common categories and their counts, where it is not known which there are.

    >>> release = stable_histogram(["tea"] * 300 + ["a name"], epsilon=1.0, delta=1e-6)
    >>> release.value.categories
    ('tea',)
    """
    data = categories_of(values)
    question = StableCounts(
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        level=level,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)


def checked_categories(categories: Sequence[Hashable]) -> tuple[Hashable, ...]:
    """Return public categories, which must be distinct and not missing."""
    known = tuple(categories)
    try:
        distinct = len(set(known)) == len(known)
    except TypeError:
        distinct = False
    if not known or not distinct or any(is_missing(category) for category in known):
        raise InvalidParameterError(
            "categories must be one or more values, each named once, none of them missing."
        )
    return known


def _checked_edges(edges: Sequence[float]) -> tuple[float, ...]:
    for edge in edges:
        _check.finite(edge=edge)
    known = tuple(inputs.parameter("edges", edge) for edge in edges)
    if len(known) < 2 or not all(a < b for a, b in pairwise(known)):
        raise InvalidParameterError(f"edges must be two or more numbers that rise, but {edges!r} was given.")
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


def _whole(noisy: Floats) -> tuple[int, ...]:
    return tuple(int(count) for count in noisy)


def _answer(value: Histogram, law: Law, level: float) -> Answer[Histogram]:
    return Answer(value=value, interval=_intervals(value.counts, law, level), parts=value.parts())


def _intervals(counts: tuple[int, ...], law: Law, level: float) -> tuple[Interval, ...]:
    distance = whole_half_width(law, level=level)
    return tuple(around(count, distance, level=level, within=(0.0, math.inf)) for count in counts)


def _order(category: Hashable) -> tuple[str, str]:
    return type(category).__name__, repr(category)
