# SPDX-License-Identifier: Apache-2.0
"""The best attack that a claim allows, and the epsilon that a better attack shows.

A lower bound on the area under a ROC curve becomes one on epsilon within the family of the same event with
more or less noise: `bound_of_area` finds the member of least noise that does not allow the area, up to
rounding. The mechanism, if it is one of them, has less noise still. `bound_of_tail` does the same for one
point of the curve, such as the shares of canaries in and out with a score above a threshold: an area hides
what a few canaries reveal.

The accountant's lower bound on that member's epsilon is used, if it has one. If it has none (projections,
batches of a fixed or a largest size), its upper bound is used, and `certified` is False: a claim by the same
accountant is still refuted only if it does not allow the area, but the number itself may be above the true
epsilon by as much as the accountant's is.

Guarantee  `largest_area(event)` is an upper bound on the area under the ROC curve of every attack on a
           mechanism that the event describes. Each point (epsilon, delta) of its privacy profile keeps the
           false negatives of an attack with false positives a above max(1 - delta - e^epsilon a, e^-epsilon
           (1 - delta - a)) (Wasserman, Zhou 2010; Kairouz, Oh, Viswanath 2015); no attack reaches below all
           of these lines. Fewer points allow an attacker more, never less.
Source     ROC curves as trade-off functions: Dong, Roth, Su 2022.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price, quick_epsilon
from sfumato.audit.evidence import bounds

__all__ = [
    "AreaBound",
    "Tail",
    "bound_of_area",
    "bound_of_tail",
    "epsilon_of_area",
    "largest_area",
    "most_found",
]

_DELTAS = (0.09, 0.35, 0.005, 0.2, 0.03, 0.55, 1e-4, 0.8)  # the most informative first
_CELLS = 4000  # of the axis of false positives; midpoints of a convex curve lie below its mean
_FARTHEST = 1024.0  # factor of the noise, up or down: there an attack is as good as guessing, or perfect
_ACCURACY = 1.005  # of that factor
_PAST = 0.002  # of its logarithm


def largest_area(event: DpEvent, *, relation: Relation) -> float:
    """Return an upper bound on the area under any attack's ROC curve.

    >>> from sfumato.accounting.events import dp_sgd
    >>> one = dp_sgd(noise_multiplier=2.0, sampling_rate=1.0, steps=1)  # exactly 0.638
    >>> round(largest_area(one, relation=Relation.ADD_REMOVE), 3)
    0.641
    """
    *_, missed = _missed(event, (np.arange(_CELLS) + 0.5) / _CELLS, relation)
    return float(1 - missed.mean())


def most_found(event: DpEvent, alarms: Sequence[float], *, relation: Relation) -> list[float]:
    """Return the largest share of true positives that an attack may have at each rate of false positives.

    >>> from sfumato.accounting.events import dp_sgd
    >>> one = dp_sgd(noise_multiplier=1.0, sampling_rate=1.0, steps=1)  # exactly 0.389
    >>> [round(most, 2) for most in most_found(one, [0.1], relation=Relation.ADD_REMOVE)]
    [0.39]
    """
    *_, missed = _missed(event, np.asarray(alarms, dtype=np.float64), relation)
    return (1 - missed).tolist()


def _missed(
    event: DpEvent, alarms: npt.NDArray[np.float64], relation: Relation
) -> Iterator[npt.NDArray[np.float64]]:
    """Yield lower bounds on the false negatives at each rate of false positives, by more and more points."""
    events.check(event)
    missed = np.zeros(len(alarms))
    yield missed
    for delta in _DELTAS:
        epsilon = quick_epsilon(event, delta=delta, relation=relation)
        if math.isinf(epsilon):
            continue
        factor = math.exp(min(epsilon, 700.0))
        missed = np.maximum(missed, 1 - delta - factor * alarms)
        missed = np.maximum(missed, (1 - delta - alarms) / factor)
        yield missed


@dataclass(frozen=True, kw_only=True, slots=True)
class AreaBound:
    """The epsilon that an area shows.

    Attributes:
        epsilon: The epsilon.
        certified: Whether it is a lower bound by the accountant, not an upper one.
    """

    epsilon: float
    certified: bool


def bound_of_area(
    area: float, event: Callable[[float], DpEvent], *, delta: float, relation: Relation
) -> AreaBound:
    """Return the epsilon of the event of least noise that does not allow the area; 0 if guessing reaches it.

    `event(factor)` is the claimed event with its noise multiplied by `factor`.

    >>> from sfumato.accounting.events import dp_sgd
    >>> def event(factor): return dp_sgd(noise_multiplier=factor, sampling_rate=1.0, steps=1)
    >>> found = bound_of_area(0.76, event, delta=1e-5, relation=Relation.ADD_REMOVE)  # of noise 1: 4.38
    >>> round(found.epsilon, 1), found.certified
    (4.3, True)
    """
    _check.in_range(0, 1, area=area)

    def spare(factor: float) -> float:
        return largest_area(event(factor), relation=relation) - area

    return _bound(spare, event, delta, relation)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """Counts of scores above a threshold that was chosen without them.

    Attributes:
        hits: The number of canaries above that were in.
        positives: The number of canaries that were in.
        alarms: The number of canaries above that were out.
        negatives: The number of canaries that were out.
    """

    hits: int
    positives: int
    alarms: int
    negatives: int


def bound_of_tail(
    tail: Tail, event: Callable[[float], DpEvent], *, delta: float, relation: Relation, confidence: float
) -> AreaBound:
    """Return the epsilon that a share of high scores shows, as `bound_of_area` does for an area.

    If the claimed event allows the share, the result is what the counts show for any mechanism. That is less
    than within the family, but no event has to be priced for it.

    >>> from sfumato.accounting.events import dp_sgd
    >>> def event(factor): return dp_sgd(noise_multiplier=factor, sampling_rate=1.0, steps=1)
    >>> most = Tail(hits=250, positives=250, alarms=0, negatives=250)
    >>> found = bound_of_tail(most, event, delta=1e-5, relation=Relation.ADD_REMOVE, confidence=0.95)
    >>> round(found.epsilon)
    22
    """
    each = (1 + confidence) / 2
    low, _ = bounds.clopper_pearson(tail.hits, tail.positives, confidence=each)
    _, high = bounds.clopper_pearson(tail.alarms, tail.negatives, confidence=each)

    def spare(factor: float) -> float:
        return most_found(event(factor), [high], relation=relation)[0] - low

    if spare(1.0) < 0:
        return _bound(spare, event, delta, relation)
    any_mechanism = bounds.epsilon_from_counts(
        tail.hits, tail.positives, tail.alarms, tail.negatives, delta=delta, confidence=confidence
    )
    return AreaBound(epsilon=any_mechanism, certified=True)


def _bound(
    spare: Callable[[float], float], event: Callable[[float], DpEvent], delta: float, relation: Relation
) -> AreaBound:
    """Return the epsilon of the event of least noise that does not allow the observation."""
    factor = _most_noise(spare)
    if factor is None:
        return AreaBound(epsilon=0.0, certified=True)
    found = price(event(factor), delta=delta, relation=relation)
    certified = found.lower > 0 or found.upper == 0
    return AreaBound(epsilon=found.lower if certified else found.upper, certified=certified)


def epsilon_of_area(
    area: float, event: Callable[[float], DpEvent], *, delta: float, relation: Relation
) -> float:
    """Return the epsilon of `bound_of_area` alone."""
    return bound_of_area(area, event, delta=delta, relation=relation).epsilon


def _most_noise(spare: Callable[[float], float]) -> float | None:
    """Return the smallest factor that does not allow the observation, up to rounding; None if all do.

    `spare(factor)` is how much more is allowed, and falls with the factor. A bracket is closed by regula
    falsi on logarithms; the weight of an end that stays is halved (Illinois), so that both ends move.
    """
    low = high = 1.0
    above = below = spare(1.0)
    while below >= 0:
        if high > _FARTHEST:
            return None
        low, above, high = high, below, 2 * high
        below = spare(high)
    while above < 0:
        if low < 1 / _FARTHEST:
            return low
        high, below, low = low, above, low / 2
        above = spare(low)
    return _closed(spare, (low, above), (high, below))


def _closed(
    spare: Callable[[float], float], allowed: tuple[float, float], refused: tuple[float, float]
) -> float:
    (low, above), (high, below) = allowed, refused
    while high > low * _ACCURACY:
        width, share = math.log(high / low), above / (above - below)
        # A little past the crossing, so that the refuted end moves too.
        middle = low * math.exp(width * min(max(share + _PAST / width, _PAST / width), 1 - _PAST / width / 2))
        found = spare(middle)
        if found >= 0:
            low, above, below = middle, found, below / 2
        else:
            high, below, above = middle, found, above / 2
    return high
