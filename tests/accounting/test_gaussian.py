# SPDX-License-Identifier: Apache-2.0
import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting import gaussian
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError

DELTA = 1e-5

# (noise multiplier, steps, exact epsilon add-remove, exact epsilon replace-one). The project's baseline
# measurements of 2026-11-15, section 6, "Gaussian without subsampling": the closed form in scipy.
GOLDEN = [
    (1, 100, "91.81729", "284.39185"),
    (1, 600, "403.54653", "1407.9774"),
    (1, 2200, "1299.0841", "4799.1043"),
    (5, 100, "9.9972561", "24.381611"),
    (5, 600, "32.17668", "88.958344"),
    (5, 2200, "83.185286", "255.11591"),
    (10, 100, "4.3771781", "9.9972561"),
    (10, 600, "12.870662", "32.17668"),
    (10, 2200, "30.295341", "83.185286"),
    (7, 1000, "28.769262", "78.532268"),
    (1.4, 1000, "350.52050", "1212.1208"),
    (0.7, 1000, "1212.1208", "4465.9918"),
]

mus = st.floats(-8, 4).map(lambda x: 10.0**x)
log_deltas = st.floats(-300, math.log10(0.5))


def exact_delta(mu, epsilon):
    """Balle and Wang's Theorem 8 in 60 digits, where no cancellation matters."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        below = mpmath.erfc(-(mu / 2 - epsilon / mu) / mpmath.sqrt(2)) / 2
        above = mpmath.erfc((mu / 2 + epsilon / mu) / mpmath.sqrt(2)) / 2
        return below - mpmath.exp(epsilon) * above


@pytest.mark.parametrize(("noise_multiplier", "steps", "add_remove", "replace_one"), GOLDEN)
def test_epsilon_matches_the_golden_table_to_all_printed_digits(
    noise_multiplier, steps, add_remove, replace_one
):
    for relation, printed in ((Relation.ADD_REMOVE, add_remove), (Relation.REPLACE_ONE, replace_one)):
        epsilon = gaussian.epsilon(relation.diameter * math.sqrt(steps) / noise_multiplier, DELTA)
        decimals = len(printed.split(".")[1])
        assert f"{epsilon:.{decimals}f}" == printed


@settings(deadline=None, max_examples=150)
@given(mus, log_deltas)
def test_epsilon_is_never_below_the_exact_value_and_hardly_above(mu, log_delta):
    delta = 10.0**log_delta
    epsilon = gaussian.epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    if epsilon > 0:
        tighter = max(0.0, epsilon * (1 - 1e-8) - mu * 1e-8)
        assert exact_delta(mu, tighter) > delta or tighter == 0


@settings(deadline=None, max_examples=150)
@given(mus, log_deltas)
def test_delta_is_never_below_the_exact_value_and_hardly_above(mu, log_delta):
    epsilon = gaussian.epsilon(mu, 10.0**log_delta)
    ratio = gaussian.delta(mu, epsilon) / exact_delta(mu, epsilon)
    assert 1 <= ratio < 1 + 1e-6


def test_epsilon_is_zero_where_delta_covers_the_whole_difference():
    at_zero = gaussian.delta(0.1, 0.0)
    assert gaussian.epsilon(0.1, at_zero * (1 + 1e-6)) == 0
    assert gaussian.epsilon(0.1, at_zero * (1 - 1e-6)) > 0


@settings(deadline=None, max_examples=100)
@given(st.floats(-6, 4).map(lambda x: 10.0**x), log_deltas, st.floats(1e-3, 1e3))
def test_analytic_calibration_meets_its_target_with_the_least_noise(epsilon, log_delta, sensitivity):
    delta = 10.0**log_delta
    stddev = gaussian.stddev_for(epsilon, delta, sensitivity)
    assert exact_delta(sensitivity / stddev, epsilon) <= delta
    assert exact_delta(sensitivity / stddev * (1 + 1e-7), epsilon) > delta  # a hair less noise fails


def test_analytic_calibration_works_at_epsilon_zero():
    assert gaussian.delta(1 / gaussian.stddev_for(0.0, 1e-3, 1.0), 0.0) == pytest.approx(1e-3, rel=1e-8)


@settings(deadline=None)
@given(st.floats(1e-3, 0.999), st.floats(1e-12, 0.9))
def test_the_classic_formula_holds_below_one_and_wastes_noise(epsilon, delta):
    classic = gaussian.classic_stddev(epsilon, delta, 1.0)
    assert gaussian.delta(1 / classic, epsilon) <= delta
    assert classic > gaussian.stddev_for(epsilon, delta, 1.0)


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 100.0])
def test_the_classic_formula_refuses_epsilon_from_one_on_and_names_the_fix(epsilon):
    with pytest.raises(InvalidParameterError, match=r"below 1 only.*stddev_for"):
        gaussian.classic_stddev(epsilon, 1e-5, 1.0)


def test_the_classic_formula_would_be_false_for_large_epsilon():
    epsilon, delta = 20.0, 1e-5
    classic = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    assert gaussian.delta(1 / classic, epsilon) > delta  # why it is refused


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_parameters_are_refused(bad):
    calls = [
        lambda: gaussian.epsilon(bad, 1e-5),
        lambda: gaussian.epsilon(1.0, bad),
        lambda: gaussian.delta(bad, 1.0),
        lambda: gaussian.stddev_for(1.0, 1e-5, bad),
        lambda: gaussian.stddev_for(1.0, bad, 1.0),
        lambda: gaussian.classic_stddev(bad, 1e-5, 1.0),
    ]
    for call in calls:
        with pytest.raises(InvalidParameterError):
            call()


def test_a_delta_of_one_is_refused():
    with pytest.raises(InvalidParameterError, match="delta"):
        gaussian.epsilon(1.0, 1.0)
