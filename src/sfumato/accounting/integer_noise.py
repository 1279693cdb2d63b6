# SPDX-License-Identifier: Apache-2.0
"""Integer noise that many parties add together: the Gaussian mechanism that dominates it.

Parties add independent integer noise to integer vectors, and only the sum is seen, or the sum modulo some
number, which is post-processing. W(k) > 0 denotes the probability that the noise of one coordinate of the sum
is k; coordinates are independent. F is its distribution function, Phi that of the standard normal, g =
Phi^-1(F). The bend of W at k is log W(k-1) - 2 log W(k) + log W(k+1); W is log-concave if none is above 0.

Guarantee  Lemma. Let W be log-concave, with a bend of at least -c at every integer, c < 2 log 2, and let
           s^2 = -log(2 e^(-c/2) - 1), about c + c^2/4. For every integer vector x of L2 norm |x|, in any
           dimension, each of two hypotheses "noise moved by x" and "noise" is told from the other at most as
           well as N(s |x|, 1) from N(0, 1): at every level no test has more power. In other words, the
           divergence sup_S P(S) - y Q(S) of that pair, in either direction, is at most that of the two normal
           distributions, for all y >= 0, those below 1 included. tests/accounting/test_integer_noise_lemma.py
           attacks each step, and names it.

           1. Normal cells bend by -c or less. Cut N(0, 1) at a + s k, for all integers k, into cells: H(k) is
              the mass between a + s (k-1) and a + s k. As phi(y +- s) = phi(y) e^(-+ s y - s^2/2),
              H(k+1) H(k-1) / H(k)^2 = e^(-s^2) E[e^(s Y)] E[e^(-s Y)], Y being the normal variable given its
              cell k. There e^(s Y) lies between some m and m e^(s^2). Kantorovich's inequality E[X] E[1/X]
              <= (m + M)^2 / (4 m M), for X in [m, M], bounds the two means by cosh(s^2/2)^2, and the ratio by
              (1 + e^(-s^2))^2 / 4 = e^-c. Hence log(W / H) is convex in k, whatever a is.
           2. g(t) - g(t-1) <= s for every integer t. Otherwise choose a = g(t) - s t, so that F(t) is also
              the normal mass up to cell t. F(t-1) is below the normal mass up to cell t-1, so W(t) > H(t).
              A convex function that is positive at t is positive at all k >= t, or at all k <= t: else it
              would be at most 0 on both sides of t and so at t. If W > H at all k > t, the masses above t
              differ, but F(t) says that they are equal. If W > H at all k < t, F(t-1) is the larger one.
           3. One dimension. For x > 0, W(k-x) / W(k) grows with k, W being log-concave. By Neyman and Pearson
              the best tests of the moved noise against the noise answer "moved" above a threshold t, with
              some chance at t. Level 1 - F(t) has power 1 - F(t-x) = Phi(-g(t-x)), and by step 2, used x
              times, -g(t-x) <= -g(t) + s x: at most the power of N(s x, 1). Chances at t draw straight lines
              between such points, which stay below the concave curve of the normal pair. For x < 0, and with
              the hypotheses exchanged, "moved" is answered below t: F(t+|x|) <= Phi(g(t) + s |x|) in the
              same way. W need not be symmetric.
           4. Many coordinates. A pair that is told apart less well is a random function of the other pair
              (Blackwell 1953). Apply such functions to each coordinate of N(s x, 1) and N(0, 1), or see Zhu,
              Dong, Wang 2022, Theorem 10. Along x the latter are N(s |x|, 1) and N(0, 1), and equal across.
              The same argument covers releases after one another and Gaussian noise beside integer noise.
              A contribution rounded at random is a mixture of such pairs: divergences are jointly convex.
           5. Poisson sampling at rate q applies that random function to mixtures, and keeps the order. In
              formulas, the divergence of ((1-q) Q + q P, Q) at y is q times that of (P, Q) at (y-1+q) / q,
              and 1 - y where y < 1 - q. That of (Q, (1-q) Q + q P) is w = 1 - y (1-q) times that of (Q, P) at
              y q / w, and 0 where w <= 0. Here divergences at arguments below 1 are needed.
              A unit that is replaced in a Poisson sample makes two mixtures of three distributions. No pair
              is claimed for these: see `renyi.sampled_dominated_replaced`.
           6. Skellam noise of variance v has W(k) = e^-v I_k(v). It is log-concave because Poisson
              variables are, and so are sums of independent ones (Hoggar 1974). For k >= 0 let y = v I_k'/I_k
              at v. The recurrences I_(k-+1) = I_k' +- (k/v) I_k and Bessel's equation give
              T_k := 1 - W(k-1) W(k+1) / W(k)^2 = (v^2 + k^2 - y^2) / v^2 and v y' = v^2 + k^2 - y^2.
              Let k >= 1, r^2 = v^2 + k^2 - 1/4, z^2 = v^2 + k^2 - v^2/r > (r - 1/2)^2. z < y near v = 0, for
              y = k + v^2 / (2k+2) + ..., z = k + v^2 (1 - 1/r_0) / (2k) + ..., and r_0 = r at 0 < k. Where
              they first met, z' >= y' = (v^2 + k^2 - z^2) / v = v / r. But v z' < v^2 / r everywhere: that is
              r - 1 + v^2 / (2 r^2) < z, and squared 1 / (2 r) + (r^2 - v^2) / (4 r^3) < 2 (if the left side
              was negative, nothing is to show). This left side is at most 3 / (4 r), and r^2 > 3/4. So y > z,
              and T_k < 1/r, which is largest at k = 1.
              T_0 = 1 - (I_1/I_0)^2 is computed. From v = 3 on it is at most 1/v + 1/(4 v^2): the same
              argument with z = v - 1/2 - 1/(4v), which is below y at 3, and v z' < v^2 - z^2 as 1/(2v) +
              1/(16 v^2) < 1/4. The bend is log(1 - T_k), so c = -log(1 - max T_k).
           7. Sums of n discrete Gaussians of parameter b. They are log-concave as in 6. The product of
              e^(-j^2/(2 B^2)) and e^(-(k-j)^2/(2 b^2)), summed over j, is e^(-k^2/(2 (B^2 + b^2))) times the
              sum of e^(-(j-u)^2/(2 r^2)) over j, for some u and r^2 = B^2 b^2 / (B^2 + b^2). By Poisson's
              summation formula the last sum is a constant times a number between 1 - h and 1 + h, where h =
              2 sum_(m>=1) e^(-2 pi^2 r^2 m^2). Factors of the terms between two numbers remain factors of the
              sum between them. So, adding one noise after the other, log W(k) is a constant - k^2/(2 n b^2)
              + an error within an interval of length A = sum_(i=1..n-1) log((1 + h_i) / (1 - h_i)), and
              r_i^2 = b^2 i / (i + 1). Bends of the error are at least -2 A: c = 1 / (n b^2) + 2 A.
Neighbors  x is a unit's contribution, or under replacement the difference of two of them, which is an integer
           vector of at most twice the norm. `sensitivity` need not be a norm that an integer vector has. The
           law of the noise must be the same whether or not the unit takes part: see `kinds.SkellamDpEvent`.
Edge cases Noise so small that c >= 2 log 2 (a Skellam variance below about 1.2) gives no protection: the
           shift is infinite.
Failure    Rounding errs towards a larger shift: c is raised by `_UP` before anything is computed from it.
Source     The lemma is this library's own: no publication of it is known. Skellam: Agarwal, Kairouz, Liu
           2021, arXiv:2110.04995. Sums: Kairouz, Liu, Steinke 2021, arXiv:2102.06387. Their Renyi bounds grow
           with the L1 norm or the dimension, and have no dominating pair. That of Skellam noise is below this
           one by 1% at most from a standard deviation of 10 on, and by more where the noise is less. The
           bound on T_k is also in Baricz 2015, arXiv:1202.4853. Step 2 is, on the integers, what Caffarelli
           2000 shows of densities: a transport map to the normal distribution that does not stretch.
"""

import math
import sys
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray
from scipy.special import i0e, i1e

from sfumato.accounting.kinds import SkellamDpEvent, SummedDiscreteGaussianDpEvent
from sfumato.accounting.upstream import DpEvent
from sfumato.accounting.upstream import dp_event as dp

__all__ = ["KINDS", "LEMMA", "joint_shift", "shift"]

Floats = NDArray[np.float64]

KINDS = (SkellamDpEvent, SummedDiscreteGaussianDpEvent)
LEMMA = "integer noise as the Gaussian that dominates it (proof in sfumato.accounting.integer_noise)"

_UP = 1 + 1e-9  # of c, which is rounded in its last digits; s^2 is convex in c, so s grows by half of this
_BESSEL_ERROR = 1e-14  # absolute, of a squared ratio of Bessel functions: 2.6e-15 was the worst seen
_LARGE_VARIANCE = 1e6  # from here on the error above weighs more than the closed bound
_SUMMED = 1000  # partial sums whose error is computed; the later ones are no worse than the last of these


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
    bend = max(bend * _UP, sys.float_info.min)  # below, a float has lost its digits
    left = 2 * math.expm1(-bend / 2)  # 2 e^(-c/2) - 2: the logarithm below is of 1 more than this
    if not left > -1:
        return math.inf
    return sensitivity * math.sqrt(-math.log1p(left))


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
    with np.errstate(all="ignore"):  # widths whose squares are no float: z is 0 or 1
        z = np.exp(-2 * (np.pi * width) ** 2)
        h = 2 * z / (1 - z**3)  # the exponents m^2 are 1, 4, 9, ...: at most a geometric series of ratio z^3
        return np.where(h < 1, np.log1p(2 * h / (1 - np.minimum(h, 1.0))), np.inf)
