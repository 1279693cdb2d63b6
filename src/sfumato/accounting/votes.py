# SPDX-License-Identifier: Apache-2.0
"""What answers of noisy votes cost if teachers agree: bounds that depend on the private counts.

A teacher votes for one class of each query. `GNMax` releases the class with the most votes after Gaussian
noise; `Confident-GNMax` first compares the largest count, with noise of its own, with a threshold.

The usual price counts every answer as a Gaussian mechanism. Where most teachers agree, the answer is almost
certain whatever one of them votes, and costs far less. But then the price itself depends on the private
votes: it must not be published, and it is no budget. `distance` helps to make a guarantee of it: it is the
number of teachers who would have to change their votes before a proposed budget is exceeded. One teacher
moves it by at most one, so it can be tested with noise (`sfumato.pate.votes.stability`).

Guarantee  `answers(counts, ...)` bounds the Renyi divergence of all answers from those of every neighbor, in
           which one teacher votes otherwise, from `counts` to the neighbor. `distance` moves by at most 1
           between neighbors.
Neighbors  One teacher changes its votes, or abstains, in any number of queries: add-remove or zero-out
           neighbors, if every unit is in one teacher.
Edge cases Two classes or more; one class needs no vote. A query without any vote is priced as one without
           consensus. Orders are above 1.
Source     Papernot et al. 2018, arXiv:1802.08908: Propositions 7, 8 and 10, Theorem 6 and Corollary 11. That
           a test makes a guarantee of a price that depends on the data: Redberg, Zhu and Wang 2023,
           arXiv:2301.00301.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter1d
from scipy.special import log_ndtr

from sfumato import _check
from sfumato.accounting.rdp import RdpCurve
from sfumato.errors import InvalidParameterError

__all__ = ["ORDERS", "Votes", "answers", "distance", "log_error", "one_answer"]

Array = npt.NDArray[np.float64]

ORDERS: Array = np.concatenate([np.arange(1.5, 10, 0.5), np.arange(10.0, 40), np.arange(40.0, 161, 8)])
ORDERS.setflags(write=False)
_KNOTS = 96  # of a cost that is interpolated between them, always upwards
_SMALLEST = 2.0**-60  # of the first knot above zero, relative to the last one
_GRID: Array = -(np.linspace(30.0, 0.0, 8193) ** 2)  # of log_q, up to 0: finer where errors are likely
_ROUNDING = 1e-15  # of a moment of order 1, which is about 1
_CANCELLED = 2.0**-50  # relative rounding of two logarithms, negative and nearly equal, that are subtracted
_UP = 1 + 1e-9  # rounding of the formulas, which lose at most a few digits


@dataclass(frozen=True, kw_only=True, slots=True)
class Votes:
    """The noise of votes, and the threshold if there is one.

    Args:
        stddev: The standard deviation of the noise in each count.
        threshold: The smallest noisy count of the leading class that is answered. None: all are.
        threshold_stddev: The standard deviation of the noise in that comparison.

    Raises:
        InvalidParameterError: If a parameter is out of range, or only one of the threshold's two is given.

    >>> Votes(stddev=40.0).threshold is None
    True
    """

    stddev: float
    threshold: float | None = None
    threshold_stddev: float | None = None

    def __post_init__(self) -> None:
        _check.positive(stddev=self.stddev)
        if (self.threshold is None) != (self.threshold_stddev is None):
            raise InvalidParameterError("threshold and threshold_stddev belong together: pass both.")
        if self.threshold is not None and self.threshold_stddev is not None:
            _check.finite(threshold=self.threshold)
            _check.positive(threshold_stddev=self.threshold_stddev)


# --- one answer -------------------------------------------------------------------------------------------


def log_error(margins: Array, *, stddev: float) -> Array:
    """Return a bound on the logarithm of the chance that noise changes the answer (Proposition 7).

    Args:
        margins: By how many votes the leading class is ahead of each other class, [queries, classes - 1].
        stddev: The standard deviation of the noise in each count.

    Returns:
        The logarithms, at most 0.

    >>> np.exp(log_error(np.array([[80.0]]), stddev=40.0)).round(4)  # erfc(1) / 2
    array([0.0786])
    """
    terms = log_ndtr(-margins / (math.sqrt(2) * stddev))  # log(erfc(x / 2 stddev) / 2)
    most = terms.max(axis=1, keepdims=True)
    total = most[:, 0] + np.log(np.exp(terms - most).sum(axis=1))
    return np.minimum(total, 0.0)


def one_answer(log_q: Array, *, stddev: float, orders: Array = ORDERS) -> Array:
    """Return the divergence of one answer of GNMax whose error has at most a given chance (Theorem 6).

    Args:
        log_q: The logarithm of a bound on the chance that the answer is not the leading class.
        stddev: The standard deviation of the noise in each count.
        orders: The Renyi orders.

    Returns:
        A bound for each query and order; never above that of the Gaussian mechanism (Proposition 8).

    >>> one_answer(np.log([1e-9, 0.5]), stddev=40.0, orders=np.array([20.0])).round(6)
    array([[0.    ],
           [0.0125]])
    """
    column, row = np.asarray(log_q, dtype=np.float64)[:, None], np.asarray(orders)[None, :]
    whole = np.broadcast_to(row / stddev**2, (column.shape[0], row.shape[1]))
    with np.errstate(all="ignore"):  # where the theorem does not apply, the formula may be anything
        second = stddev * np.sqrt(-column)  # Proposition 10: the two higher orders
        first = second + 1
        first_cost, second_cost = first / stddev**2, second / stddev**2
        limit = (second - 1) * second_cost - second * (np.log1p(1 / second) + np.log1p(1 / (second - 1)))
        applies = (row <= first) & (second > 1) & (column <= limit) & (-column > second_cost)
        log_right = _log_one_minus(column)
        near = (row - 1) * (log_right - _log_one_minus((column + second_cost) * (1 - 1 / second)))
        far = (row - 1) * (first_cost - column / second)
        bound = np.logaddexp(log_right + near, column + far) / (row - 1)
    return np.where(applies, np.minimum(np.maximum(bound, 0.0) * _UP, whole), whole)


def _log_one_minus(log_x: Array) -> Array:
    """Return log(1 - exp(log_x))."""
    return np.where(log_x > -math.log(2), np.log(-np.expm1(log_x)), np.log1p(-np.exp(log_x)))


# --- all answers, and their distance from a budget --------------------------------------------------------


def answers(counts: npt.ArrayLike, votes: Votes, *, distance: int = 0, orders: Array = ORDERS) -> RdpCurve:
    """Return the divergence of the answers to all queries. It depends on private votes: do not publish it.

    Args:
        counts: The votes for each class, [queries, classes]: whole numbers.
        votes: The noise.
        distance: The largest bound over all counts in which up to so many teachers vote otherwise.
        orders: The Renyi orders.

    Returns:
        The curve.

    Raises:
        InvalidParameterError: If the counts are not whole numbers of two or more classes.

    >>> agreed = np.array([[250, 0, 0], [248, 1, 1]])
    >>> float(answers(agreed, Votes(stddev=40.0), orders=np.array([16.0])).values[0]) < 2 * 16 / 40**2
    True
    """
    return _Prepared(counts, votes, np.asarray(orders, dtype=np.float64)).curve(distance)


def distance(
    counts: npt.ArrayLike,
    votes: Votes,
    *,
    safe: Callable[[RdpCurve], bool],
    most: int,
    orders: Array = ORDERS,
) -> int:
    """Return how many teachers must vote otherwise before the answers may no longer be safe. It is private.

    Args:
        counts: The votes for each class, [queries, classes]: whole numbers.
        votes: The noise.
        safe: Whether a curve is within the budget. A curve nowhere above a safe one must be safe, too.
        most: The largest distance that is told apart.
        orders: The Renyi orders.

    Returns:
        0 if the answers are not safe now, otherwise one more than the largest distance, below `most`, at
        which all counts are safe. It moves by at most 1 if one teacher votes otherwise.

    >>> agreed = np.array([[250, 0, 0]] * 40)
    >>> distance(agreed, Votes(stddev=40.0), safe=lambda curve: curve.values[10] < 0.1, most=100) > 20
    True
    """
    prepared = _Prepared(counts, votes, np.asarray(orders, dtype=np.float64))
    low, high = 0, most  # safe below `low`, not known to be safe from `high` on
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if safe(prepared.curve(middle)) else (low, middle)
    return low


class _Prepared:
    """Counts with equal ones merged, and what the threshold costs at each count."""

    def __init__(self, counts: npt.ArrayLike, votes: Votes, orders: Array) -> None:
        self._votes, self._orders = votes, orders
        ordered, self._repeats = np.unique(_ordered(counts), axis=0, return_counts=True)
        self._top, self._margins = ordered[:, 0].astype(np.int64), ordered[:, :1] - ordered[:, 1:]
        self._comparison = None if votes.threshold is None else _Comparison(votes, orders)

    def curve(self, distance: int) -> RdpCurve:
        """Return the largest cost at up to this distance.

        Why it is the largest: moving a vote from the leader to class i lowers its margin by 2 and all others
        by 1, and no other change lowers any margin by more. The bound of Proposition 7 is a sum of one convex
        function of each margin, while all are positive. So it is largest if all moved votes go to one class,
        the second one. As soon as that class could draw level, the price is that of the Gaussian mechanism.
        """
        margins = self._margins - float(distance)
        margins[:, 0] -= distance
        log_q = np.where(margins[:, 0] > 0, log_error(margins, stddev=self._votes.stddev), 0.0)
        cost = _rising(log_q, self._votes.stddev, self._orders)
        if self._comparison is not None:
            cost = self._comparison.with_answers(self._top, cost, distance)
        return RdpCurve(orders=self._orders, values=self._repeats @ cost)


def _rising(log_q: Array, stddev: float, orders: Array) -> Array:
    """Return a bound for each query and order that never falls if the chance of an error rises.

    Theorem 6 holds for every bound on that chance, so the least of its values at all larger ones is a bound,
    too. It is taken over a grid that does not depend on the votes.
    """
    return _table(stddev, orders.tobytes())[np.searchsorted(_GRID, log_q)]


@lru_cache(maxsize=16)
def _table(stddev: float, orders: bytes) -> Array:
    cost = one_answer(_GRID, stddev=stddev, orders=np.frombuffer(orders))
    return np.minimum.accumulate(cost[::-1], axis=0)[::-1]


class _Comparison:
    """The cost of the comparison with the threshold together with the answer that may follow.

    The output is "not answered", or the answer. With p and p' the chances of an answer here and at a
    neighbor, and E = exp((order - 1) cost of the answer), the moment of order a is
    (1-p)^a (1-p')^(1-a) + p^a p'^(1-a) E. It is convex in p', which lies between the chances at one vote less
    and one more, so it is largest at one of these. Its largest value over a window of counts is a maximum of
    straight lines in E, hence convex: chords between knots are never below it. A moment beyond float64 costs
    as much as comparison and answer without consensus, which is a bound for all counts.
    """

    def __init__(self, votes: Votes, orders: Array) -> None:
        assert votes.threshold is not None and votes.threshold_stddev is not None
        self._votes, self._orders = votes, orders
        largest = (orders - 1) * orders / votes.stddev**2  # of log E: the answer's price without consensus
        knots = np.geomspace(_SMALLEST, 1.0, _KNOTS)
        self._knots = np.concatenate([np.zeros((1, len(orders))), knots[:, None] * largest])  # of log E
        self._whole = orders * (1 / votes.stddev**2 + 1 / (2 * votes.threshold_stddev**2)) * _UP

    def with_answers(self, top: npt.NDArray[np.int64], cost: Array, distance: int) -> Array:
        """Return the cost of comparison and answer, for the largest count of each query."""
        log_e = cost * (self._orders - 1)
        first, last = int(top.min()) - distance, int(top.max()) + distance
        found = np.empty_like(cost)
        for at, order in enumerate(self._orders):
            table = self._moments(np.arange(first, last + 1), float(order), self._knots[:, at])
            widest = maximum_filter1d(table, size=2 * distance + 1, axis=0, mode="nearest")
            moment = _chord(widest[top - first], self._knots[:, at], log_e[:, at])
            found[:, at] = np.log1p(np.maximum(moment, 0.0)) / (order - 1) * _UP
        return np.minimum(found, self._whole)

    def _moments(self, tops: npt.NDArray[np.int64], order: float, knots: Array) -> Array:
        """Return the moments minus 1, [counts, knots]."""
        here, best = self._chances(tops), np.full((len(tops), len(knots)), -np.inf)
        for moved in (-1, 1):
            there = self._chances(tops + moved)
            spoken, silent = (
                order * one + (1 - order) * other - _CANCELLED * order * (one + other)
                for one, other in zip(here, there, strict=True)
            )
            with np.errstate(over="ignore"):  # too large a moment is infinity, which is a bound
                moment = np.exp(silent)[:, None] + np.exp(spoken[:, None] + knots[None, :])
            best = np.maximum(best, moment)
        return best - 1.0 + _ROUNDING * order

    def _chances(self, tops: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the logarithms of the chances that a query is answered, and that it is not."""
        assert self._votes.threshold is not None and self._votes.threshold_stddev is not None
        score = (tops - self._votes.threshold) / self._votes.threshold_stddev
        return log_ndtr(score), log_ndtr(-score)


def _chord(values: Array, knots: Array, log_e: Array) -> Array:
    """Interpolate between knots, in E and not in its logarithm: [rows, knots] at one place for each row."""
    right = np.clip(np.searchsorted(knots, log_e, side="left"), 1, len(knots) - 1)
    rows = np.arange(len(log_e))
    below, above = knots[right - 1], knots[right]
    at = np.clip(log_e, below, above)
    with np.errstate(all="ignore"):  # knots that are equal, or values that are infinite
        share = np.exp(at - above) * np.expm1(below - at) / np.expm1(below - above)
        low, high = values[rows, right - 1], values[rows, right]
        return np.where(np.isfinite(high), low + np.where(above > below, share, 1.0) * (high - low), np.inf)


def _ordered(counts: npt.ArrayLike) -> Array:
    """Return the counts of each query, the largest first."""
    known = np.asarray(counts, dtype=np.float64)
    if known.ndim != 2 or known.shape[1] < 2 or known.shape[0] == 0:
        raise InvalidParameterError(
            "counts must be a table with a row a query and a column a class, two or more."
        )
    if not (np.isfinite(known).all() and np.array_equal(known, np.floor(known)) and np.all(known >= 0)):
        raise InvalidParameterError("counts must be whole numbers of votes, 0 or more.")
    return np.sort(known, axis=1)[:, ::-1]
