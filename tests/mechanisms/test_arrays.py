# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import arrays, tensors
from sfumato.mechanisms.random import FastGenerator
from sfumato.testing import seeded

ALPHA = 1e-6
SAMPLE = 60_001  # more than one chunk, and odd
SIZES = [0, 1, 2, 3, 2 * arrays.CHUNK - 1, 2 * arrays.CHUNK, 2 * arrays.CHUNK + 1, SAMPLE]
UNITS = 4  # in the last place: two logarithms, roots and products may each differ by one


class Words:
    """A generator whose every word is the same: the extremes of the stream."""

    secure, seeded = False, True

    def __init__(self, word: int) -> None:
        self.word = word

    def fill(self, out: memoryview) -> None:
        out[:] = self.word.to_bytes(8, "little") * (len(out) // 8)


def test_gaussian_noise_has_the_stated_law():
    noise = arrays.gaussian(SAMPLE, stddev=2.0, generator=seeded(1))
    assert kstest(noise, norm(scale=2.0).cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=2.2).cdf).pvalue < ALPHA  # 10% off is caught: the test has power


def test_laplace_noise_has_the_stated_law():
    noise = arrays.laplace(SAMPLE, scale=2.0, generator=seeded(2))
    assert kstest(noise, laplace(scale=2.0).cdf).pvalue > ALPHA
    assert kstest(noise, laplace(scale=2.2).cdf).pvalue < ALPHA


def test_the_secure_default_has_the_stated_law_and_never_repeats():
    drawn = [arrays.gaussian(SAMPLE, stddev=1.0) for _ in range(2)]
    assert kstest(drawn[0], norm.cdf).pvalue > ALPHA
    assert kstest(arrays.laplace(SAMPLE, scale=1.0), laplace.cdf).pvalue > ALPHA
    assert not np.array_equal(*drawn)


@pytest.mark.parametrize("count", SIZES)
def test_a_seed_gives_the_draws_of_float64_tensors(count):
    """Two ways of drawing, one for each library: neither may drift from the other."""
    given = {"generator": seeded(3), "dtype": torch.float64}
    expected = tensors.gaussian((count,), stddev=3.0, **given).numpy()
    found = arrays.gaussian(count, stddev=3.0, generator=seeded(3))
    assert np.all(np.abs(found - expected) <= UNITS * np.spacing(np.abs(expected)) + 3.0 * 2.0**-52)
    given = {"generator": seeded(4), "dtype": torch.float64}
    expected = tensors.laplace((count,), scale=0.5, **given).numpy()
    found = arrays.laplace(count, scale=0.5, generator=seeded(4))
    assert np.all(np.abs(found - expected) <= UNITS * np.spacing(np.abs(expected)))


def test_draws_are_independent_along_the_array():  # partners of one radius lie CHUNK apart
    noise = arrays.gaussian(200_000, stddev=1.0, generator=seeded(5))
    for lag in (1, 2, arrays.CHUNK, 2 * arrays.CHUNK):
        for power in (1, 2):  # squares, too: partners share a radius but must not share a size
            correlation = np.corrcoef(noise[:-lag] ** power, noise[lag:] ** power)[0, 1]
            assert abs(correlation) < 5 / math.sqrt(200_000 - lag)


@pytest.mark.parametrize("word", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_no_word_of_the_stream_makes_noise_that_is_not_finite(word):
    gaussian = arrays.gaussian(4, stddev=1.0, generator=Words(word))
    assert np.isfinite(gaussian).all() and np.abs(gaussian).max() < 9.43
    exponential = arrays.laplace(4, scale=1.0, generator=Words(word))
    assert np.isfinite(exponential).all() and np.abs(exponential).max() < 44.5


@pytest.mark.parametrize("size", [0.0, -1.0, math.nan, math.inf, 1e307, 1e-310])
def test_noise_that_float64_cannot_hold_is_refused(size):
    with pytest.raises(InvalidParameterError, match="stddev"):
        arrays.gaussian(3, stddev=size)
    with pytest.raises(InvalidParameterError, match="scale"):
        arrays.laplace(3, scale=size)


def test_a_fast_generator_draws_as_it_does_for_tensors():
    expected = tensors.gaussian((5,), stddev=2.0, generator=FastGenerator(7), dtype=torch.float64)
    assert np.array_equal(arrays.gaussian(5, stddev=2.0, generator=FastGenerator(7)), expected.numpy())
