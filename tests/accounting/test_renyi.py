# SPDX-License-Identifier: Apache-2.0
import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from sfumato.accounting import renyi

ORDERS = np.array([1.001, 1.1, 1.5, 2.0, 2.7, 5.0, 16.0, 63.5, 400.0])
TIGHT = 2e-9  # relative; a bound is above the truth by at most this


def discrete_divergence(orders, p, q):
    """Rényi divergence of two finite distributions, in 50 digits and straight from the definition."""
    with mpmath.workdps(50):
        total = [
            mpmath.fsum(mpmath.mpf(x) ** a * mpmath.mpf(y) ** (1 - a) for x, y in zip(p, q, strict=True))
            for a in orders
        ]
        return np.array([float(mpmath.log(t) / (a - 1)) for t, a in zip(total, orders, strict=True)])


def mixture_divergence(order, stddev, rate, *, replaced):
    """The same of (1-q) N(0) + q N(1) against N(0), or against (1-q) N(0) + q N(-1), in 30 digits."""
    with mpmath.workdps(30):
        a, s, q = mpmath.mpf(order), mpmath.mpf(stddev), mpmath.mpf(rate)

        scale = s * mpmath.sqrt(2 * mpmath.pi)

        def density(z, mean):
            return mpmath.exp(-(((z - mean) / s) ** 2) / 2) / scale

        def integrand(z):
            middle = density(z, 0)
            other = (1 - q) * middle + q * density(z, -1) if replaced else middle
            ratio = ((1 - q) * middle + q * density(z, 1)) / other
            return other * (ratio**a - 1 - a * (ratio - 1))

        width = min(2 * s, mpmath.mpf(8))
        stop = max(a, mpmath.mpf(2)) + 14 * s
        knots = mpmath.linspace(-1 - 14 * s, stop, int((stop + 1 + 14 * s) / width) + 2)
        return float(mpmath.log1p(mpmath.quad(integrand, knots)) / (a - 1))


def assert_tight_bound(bound, truth):
    assert np.all(bound >= truth * (1 - 1e-13) - 1e-40)
    assert np.all(bound <= truth * (1 + TIGHT) + 1e-11)


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-6, 30))
def test_pure_is_the_divergence_of_binary_randomized_response(epsilon):
    with mpmath.workdps(50):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        truth = discrete_divergence(ORDERS, [p, 1 - p], [1 - p, p])
    assert_tight_bound(renyi.pure(ORDERS, epsilon), truth)


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-3, 1.0), st.integers(2, 50))
def test_randomized_response_is_exact(noise_parameter, num_buckets):
    with mpmath.workdps(50):
        other = mpmath.mpf(noise_parameter) / num_buckets
        true = 1 - mpmath.mpf(noise_parameter) + other
    p = [true] + [other] * (num_buckets - 1)
    truth = discrete_divergence(ORDERS, p, [p[1], p[0], *p[2:]])
    assert_tight_bound(renyi.randomized_response(ORDERS, noise_parameter, num_buckets), truth)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.02, 5), st.integers(1, 12))
def test_discrete_laplace_is_exact(noise_parameter, shift):
    with mpmath.workdps(50):
        decay = mpmath.exp(-mpmath.mpf(noise_parameter))
        at_zero = (1 - decay) / (1 + decay)
        inside = range(1, shift)
        tail = at_zero / (1 - decay)  # one tail, its center included
        p = [tail, *(at_zero * decay**x for x in inside), tail * decay**shift]
        q = [tail * decay**shift, *(at_zero * decay ** (shift - x) for x in inside), tail]
    assert_tight_bound(
        renyi.discrete_laplace(ORDERS, noise_parameter, shift), discrete_divergence(ORDERS, p, q)
    )


@pytest.mark.parametrize("epsilon", [1e-5, 0.3, 1.0, 8.0])
def test_laplace_is_exact(epsilon):
    def truth(order):
        with mpmath.workdps(40):
            e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
            between = (
                mpmath.quad(lambda x: mpmath.exp(-a * e * x - (1 - a) * e * (1 - x)), [0, 0.5, 1]) * e / 2
            )
            tails = (mpmath.exp((a - 1) * e) + mpmath.exp(-a * e)) / 2
            return float(mpmath.log(between + tails) / (a - 1))

    orders = ORDERS[:-1]
    bound = renyi.laplace(orders, epsilon)
    exact = np.array([truth(a) for a in orders])
    assert np.all(bound >= exact * (1 - 1e-13))
    assert np.all(bound <= exact * (1 + 1e-4) + 1e-11)  # for tiny epsilons the pure curve takes over


@settings(deadline=None, max_examples=60)
@given(st.floats(0.01, 8), st.lists(st.floats(-1, 1), min_size=2, max_size=6), st.data())
def test_bounded_range_covers_every_exponential_mechanism(epsilon, scores, data):
    moves = data.draw(st.lists(st.floats(0, 1), min_size=len(scores), max_size=len(scores)))
    # Scores that move by at most 1, sampled by exp(epsilon s / 2) either way, have epsilon-bounded range.
    scale = 3 * epsilon / 2
    p = np.exp(scale * np.array(scores))
    q = p * np.exp(epsilon * (np.array(moves) - 0.5))
    truth = discrete_divergence(ORDERS, p / p.sum(), q / q.sum())
    assert np.all(renyi.bounded_range(ORDERS, epsilon) >= truth - 1e-12)


def test_bounded_range_is_four_times_better_than_pure_for_small_epsilon():
    assert renyi.pure(ORDERS, 0.01)[3] / renyi.bounded_range(ORDERS, 0.01)[3] == pytest.approx(4, rel=1e-3)


MIXTURES = [
    (1.001, 0.6, 0.01),
    (2.5, 0.6, 0.01),
    (2.3, 0.3, 1e-3),
    (10.9, 1.0, 1e-6),
    (1.01, 50.0, 1e-4),
    (3.7, 2.0, 0.9),
    (7.3, 0.5, 0.5),
    (33.3, 2.0, 1e-3),
    (4.0, 1.0, 0.02),
    (1.1, 5.4, 0.3),  # on either side of a change of step
    (1.1, 5.6, 0.3),
]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("order", "stddev", "rate"), MIXTURES)
def test_sampled_gaussians_are_exact(order, stddev, rate, replaced):
    divergence = renyi.sampled_gaussian_replaced if replaced else renyi.sampled_gaussian
    bound = divergence(np.array([order]), 1 / stddev, rate)
    assert_tight_bound(bound, np.array([mixture_divergence(order, stddev, rate, replaced=replaced)]))


@pytest.mark.parametrize(("order", "stddev", "rate"), [(1.3, 1.0, 0.1), (4.0, 0.7, 0.02), (2.5, 2.0, 0.8)])
def test_removing_a_sampled_unit_diverges_less_than_adding_it(order, stddev, rate):
    def integrand(z):
        mixture = (1 - rate) * norm.pdf(z, 0, stddev) + rate * norm.pdf(z, 1, stddev)
        return norm.pdf(z, 0, stddev) ** order * mixture ** (1 - order)

    moment = quad(integrand, -12 * stddev, 12 * stddev, limit=200)[0]
    other_direction = np.log(moment) / (order - 1)
    assert other_direction <= renyi.sampled_gaussian(np.array([order]), 1 / stddev, rate)[0]


def planar_divergence(order, stddev, rate, unit, replacement):
    """Divergence for two contributions anywhere in the plane, on a fine grid."""
    axis = np.arange(-12.0, 12.0, 0.1) * max(1.0, stddev)
    x, y = np.meshgrid(axis, axis)

    def log_density(mean):
        return -((x - mean[0]) ** 2 + (y - mean[1]) ** 2) / (2 * stddev**2)

    def mixture(mean):
        return np.logaddexp(np.log1p(-rate) + log_density((0, 0)), np.log(rate) + log_density(mean))

    p, q = mixture(unit), mixture(replacement)
    moment = np.exp(order * p + (1 - order) * q).sum() / np.exp(q).sum()
    return np.log(moment) / (order - 1)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([1.5, 2.0, 3.0]),
    st.floats(1.0, 3.0),
    st.floats(0.01, 0.9),
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, np.pi)),
)
def test_opposite_contributions_are_the_worst_replacement(order, stddev, rate, geometry):
    length, other_length, angle = geometry
    replacement = (other_length * np.cos(angle), other_length * np.sin(angle))
    bound = renyi.sampled_gaussian_replaced(np.array([order]), 1 / stddev, rate)[0]
    assert planar_divergence(order, stddev, rate, (length, 0), replacement) <= bound * (1 + 1e-9) + 1e-13
    opposite = planar_divergence(order, stddev, rate, (1, 0), (-1, 0))
    assert opposite == pytest.approx(bound, rel=1e-6)  # attained
    assert (
        opposite > renyi.sampled_gaussian(np.array([order]), 1 / stddev, rate)[0]
    )  # one-sided is not enough


@pytest.mark.parametrize(("stddev", "rate"), [(1.0, 0.1), (2.0, 0.02), (0.6, 0.5)])
def test_sampled_discrete_gaussian_bounds_the_actual_distributions(stddev, rate):
    grid = np.arange(-80, 120)
    orders = np.array([1.3, 2.0, 3.5, 4.0, 8.0])

    def mass(mean):
        weights = np.exp(-((grid - mean) ** 2) / (2 * stddev**2))
        return weights / np.exp(-(np.arange(-80, 81) ** 2) / (2 * stddev**2)).sum()

    def divergence(p, q):
        keep = (p > 0) & (q > 0)
        log_p, log_q = np.log(p[keep]), np.log(q[keep])
        return np.array([np.log(np.exp(a * log_p + (1 - a) * log_q).sum()) / (a - 1) for a in orders])

    absent, present = mass(0), (1 - rate) * mass(0) + rate * mass(1)
    bound = renyi.sampled_discrete_gaussian(orders, 1 / stddev, rate)
    assert np.all(bound >= divergence(present, absent) * (1 - 1e-9))
    assert np.all(bound >= divergence(absent, present) * (1 - 1e-9))
    np.testing.assert_allclose(
        bound[[1, 3]], divergence(present, absent)[[1, 3]], rtol=1e-6
    )  # whole orders: exact
    opposite = (1 - rate) * mass(0) + rate * mass(-1)
    replaced = renyi.sampled_discrete_gaussian_replaced(orders, 1 / stddev, rate)
    assert np.all(replaced >= divergence(present, opposite) * (1 - 1e-9))


@pytest.mark.parametrize(("num_units", "sample_size", "stddev"), [(4, 1, 1.0), (4, 2, 2.0), (5, 1, 4.0)])
def test_fixed_size_bound_covers_actual_data_sets(num_units, sample_size, stddev):
    orders = np.array([1.5, 2.0, 4.0, 12.0])
    z = np.linspace(-12 * stddev - num_units, 12 * stddev + num_units, 4_001)

    def log_output(data):
        sums = [sum(chosen) for chosen in itertools.combinations(data, sample_size)]
        return np.logaddexp.reduce([norm.logpdf(z, s, stddev) for s in sums]) - np.log(len(sums))

    bound = renyi.fixed_size_gaussian(orders, 1 / stddev, sample_size / num_units)
    for rest in itertools.product([-1.0, 0.0, 1.0], repeat=num_units - 1):
        p, q = log_output((1.0, *rest)), log_output((-1.0, *rest))
        for order, value in zip(orders, bound, strict=True):
            moment = np.trapezoid(np.exp(order * p + (1 - order) * q), z)
            assert np.log(moment) / (order - 1) <= value


@pytest.mark.parametrize("mu", [1e-150, 1e-8, 1.0, 1e3, 1e150])
@pytest.mark.parametrize("rate", [1e-300, 1e-6, 0.5, 1 - 1e-12])
def test_extreme_parameters_give_bounds_and_never_nan(mu, rate):
    orders = np.array([1.0005, 1.5, 2.0, 1e3, 1e5, 1e12])
    functions = [
        renyi.sampled_gaussian,
        renyi.sampled_gaussian_replaced,
        renyi.sampled_discrete_gaussian,
        renyi.sampled_discrete_gaussian_replaced,
        renyi.fixed_size_gaussian,
    ]
    with np.errstate(over="ignore"):
        for function in functions:
            values = function(orders, mu, rate)
            assert np.all(values >= 0)
            assert np.all(values <= renyi.gaussian(orders, 2 * mu))
