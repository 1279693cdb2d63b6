# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from scipy.stats import gamma, kstest, laplace, norm

from sfumato.errors import InvalidParameterError
from sfumato.estimators.spherical import on_grid, spherical_laplace
from sfumato.testing import seeded

ALPHA = 1e-6  # chance that correct code fails one check on a fresh seed


def draws(dimension: int, count: int = 3000) -> np.ndarray:
    generator = seeded(0)
    return np.stack([spherical_laplace(dimension, scale=2.0, generator=generator) for _ in range(count)])


def test_the_norm_has_the_gamma_law_of_as_many_stages_as_dimensions():
    norms = np.linalg.norm(draws(5), axis=1)
    assert kstest(norms, gamma(5, scale=2.0).cdf).pvalue > ALPHA
    assert kstest(norms, gamma(5, scale=1.8).cdf).pvalue < ALPHA  # 10% off is caught
    assert kstest(norms, gamma(4, scale=2.0).cdf).pvalue < ALPHA


def test_the_direction_is_uniform_on_the_sphere():
    drawn = draws(3)
    heights = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True))[:, 0]  # uniform: Archimedes
    assert kstest(heights, lambda x: (x + 1) / 2).pvalue > ALPHA
    assert kstest(heights, norm(scale=0.58).cdf).pvalue < ALPHA


def test_in_one_dimension_it_is_laplace_noise():
    assert kstest(draws(1)[:, 0], laplace(scale=2.0).cdf).pvalue > ALPHA


def test_secure_noise_is_the_default_and_never_repeats():
    assert not np.array_equal(spherical_laplace(3, scale=1.0), spherical_laplace(3, scale=1.0))


def test_what_is_released_lies_on_the_public_grid():
    rounded = on_grid(np.array([1 / 3, -7.1]), noise=3.0)
    assert np.all(rounded / 2.0**-39 == np.rint(rounded / 2.0**-39))
    assert rounded == pytest.approx([1 / 3, -7.1], abs=2.0**-39)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_scale_that_is_no_noise_is_refused(scale):
    with pytest.raises(InvalidParameterError):
        spherical_laplace(3, scale=scale)
