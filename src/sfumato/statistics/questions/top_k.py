# SPDX-License-Identifier: Apache-2.0
"""The k most frequent of public categories, without their counts.

Guarantee  `TopK` costs its event: k selections, one after the other, each among the remaining categories.
           delta = 0: permute-and-flip with epsilon / k each, which is never worse than the exponential
           mechanism of the same epsilon. delta > 0: the exponential mechanism, whose bounded range composes
           better than its epsilon. Selecting k times is the same as adding Gumbel noise to all counts once
           and taking the k largest.
Neighbors  Adding or removing a unit of at most c rows changes all counts in one direction, each by at most c:
           the scores are monotonic, which halves the noise. Replacing a unit changes them in both directions.
Edge cases There is no interval, because the release contains only names. Release a histogram of the selected
           categories for their counts.
Source     McKenna and Sheldon 2020, arXiv:2010.12603 (permute-and-flip); Durfee and Rogers 2019,
           arXiv:1905.04273, Lemma 4.2 (peeling) and Section 3 (bounded range).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sfumato import _check
from sfumato.accounting.calibrate import calibrate
from sfumato.accounting.events import DpEvent, ExponentialDpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import InvalidParameterError
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.mechanisms.selection import Exponential, PermuteAndFlip
from sfumato.statistics.columns.categories import Categories, categories_of
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.questions.histograms import checked_categories
from sfumato.statistics.release import Parts, Release
from sfumato.statistics.terms import Terms

__all__ = ["TopK", "top_k"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TopK(Terms):
    """The `k` most frequent of these categories.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: Not used: names have no interval.
        column: The name of the column, as releases show it.
        k: The number of categories to select.
        categories: The categories to select from, public and distinct.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `k` is above the number of categories.

    >>> TopK(k=2, categories=("tea", "coffee", "milk"), epsilon=1.0).event()
    SelfComposedDpEvent(event=PureDpEvent(epsilon=0.5), count=2)
    """

    k: int
    categories: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        _check.count(k=self.k)
        object.__setattr__(self, "categories", checked_categories(self.categories))
        if self.k > len(self.categories):
            raise InvalidParameterError(
                f"k={self.k} is above the number of categories, {len(self.categories)}. Pass a smaller k."
            )

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return f"top {self.k} of {self.column}"

    def event(self) -> DpEvent:
        """Return the event that a release is charged with.

        Returns:
            The event, which an accountant prices.
        """
        one = self._selection().event()
        return one if self.k == 1 else dp.SelfComposedDpEvent(one, self.k)

    def answer(self, data: Categories, *, generator: Generator | None) -> Answer[tuple[Hashable, ...]]:
        """Return the selected categories, in the order of selection.

        Args:
            data: The private column of categories.
            generator: The source of randomness. None means secure randomness from the operating system.

        Returns:
            The selected categories, without counts.
        """
        scores = data.tally(self.categories).astype(float).tolist()
        left, chosen = list(self.categories), list[Hashable]()
        selection = self._selection()
        for _ in range(self.k):
            place = selection.release(scores, generator=generator)
            chosen.append(left.pop(place))
            scores.pop(place)
        parts = Parts(labels={"rank": tuple(range(1, self.k + 1)), "category": tuple(chosen)}, numbers=None)
        return Answer(value=tuple(chosen), parts=parts)

    def _selection(self) -> Exponential | PermuteAndFlip:
        kind = PermuteAndFlip if self.delta == 0 else Exponential
        return kind(
            epsilon=_epsilon_of_one(self.epsilon, self.delta, self.k, self.relation),
            sensitivity=float(self.contribution_bound),
            relation=self.relation,
            monotonic=not self.relation.replaces,
        )


@lru_cache(maxsize=256)
def _epsilon_of_one(epsilon: float, delta: float, k: int, relation: Relation) -> float:
    """Return the epsilon of each of k selections that together cost (epsilon, delta)."""
    even = epsilon / k
    if delta == 0 or k == 1:
        return even
    return calibrate(
        lambda one: dp.SelfComposedDpEvent(ExponentialDpEvent(one), k),
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        bracket=(even, epsilon),
        cost_rises=True,
    )


def top_k(
    values: Any,
    *,
    k: int,
    categories: Sequence[Hashable],
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> Release[tuple[Hashable, ...]]:
    """Release the `k` most frequent of public categories, the most frequent first as far as noise allows.

    Args:
        values: Categories in a list, array or series, or `table.categories(...)`. Missing values are left
            out.
        k: The number of categories to select.
        categories: The categories to select from, public and distinct.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        account: The account to charge before any data is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The release, with its value and its guarantee.

    Raises:
        InvalidParameterError: If a parameter is out of range, or `values` cannot be categories. Nothing is
            charged.
        BudgetExceededError: If the account has too little budget left. Nothing is computed.
        QueryFailedError: If the engine of a table fails. The cost stays charged.

    >>> drinks = ["tea"] * 500 + ["coffee"] * 300 + ["milk"] * 5
    >>> top_k(drinks, k=2, categories=["milk", "coffee", "tea"], epsilon=1.0).value
    ('tea', 'coffee')
    """
    data = categories_of(values)
    question = TopK(
        k=k,
        categories=tuple(categories),
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=data.contribution_bound,
        column=data.name,
    )
    return Query(question, data).release(account=account, purpose=purpose, generator=generator)
