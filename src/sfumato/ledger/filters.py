# SPDX-License-Identifier: Apache-2.0
"""The stop rule: whether one more event is admitted, if it was chosen after seeing all earlier results.

Guarantee  Everything an account ever admits is together (epsilon, delta)-DP for its budget, whoever chooses
           each event, in whatever order the events run, also when the choice depends on all earlier results.
           (Sums are in float64: up to a relative 1e-12 of the budget.) An event may itself be a whole run:
           its parts are a plan that was fixed when it was reserved, and it is priced as such.
           The rule divides delta once, when the account is opened (`shares`). An event is admitted while
           (a) the sum of all events' Gaussian shares is at most 1, or
           (b) the sum of all events' Renyi costs, at one order fixed when the account was opened, is at most
               what converts to (epsilon, Renyi share of delta), or
           (c) the sum of all events' epsilons is at most epsilon;
           (b) and (c) also need the sum of the events' own deltas to be within their share of delta.
           An event that is the only one is also admitted if its own price is within the budget (`alone`).
Source     docs/decisions/0003-filter.md has the proof. (a) Smith and Thakurta 2022, arXiv:2210.17520, and
           Koskela, Tobaben, Honkela 2023, arXiv:2209.15596; (b) Feldman and Zrnic 2021, arXiv:2008.11193, and
           Lecuyer 2021, arXiv:2103.01379; (c) Rogers, Roth, Ullman, Vadhan 2016, arXiv:1605.08294, and
           Whitehouse et al. 2023, arXiv:2203.05481. Choosing the best of many orders afterwards has no such
           proof and can fail: arXiv:2602.15815.
Edge cases delta = 0: only (c), and no event with a delta of its own. An event that gives no privacy is
           refused. An event that cannot be counted one way costs infinitely much that way. A cost that is too
           small for a float counts as the smallest normal one, times how often the event repeats: nothing but
           doing nothing is free. Sums that overflow are infinite. Accounts opened before there was (a) keep
           their rule. When a budget is raised, whatever the old one admitted the new one admits too: the
           order stays, and a Gaussian share is the least that it is under any of the account's budgets so
           far.
"""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sfumato.accounting import composition, events, gaussian, rdp
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import quick_epsilon
from sfumato.accounting.upstream import dp_event
from sfumato.errors import InvalidParameterError, UnsupportedEventError
from sfumato.ledger.budget import Budget
from sfumato.ledger.shares import CURRENT_RULE, SHARES, Shares, budget_square, gaussian_share

__all__ = ["Cost", "Filter", "alone", "choose_order", "cost", "total"]

_ROUNDING = 1 + 1e-12  # ten releases of 0.1 fit in a budget of 1, whatever binary fractions make of it

# Whole numbers from 3 on: quick and exact for subsampled events. The largest serve an epsilon of 1e-4.
_OCTAVES = np.round(128 * 2 ** (np.arange(80) / 8))
_ORDERS = np.concatenate([np.arange(1.05, 2, 0.05), [2, 2.5], np.arange(3, 128), _OCTAVES])


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What an event costs by each count; infinite if it cannot be counted so."""

    renyi: float  # at the account's order
    epsilon: float
    delta: float  # the event's own, in the counts by Renyi divergence and by epsilon
    gaussian: float = math.inf  # the share of the account, 1 being all of it


def choose_order(budget: Budget, rule: int = CURRENT_RULE) -> float | None:
    """Return the Renyi order at which Gaussian noise may be least, None for a pure budget.

    Gaussian noise costs its order times a constant, so the best order has the most room per order.

    >>> choose_order(Budget(epsilon=3, delta=1e-6))
    11.0
    """
    if budget.delta == 0:
        return None
    delta = budget.delta * SHARES[rule].renyi
    room = [rdp.largest_rdp(epsilon=budget.epsilon, delta=delta, order=float(a)) / a for a in _ORDERS]
    return float(_ORDERS[int(np.argmax(room))])


@lru_cache(maxsize=1 << 16)
def cost(event: str, relation: Relation, rule: "Filter") -> Cost:
    """Price an event, given as JSON, for a filter; raise `UnsupportedEventError` if none can."""
    try:
        return _price(events.from_json(event), relation, rule)
    except (OverflowError, RecursionError):
        raise _too_large() from None


@lru_cache(maxsize=1 << 12)
def alone(event: str, relation: Relation, delta: float) -> float:
    """Return the epsilon of an event, given as JSON, as a fixed plan with nothing before or after it."""
    if delta == 0:
        return math.inf
    try:
        return quick_epsilon(events.from_json(event), delta=delta, relation=relation)
    except UnsupportedEventError:
        return math.inf
    except (OverflowError, RecursionError):
        raise _too_large() from None


def total(costs: Iterable[Cost]) -> Cost:
    """Add costs up, correctly rounded; infinite if the sum is more than a float holds."""
    listed = list(costs)
    return Cost(
        renyi=_add(c.renyi for c in listed),
        epsilon=_add(c.epsilon for c in listed),
        delta=_add(c.delta for c in listed),
        gaussian=_add(c.gaussian for c in listed),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """The rule for one budget, and what was fixed when its account was opened.

    >>> rule = Filter(budget=Budget(epsilon=1, delta=0), order=None)
    >>> [rule.admits(Cost(renyi=math.inf, epsilon=epsilon, delta=0)) for epsilon in (1.0, 1.1)]
    [True, False]
    """

    budget: Budget
    order: float | None
    rule: int = CURRENT_RULE
    earlier: tuple[Budget, ...] = ()  # the budgets before each grant

    @property
    def shares(self) -> Shares:
        """How delta is divided."""
        return SHARES[self.rule]

    @property
    def allowance(self) -> Cost:
        """The most that each sum may reach."""
        own = self.budget.delta * self.shares.own
        if self.order is None:
            return Cost(renyi=0.0, epsilon=self.budget.epsilon, delta=own, gaussian=0.0)
        renyi = rdp.largest_rdp(epsilon=self.budget.epsilon, delta=self._renyi_delta, order=self.order)
        whole = 1.0 if budget_square(self.budget, self.rule) > 0 else 0.0
        return Cost(renyi=max(0.0, renyi), epsilon=self.budget.epsilon, delta=own, gaussian=whole)

    @property
    def _renyi_delta(self) -> float:
        return self.budget.delta * self.shares.renyi

    def admits(self, spent: Cost) -> bool:
        """Whether `spent`, the new event included, keeps the guarantee."""
        allowed = self.allowance
        if allowed.gaussian > 0 and _within(spent.gaussian, allowed.gaussian):
            return True
        by_renyi = self.order is not None and _within(spent.renyi, allowed.renyi)
        by_epsilon = _within(spent.epsilon, allowed.epsilon)
        return (by_renyi or by_epsilon) and _within(spent.delta, allowed.delta)

    def fraction(self, spent: Cost) -> float:
        """Return how much of the rule is used up, 0 to 1: by the count that has most left."""
        allowed = self.allowance
        by_renyi = _share(spent.renyi, allowed.renyi) if self.order is not None else math.inf
        by_epsilon = _share(spent.epsilon, allowed.epsilon)
        others = max(min(by_renyi, by_epsilon), _share(spent.delta, allowed.delta))
        return min(1.0, _share(spent.gaussian, allowed.gaussian), others)

    def smallest_epsilon(self, spent: Cost) -> float:
        """Return about the epsilon of a budget, at this delta, that `spent` would just fit in.

        For messages and searches: the claim about what was spent is `odometer`.
        """
        found = [self._by_gaussian(spent.gaussian)]
        if spent.delta <= self.allowance.delta * _ROUNDING:
            found += [spent.epsilon, self._by_renyi(spent.renyi)]
        return min(found)

    def odometer(self, spent: Cost) -> float:
        """Return an epsilon, at most the budget's, that holds at the budget's delta whenever it is read.

        Also for a reader who chooses the moment by looking at results (docs/decisions/0003-filter.md, "The
        odometer"). So it uses neither the Gaussian count nor a bound by total variation.
        """
        if not spent.delta <= self.allowance.delta * _ROUNDING:
            return self.budget.epsilon
        return min(spent.epsilon, self._by_renyi(spent.renyi), self.budget.epsilon)

    def largest_epsilon(self, spent: Cost, *, delta: float, relation: Relation) -> float:
        """Return the largest epsilon, up to the budget's, of one more (epsilon, `delta`)-DP event."""

        def refused(epsilon: float) -> bool:
            event = events.PureDpEvent(epsilon) if delta == 0 else events.ApproximateDpEvent(epsilon, delta)
            return not self.admits(total([spent, _price(event, relation, self)]))

        return 0.0 if refused(_TINY) else _largest(refused, self.budget.epsilon)

    def least_noise_multiplier(self, spent: Cost, *, relation: Relation) -> float:
        """Return the least noise of one more Gaussian event that is admitted, infinite if none is."""
        if self.order is None:
            return math.inf
        unit, allowed = _price(dp_event.GaussianDpEvent(1.0), relation, self), self.allowance
        # Both costs of a Gaussian fall with the square of its noise (for Renyi: Mironov 2017, Proposition 7).
        rooms = [(unit.gaussian, allowed.gaussian - spent.gaussian)]
        if spent.delta <= allowed.delta * _ROUNDING:
            rooms.append((unit.renyi, allowed.renyi - spent.renyi))
        found = [math.sqrt(price / room) for price, room in rooms if room > 0 and price < math.inf]
        return min(found, default=math.inf)

    def _by_gaussian(self, share: float) -> float:
        square = share * budget_square(self.budget, self.rule) if 0 < share < math.inf else math.inf
        if not 0 < square < math.inf:
            return 0.0 if share == 0 else math.inf
        return gaussian.epsilon(math.sqrt(square), self.budget.delta * self.shares.gaussian)

    def _by_renyi(self, renyi: float) -> float:
        if self.order is None or renyi == math.inf:
            return math.inf
        return rdp.epsilon_at(renyi, order=self.order, delta=self._renyi_delta)


# --- parts -----------------------------------------------------------------------------------------------

_NOT_PRIVATE = (
    "It has a NonPrivateDpEvent in it, which no budget admits. Add noise, or release the value outside of "
    "the account and say so."
)
_TINY = 1e-9  # below this, "nothing is left" is the useful answer


def _too_large() -> InvalidParameterError:
    return InvalidParameterError(
        "the event cannot be priced: a number in it, or its count times its cost, is too large. Nothing "
        "was spent for it. Use more noise or fewer repetitions."
    )


def _price(event: events.DpEvent, relation: Relation, rule: Filter) -> Cost:
    reasons: list[str] = []
    parts = events.leaves(event)
    epsilon, epsilon_delta = _or_infinite(
        lambda: _sum(parts, lambda e: composition.basic(e, relation)), reasons
    )
    renyi, renyi_delta = _or_infinite(lambda: _sum(parts, lambda e: _renyi(e, relation, rule.order)), reasons)
    share = min(gaussian_share(event, relation, b, rule.rule) for b in (rule.budget, *rule.earlier))
    if renyi == epsilon == share == math.inf:
        why = reasons[-1] if events.is_private(event) else _NOT_PRIVATE
        raise UnsupportedEventError(f"the event cannot be charged. Nothing was spent for it. {why}")
    own = _own_delta(renyi, renyi_delta, epsilon, epsilon_delta)
    return Cost(renyi=renyi, epsilon=epsilon, delta=own, gaussian=share)


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
