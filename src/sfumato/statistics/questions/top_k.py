# SPDX-License-Identifier: Apache-2.0
"""The k most frequent of public categories, without their counts.

Guarantee  `TopK` costs its event: k selections, one after the other, each among the categories that are left.
Pure       delta 0: permute-and-flip with epsilon / k each, never worse than the exponential mechanism of the
           same epsilon.
Approx     delta above 0: the exponential mechanism, whose bounded range composes better than its epsilon. To
           peel k times is the same as to add Gumbel noise to all counts once and to take the k largest.
Neighbors  Adding or removing a unit of at most c rows moves all counts in one direction, each by at most c:
           the scores are monotonic, which halves the noise. Replacing a unit moves them in both directions.
Interval   None: what is released are names. Ask for a histogram of the chosen ones for their counts.
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
    """Which `k` of these categories have the most rows?

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
                f"k={self.k} of {len(self.categories)} categories cannot be chosen. Ask for fewer."
            )

    @property
    def name(self) -> str:
        """What is asked."""
        return f"top {self.k} of {self.column}"

    def event(self) -> DpEvent:
        """Return what asking costs."""
        one = self._selection().event()
        return one if self.k == 1 else dp.SelfComposedDpEvent(one, self.k)

    def answer(self, data: Categories, *, generator: Generator | None) -> Answer[tuple[Hashable, ...]]:
        """Return the chosen categories, first chosen first."""
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
    """Return the epsilon of each of k selections that cost (epsilon, delta) together."""
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
    """Release the `k` most frequent of public categories, most frequent first as far as noise allows.

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
