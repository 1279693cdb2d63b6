# SPDX-License-Identifier: Apache-2.0
"""Calibration: find the parameter that just meets a budget.

The cost must fall with the value, or rise with it if `cost_rises` is true. The cost of every mechanism is
monotone in its noise, its steps and its sampling rate.

Guarantee  The value returned meets the budget: its event, with `given`, was priced at most `epsilon`. It is
           within `TOLERANCE` (relative) of the best one, or the best whole number.
"""

import math
from collections.abc import Callable
from typing import TypeVar

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.extremes import in_floats
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import quick_epsilon
from sfumato.accounting.upstream import dp_event as dp
from sfumato.errors import CalibrationError

__all__ = ["calibrate", "calibrate_count", "search"]

TOLERANCE = 1e-5

Value = TypeVar("Value", int, float)


@in_floats
def calibrate(
    make_event: Callable[[float], DpEvent],
    *,
    epsilon: float,
    delta: float,
    relation: Relation = Relation.ADD_REMOVE,
    bracket: tuple[float, float] = (1e-3, 1e6),
    cost_rises: bool = False,
    given: DpEvent | None = None,
) -> float:
    """Return the smallest value whose event meets a budget.

    Args:
        make_event: Returns the event for a value, such as `lambda s: GaussianDpEvent(s)`.
        epsilon: The privacy budget.
        delta: The delta of the guarantee, above 0 and below 1.
        relation: Which data sets are neighbors.
        bracket: The smallest and the largest value to try.
        cost_rises: Whether the cost rises with the value. The largest value is returned then.
        given: What was spent before: the budget then covers both. None for nothing.

    Returns:
        The value.

    Raises:
        CalibrationError: If no value in the bracket meets the budget.
        InvalidParameterError: If a parameter is out of range.

    >>> noise = calibrate(lambda s: dp.LaplaceDpEvent(s), epsilon=0.5, delta=1e-9)
    >>> round(noise, 3)
    2.0
    """
    _check.probability(delta=delta)
    cost = _cost_of(make_event, delta, Relation.parse(relation), given)
    return search(cost, epsilon=epsilon, bracket=bracket, cost_rises=cost_rises)


@in_floats
def search(
    cost: Callable[[float], float],
    *,
    epsilon: float,
    bracket: tuple[float, float] = (1e-3, 1e6),
    cost_rises: bool = False,
) -> float:
    """Return the least value in `bracket` (the largest, if `cost_rises`) that costs at most `epsilon`."""
    _check.positive(epsilon=epsilon)
    _check.bounds(bracket=bracket)
    _check.positive(lower_end_of_bracket=bracket[0])
    best, safe = (bracket[1], bracket[0]) if cost_rises else bracket
    near = _around(cost, epsilon, best, safe)
    if near is None:
        return best
    _require_feasible(cost(near[1]), epsilon, near[1])
    return _meet(cost, epsilon, *near)


@in_floats
def calibrate_count(
    make_event: Callable[[int], DpEvent],
    *,
    epsilon: float,
    delta: float,
    relation: Relation = Relation.ADD_REMOVE,
    most: int = 10**8,
    given: DpEvent | None = None,
) -> int:
    """Return the largest whole number whose event meets a budget.

    Args:
        make_event: Returns the event for a whole number, such as the number of steps.
        epsilon: The privacy budget.
        delta: The delta of the guarantee, above 0 and below 1.
        relation: Which data sets are neighbors.
        most: The largest number to try.
        given: What was spent before: the budget then covers both. None for nothing.

    Returns:
        The number, from 1 to `most`.

    Raises:
        CalibrationError: If even 1 exceeds the budget.
        InvalidParameterError: If a parameter is out of range.

    >>> calibrate_count(lambda n: dp.SelfComposedDpEvent(dp.GaussianDpEvent(10.0), n), epsilon=1, delta=1e-5)
    7
    """
    _check.positive(epsilon=epsilon)
    _check.probability(delta=delta)
    _check.count(most=most)
    cost = _cost_of(make_event, delta, Relation.parse(relation), given)
    _require_feasible(cost(1), epsilon, 1)
    low, high = 1, 2
    while high <= most and cost(high) <= epsilon:
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= epsilon else (low, middle)
    return low


def _cost_of(
    make_event: Callable[[Value], DpEvent], delta: float, relation: Relation, given: DpEvent | None
) -> Callable[[Value], float]:
    spent = dp.NoOpDpEvent() if given is None else given

    def cost(value: Value) -> float:
        return quick_epsilon(events.compose(spent, make_event(value)), delta=delta, relation=relation)

    return cost


def _require_feasible(least_cost: float, epsilon: float, value: float) -> None:
    if not least_cost <= epsilon:
        raise CalibrationError(
            f"epsilon={epsilon:g} cannot be met: even at {value:g}, the most private value tried, the cost, "
            f"with what was spent before, is {least_cost:g}. "
            "Ask for a larger epsilon, fewer steps or a lower sampling rate."
        )


def _around(
    cost: Callable[[float], float], epsilon: float, best: float, safe: float
) -> tuple[float, float] | None:
    """Walk from the middle of the bracket to two neighbors (too dear, affordable) around the crossing.

    None if `best` itself is affordable. Extreme values are dear to price, so they are tried last.
    """
    stride = math.copysign(math.log(4), math.log(safe / best))
    log_best, log_safe = math.log(best), math.log(safe)

    def inside(log_value: float) -> float:
        return min(max(log_value, min(log_best, log_safe)), max(log_best, log_safe))

    here = (log_best + log_safe) / 2
    affordable = cost(math.exp(here)) <= epsilon
    while True:
        there = inside(here - stride if affordable else here + stride)
        if there == here:
            return None if affordable else (best, safe)
        if (cost(math.exp(there)) <= epsilon) != affordable:
            dear, fine = (there, here) if affordable else (here, there)
            return math.exp(dear), math.exp(fine)
        here = there


def _meet(cost: Callable[[float], float], epsilon: float, dear: float, affordable: float) -> float:
    """Find where the cost crosses epsilon, both on logarithmic scales, and end on the side that meets it."""

    def excess(log_value: float) -> float:
        # A cost of 0 or infinity has no logarithm; far from epsilon is all that must be known of it.
        return math.log(min(max(cost(math.exp(log_value)) / epsilon, 1e-12), 1e300))

    low, high = sorted((math.log(dear), math.log(affordable)))
    from scipy.optimize import root_scalar  # a quarter of a second to import

    root = root_scalar(excess, bracket=(low, high), method="brentq", xtol=TOLERANCE / 4).root
    back = math.copysign(TOLERANCE / 2, math.log(affordable / dear))
    while excess(root) > 0:
        root += back
    return math.exp(root)
