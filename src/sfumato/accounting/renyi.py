# SPDX-License-Identifier: Apache-2.0
"""Rényi divergences of the pairs of distributions that an attacker on a mechanism has to distinguish.

Divergences are computed as log(1 + excess) / (order - 1), where excess = E_Q[(P/Q)^order] - 1 is a sum of
positive terms in log space, so that tiny divergences keep their digits. What rounding and quadrature may lose
is below 1e-10 relative; `_SLACK`, ten times that, is added.

`mu` is a shift in standard deviations. For sampled Gaussians it is the shift of ONE contribution; the
functions for replaced units let two contributions of that size differ.

Guarantee  Each function returns, for an array of orders above 1, an upper bound on the Rényi divergence of
           the worst pair of neighbors, in both directions. Infinity is a bound; NaN is never returned.
Not here   Which function an event under a relation calls for: `accounting.rdp`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

__all__ = [
    "bounded_range",
    "discrete_laplace",
    "fixed_size_gaussian",
    "gaussian",
    "laplace",
    "mixed",
    "pure",
    "randomized_response",
    "sampled_discrete_gaussian",
    "sampled_discrete_gaussian_replaced",
    "sampled_dominated_replaced",
    "sampled_gaussian",
    "sampled_gaussian_replaced",
]

Array = npt.NDArray[np.float64]

_SLACK = 1e-9  # relative; see the module docstring
_MAX_NODES = 6_000  # of one quadrature: 0.5 ms for each order. Beyond, a looser bound is used
_MAX_DOUBLED_ORDER = 4096.0  # above, the sums of twice as many terms cost more than they bring
_MAX_SUMMED_ORDER = 2.0**20  # terms of one sum, 8 MB each; callers have a bound without sampling as well
_TAIL = 10.0  # standard deviations; what lies beyond weighs less than 1e-20 of the whole


def gaussian(orders: Array, mu: float) -> Array:
    """Gaussian noise, shift `mu`: order * mu^2 / 2 (Mironov 2017, Proposition 7).

    Exact for the discrete Gaussian too where the shift is a whole number of grid steps (Canonne, Kamath and
    Steinke 2020, Proposition 5).
    """
    return _up(orders * (mu * mu / 2))


def pure(orders: Array, epsilon: float) -> Array:
    """Any epsilon-DP mechanism: binary randomized response, of which every other is a post-processing.

    (Kairouz, Oh and Viswanath 2015, arXiv:1311.0776.)
    """
    return _two_point(orders, epsilon, -float(np.logaddexp(0, epsilon)))


def randomized_response(orders: Array, noise_parameter: float, num_buckets: int) -> Array:
    """k-ary randomized response that answers uniformly with probability `noise_parameter`: exact."""
    other = noise_parameter / num_buckets  # chance of one particular wrong answer
    return _two_point(orders, float(np.log1p((1 - noise_parameter) / other)), float(np.log(other)))


def bounded_range(orders: Array, epsilon: float) -> Array:
    """Exponential mechanism or any epsilon-bounded-range one: order * epsilon^2 / 8, or the pure curve.

    (Cesar and Rogers 2021, arXiv:2004.07223.) The cumulant generating function of the loss is 0 at 0 and at
    -1, and its second derivative, a variance within a range of epsilon, is at most epsilon^2 / 4.
    """
    return np.minimum(_up(orders * (epsilon * epsilon / 8)), pure(orders, epsilon))


def laplace(orders: Array, epsilon: float) -> Array:
    """Laplace noise of scale 1 / epsilon, shift 1 (Mironov 2017, Proposition 6), never above `pure`."""
    log_moment = np.logaddexp(
        np.log(orders / (2 * orders - 1)) + (orders - 1) * epsilon,
        np.log((orders - 1) / (2 * orders - 1)) - orders * epsilon,
    )
    return np.minimum(_from_log_moment(orders, log_moment), pure(orders, epsilon))


def discrete_laplace(orders: Array, noise_parameter: float, shift: int) -> Array:
    """Integer noise with P[x] proportional to exp(-noise_parameter |x|), moved by `shift`: exact.

    The loss is constant on either side of the two centers; between them the moments form a geometric series.
    """
    epsilon = noise_parameter * shift
    tails = np.logaddexp((orders - 1) * epsilon, -orders * epsilon) - np.log1p(np.exp(-noise_parameter))
    decay = noise_parameter * (2 * orders - 1)
    with np.errstate(divide="ignore"):  # shift 1 has nothing between the centers: log 0
        between = (
            np.log(np.tanh(noise_parameter / 2))
            + (orders - 1) * epsilon
            - decay
            + np.log(-np.expm1(-decay * (shift - 1)))
            - np.log(-np.expm1(-decay))
        )
    return np.minimum(_from_log_moment(orders, np.logaddexp(tails, between)), pure(orders, epsilon))


def sampled_gaussian(orders: Array, mu: float, sampling_rate: float) -> Array:
    """Poisson-sampled Gaussian, one unit there or not: exact.

    Whole orders by the binomial sum, others by quadrature (Mironov, Talwar and Zhang 2019, arXiv:1908.10530,
    Section 3.3; their Theorem 5 says that the other direction is smaller). Where quadrature would need too
    many nodes, the bound for whole orders is interpolated.
    """
    values = np.empty(orders.shape)
    whole = orders == np.floor(orders)
    values[whole] = sampled_discrete_gaussian(orders[whole], mu, sampling_rate)
    for group, top in _octaves(orders):
        group &= ~whole
        exact = _quadrature(orders[group], top, mu, sampling_rate, replaced=False)
        values[group] = (
            sampled_discrete_gaussian(orders[group], mu, sampling_rate) if exact is None else exact
        )
    return np.minimum(values, gaussian(orders, mu))  # sampling never hurts: the divergence is quasi-convex


def sampled_discrete_gaussian(orders: Array, mu: float, sampling_rate: float) -> Array:
    """Poisson-sampled discrete Gaussian, one unit there or not: exact at whole orders, interpolated between.

    For whole numbers k and shifts on the grid, E_Q[(P/Q)^k] = exp(k (k-1) mu^2 / 2) as for the Gaussian. The
    reflection that swaps the two centers maps the grid to itself, so the other direction is smaller again.
    """

    def log_weights(k: Array) -> Array:
        return _log_expm1(k * (k - 1) / 2 * (mu * mu))

    bound = _interpolated(orders, sampling_rate, float(np.log1p(-sampling_rate)), log_weights)
    return np.minimum(bound, gaussian(orders, mu))


def sampled_gaussian_replaced(orders: Array, mu: float, sampling_rate: float) -> Array:
    """Poisson-sampled Gaussian, one unit replaced: (1-q) N(0) + q N(mu) against (1-q) N(0) + q N(-mu).

    Why this pair is the worst: with X, X' the likelihood ratios of the two contributions against none, the
    moment is E[F(X, X')] for F(a, b) = (1-q+qa)^order (1-q+qb)^(1-order), which is convex in a and in b and
    has a negative mixed derivative. By Slepian's comparison it grows as the two contributions turn away from
    each other, and by Jensen's inequality as they get longer. Fixing the rest of the sample is allowed by
    joint convexity. The tests search the plane for a worse pair, and compare with dp_accounting's PLD.
    """
    values = gaussian(orders, 2 * mu)
    for group, top in _octaves(orders):
        bound = _quadrature(orders[group], top, mu, sampling_rate, replaced=True)
        if bound is None and top <= _MAX_DOUBLED_ORDER:
            bound = _through_absence(sampled_discrete_gaussian, orders[group], mu, sampling_rate)
        if bound is not None:
            values[group] = np.minimum(values[group], bound)
    return values


def sampled_discrete_gaussian_replaced(orders: Array, mu: float, sampling_rate: float) -> Array:
    """Poisson-sampled discrete Gaussian, one unit replaced, by way of the data set without the unit."""
    bound = _through_absence(sampled_discrete_gaussian, orders, mu, sampling_rate)
    return np.minimum(gaussian(orders, 2 * mu), bound)


def sampled_dominated_replaced(orders: Array, mu: float, sampling_rate: float) -> Array:
    """Poisson-sampled noise that a Gaussian dominates, one unit replaced.

    A pair that dominates each of two contributions says nothing of both together, so
    `sampled_gaussian_replaced` need not hold. Here the bound goes by way of the data set without the unit, or
    reveals whether the unit was sampled.
    """
    whole = gaussian(orders, 2 * mu)
    revealed = mixed(orders, [np.zeros_like(orders), whole], [1 - sampling_rate, sampling_rate])
    return np.minimum(revealed, _through_absence(sampled_gaussian, orders, mu, sampling_rate))


def fixed_size_gaussian(orders: Array, mu: float, sampling_rate: float) -> Array:
    """Gaussian noise, or any of no larger divergences, on a sample of fixed size, one unit replaced.

    Without replacement: Wang, Balle and Kasiviswanathan 2019, arXiv:1808.00087, Theorem 9, with
    epsilon(infinity) infinite and the base mechanism under replace-one: shift 2 mu. Between whole orders by
    their Corollary 10.
    """
    square = 4 * mu * mu

    def log_weights(k: Array) -> Array:
        weights = np.log(2) + k * (k - 1) / 2 * square
        weights[0] = min(np.log(4) + float(_log_expm1(np.array(square))), weights[0])  # the term of k = 2
        return weights

    return np.minimum(_interpolated(orders, sampling_rate, 0.0, log_weights), gaussian(orders, 2 * mu))


def mixed(orders: Array, values: Sequence[Array], weights: Sequence[float]) -> Array:
    """Pairs of divergences `values`, one of which is used with its chance, and which one is seen.

    log(sum of weight e^((order - 1) value)) / (order - 1); exponents below 1 are summed as what exceeds 1.
    """
    exponents = np.array(values) * (orders - 1)
    chances = np.array(weights)[:, None]
    used = chances[:, 0] > 0
    exponents, chances = exponents[used], chances[used]
    small = np.log1p((chances * np.expm1(np.minimum(exponents, 1.0))).sum(axis=0))
    large = _log_sum_exp((exponents + np.log(chances)).T)
    return _up(np.where(exponents.max(axis=0) < 1, small, large * (1 + 1e-14) + 1e-14) / (orders - 1))


# --- shared parts ----------------------------------------------------------------------------------------


def _octaves(orders: Array) -> Iterator[tuple[npt.NDArray[np.bool_], float]]:
    """Yield masks of the orders between powers of two, with the upper one: how far their grid must reach.

    The grid of an order does not depend on the other orders that are computed, and so neither does its bound.
    """
    exponents = np.floor(np.log2(orders))
    for exponent in np.unique(exponents):
        yield exponents == exponent, float(2 ** (exponent + 1))


def _up(values: Array) -> Array:
    return values * (1 + _SLACK)


def _from_log_excess(orders: Array, log_excess: Array) -> Array:
    return _up(np.logaddexp(0, log_excess) / (orders - 1))


def _from_log_moment(orders: Array, log_moment: Array) -> Array:
    """Return a divergence from a moment that was computed whole: its rounding error is absolute."""
    rounding = 2e-15 * (1 + np.abs(log_moment))
    return (log_moment + rounding) / (orders - 1)


def _log_expm1(x: Array) -> Array:
    with np.errstate(divide="ignore"):
        return x + np.log(-np.expm1(-x))


def _two_point(orders: Array, epsilon: float, log_other: float) -> Array:
    """P and Q swap two answers whose odds are e^epsilon; the rarer has probability exp(log_other).

    other * (e^{a epsilon} + e^{(1-a) epsilon} - e^epsilon - 1) factors into two positive terms.
    """
    if epsilon == 0:
        return np.zeros(orders.shape)
    with np.errstate(divide="ignore"):
        return _from_log_excess(
            orders, log_other + _log_expm1(orders * epsilon) + np.log(-np.expm1(-(orders - 1) * epsilon))
        )


def _through_absence(
    divergence: Callable[[Array, float, float], Array], orders: Array, mu: float, sampling_rate: float
) -> Array:
    """Bound a replacement by a removal and an addition (Mironov 2017, Corollary 4: the weak triangle).

    Towards order 1 the bound would grow without limit; divergences grow with the order, so 1.5 covers these.
    """
    orders = np.maximum(orders, 1.5)
    removal = divergence(2 * orders, mu, sampling_rate)
    addition = divergence(2 * orders - 1, mu, sampling_rate)
    return (orders - 0.5) / (orders - 1) * removal + addition


@lru_cache(maxsize=8)
def _log_factorials(size: int) -> Array:
    return gammaln(np.arange(1.0, size + 1))


def _interpolated(
    orders: Array, sampling_rate: float, log_rest: float, log_weights: Callable[[Array], Array]
) -> Array:
    """Bound by sums over whole orders n: excess = sum_k C(n, k) rate^k rest^(n-k) weight_k, k from 2.

    (order - 1) * divergence is a cumulant generating function, convex and 0 at order 1, so that a straight
    line between its values at neighboring whole numbers lies above it.
    """
    values = np.full(orders.shape, np.inf)
    summed = orders <= _MAX_SUMMED_ORDER
    if not summed.all():
        values[summed] = _interpolated(orders[summed], sampling_rate, log_rest, log_weights)
        return values
    if orders.size == 0:
        return values
    below, above = np.floor(orders), np.ceil(orders)
    needed = np.unique(np.concatenate([below, above])).astype(np.int64)
    largest = int(needed[-1])
    k = np.arange(2.0, largest + 1)
    per_k = log_weights(k) + k * (np.log(sampling_rate) - log_rest)
    log_factorial = _log_factorials(1 << (largest + 1).bit_length())
    per_k -= log_factorial[2 : largest + 1]
    log_excess = np.full(needed.size, -np.inf)
    for i, n in enumerate(needed):
        if n >= 2:
            terms = per_k[: n - 1] - log_factorial[n - 2 :: -1]
            log_excess[i] = log_factorial[n] + n * log_rest + _log_sum_exp(terms)
    log_moments = np.logaddexp(0, log_excess)
    share = orders - below
    lower, upper = log_moments[np.searchsorted(needed, below)], log_moments[np.searchsorted(needed, above)]
    with np.errstate(invalid="ignore"):  # 0 * inf at whole orders, replaced at once
        line = np.where(share == 0, lower, (1 - share) * lower + share * upper)
    return _up(line / (orders - 1))


def _log_sum_exp(terms: Array) -> Array:
    """Return log sum exp over the last axis; infinite if a term is."""
    largest = terms.max(axis=-1)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        return np.log(np.exp(terms - shift[..., None]).sum(axis=-1)) + shift


def _quadrature(
    orders: Array, top: float, mu: float, sampling_rate: float, *, replaced: bool
) -> Array | None:
    """Integrate the excess by the trapezoidal rule, or return None if that would take too many nodes.

    The rule converges exponentially for functions analytic in a strip. The mixtures vanish at an imaginary
    part of pi / mu^2 (unit: one contribution); within half of that strip the integrand stays bounded by its
    size on the real line, and the step below leaves a relative error under e^-36.
    """
    stddev = 1 / mu
    square = np.pi**2 * stddev * stddev
    step = 0.73 * stddev if stddev > 5.5 else square / (37 + square / 8)
    start, stop = -1 - _TAIL * stddev, top + _TAIL * stddev
    if not (step > 0 and (stop - start) / step < _MAX_NODES):  # NaN and infinity fail too
        return None
    z = np.arange(start, stop + step, step)
    log_density = -0.5 * (z * mu) ** 2 + np.log(mu * step / np.sqrt(2 * np.pi))
    loss = _log_mixture_ratio((z - 0.5) * mu * mu, sampling_rate)
    if replaced:
        opposite = _log_mixture_ratio((-z - 0.5) * mu * mu, sampling_rate)
        log_density, loss = log_density + opposite, loss - opposite
    return _from_log_excess(orders, _log_sum_exp(log_density + _log_pointwise_excess(orders, loss)))


def _log_mixture_ratio(log_ratio: Array, sampling_rate: float) -> Array:
    """Return log(1 - q + q e^log_ratio), keeping the digits of small q and of large ratios."""
    small = np.log1p(sampling_rate * np.expm1(np.minimum(log_ratio, 1.0)))
    large = np.logaddexp(np.log1p(-sampling_rate), np.log(sampling_rate) + log_ratio)
    return np.where(log_ratio < 1, small, large)


def _log_pointwise_excess(orders: Array, loss: Array) -> Array:
    """Return log(r^a - 1 - a (r - 1)) for r = e^loss, as an array [orders, losses].

    It is never negative, and E_Q[r - 1] = 0, so that its mean is the excess. Each branch is the form that
    keeps its digits: a series near r = 1, and for either sign of the loss the one that cannot overflow.
    """
    a = orders[:, None]
    product = a * loss
    log_excess = np.empty(product.shape)
    gain = loss > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        minus = loss[~gain]
        log_excess[:, ~gain] = np.log(np.expm1(product[:, ~gain]) - a * np.expm1(minus))
        plus = product[:, gain]
        shrunk = (a - 1) * np.expm1(-plus) - a * np.expm1(loss[gain] - plus)
        log_excess[:, gain] = plus + np.log(shrunk)
        near = np.abs(product) < 1e-3
        if near.any():
            x, b = np.broadcast_to(loss, product.shape)[near], np.broadcast_to(a, product.shape)[near]
            tail = (b - 1) + (b**2 - 1) * x / 3 + (b**3 - 1) * x**2 / 12 + (b**4 - 1) * x**3 / 60
            log_excess[near] = np.log(b / 2 * tail) + 2 * np.log(np.abs(x))
    return log_excess
