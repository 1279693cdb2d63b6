# SPDX-License-Identifier: Apache-2.0
"""The Gaussian mechanism in closed form.

`delta` and `epsilon` err upwards, `stddev_for` errs towards more noise, each by about 1e-10 relative. Valid
for any finite mu, and tested from 1e-8 to 1e4 with delta down to 1e-300.

Guarantee  A Gaussian mechanism whose output moves by at most `mu` standard deviations between neighbors is
           (epsilon(mu, delta), delta)-DP for every delta at once, and no smaller epsilon is true (mu-GDP).
Neighbors  Whatever relation `mu` was computed for: mu = sensitivity / stddev. For events,
           mu = relation.diameter * sqrt(steps) / noise_multiplier.
Source     Balle and Wang 2018, arXiv:1805.06530, Theorem 8 (the exact curve) and Algorithm 1 (calibration);
           Dwork and Roth 2014, Theorem A.1 (the classic formula, epsilon below 1 only).
Edge cases delta above what the mechanism has at epsilon 0 gives epsilon 0; NaN, infinite and negative
           parameters are errors.
"""

import math

import numpy as np
from scipy.special import erfcx, erfinv, ndtr

from sfumato import _check
from sfumato.accounting.extremes import in_floats
from sfumato.accounting.roots import root_between
from sfumato.errors import InvalidParameterError

__all__ = ["classic_stddev", "delta", "epsilon", "stddev_for"]

_SLACK = 1e-10  # relative error allowed in a delta; what rounding really costs stays below 1e-11
_SMALL_MU = 0.1  # below, two nearly equal numbers would be subtracted: integrate their difference instead
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@in_floats
def delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta for which the mechanism is (epsilon, delta)-DP.

    >>> round(delta(1.0, 1.0), 6)
    0.126937
    """
    _check.positive(mu=mu)
    _check.non_negative(epsilon=epsilon)
    # The one cancellation: x loses the digits that epsilon / mu and mu / 2 share.
    x = epsilon / mu - mu / 2
    slack = _SLACK + abs(x) * 4e-16 * (epsilon / mu + mu / 2)
    return min(1.0, math.exp(_log_delta(mu, x)) * (1 + slack))


@in_floats
def epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which the mechanism is (epsilon, delta)-DP.

    >>> round(epsilon(10.0, 1e-5), 5)  # 100 steps of noise multiplier 1
    91.81729
    """
    _check.positive(mu=mu)
    _check.probability(delta=delta)
    target = math.log(delta) - _SLACK
    if _log_delta(mu, -mu / 2) <= target:
        return 0.0

    def excess(x: float) -> float:
        return _log_delta(mu, x) - target

    lowest, highest = _bracket(target)
    x = root_between(excess, max(lowest, -mu / 2), highest, xtol=1e-14)
    return max(0.0, mu * (x + mu / 2) * (1 + 1e-14) + mu * 1e-13)


@in_floats
def stddev_for(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the least noise that makes a Gaussian mechanism (epsilon, delta)-DP.

    >>> round(stddev_for(1.0, 1e-5, sensitivity=1.0), 4), round(stddev_for(0.0, 0.1, sensitivity=1.0), 4)
    (3.7306, 3.9789)
    """
    _check.non_negative(epsilon=epsilon)
    _check.probability(delta=delta)
    _check.positive(sensitivity=sensitivity)
    if epsilon == 0:
        mu = 2 * math.sqrt(2) * float(erfinv(delta))  # delta = P[|N(0, 1)| < mu / 2]
    else:
        target = math.log(delta) - 2 * _SLACK

        def excess(x: float) -> float:
            return _log_delta(_mu_at(epsilon, x), x) - target

        mu = _mu_at(epsilon, root_between(excess, *_bracket(target), xtol=1e-13))
    return sensitivity / mu * (1 + _SLACK)


@in_floats
def classic_stddev(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the textbook noise sqrt(2 ln(1.25 / delta)) * sensitivity / epsilon, for epsilon below 1 only.

    >>> round(classic_stddev(0.5, 1e-5, sensitivity=1.0), 3)
    9.69
    """
    _check.positive(epsilon=epsilon, sensitivity=sensitivity)
    _check.probability(delta=delta)
    if not epsilon < 1:
        raise InvalidParameterError(
            f"the classic Gaussian formula is proven for epsilon below 1 only, but epsilon={epsilon:g} was "
            "given. Use gaussian.stddev_for, the analytic calibration: exact for every epsilon, less noise."
        )
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def _bracket(log_delta: float) -> tuple[float, float]:
    """Bracket x: delta is at most exp(-x^2 / 2), and for negative x at least 1 - exp(-x^2 / 2)."""
    return -math.sqrt(2 * math.log(2 / -math.expm1(log_delta))), math.sqrt(-2 * log_delta)


def _mu_at(epsilon: float, x: float) -> float:
    """Return the mu for which epsilon = mu (x + mu / 2), without cancellation for either sign of x."""
    root = math.sqrt(x * x + 2 * epsilon)
    return 2 * epsilon / (x + root) if x > 0 else root - x


def _log_delta(mu: float, x: float) -> float:
    """Return log delta at epsilon = mu (x + mu / 2).

    With y = x + mu, e^epsilon phi(y) = phi(x), and Theorem 8 reads
    delta = Phi(-x) - e^epsilon Phi(-y) = e^{-x^2/2} / 2 * (erfcx(x / sqrt 2) - erfcx(y / sqrt 2)).
    """
    y = x + mu
    if mu < _SMALL_MU:
        difference = _erfcx_drop(x / math.sqrt(2), mu / math.sqrt(2))
    elif x < 0:  # erfcx would overflow, Phi(-x) is at least a half
        return math.log(ndtr(-x) - math.exp(-x * x / 2) / 2 * erfcx(y / math.sqrt(2)))
    else:
        difference = erfcx(x / math.sqrt(2)) - erfcx(y / math.sqrt(2))
    return math.log(difference / 2) - x * x / 2


def _erfcx_drop(start: float, length: float) -> float:
    """Return erfcx(start) - erfcx(start + length), from erfcx' = 2 t erfcx - 2 / sqrt(pi)."""
    t = start + length * (_NODES + 1) / 2
    slopes = 2 / math.sqrt(math.pi) - 2 * t * erfcx(t)
    return float(length / 2 * np.dot(_WEIGHTS, slopes))
