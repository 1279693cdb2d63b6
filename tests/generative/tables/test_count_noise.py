# SPDX-License-Identifier: Apache-2.0
"""Noise has the stated law, and the budget never admits more than one Gaussian of its multiplier."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from sfumato.accounting.events import compose, gaussian_scale
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.count_noise import CountNoise, NoiseBudget, OverspentError
from sfumato.testing import seeded

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed


@pytest.mark.parametrize("stddev", [0.3, 7.0, 3e5])
def test_noise_has_the_stated_stddev(stddev):
    noise = CountNoise(stddev=stddev, sensitivity=1)
    drawn = noise.add(np.zeros(20_000, dtype=np.int64), generator=seeded(1))
    assert kstest(drawn, norm(scale=stddev).cdf).pvalue > ALPHA
    assert kstest(drawn, norm(scale=1.1 * stddev).cdf).pvalue < ALPHA  # 10% off is caught


def test_noise_keeps_the_shape_and_moves_with_the_counts():
    noise = CountNoise(stddev=5.0, sensitivity=1)
    counts = np.arange(6).reshape(2, 3)
    one, two = (noise.add(each, generator=seeded(2)) for each in (counts, counts + 10))
    assert one.shape == (2, 3)
    np.testing.assert_allclose(two - one, 10.0, atol=1e-9)


def test_secure_noise_does_not_repeat():
    noise, counts = CountNoise(stddev=5.0, sensitivity=1), np.zeros(50, dtype=np.int64)
    assert (noise.add(counts) != noise.add(counts)).any()


@given(st.lists(st.floats(1e-6, 1.0), max_size=30), st.floats(0.01, 1e4), st.integers(1, 50))
def test_all_that_is_admitted_costs_at_most_one_gaussian(shares, noise_multiplier, rows):
    budget = NoiseBudget(noise_multiplier=noise_multiplier, sensitivity=rows)
    admitted = []
    for share in shares:
        try:
            admitted.append(budget.noise(share))
        except OverspentError:
            assert share > budget.left * (1 - 1e-9)
    if admitted:
        whole = gaussian_scale(compose(*(each.event() for each in admitted)))
        assert whole >= noise_multiplier
        assert all(each.sensitivity == rows for each in admitted)


def test_the_last_share_is_all_that_is_left():
    budget = NoiseBudget(noise_multiplier=3.0, sensitivity=2)
    budget.noise(0.3)
    budget.noise(budget.left * (1 - 1e-12))
    assert budget.left < 1e-9
    with pytest.raises(OverspentError):
        budget.noise(0.01)


def test_parameters_that_are_out_of_range_are_refused():
    for stddev in (0.0, -1.0, math.nan, math.inf, 1e30):
        with pytest.raises(InvalidParameterError):
            CountNoise(stddev=stddev, sensitivity=1)
    with pytest.raises(InvalidParameterError):
        CountNoise(stddev=1.0, sensitivity=0)
    with pytest.raises(InvalidParameterError):
        CountNoise(stddev=1.0, sensitivity=1, relation=Relation.REPLACE_ONE)
