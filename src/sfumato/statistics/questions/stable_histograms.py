# SPDX-License-Identifier: Apache-2.0
"""Private histograms of categories that are not known in advance.

Guarantee  `StableCounts` finds the categories in the data. A category is shown only if its noisy count
           reaches a threshold, so high that categories of one unit alone pass it with probability at most
           delta. Categories that do not occur cannot appear. The cost is that of the noise, and (0, delta):
           if no such category passes, both runs add noise to the same categories.
Edge cases There is one interval for each count, which covers the noise. A count that passed the threshold is
           one whose noise was rather high, so intervals of counts near the threshold are too optimistic.
Source     Korolova, Kenthapadi, Mishra, Ntoulas 2009 (threshold); Bun, Nissim, Stemmer 2016 (stability-based
           histograms).
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from sfumato.accounting.events import ApproximateDpEvent, DpEvent, compose
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.categories import Categories, categories_of
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.histograms import Histogram, counts_answer, whole_counts
from sfumato.statistics.release import Release
from sfumato.statistics.terms import Terms

__all__ = ["StableCounts", "stable_histogram"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StableCounts(Terms):
    """The common categories and the number of rows of each, for a domain that is not known.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee, above 0.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.

    Raises:
        InvalidParameterError: If a parameter is out of range, or delta is 0.

    >>> StableCounts(epsilon=1.0, delta=1e-6).threshold
    15
    """

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        if self.delta == 0:
            raise InvalidParameterError(
                "finding categories in the data needs a delta above 0. Pass delta=..., or use histogram with "
                "categories=[...]."
            )

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"common categories of {self.column}"

    @property
    def threshold(self) -> int:
        """The smallest noisy count that is shown.

        One unit alone may add k rows of one new category, one row in each of k, or anything between. As tails
        fall exponentially, the worst case of m new categories is one of k - m + 1 rows and others of one row.
        """
        least, most = self.contribution_bound + 1, self.contribution_bound + 2
        while self._passing(most) > self.delta:
            least, most = most, 2 * most
        while least < most:
            middle = (least + most) // 2
            least, most = (least, middle) if self._passing(middle) <= self.delta else (middle + 1, most)
        return least

    def event(self) -> DpEvent:
        """Return the event that a release is charged with: the noise, and delta for a category of one unit
        alone.

        Returns:
            The event, which an accountant prices.
        """
        return compose(self._noise().event(), ApproximateDpEvent(0.0, self.delta))

    def answer(self, data: Categories, *, generator: Generator | None) -> Answer[Histogram]:
        """Return the noisy counts that reach the threshold, largest first.

        Args:
            data: The private column of categories.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The histogram of the categories that were found, and one interval for each count.
        """
        counted = data.tallies()
        # Sorted, as the order of the rows may reveal who came first.
        found = sorted(counted, key=_order)
        noise, threshold = self._noise(), self.threshold
        noisy = whole_counts(noise.add([counted[category] for category in found], generator=generator))
        shown = [(n, c) for n, c in zip(noisy, found, strict=True) if n >= threshold]
        shown.sort(key=lambda pair: (-pair[0], _order(pair[1])))
        counts = tuple(count for count, _ in shown)
        value = Histogram(categories=tuple(category for _, category in shown), counts=counts)
        return counts_answer(value, noise.law, self.level)

    def _passing(self, threshold: int) -> float:
        """Return the largest probability that categories of one unit pass, rounding included."""
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
    """Release the common categories and their counts, if the categories are not known in advance.

    Args:
        values: Categories in a list, array or series, or `table.categories(...)`. Missing values are left
            out.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee, above 0.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        level: The confidence level of the interval, between 0 and 1.
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value, its confidence interval and its guarantee.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` cannot be categories. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

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


def _order(category: Hashable) -> tuple[str, str]:
    return type(category).__name__, repr(category)
