# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare, poisson, skellam

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum import skellam as module
from sfumato.federated.secure_sum.skellam import skellam_integers
from sfumato.mechanisms.random import SeededGenerator
from sfumato.testing import seeded

ALPHA = 1e-6


def _pvalue(draws: np.ndarray, mean: float) -> float:
    low, high = int(skellam.ppf(1e-3, mean, mean)), int(skellam.isf(1e-3, mean, mean))
    inside = np.clip(draws, low, high)
    observed = np.bincount(inside - low, minlength=high - low + 1)
    chance = skellam.pmf(np.arange(low, high + 1), mean, mean)
    chance[0], chance[-1] = skellam.cdf(low, mean, mean), skellam.sf(high - 1, mean, mean)
    return float(chisquare(observed, chance / chance.sum() * draws.size).pvalue)


@pytest.mark.parametrize("variance", [0.02, 1.0, 40.0, 1e4])
def test_the_noise_has_the_stated_law(variance: float) -> None:
    draws = skellam_integers(200_000, variance=variance, generator=seeded(3))
    assert _pvalue(draws, variance / 2) > ALPHA


def test_ten_percent_more_variance_would_be_noticed() -> None:
    draws = skellam_integers(200_000, variance=44.0, generator=seeded(3))
    assert _pvalue(draws, 20.0) < ALPHA


@pytest.mark.parametrize("mean", [0.01, 0.5, 3.75, 1000.0])
def test_the_borders_of_the_table_enclose_the_poisson_distribution(mean: float) -> None:
    first, lower, upper = module._borders(Fraction(mean), 64)
    chance = poisson.cdf(np.arange(first, first + len(lower)), mean)
    assert (np.array(lower, float) * 2.0**-64 <= chance + 1e-13).all()
    assert (np.array(upper, float) * 2.0**-64 >= chance - 1e-13).all()
    assert max(high - low for low, high in zip(lower, upper, strict=True)) <= 4
    # More digits narrow the same borders: the bounds of 64 bits hold those of 128.
    longer_first, longer_lower, longer_upper = module._borders(Fraction(mean), 128)
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        j = i + first - longer_first
        assert low << 64 <= longer_lower[j] <= longer_upper[j] <= high << 64


def test_undecided_words_are_settled_by_more_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = Fraction(5)
    first, lower, upper = module._borders(mean, 64)
    border = lower[4]  # this word straddles the border after outcome first + 4
    assert border < upper[4]
    found = {module._refined(border, mean, seeded(i)) - first for i in range(40)}
    assert found == {4, 5}


def test_the_same_seed_draws_the_same_noise_and_the_secure_one_does_not() -> None:
    first, second = (skellam_integers(50, variance=9.0, generator=SeededGenerator(1)) for _ in range(2))
    assert (first == second).all()
    assert (skellam_integers(50, variance=9.0) != skellam_integers(50, variance=9.0)).any()


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), float("inf"), 2.0**27])
def test_a_variance_out_of_range_is_refused(variance: float) -> None:
    with pytest.raises(InvalidParameterError):
        skellam_integers(1, variance=variance)


def test_no_draws_are_an_empty_array() -> None:
    assert skellam_integers(0, variance=1.0).size == 0
