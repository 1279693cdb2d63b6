# SPDX-License-Identifier: Apache-2.0
"""How many answers a budget buys, from public numbers alone.

Without `agreement` the price of an answer is that of its noise, whatever the votes are. With it, the plan is
a `StableLabeling`: it assumes that so many teachers agree, tests that with noise, and answers several times
as many queries if it is true. If it is not, the first few queries are answered. Where such a test buys
nothing, because the budget covers as many queries whatever the votes are, the plan is the job without it.

Guarantee  Nothing private is used. `agreement` is what you expect: choose it from public or older data, never
           from the votes.
Not here   The number of answers of `ConfidentGNMax`, which depends on the votes: it is released with them.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import ndtri

from sfumato import _check
from sfumato.accounting import rdp, votes
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.pate.votes.aggregators import Aggregator, ConfidentGNMax, GNMax
from sfumato.pate.votes.individual import IndividualBudgets
from sfumato.pate.votes.labeling import Labeling, affordable_queries
from sfumato.pate.votes.stability import StableLabeling, require_testable

__all__ = ["Job", "plan"]

Job = Labeling | StableLabeling

_NOISE = 0.16  # of the number of teachers: 40 of 250, as in Papernot et al. 2018
_STABLE_NOISE = 0.12  # where most teachers agree, smaller noise costs less
_TEST_STDDEVS = (2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
_TEST_SHARE = 0.1  # of delta
_PASSES = 0.99  # how often the test passes if teachers agree as assumed
_ORDERS = np.concatenate([np.arange(4.0, 40.0), np.arange(40.0, 128.0, 4)])


def plan(
    *,
    epsilon: float | None = None,
    delta: float,
    teachers: int,
    aggregator: Aggregator | None = None,
    queries: int | None = None,
    agreement: float | Sequence[float] | None = None,
    individual: IndividualBudgets | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
) -> Job:
    """Return the labeling job with the most queries that a budget covers. Nothing is spent.

    Args:
        epsilon: The budget of the job. With `individual`, each group has its own instead.
        delta: The delta of the guarantee.
        teachers: The number of teachers.
        aggregator: How votes become answers. Default: `GNMax` with noise of 0.16 votes for each teacher.
        queries: How many queries to ask, if fewer than the budget covers. The budget is then not used up,
            except by a `StableLabeling`, which needs less agreement instead.
        agreement: About which share of the teachers will agree on a query, above 0, or several shares for
            queries that differ, each as frequent as the others. It is not used if the budget covers the
            queries, or more of them, without a test.
        individual: The epsilons of privacy groups.
        relation: Which data sets are neighbors.

    Returns:
        The job, to be passed to `pate.train` or `pate.label`.

    Raises:
        InvalidParameterError: If a parameter is out of range, or the budget does not cover a single query.

    >>> plan(epsilon=2.0, delta=1e-5, teachers=250).queries
    201
    >>> plan(epsilon=2.0, delta=1e-5, teachers=250, agreement=0.95).queries > 2000
    True
    """
    _check.count(teachers=teachers)
    _check.delta(delta=delta)
    relation = Relation.parse(relation)
    if (epsilon is None) == (individual is None):
        raise InvalidParameterError("pass epsilon, or the epsilons of groups as individual=..., not both.")
    if epsilon is not None:
        _check.positive(epsilon=epsilon)
    if agreement is not None and individual is not None:
        raise InvalidParameterError("agreement is tested for one budget: leave it out with individual=...")
    used = aggregator if aggregator is not None else GNMax(stddev=_NOISE * teachers)
    if not isinstance(used, Aggregator):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            f"aggregator must be GNMax(...), ConfidentGNMax(...) or another one, but a {type(used).__name__} "
            "was given."
        )
    if agreement is not None and epsilon is not None:
        tested = _stable(epsilon, delta, teachers, aggregator, queries, _shares(agreement), relation)
        if tested is not None:
            return tested
    most = affordable_queries(
        used, epsilon=epsilon or 0.0, delta=delta, teachers=teachers, individual=individual, relation=relation
    )
    if queries is not None and queries > most:
        budget = f"epsilon={epsilon:g}" if epsilon is not None else "the strictest group"
        raise InvalidParameterError(
            f"{queries} queries cost more than {budget} covers, which is {most} of {used.name}."
        )
    return Labeling(
        aggregator=used,
        queries=most if queries is None else queries,
        teachers=teachers,
        delta=delta,
        individual=individual,
        relation=relation,
    )


def _shares(agreement: float | Sequence[float]) -> tuple[float, ...]:
    shares = (agreement,) if isinstance(agreement, int | float) else tuple(agreement)
    if not shares:
        raise InvalidParameterError("agreement must be a share of the teachers, or several.")
    for share in shares:
        _check.rate(agreement=share)
    return shares


def _stable(
    epsilon: float,
    delta: float,
    teachers: int,
    aggregator: Aggregator | None,
    queries: int | None,
    shares: tuple[float, ...],
    relation: Relation,
) -> StableLabeling | None:
    """Return a job with a test, or None if one without it answers as much whatever the votes are."""
    used = aggregator if aggregator is not None else GNMax(stddev=_STABLE_NOISE * teachers)
    require_testable(used, relation)
    assert isinstance(used, GNMax | ConfidentGNMax)  # for the type checker
    top = np.floor(np.array(shares) * teachers)
    counts = np.stack([top, teachers - top], axis=1)  # all others agree on one class: the worst case
    most, order, test_stddev = max(_candidates(epsilon, delta, used, counts), default=(0, 0.0, 0.0))
    plain = aggregator if aggregator is not None else GNMax(stddev=_NOISE * teachers)
    covered = _covered(plain, epsilon, delta, teachers, relation)
    if covered >= (most if queries is None else queries) or most == 0:
        return None
    if queries is not None and queries > most:
        raise InvalidParameterError(
            f"{queries} queries cost more than epsilon={epsilon:g} covers: {most} of {used.name} if teachers "
            f"agree as expected, and {covered} whatever the votes are."
        )
    return StableLabeling(
        aggregator=used,
        queries=most if queries is None else queries,
        teachers=teachers,
        epsilon=epsilon,
        delta=delta,
        order=order,
        test_stddev=test_stddev,
        test_delta=_TEST_SHARE * delta,
        relation=relation,
    )


def _covered(aggregator: Aggregator, epsilon: float, delta: float, teachers: int, relation: Relation) -> int:
    try:
        return affordable_queries(
            aggregator, epsilon=epsilon, delta=delta, teachers=teachers, relation=relation
        )
    except InvalidParameterError:  # not a single one
        return 0


def _candidates(
    epsilon: float, delta: float, aggregator: GNMax | ConfidentGNMax, counts: np.ndarray
) -> Iterator[tuple[int, float, float]]:
    """Yield (queries, order, noise of the test) for jobs that pass the test if teachers agree as assumed."""
    left = delta * (1 - _TEST_SHARE)
    rooms = np.array([rdp.largest_rdp(epsilon=epsilon, delta=left, order=float(a)) for a in _ORDERS])
    for test_stddev in _TEST_STDDEVS:
        needed = math.ceil(test_stddev * float(ndtri(_PASSES) - ndtri(_TEST_SHARE * delta)))
        cost = votes.answers(counts, aggregator.votes, distance=needed, orders=_ORDERS).values / len(counts)
        queries = np.floor((rooms - _ORDERS / (2 * test_stddev**2)) / cost * (1 - 1e-6))
        best = int(np.argmax(queries))
        if queries[best] >= 1:
            yield int(min(queries[best], 10**9)), float(_ORDERS[best]), test_stddev
