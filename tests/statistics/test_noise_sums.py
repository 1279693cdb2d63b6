# SPDX-License-Identifier: Apache-2.0
"""Distances that sums of noises keep: never too small, and hardly too large."""

import math

import numpy as np
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics.intervals import LaplaceLaw
from sfumato.statistics.noise_sums import far

LEVELS = (0.2, 0.5, 0.8, 0.9, 0.95, 0.999)


def exact_far(count: int, scale: float, level: float) -> int:
    """Return the smallest whole distance that a sum of so many noises keeps, by convolution."""
    reach = math.ceil(60 * scale)
    law = np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale)
    law /= law.sum()
    total = np.ones(1)
    for _ in range(count):
        total = np.convolve(total, law)
    middle = len(total) // 2
    within = np.cumsum(np.r_[total[middle], 2 * total[middle + 1 :]])
    return int(np.searchsorted(within, level))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("count", "scale"), [(1, 0.5), (1, 20.0), (2, 8.0), (5, 3.0), (12, 0.3), (12, 5.0)])
def test_the_distance_is_that_of_the_exact_law_or_a_little_more(count, scale, level):
    least = exact_far(count, scale, level)
    deviation = scale * math.sqrt(2 * count)
    found = far({1.0: count}, scale=scale, level=level)
    assert math.floor(found) >= least  # |sum| is whole
    assert found <= least + 1 + 0.05 * deviation


@pytest.mark.parametrize("level", LEVELS)
def test_sums_of_different_weights_are_covered_about_as_often_as_stated(level):
    draw, weights = np.random.default_rng(0), {0.9: 3, -0.1: 20, 0.5: 1}
    share = 1 - math.exp(-1 / 2.5)
    noise = draw.geometric(share, (200_000, 24)) - draw.geometric(share, (200_000, 24))
    sums = noise @ np.repeat(list(weights), list(weights.values()))
    covered = np.mean(np.abs(sums) <= far(weights, scale=2.5, level=level))
    assert level - 0.004 <= covered <= level + 0.03


def test_one_noise_of_a_large_scale_has_the_quantile_of_laplace():
    for level in LEVELS:
        known = -1000 * math.log(1 - level)
        assert known <= far({1.0: 1}, scale=1000.0, level=level) <= known + 0.03 * 1414
        assert LaplaceLaw(1000.0).tail(known) == pytest.approx(1 - level)


def test_edge_cases():
    assert far({}, scale=1.0, level=0.9) == far({0.0: 5}, scale=1.0, level=0.9) == 0.0
    assert far({1.0: 1}, scale=1.0, level=1 - 1e-9) >= -math.log(1e-9)  # the bound itself
    assert 0 < far({1.0: 3, 0.5: 10}, scale=1e-6, level=0.95) < 1e-5  # a huge epsilon: hardly any noise
    with pytest.raises(InvalidParameterError):
        far({1.0: 1}, scale=1.0, level=1.0)
