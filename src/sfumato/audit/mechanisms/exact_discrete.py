# SPDX-License-Identifier: Apache-2.0
"""The exact epsilon of a discrete mechanism, from every outcome and its probability.

`law` computes the probabilities that a mechanism states, from its parameters. Whether the samplers draw from
that distribution is tested by `mechanism_attack` and by the tests of the samplers.

Guarantee  `exact_epsilon` is the least epsilon for which two distributions are (epsilon, delta)-close, both
           ways, over all
           events: the best event of each size takes outcomes in the order of their likelihood ratio. It is
               rounded down by
           more than float64's error, relative and absolute, so a claim that holds with equality is not
           contradicted, however small it is.
Edge cases A distribution may leave out outcomes, such as the far ends of the integers. Events of the others
           have the stated probabilities, so the result is still a lower bound.
Source     The hockey-stick divergence: Barthe and Olmedo 2013; permute-and-flip: McKenna and Sheldon 2020.
"""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import singledispatch
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting import composition
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.accounting.price import price
from sfumato.audit.evidence.results import AuditResult, LowerBound
from sfumato.audit.mechanisms.mechanism_attack import delta_of
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    PermuteAndFlip,
    RandomizedResponse,
    UnaryEncoding,
)

__all__ = ["audit_discrete", "audit_laws", "claim_of", "exact_epsilon", "law"]

Floats = npt.NDArray[np.float64]
Law = Mapping[Hashable, float]
CERTAIN = 1 - 2.0**-53  # the confidence of a result without randomness
_ROUNDING = 1e-9  # relative: more than summing a law of a million outcomes loses
_EACH_OUTCOME = 1e-15  # absolute: what the logarithm of a ratio near 1 loses, for each outcome that is summed
_REACH = (
    40  # scales or stddevs on both sides: what lies beyond has less probability than float64 tells from 0
)
_MOST_BITS = 12  # of unary encoding: 2^12 outcomes


class Mechanism(Protocol):
    """A mechanism with an event and a relation."""

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        ...

    def event(self) -> DpEvent:
        """Describe what one release costs."""
        ...


def claim_of(mechanism: Mechanism, *, delta: float = 0.0, privacy_unit: str = "unit") -> Guarantee:
    """Return the guarantee that a mechanism claims by its event, at a delta.

    >>> from sfumato.mechanisms import Laplace
    >>> claim_of(Laplace(scale=0.5, sensitivity=1.0, relation=Relation.ADD_REMOVE)).epsilon
    2.0
    """
    event, relation = mechanism.event(), mechanism.relation
    if delta == 0:
        epsilon = composition.basic_epsilon(event, delta=0.0, relation=relation)
    else:
        epsilon = price(event, delta=delta, relation=relation).epsilon
    return Guarantee(epsilon=epsilon, delta=delta, relation=relation, privacy_unit=privacy_unit)


def exact_epsilon(
    first: Sequence[float] | Floats, second: Sequence[float] | Floats, *, delta: float = 0.0
) -> float:
    """Return the least epsilon that two lists of probabilities allow at delta.

    Args:
        first: The probability of each outcome on one data set.
        second: The probability of the same outcomes on its neighbor.
        delta: The delta of the guarantee.

    Returns:
        Epsilon, rounded down; infinite if no epsilon is enough.

    Raises:
        InvalidParameterError: If the lists are not probabilities, or have different lengths.

    >>> round(exact_epsilon([0.75, 0.25], [0.25, 0.75]), 6) == round(math.log(3), 6)
    True
    >>> exact_epsilon([0.1, 0.9], [0.0, 1.0]), exact_epsilon([0.1, 0.9], [0.0, 1.0], delta=0.1)
    (inf, 0.0)
    """
    _check.in_range(0, 1, delta=delta)
    one, two = _probabilities(first), _probabilities(second)
    if one.shape != two.shape:
        raise InvalidParameterError(
            f"both distributions must have a probability for each of the same outcomes, but {one.size} and "
            f"{two.size} numbers were given."
        )
    epsilon = max(_one_way(one, two, delta), _one_way(two, one, delta))
    return max(0.0, epsilon * (1 - _ROUNDING) - _EACH_OUTCOME * one.size)


def _one_way(one: Floats, two: Floats, delta: float) -> float:
    """Return the log of the largest (P[E] - delta) / Q[E], over the events E of largest likelihood ratio."""
    possible = one > 0
    one, two = one[possible], two[possible]
    with np.errstate(divide="ignore"):
        order = np.argsort(np.log(two) - np.log(one), kind="stable")
    likely, unlikely = np.cumsum(one[order]) - delta, np.cumsum(two[order])
    # A delta that is used up except for rounding is used up: the rest would be divided by almost zero.
    enough = likely > _ROUNDING * delta
    with np.errstate(divide="ignore"):
        ratios = np.log(likely[enough]) - np.log(unlikely[enough])
    return float(ratios.max(initial=-math.inf))


def _probabilities(given: Sequence[float] | Floats) -> Floats:
    known = np.asarray(given, dtype=np.float64).ravel()
    if known.size == 0 or not (bool((known >= 0).all()) and float(known.sum()) <= 1 + _ROUNDING):
        raise InvalidParameterError(
            "a distribution must be a list of probabilities: one or more, none of them negative or NaN, with "
            "a sum of at most 1."
        )
    return known


def audit_laws(
    first: Law,
    second: Law,
    *,
    delta: float | None = None,
    claim: Guarantee | None = None,
    subject: str = "mechanism",
) -> AuditResult:
    """Compare the exact epsilon of two distributions with a claim.

    Args:
        first: The distribution on one data set, `{outcome: probability}`.
        second: The distribution on its neighbor.
        delta: The delta to audit at. None is that of the claim, or 0 without a claim.
        claim: The guarantee to test, or None.
        subject: The name of the mechanism, for the report.

    Returns:
        The exact epsilon, beside the claim.

    Raises:
        InvalidParameterError: If a distribution is not one of probabilities.

    >>> coin = audit_laws({"yes": 0.75, "no": 0.25}, {"yes": 0.25, "no": 0.75}, subject="a coin")
    >>> round(coin.best.epsilon, 4)
    1.0986
    """
    known = delta_of(delta, claim)
    outcomes = list(dict.fromkeys([*first, *second]))
    one, two = ([law.get(outcome, 0.0) for outcome in outcomes] for law in (first, second))
    bound = LowerBound(
        epsilon=exact_epsilon(one, two, delta=known),
        delta=known,
        confidence=CERTAIN,
        attack="every outcome, exactly",
        trials=len(outcomes),
    )
    return AuditResult(subject=subject, claim=claim, bounds=(bound,))


def audit_discrete(
    mechanism: Any, first: Any, second: Any, *, delta: float | None = None, claim: Guarantee | None = None
) -> AuditResult:
    """Compare the exact epsilon of a discrete mechanism on two neighboring inputs with a claim.

    Args:
        mechanism: A discrete mechanism of `sfumato.mechanisms`.
        first: The input on one data set: a number, or scores of candidates.
        second: The input on its neighbor.
        delta: The delta to audit at. None is that of the claim, or 0 without a claim.
        claim: The guarantee to test. None tests the price of the mechanism's event.

    Returns:
        The exact epsilon, beside the claim.

    Raises:
        InvalidParameterError: If the distribution of this mechanism is not known here.

    >>> from sfumato.mechanisms import RandomizedResponse
    >>> answers = RandomizedResponse.calibrated(epsilon=1.0, num_buckets=3)
    >>> found = audit_discrete(answers, 0, 1)
    >>> round(found.best.epsilon, 6), found.refuted
    (1.0, False)
    """
    outcomes = _outcomes(mechanism, first, second)
    one, two = (law(mechanism, value, outcomes) for value in (first, second))
    claimed = claim if claim is not None else claim_of(mechanism, delta=delta or 0.0)
    return audit_laws(one, two, delta=delta, claim=claimed, subject=type(mechanism).__name__)


# --- the distributions of our mechanisms ------------------------------------------------------------------


@singledispatch
def law(mechanism: Any, value: Any, outcomes: Sequence[Hashable]) -> Law:
    """Return the probability of each outcome of a mechanism on one input.

    >>> from sfumato.mechanisms import DiscreteLaplace
    >>> noise = DiscreteLaplace(scale=1 / math.log(2), sensitivity=1, relation=Relation.ADD_REMOVE)
    >>> {outcome: round(p, 6) for outcome, p in law(noise, 5, [4, 5]).items()}
    {4: 0.166667, 5: 0.333333}
    """
    raise InvalidParameterError(
        f"the distribution of a {type(mechanism).__name__} is not known here. Use audit_laws with its "
        "probabilities, or audit_mechanism, which runs it."
    )


@law.register
def _(mechanism: DiscreteLaplace, value: int, outcomes: Sequence[int]) -> Law:
    top = math.tanh(1 / (2 * mechanism.scale))  # (1 - a) / (1 + a) with a = e^(-1 / scale)
    return {outcome: top * math.exp(-abs(outcome - value) / mechanism.scale) for outcome in outcomes}


@law.register
def _(mechanism: DiscreteGaussian, value: int, outcomes: Sequence[int]) -> Law:
    reach = math.ceil(_REACH * mechanism.stddev) + 1
    total = math.fsum(math.exp(-((x / mechanism.stddev) ** 2) / 2) for x in range(-reach, reach + 1))
    return {x: math.exp(-(((x - value) / mechanism.stddev) ** 2) / 2) / total for x in outcomes}


@law.register
def _(mechanism: RandomizedResponse, value: int, outcomes: Sequence[int]) -> Law:
    other = mechanism.noise_parameter / mechanism.num_buckets
    return {x: other + (1 - mechanism.noise_parameter) * (x == value) for x in outcomes}


@law.register
def _(mechanism: UnaryEncoding, value: int, outcomes: Sequence[tuple[bool, ...]]) -> Law:
    ones = np.full(mechanism.num_buckets, mechanism.zero_becomes_one)
    ones[value] = mechanism.one_stays_one
    return {bits: float(np.where(bits, ones, 1 - ones).prod()) for bits in outcomes}


@law.register
def _(mechanism: Exponential, value: Sequence[float], outcomes: Sequence[int]) -> Law:
    weights = np.exp(_rate(mechanism) * (np.asarray(value, dtype=np.float64) - max(value)))
    return {x: float(weights[x] / weights.sum()) for x in outcomes}


@law.register
def _(mechanism: PermuteAndFlip, value: Sequence[float], outcomes: Sequence[int]) -> Law:
    heads = np.exp(_rate(mechanism) * (np.asarray(value, dtype=np.float64) - max(value)))
    return {x: float(heads[x] * _share(np.delete(heads, x))) for x in outcomes}


def _share(others: Floats) -> float:
    """Return the mean of 1 / (1 + heads) over independent coins: the chance of the one among them."""
    counts = np.ones(1)  # probability of each number of heads
    for chance in others:
        counts = np.append(counts * (1 - chance), 0.0) + np.append(0.0, counts * chance)
    return float((counts / (1 + np.arange(counts.size))).sum())


def _rate(mechanism: Exponential | PermuteAndFlip) -> float:
    return mechanism.epsilon / (mechanism.sensitivity * (1 if mechanism.monotonic else 2))


def _outcomes(mechanism: Any, first: Any, second: Any) -> Sequence[Hashable]:
    """Return the outcomes that both inputs may have, without the far ends of the integers."""
    if isinstance(mechanism, DiscreteLaplace | DiscreteGaussian):
        size = mechanism.scale if isinstance(mechanism, DiscreteLaplace) else mechanism.stddev
        reach = math.ceil(_REACH * size) + 1
        return range(min(first, second) - reach, max(first, second) + reach + 1)
    if isinstance(mechanism, Exponential | PermuteAndFlip):
        return range(len(first))
    if isinstance(mechanism, UnaryEncoding):
        _check.in_range(2, _MOST_BITS, num_buckets=mechanism.num_buckets)
        return list(itertools.product((False, True), repeat=mechanism.num_buckets))
    return range(getattr(mechanism, "num_buckets", 0))
