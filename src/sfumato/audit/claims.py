# SPDX-License-Identifier: Apache-2.0
"""What a claim allows an attacker: how well outputs with and without a unit can be told apart at most.

Guarantee  `largest_area(event)` is an upper bound on the area under the ROC curve of every attack on a
           mechanism that the event describes. Each point (epsilon, delta) of its privacy profile keeps the
           false negatives of an attack with false positives a above max(1 - delta - e^epsilon a,
           e^-epsilon (1 - delta - a)) (Wasserman, Zhou 2010; Kairouz, Oh, Viswanath 2015); what lies below
           all of these lines is out of reach. Few points allow an attacker more, never less.
Family     A lower bound on the area becomes one on epsilon within the family of the same event with more or
           less noise: `epsilon_of_area` finds the member that just allows the area.
Source     ROC curves as trade-off functions: Dong, Roth, Su 2022.
"""

import math
from collections.abc import Callable

import numpy as np

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.accounting.price import price

__all__ = ["epsilon_of_area", "largest_area"]

_DELTAS = (1e-4, 0.005, 0.03, 0.09, 0.2, 0.35, 0.55, 0.8)
_CELLS = 4000  # of the axis of false positives; midpoints of a convex curve lie below its mean
_FARTHEST = 1024.0  # factor of the noise, up or down: there an attack is as good as guessing, or perfect
_ACCURACY = 1.005  # of that factor


def largest_area(event: DpEvent, *, relation: Relation) -> float:
    """Return an upper bound on the area under any attack's ROC curve.

    >>> from sfumato.accounting.events import dp_sgd
    >>> one = dp_sgd(noise_multiplier=2.0, sampling_rate=1.0, steps=1)  # exactly 0.638
    >>> round(largest_area(one, relation=Relation.ADD_REMOVE), 3)
    0.641
    """
    missed = np.zeros(_CELLS)
    alarms = (np.arange(_CELLS) + 0.5) / _CELLS
    for delta in _DELTAS:
        epsilon = price(event, delta=delta, relation=relation).epsilon
        if math.isinf(epsilon):
            continue
        factor = math.exp(min(epsilon, 700.0))
        missed = np.maximum(missed, 1 - delta - factor * alarms)
        missed = np.maximum(missed, (1 - delta - alarms) / factor)
    return float(1 - missed.mean())


def epsilon_of_area(
    area: float, event: Callable[[float], DpEvent], *, delta: float, relation: Relation
) -> float:
    """Return the epsilon of the event of most noise that allows the area; 0 where guessing does.

    `event(factor)` is the claimed event with its noise multiplied by `factor`.
    """
    _check.in_range(0, 1, area=area)
    factor = _most_noise(lambda factor: largest_area(event(factor), relation=relation) >= area)
    return 0.0 if factor is None else price(event(factor), delta=delta, relation=relation).epsilon


def _most_noise(allows: Callable[[float], bool]) -> float | None:
    """Return the least factor that does not allow it, nearly; None where all do."""
    low = high = 1.0
    while allows(high):
        if high > _FARTHEST:
            return None
        low, high = high, 2 * high
    while not allows(low):
        if low < 1 / _FARTHEST:
            return low
        low, high = low / 2, low
    while high > low * _ACCURACY:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if allows(middle) else (low, middle)
    return high
