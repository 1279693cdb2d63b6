# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from dp_accounting import dp_event as dp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest, laplace, norm

from sfumato.accounting.events import DiscreteGaussianDpEvent, UnsampledDpEvent, check
from sfumato.accounting.gaussian import classic_stddev, stddev_for
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import additive, opendp_noise
from sfumato.mechanisms.additive import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from sfumato.testing import seeded

ALPHA = 1e-6
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
positive = st.floats(1e-6, 1e6)


def released(mechanism, value, count, generator=None) -> np.ndarray:
    return np.array([mechanism.release(value, generator=generator) for _ in range(count)])


# --- what is drawn -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "law", "off"),
    [
        (Laplace(scale=2.0, sensitivity=1.0, relation=ADD), laplace(5, 2.0), laplace(5, 2.2)),
        (Gaussian(stddev=2.0, sensitivity=1.0, relation=ADD), norm(5, 2.0), norm(5, 2.2)),
    ],
)
def test_seeded_noise_has_the_stated_law(mechanism, law, off):
    noisy = released(mechanism, 5.0, 20_000, seeded(1))
    assert kstest(noisy, law.cdf).pvalue > ALPHA
    assert kstest(noisy, off.cdf).pvalue < ALPHA  # 10% off is caught: the test has power


@pytest.mark.parametrize(
    ("mechanism", "law", "off"),
    [
        (Laplace(scale=2.0, sensitivity=1.0, relation=ADD), laplace(5, 2.0), laplace(5, 2.6)),
        (Gaussian(stddev=2.0, sensitivity=1.0, relation=ADD), norm(5, 2.0), norm(5, 2.6)),
    ],
)
def test_secure_noise_has_the_stated_law(mechanism, law, off):
    noisy = released(mechanism, 5.0, 4000)
    assert kstest(noisy, law.cdf).pvalue > ALPHA
    assert kstest(noisy, off.cdf).pvalue < ALPHA  # 30% off is caught with so few slow draws


@pytest.mark.parametrize("generator", [None, seeded(2)])
@pytest.mark.parametrize(
    ("mechanism", "weight"),
    [
        (DiscreteLaplace(scale=2.0, sensitivity=1, relation=ADD), lambda x, off: np.exp(-abs(x) / 2 / off)),
        (
            DiscreteGaussian(stddev=2.0, sensitivity=1, relation=ADD),
            lambda x, off: np.exp(-(x**2) / 8 / off**2),
        ),
    ],
)
def test_discrete_noise_has_the_stated_law(mechanism, weight, generator):
    noisy = released(mechanism, 5, 4000, generator)
    assert noisy.dtype.kind == "i"
    x = np.arange(-5, 6)
    counts = np.bincount(np.clip(noisy - 5, -5, 5) + 5, minlength=11)

    def p_value(off: float) -> float:
        wide = np.arange(-200, 201)
        weights = weight(wide, off)
        ideal = np.bincount(np.clip(wide, -5, 5) + 5, weights=weights) / weights.sum()
        return chisquare(counts, ideal * counts.sum()).pvalue

    assert x.size == counts.size
    assert p_value(1.0) > ALPHA
    assert p_value(1.3) < ALPHA


@pytest.mark.parametrize("cls", [Laplace, Gaussian])
def test_noise_is_secure_by_default_and_global_seeds_do_not_change_it(cls):
    mechanism = cls(**{"scale" if cls is Laplace else "stddev": 1.0}, sensitivity=1.0, relation=ADD)
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - the global state is what must not matter
        drawn.append(mechanism.release(0.0))
    assert drawn[0] != drawn[1]
    assert mechanism.release(0.0, generator=seeded(3)) == mechanism.release(0.0, generator=seeded(3))


def test_secure_noise_falls_on_numbers_that_do_not_tell_the_value():
    # Mironov 2012: with naive floating-point noise, which low bits can occur depends on the value.
    laplace_mechanism = Laplace(scale=1.0, sensitivity=1.0, relation=ADD)
    for value in (0.0, 1.0, 1 / 3):
        noisy = released(laplace_mechanism, value, 300)
        inside = noisy[(np.abs(noisy) > 0.25) & (np.abs(noisy) < 0.5)]  # one binade: spacing 2^-54
        steps = (inside * 2.0**54).astype(np.int64)
        assert 0.2 < np.mean(steps % 2) < 0.8  # even and odd last bits both occur, whatever the value


# --- what it costs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relation", "multiplier"),
    [(ADD, 2.0), (REPLACE, 4.0), (Relation.ZERO_OUT, 2.0), (Relation.REPLACE_LABEL, 4.0)],
)
def test_events_are_relative_to_one_contribution(relation, multiplier):
    events = {
        Laplace(scale=3.0, sensitivity=1.5, relation=relation).event(): dp.LaplaceDpEvent(multiplier),
        Gaussian(stddev=3.0, sensitivity=1.5, relation=relation).event(): dp.GaussianDpEvent(multiplier),
    }
    for event, stated in events.items():
        assert event == (UnsampledDpEvent(stated) if relation.replaces else stated)


def test_discrete_events_carry_the_integer_law():
    event = DiscreteLaplace(scale=4.0, sensitivity=3, relation=ADD).event()
    assert event == dp.DiscreteLaplaceDpEvent(0.25, 3)
    # a replaced unit moves the value by 3, charged as two contributions of 2
    event = DiscreteLaplace(scale=4.0, sensitivity=3, relation=REPLACE).event()
    assert event == UnsampledDpEvent(dp.DiscreteLaplaceDpEvent(0.25, 2))
    event = DiscreteGaussian(stddev=4.0, sensitivity=3, relation=REPLACE).event()
    assert event == UnsampledDpEvent(DiscreteGaussianDpEvent(4.0, 1.5, 1))


@given(positive, positive)
@settings(max_examples=40, deadline=None)
def test_calibrated_laplace_never_costs_more_than_asked(epsilon, sensitivity):
    mechanism = Laplace.calibrated(epsilon=epsilon, sensitivity=sensitivity, relation=ADD)
    event = mechanism.event()
    check(event)
    assert 1 / event.noise_multiplier == pytest.approx(epsilon, rel=1e-12)
    assert additive.Fraction(mechanism.scale) * additive.Fraction(epsilon) >= additive.Fraction(sensitivity)


def test_an_event_is_charged_for_what_opendp_proves_when_that_is_more(monkeypatch):
    class Costly:
        def map(self, sensitivity: float) -> float:
            return 2.0

    monkeypatch.setattr(opendp_noise, "laplace", lambda kind, scale: Costly())
    monkeypatch.setattr(opendp_noise, "gaussian", lambda kind, scale: Costly())
    assert Laplace(scale=1.0, sensitivity=1.0, relation=ADD).event() == dp.LaplaceDpEvent(0.5)
    assert Gaussian(stddev=1.0, sensitivity=1.0, relation=ADD).event() == dp.GaussianDpEvent(0.5)
    assert DiscreteLaplace(scale=1.0, sensitivity=1, relation=ADD).event() == dp.DiscreteLaplaceDpEvent(
        2.0, 1
    )


def test_gaussian_calibrations_come_from_accounting():
    parameters = {"epsilon": 0.5, "delta": 1e-5, "sensitivity": 2.0}
    analytic = Gaussian.calibrated(**parameters, relation=ADD)
    classic = Gaussian.classic(**parameters, relation=ADD)
    assert analytic.stddev == stddev_for(0.5, 1e-5, 2.0) < classic.stddev == classic_stddev(0.5, 1e-5, 2.0)
    with pytest.raises(InvalidParameterError):
        Gaussian.classic(epsilon=1.0, delta=1e-5, sensitivity=1.0, relation=ADD)


def audit_one_sided(mechanism, bound, above, trials, generator, value=1) -> float:
    with_unit = (released(mechanism, value, trials, generator) >= above).sum()
    without = (released(mechanism, 0, trials, generator) >= above).sum()
    return bound(int(with_unit), int(without), trials)


@pytest.mark.parametrize("generator", [None, seeded(4)])
def test_an_audit_of_laplace_stays_below_epsilon_and_catches_weak_noise(epsilon_lower_bound, generator):
    honest = Laplace.calibrated(epsilon=1.0, sensitivity=1.0, relation=ADD)
    weak = Laplace(scale=0.6, sensitivity=1.0, relation=ADD)
    assert 0.6 < audit_one_sided(honest, epsilon_lower_bound, 1.0, 4000, generator) <= 1.0
    assert audit_one_sided(weak, epsilon_lower_bound, 1.0, 4000, generator) > 1.0


@pytest.mark.parametrize("generator", [None, seeded(5)])
def test_an_audit_of_discrete_laplace_stays_below_epsilon_and_catches_weak_noise(
    epsilon_lower_bound, generator
):
    honest = DiscreteLaplace.calibrated(epsilon=1.0, sensitivity=1, relation=ADD)
    weak = DiscreteLaplace(scale=0.6, sensitivity=1, relation=ADD)
    assert 0.6 < audit_one_sided(honest, epsilon_lower_bound, 1, 4000, generator) <= 1.0
    assert audit_one_sided(weak, epsilon_lower_bound, 1, 4000, generator) > 1.0


def test_an_audit_of_the_gaussian_stays_below_epsilon_and_catches_weak_noise(epsilon_lower_bound):
    delta, generator = 0.05, seeded(6)

    def bound(hits: int, others: int, trials: int) -> float:
        return epsilon_lower_bound(hits, others, trials, delta)

    honest = Gaussian.calibrated(epsilon=1.0, delta=delta, sensitivity=1.0, relation=ADD)
    weak = Gaussian(stddev=honest.stddev / 2, sensitivity=1.0, relation=ADD)
    assert 0.3 < audit_one_sided(honest, bound, 1.5, 6000, generator) <= 1.0
    assert audit_one_sided(weak, bound, 1.0, 6000, generator) > 1.0


def test_an_audit_of_the_discrete_gaussian_stays_below_epsilon_and_catches_weak_noise(epsilon_lower_bound):
    # stddev 1, sensitivity 1, delta 0.05: the exact epsilon, from the whole law
    x = np.arange(-40, 41)
    weights = np.exp(-(x**2) / 2.0)
    without = weights / weights.sum()
    with_unit = np.roll(without, 1)
    delta, generator = 0.05, seeded(7)
    grid = np.linspace(0, 5, 20_001)
    deltas = np.array([np.maximum(with_unit - math.exp(e) * without, 0).sum() for e in grid])
    claim = grid[np.argmax(deltas <= delta)]

    def audit(stddev: float) -> float:
        mechanism = DiscreteGaussian(stddev=stddev, sensitivity=1, relation=ADD)
        hits = (released(mechanism, 1, 10_000, generator) >= 2).sum()
        others = (released(mechanism, 0, 10_000, generator) >= 2).sum()
        return epsilon_lower_bound(int(hits), int(others), 10_000, delta)

    assert 0.5 * claim < audit(1.0) <= claim
    assert audit(0.6) > claim


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, None, "1", True])
@pytest.mark.parametrize("name", ["size", "sensitivity"])
@pytest.mark.parametrize(
    ("cls", "size"),
    [(Laplace, "scale"), (Gaussian, "stddev"), (DiscreteLaplace, "scale"), (DiscreteGaussian, "stddev")],
)
def test_parameters_that_make_no_sense_are_refused(cls, size, name, wrong):
    given_ = {size: 1.0, "sensitivity": 1, "relation": ADD}
    field = size if name == "size" else "sensitivity"
    with pytest.raises(InvalidParameterError, match=f"{field} must be"):
        cls(**(given_ | {field: wrong}))


@pytest.mark.parametrize("cls", [DiscreteLaplace, DiscreteGaussian])
def test_discrete_sensitivity_is_a_whole_number(cls):
    with pytest.raises(InvalidParameterError, match="whole number"):
        cls(**{"scale" if cls is DiscreteLaplace else "stddev": 1.0}, sensitivity=1.5, relation=ADD)


@pytest.mark.parametrize("relation", ["add-remove", None])
def test_the_relation_must_be_one(relation):
    with pytest.raises(InvalidParameterError, match="relation must be"):
        Laplace(scale=1.0, sensitivity=1.0, relation=relation)


@pytest.mark.parametrize("generator", [None, seeded(8)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "secret"])
@pytest.mark.parametrize(
    "mechanism",
    [
        Laplace(scale=1.0, sensitivity=1.0, relation=ADD),
        Gaussian(stddev=1.0, sensitivity=1.0, relation=ADD),
        DiscreteLaplace(scale=1.0, sensitivity=1, relation=ADD),
        DiscreteGaussian(stddev=1.0, sensitivity=1, relation=ADD),
    ],
)
def test_values_that_are_not_finite_are_refused_without_being_shown(mechanism, value, generator):
    with pytest.raises(InvalidParameterError, match="nothing was released") as error:
        mechanism.release(value, generator=generator)
    assert str(value) not in str(error.value)


@pytest.mark.parametrize("value", [2**62 + 1, -(2**63), 0.5])
def test_whole_numbers_that_could_overflow_are_refused(value):
    with pytest.raises(InvalidParameterError, match="nothing was released"):
        DiscreteLaplace(scale=1.0, sensitivity=1, relation=ADD).release(value)


def test_noise_too_small_for_floating_point_is_refused():
    with pytest.raises(InvalidParameterError, match="at least"):
        Laplace(scale=1e-300, sensitivity=1.0, relation=ADD)


@pytest.mark.parametrize(
    "parameters",
    [
        {"size": 1e-200, "sensitivity": 1.0},
        {"size": 1e200, "sensitivity": 1.0},
        {"size": 1e300, "sensitivity": 1e-300},
        {"size": 1e-250, "sensitivity": 1e250},
    ],
)
@pytest.mark.parametrize(("cls", "size"), [(Laplace, "scale"), (Gaussian, "stddev")])
def test_noise_out_of_all_proportion_to_the_sensitivity_is_refused(cls, size, parameters):
    with pytest.raises(InvalidParameterError, match=f"{size} must be from 1e-100 to 1e\\+100 times"):
        cls(**{size: parameters["size"]}, sensitivity=parameters["sensitivity"], relation=ADD)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("ratio", [1e-99, 1e99])
@pytest.mark.parametrize("sensitivity", [1e-150, 1.0, 1e150])
def test_noise_of_any_allowed_proportion_has_an_event_that_can_be_accounted(ratio, sensitivity, relation):
    check(Laplace(scale=sensitivity * ratio, sensitivity=sensitivity, relation=relation).event())
    check(Gaussian(stddev=sensitivity * ratio, sensitivity=sensitivity, relation=relation).event())


@pytest.mark.parametrize("sensitivity", [2**62 + 1, 10**30, 10**400])
@pytest.mark.parametrize(("cls", "size"), [(DiscreteLaplace, "scale"), (DiscreteGaussian, "stddev")])
def test_a_whole_sensitivity_beyond_64_bits_is_refused(cls, size, sensitivity):
    with pytest.raises(InvalidParameterError, match="sensitivity must be at most"):
        cls(**{size: 1.0}, sensitivity=sensitivity, relation=ADD)
    check(cls(**{size: 1.0}, sensitivity=2**62, relation=ADD).event())


@pytest.mark.parametrize("cls", [Laplace, Gaussian])
@pytest.mark.parametrize("value", [Fraction(10**400), 10**400])
def test_a_value_beyond_float64_is_refused_without_being_shown(cls, value):
    with pytest.raises(InvalidParameterError, match="nothing was released") as error:
        cls(**{"scale" if cls is Laplace else "stddev": 1.0}, sensitivity=1.0, relation=ADD).release(value)
    assert "0000" not in str(error.value)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.float16(0.5), Fraction(1, 2)])
def test_numbers_of_every_kind_are_kept_as_the_equal_float(number):
    mechanism = Laplace(scale=number, sensitivity=number, relation=ADD)
    assert type(mechanism.scale) is type(mechanism.sensitivity) is float
    assert mechanism == Laplace(scale=0.5, sensitivity=0.5, relation=ADD)
    assert Laplace.calibrated(epsilon=number, sensitivity=number, relation=ADD).scale == 1.0
    assert DiscreteGaussian(stddev=number, sensitivity=np.int64(2), relation=ADD).stddev == 0.5


@pytest.mark.parametrize("number", [Fraction(1, 3), 2**53 + 1, 10**400])
def test_numbers_that_float64_cannot_hold_are_refused(number):
    with pytest.raises(
        InvalidParameterError, match="sensitivity must be a number that float64 holds exactly"
    ):
        Laplace(scale=1.0, sensitivity=number, relation=ADD)


def test_a_calibration_that_leaves_float64_is_refused():
    with pytest.raises(InvalidParameterError, match="too small for sensitivity"):
        Laplace.calibrated(epsilon=1e-300, sensitivity=1e300, relation=ADD)
