# SPDX-License-Identifier: Apache-2.0
"""Integer noise that many parties add together: the Gaussian mechanism that dominates it.

Parties add independent integer noise to integer vectors, and only the sum is seen, or the sum modulo some
number, which is post-processing. W denotes the noise of one coordinate of the sum; coordinates are
independent. F is its distribution function, Phi that of the standard normal, and g = Phi^-1(F).

Guarantee  Let W be log-concave, with log W(k-1) - 2 log W(k) + log W(k+1) >= -c at every integer k, and let
           s^2 = -log(2 e^(-c/2) - 1), about c + c^2/4. For every integer vector x of L2 norm |x|, the noise
           moved by x against the noise is dominated by N(s |x|, 1) against N(0, 1), in any dimension. So
           Poisson sampling and composition are priced as for Gaussian noise.
           Proof. (1) Cut a normal distribution at a + s k, for all integers k, into cells of masses H(k).
           H(k+1) H(k-1) / H(k)^2 = e^(-s^2) E[e^(s Y)] E[e^(-s Y)], Y being the normal variable in its cell,
           which has length s. By Kantorovich's inequality the two means multiply to at most cosh(s^2 / 2)^2,
           so that the ratio is at most (1 + e^(-s^2))^2 / 4 = e^-c. Hence log(W / H) is convex in k.
           (2) g(t) - g(t-1) <= s for every t. Otherwise choose a so that both distribution functions agree
           at t; then F is below the other one at t-1, and W(t) > H(t). By convexity W > H at all k >= t, or
           at all k <= t. The first contradicts that they agree at t, the second that F is below at t-1.
           (3) In one dimension W is log-concave, so the best tests of W moved by x against W are thresholds.
           By (2) and induction such a test, at any x, is at most as good as at N(s |x|, 1) against N(0, 1).
           Coordinates compose (Zhu, Dong, Wang 2022, Theorem 10), and squares of shifts add up.
           Skellam noise of variance v has W(k) = e^-v I_k(v). With y = v I_k'(v) / I_k(v) the recurrences
           give 1 - W(k-1) W(k+1) / W(k)^2 = (v^2 + k^2 - y^2) / v^2 =: T_k, and v y' = v^2 + k^2 - y^2. For
           k >= 1, T_k <= 1 / r with r^2 = v^2 + k^2 - 1/4: z = sqrt(v^2 + k^2 - v^2 / r) is below y near 0
           and stays there, for v z' <= v^2 + k^2 - z^2. That is the same as (r - 1 + v^2 / (2 r^2))^2 <= z^2,
           or 1 / (2 r) + (r^2 - v^2) / (4 r^3) <= 2, which holds as r^2 >= 3/4. T_0 is computed; from v = 3
           on it is at most 1/v + 1/(4 v^2), in the same way with z = v - 1/2 - 1/(4 v). T_k >= 0: W is
           log-concave (Turan's inequality for Bessel functions). c = -log(1 - max T_k).
           Sums of n discrete Gaussians of parameter b: two discrete Gaussians of parameters b1, b2 add up to
           one of parameter b1^2 + b2^2, times a theta function of width r^2 = b1^2 b2^2 / (b1^2 + b2^2),
           which is 1 up to 2 sum_m e^(-2 pi^2 r^2 m^2) =: h (Poisson summation). One by one, the logarithm of
           the sum's mass is that of the discrete Gaussian of parameter n b^2 but for an error in an interval
           of length A = sum_k log((1 + h_k) / (1 - h_k)), with r_k^2 = b^2 k / (k + 1). So c is
           1 / (n b^2) + 2 A. Sums of log-concave variables are log-concave.
Neighbors  x is a unit's contribution, or under replacement the difference of two of them. The law of the
           noise must be the same whether or not the unit takes part: see `kinds.SkellamDpEvent`.
Edge cases Noise so small that c >= 2 log 2 (a Skellam variance below about 1.2) gives no protection: the
           shift is infinite.
Failure    Rounding errs towards a larger shift.
Source     Skellam: Agarwal, Kairouz, Liu 2021, arXiv:2110.04995. Sums: Kairouz, Liu, Steinke 2021,
           arXiv:2102.06387. Their Renyi bounds grow with the L1 norm or the dimension, and have no dominating
           pair; they are above this one unless the noise is below about 10. The bound on T_k is also in
           Baricz 2015, arXiv:1202.4853. (2) is, on the integers, what Caffarelli 2000 shows of densities: a
           transport map to the normal distribution that does not stretch.
"""

import math
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray
from scipy.special import i0e, i1e

from sfumato.accounting.kinds import SkellamDpEvent, SummedDiscreteGaussianDpEvent
from sfumato.accounting.upstream import DpEvent
from sfumato.accounting.upstream import dp_event as dp

__all__ = ["KINDS", "joint_shift", "shift"]

Floats = NDArray[np.float64]

KINDS = (SkellamDpEvent, SummedDiscreteGaussianDpEvent)

_UP = 1 + 1e-9  # rounding of the formulas, which lose at most a few digits
_BESSEL_ERROR = 1e-14  # absolute, of a squared ratio of Bessel functions: ten times what scipy states
_LARGE_VARIANCE = 1e6  # from here on the error above weighs more than the closed bound
_SUMMED = 1000  # partial sums whose error is computed; the later ones are no worse than the next


def shift(event: DpEvent) -> float:
    """Return how many standard deviations one unit moves the Gaussian that dominates integer noise.

    Args:
        event: A Skellam event or a sum of discrete Gaussians.

    Returns:
        The shift; infinite if the noise is too small.

    >>> round(shift(SkellamDpEvent(variance=10_000.0, sensitivity=50.0)), 4)  # 50 / 100 for a Gaussian
    0.5
    >>> round(shift(SummedDiscreteGaussianDpEvent(stddev=1.0, sensitivity=5.0, summands=100)), 4)
    0.5115
    """
    bend, sensitivity = _curvature(event)
    left = 2 * math.expm1(-bend / 2)  # 2 e^(-c/2) - 2: the logarithm below is of 1 more than this
    if not left > -1:
        return math.inf
    return sensitivity * math.sqrt(-math.log1p(left)) * _UP


def joint_shift(counted: dict[DpEvent, int]) -> float | None:
    """Return the shift of a composition of Gaussian and integer noise; None if it has any other part."""
    if not counted or not all(isinstance(part, (dp.GaussianDpEvent, *KINDS)) for part in counted):
        return None
    return math.hypot(*(math.sqrt(count) * _one(part) for part, count in counted.items()))


def _one(event: DpEvent) -> float:
    return 1 / event.noise_multiplier if isinstance(event, dp.GaussianDpEvent) else shift(event)


@singledispatch
def _curvature(event: DpEvent) -> tuple[float, float]:
    """Return c and the L2 sensitivity."""
    raise TypeError(f"{type(event).__name__} is not integer noise")


@_curvature.register
def _(event: SkellamDpEvent) -> tuple[float, float]:
    v = event.variance
    at_zero = (
        1 - (float(i1e(v)) / float(i0e(v))) ** 2 + _BESSEL_ERROR
        if v < _LARGE_VARIANCE
        else (1 + 0.25 / v) / v
    )
    most = max(at_zero, 1 / math.hypot(v, math.sqrt(0.75)))
    return (-math.log1p(-most) if most < 1 else math.inf), event.sensitivity


@_curvature.register
def _(event: SummedDiscreteGaussianDpEvent) -> tuple[float, float]:
    stddev, merges = event.stddev, event.summands - 1
    k = np.arange(1.0, min(merges, _SUMMED) + 1)
    errors = _merge_error(stddev * np.sqrt(k / (k + 1)))
    total = float(errors.sum())
    if merges > _SUMMED:
        total += (merges - _SUMMED) * float(errors[-1])  # the errors fall with k
    return 1 / stddev / stddev / event.summands + 2 * total, event.sensitivity


def _merge_error(width: Floats) -> Floats:
    """Return log((1 + h) / (1 - h)) for each width r of a theta function; infinite where h is 1 or more."""
    z = np.exp(-2 * (np.pi * width) ** 2)
    h = 2 * z / (1 - z**3)  # the exponents m^2 are 1, 4, 9, ...: at most a geometric series of ratio z^3
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(h < 1, np.log1p(2 * h / (1 - np.minimum(h, 1.0))), np.inf)
