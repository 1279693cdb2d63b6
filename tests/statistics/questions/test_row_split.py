# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.statistics.columns.columns import STEPS, column_of
from sfumato.statistics.intervals import GaussianLaw, LaplaceLaw
from sfumato.statistics.questions.row_split import NoisyShares, Shares
from sfumato.statistics.terms import Terms
from sfumato.testing import seeded

DEGREES = [1, 2]


def exact(values, degree: int) -> np.ndarray:
    return np.array(Shares(degree).of(column_of(values).moments((-1, 1))))


@pytest.mark.parametrize("degree", DEGREES)
@given(value=st.floats())
def test_the_shares_of_a_row_are_never_negative_and_add_up_to_one(degree, value):
    shares = exact([value], degree)
    assert shares.min() >= 0
    assert shares.sum() == (0 if math.isnan(value) else Shares(degree).parts)


@pytest.mark.parametrize("degree", DEGREES)
@given(one=st.floats(-1, 1), other=st.floats(-1, 1))
def test_a_replaced_row_stays_within_the_noises_sensitivities(degree, one, other):
    noise = Shares(degree).noise(Terms(epsilon=1.0, relation="replace-one"))
    moved = exact([one], degree) - exact([other], degree)
    assert np.abs(moved).sum() <= noise.l1_sensitivity == 2 * Shares(degree).parts
    assert np.linalg.norm(moved.astype(float)) <= noise.l2_sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("degree", DEGREES)
def test_sums_of_shares_give_back_count_mean_and_variance(degree):
    values = np.random.default_rng(0).uniform(-1, 1, 500)
    shares = Shares(degree)
    noisy = NoisyShares(sums=exact(values, degree) / shares.parts, law=LaplaceLaw(1.0))
    assert noisy.size == 500
    assert 2 * noisy.average(shares.places) - 1 == pytest.approx(values.mean(), abs=1e-6)
    if degree == 2:
        assert 4 * noisy.variance(shares)[0] == pytest.approx(values.var(), abs=1e-6)


def test_the_moves_of_a_variance_are_its_derivatives():
    shares, sums = Shares(2), np.array([30.0, 25.0, 45.0])

    def found(at):
        return NoisyShares(sums=at, law=LaplaceLaw(1.0)).variance(shares)[0]

    moves = NoisyShares(sums=sums, law=LaplaceLaw(1.0)).variance(shares)[1]
    slopes = [(found(sums + step) - found(sums - step)) / 2e-5 for step in np.eye(3) * 1e-5]
    assert moves == pytest.approx(slopes, abs=1e-8)


def test_a_public_size_takes_out_the_error_of_the_total():
    shares = Shares(2)
    noise = shares.noise(Terms(epsilon=0.1))
    noisy = NoisyShares.of([100 * STEPS] * 3, noise, shares.parts, 75, seeded(0))
    assert noisy.size == pytest.approx(75)
    assert sum(noisy.weights(shares.places)) == pytest.approx(0.0)
    assert noisy.weights(shares.places) == pytest.approx([-0.5, 0.0, 0.5])


@pytest.mark.parametrize("law", [LaplaceLaw(2.0), GaussianLaw(2.0)], ids=repr)
def test_the_interval_holds_the_estimate_and_widens_with_the_sampling_error(law):
    places = Shares(1).places
    noisy = NoisyShares(sums=np.array([300.0, 100.0]), law=law)
    narrow, wide = noisy.interval(places, level=0.95), noisy.interval(places, level=0.95, stddev=10.0)
    assert wide[0] < narrow[0] < 0.25 < narrow[1] < wide[1]


def test_noise_larger_than_the_data_refutes_nothing():
    noisy = NoisyShares(sums=np.array([3.0, 1.0]), law=LaplaceLaw(100.0))
    assert noisy.interval(Shares(1).places, level=0.95) == (0.0, 1.0)


def test_few_rows_have_the_wider_tails_of_students_law():
    def stddev(rows, level=0.95):
        return NoisyShares(sums=np.full(3, rows / 3), law=LaplaceLaw(1.0)).sampling_stddev(
            Shares(2), level=level
        )

    assert stddev(6) / math.sqrt(6) > 1.2 * stddev(6000) / math.sqrt(6000)
    assert math.isfinite(stddev(6, level=1e-9))
