# SPDX-License-Identifier: Apache-2.0
"""The stop rule: may one more event be admitted, when it was chosen after seeing all results before it?

Guarantee  Everything an account ever admits is together (epsilon, delta)-DP for its budget, whoever chooses
           each event, in whatever order the events run, also when the choice depends on all earlier results.
           (Sums are in float64: up to a relative 1e-12 of the budget.)
Rule       One Renyi order is fixed when the account is opened. An event is admitted while
           (a) the sum of all events' Renyi costs at that order is at most what converts to
               (epsilon, delta / 2), or
           (b) the sum of all events' epsilons is at most epsilon,
           and, in both cases, the sum of the events' own deltas is at most delta / 2.
           The Renyi cost, epsilon or delta of an event is what an accountant says of it before it runs.
Proof      docs/decisions/0003-filter.md. In short: sums only grow, so a transcript on which (a) fails has
           met (b) to its end. Where (a) holds to the end the hockey-stick divergence is at most delta / 2;
           where only (b) does, no density ratio exceeds e^epsilon; the events' own deltas add no more
           than delta / 2.
Source     (a) Feldman and Zrnic 2021, arXiv:2008.11193, and Lecuyer 2021, arXiv:2103.01379; (b) Rogers, Roth,
           Ullman, Vadhan 2016, arXiv:1605.08294, and Whitehouse et al. 2023, arXiv:2203.05481. Choosing the
           best of many orders afterwards has no such proof and can fail: arXiv:2602.15815.
Grants     The order stays when a budget is raised, so whatever the old budget admitted, the new one admits
           too. The new budget is then the guarantee, under the condition every budget has: it is a cap that
           was not chosen by looking at results.
Edges      delta = 0: only (b), and no event with a delta of its own. An event that gives no privacy is
           refused. An event without an epsilon (a Gaussian) costs infinitely much under (b), and the reverse
           for (a). A cost that is too small for a float counts as the smallest normal one, times how often
           the event repeats: nothing but doing nothing is free. Sums that overflow are infinite.
"""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event

from sfumato.accounting import composition, events, rdp
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError, UnsupportedEventError
from sfumato.ledger.budget import Budget

__all__ = ["THEOREM", "Cost", "Filter", "choose_order", "cost", "total"]

THEOREM = (
    "privacy filter of one Renyi order, or of basic composition, whichever admits "
    "(Feldman and Zrnic 2021; Rogers et al. 2016; Whitehouse et al. 2023)"
)
_ROUNDING = 1 + 1e-12  # ten releases of 0.1 fit in a budget of 1, whatever binary fractions make of it

# Whole numbers from 3 on: quick and exact for subsampled events. The largest serve an epsilon of 1e-4.
_OCTAVES = np.round(128 * 2 ** (np.arange(80) / 8))
_ORDERS = np.concatenate([np.arange(1.05, 2, 0.05), [2, 2.5], np.arange(3, 128), _OCTAVES])


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What an event costs by each count; infinite where it cannot be counted so."""

    renyi: float  # at the account's order
    epsilon: float
    delta: float  # the event's own, in either count


def choose_order(budget: Budget) -> float | None:
    """Return the Renyi order at which Gaussian noise may be least, None for a pure budget.

    Gaussian noise costs its order times a constant, so the best order has the most room per order.

    >>> choose_order(Budget(epsilon=3, delta=1e-6))
    9.0
    """
    if budget.delta == 0:
        return None
    room = [
        rdp.largest_rdp(epsilon=budget.epsilon, delta=budget.delta / 2, order=float(a)) / a for a in _ORDERS
    ]
    return float(_ORDERS[int(np.argmax(room))])


@lru_cache(maxsize=1 << 16)
def cost(event: str, relation: Relation, order: float | None) -> Cost:
    """Price an event, given as JSON, for the filter; raise `UnsupportedEventError` where none can."""
    try:
        return _price(events.from_json(event), relation, order)
    except (OverflowError, RecursionError):
        raise InvalidParameterError(
            "the event cannot be priced: a number in it, or its count times its cost, is too large. Nothing "
            "was spent. Use more noise or fewer repetitions."
        ) from None


def _price(event: events.DpEvent, relation: Relation, order: float | None) -> Cost:
    reasons: list[str] = []
    parts = events.leaves(event)
    epsilon, epsilon_delta = _or_infinite(
        lambda: _sum(parts, lambda e: composition.basic(e, relation)), reasons
    )
    renyi, renyi_delta = _or_infinite(lambda: _sum(parts, lambda e: _renyi(e, relation, order)), reasons)
    if renyi == math.inf and epsilon == math.inf:
        why = reasons[-1] if events.is_private(event) else _NOT_PRIVATE
        raise UnsupportedEventError(f"the event cannot be charged. Nothing was spent. {why}")
    return Cost(renyi=renyi, epsilon=epsilon, delta=_own_delta(renyi, renyi_delta, epsilon, epsilon_delta))


def total(costs: Iterable[Cost]) -> Cost:
    """Add costs up, correctly rounded; infinite where the sum is more than a float holds."""
    listed = list(costs)
    return Cost(
        renyi=_add(c.renyi for c in listed),
        epsilon=_add(c.epsilon for c in listed),
        delta=_add(c.delta for c in listed),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """The rule for one budget and the order that was fixed when its account was opened.

    >>> rule = Filter(budget=Budget(epsilon=1, delta=0), order=None)
    >>> [rule.admits(Cost(renyi=math.inf, epsilon=epsilon, delta=0)) for epsilon in (1.0, 1.1)]
    [True, False]
    """

    budget: Budget
    order: float | None

    @property
    def allowance(self) -> Cost:
        """The most that each sum may reach."""
        half = self.budget.delta / 2
        if self.order is None:
            return Cost(renyi=0.0, epsilon=self.budget.epsilon, delta=half)
        renyi = rdp.largest_rdp(epsilon=self.budget.epsilon, delta=half, order=self.order)
        return Cost(renyi=max(0.0, renyi), epsilon=self.budget.epsilon, delta=half)

    def admits(self, spent: Cost) -> bool:
        """Whether `spent`, the new event included, keeps the guarantee."""
        allowed = self.allowance
        by_renyi = self.order is not None and _within(spent.renyi, allowed.renyi)
        by_epsilon = _within(spent.epsilon, allowed.epsilon)
        return (by_renyi or by_epsilon) and _within(spent.delta, allowed.delta)

    def fraction(self, spent: Cost) -> float:
        """Return how much of the rule is used up, 0 to 1: by the count that has most left."""
        allowed = self.allowance
        by_renyi = _share(spent.renyi, allowed.renyi) if self.order is not None else math.inf
        by_epsilon = _share(spent.epsilon, allowed.epsilon)
        return min(1.0, max(min(by_renyi, by_epsilon), _share(spent.delta, allowed.delta)))

    def smallest_epsilon(self, spent: Cost) -> float:
        """Return the epsilon that `spent` has at this delta and order, by whichever count is less."""
        half = self.budget.delta / 2
        if spent.delta > half * _ROUNDING:
            return math.inf
        if self.order is None or spent.renyi == math.inf:
            return spent.epsilon
        curve = rdp.RdpCurve(orders=np.array([self.order]), values=np.array([spent.renyi]))
        return min(spent.epsilon, rdp.epsilon_of(curve, half))

    def largest_epsilon(self, spent: Cost, *, delta: float, relation: Relation) -> float:
        """Return the largest epsilon, up to the budget's, of one more (epsilon, `delta`)-DP event."""

        def refused(epsilon: float) -> bool:
            event = events.PureDpEvent(epsilon) if delta == 0 else events.ApproximateDpEvent(epsilon, delta)
            return not self.admits(total([spent, _price(event, relation, self.order)]))

        return 0.0 if refused(_TINY) else _largest(refused, self.budget.epsilon)

    def least_noise_multiplier(self, spent: Cost, *, relation: Relation) -> float:
        """Return the least noise of one more Gaussian event that is admitted, infinite where none is."""
        if self.order is None or spent.delta > self.allowance.delta * _ROUNDING:
            return math.inf
        left = self.allowance.renyi - spent.renyi
        unit = _price(dp_event.GaussianDpEvent(1.0), relation, self.order)
        # The Renyi divergence of Gaussians falls with the square of the noise (Mironov 2017, Proposition 7).
        return math.sqrt(unit.renyi / left) if left > 0 else math.inf


# --- parts -----------------------------------------------------------------------------------------------

_NOT_PRIVATE = (
    "It has a NonPrivateDpEvent in it, which no budget admits. Add noise, or release the value outside of "
    "the account and say so."
)
_TINY = 1e-9  # below this, "nothing is left" is the useful answer


def _renyi(event: events.DpEvent, relation: Relation, order: float | None) -> tuple[float, float]:
    if order is None:
        raise UnsupportedEventError(
            "The account's budget has delta=0: only events with an epsilon and without a delta can fit. Use "
            "Laplace noise, or an account with a delta."
        )
    curve = rdp.curve(event, relation, orders=np.array([order]))
    return float(curve.values[0]), float(curve.delta)


def _sum(
    parts: dict[events.DpEvent, int], price: Callable[[events.DpEvent], tuple[float, float]]
) -> tuple[float, float]:
    """Add up the prices of counted parts, none of them free."""
    priced = [(count, _has_delta(part), *price(part)) for part, count in parts.items()]
    value = math.fsum(count * _not_free(value) for count, _, value, _ in priced)
    delta = math.fsum(
        count * (_not_free(delta) if has_delta else delta) for count, has_delta, _, delta in priced
    )
    return value, delta


def _not_free(value: float) -> float:
    # In this order, a NaN stays one.
    return max(value, sys.float_info.min)


def _has_delta(event: events.DpEvent) -> bool:
    """Whether an event with a delta of its own is inside: sampling may make it too small to see."""
    return any(getattr(part, "delta", 0.0) > 0 for part in events.walk(event))


def _add(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:  # costs are never negative, so the sum is large and not undefined
        return math.inf


def _within(spent: float, allowed: float) -> bool:
    # Infinite is never within, even where the rounding takes a huge allowance to infinity.
    return spent < math.inf and spent <= allowed * _ROUNDING


def _or_infinite(price: Callable[[], tuple[float, float]], reasons: list[str]) -> tuple[float, float]:
    try:
        value, delta = price()
    except UnsupportedEventError as error:
        reasons.append(str(error))
        return math.inf, 0.0
    if 0 <= value < math.inf and 0 <= delta < 1:
        return value, delta
    reasons.append("Its price is not a finite number. Use more noise.")
    return math.inf, 0.0


def _own_delta(renyi: float, renyi_delta: float, epsilon: float, epsilon_delta: float) -> float:
    if renyi == math.inf:
        return epsilon_delta
    if epsilon == math.inf:
        return renyi_delta
    if math.isclose(renyi_delta, epsilon_delta, rel_tol=1e-9):
        return max(renyi_delta, epsilon_delta)
    # Two counts that set aside different bad cases: the union of both is what may go wrong.
    return renyi_delta + epsilon_delta


def _share(spent: float, allowed: float) -> float:
    if spent == 0:
        return 0.0
    return spent / allowed if allowed > 0 else math.inf


def _largest(refused: Callable[[float], bool], most: float) -> float:
    """Return the largest number from `_TINY` to `most` that is not refused, erring downwards."""
    if not refused(most):
        return most
    low, high = _TINY, most
    while high - low > 1e-12 * high:
        # Geometric while they are far apart: a budget may be 1e308.
        middle = math.sqrt(low) * math.sqrt(high) if high > 4 * low else low + (high - low) / 2
        low, high = (low, middle) if refused(middle) else (middle, high)
    return low
