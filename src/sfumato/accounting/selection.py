# SPDX-License-Identifier: Apache-2.0
"""The cost of keeping the best of a random number of private runs.

Guarantee  Runs of a mechanism with Rényi divergence e(a) at each order a; their number K has the truncated
           negative binomial distribution. Publishing the best output, scores included, has at order a the
           divergence e(a) + (1 + shape) m + log E[K] / (a - 1), where m is the least over orders b of
           (1 - 1/b) e(b) + log(1/stop) / b.
           With pure runs it is (2 + shape) epsilon, a negative shape counted as 0 (`composition`).
Source     Papernot and Steinke 2022, arXiv:2110.03620, Theorem 2; geometric, for pure runs: Liu and Talwar
           2019, arXiv:1811.07971.
Not here   Drawing K: `estimators.search`.
"""

import math

import numpy as np

from sfumato.accounting.kinds import SelectionDpEvent
from sfumato.accounting.pairs import Floats

__all__ = ["mean_runs", "renyi", "stop_for"]

_SMALL_SHAPE = 1e-9  # nearer to 0 than this, the mean is that of the logarithmic distribution


def mean_runs(shape: float, stop: float) -> float:
    """Return E[K]: shape (1 - stop) / (stop (1 - stop^shape)), and its limit at shape 0.

    >>> mean_runs(1.0, 0.1), round(mean_runs(0.0, 0.1), 3)
    (10.0, 3.909)
    """
    odds = (1 - stop) / stop
    if abs(shape) < _SMALL_SHAPE:
        return odds / -math.log(stop)
    return odds * shape / -math.expm1(shape * math.log(stop))


def stop_for(shape: float, mean: float) -> float:
    """Return the `stop` at which the mean number of runs is `mean`.

    >>> round(stop_for(1.0, 10.0), 6)
    0.1
    """
    low, high = -700.0, math.log1p(-1e-12)  # log stop
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_runs(shape, math.exp(middle)) > mean else (low, middle)
    return math.exp(high)


def renyi(event: SelectionDpEvent, orders: Floats, once: Floats) -> Floats:
    """Return the divergence of the selection at `orders`, from that of one run at the same orders."""
    more = float(np.min((1 - 1 / orders) * once - math.log(event.stop) / orders))
    runs = math.log(max(1.0, mean_runs(event.shape, event.stop)))
    return once + (1 + event.shape) * more + runs / (orders - 1)
