# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import norm

from sfumato.federated.secure_sum import rounding
from sfumato.federated.secure_sum.rounding import clipped, l2_bound_squared, rounded
from sfumato.testing import seeded

ALPHA = 1e-6
vectors = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats())  # zero, huge, infinite, NaN


@given(vectors, st.floats(1e-3, 1e3))
def test_a_clipped_vector_is_at_most_as_long_as_the_clip_norm(update: np.ndarray, clip_norm: float) -> None:
    assert np.linalg.norm(clipped(update, clip_norm)) <= clip_norm * (1 + 1e-12)


@given(vectors, st.floats(0.01, 1e4), st.integers(0, 2**32))
def test_the_norm_of_the_integers_never_exceeds_the_bound(
    update: np.ndarray, clip_steps: float, seed: int
) -> None:
    bound = l2_bound_squared(clip_steps=clip_steps, size=update.size)
    found = rounded(clipped(update, clip_steps), bound=bound, generator=seeded(seed))
    assert sum(int(x) ** 2 for x in found) <= bound


@given(vectors, st.integers(0, 10**6))
def test_the_bound_holds_for_vectors_that_nobody_clipped(update: np.ndarray, bound: int) -> None:
    found = rounded(update, bound=bound, generator=seeded(0))
    assert sum(int(x) ** 2 for x in found) <= bound


def test_short_vectors_are_not_changed_by_clipping() -> None:
    update = np.array([0.1, -0.2, 0.05])
    np.testing.assert_allclose(clipped(update, 1.0), update, rtol=1e-14)


def test_one_row_that_is_not_finite_does_not_touch_the_others() -> None:
    rows = clipped(np.array([[np.nan, 1.0], [0.3, 0.4]]), 1.0)
    assert rows[0].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(rows[1], [0.3, 0.4])


def test_rounding_errs_by_less_than_one_and_has_the_right_mean() -> None:
    values = np.array([0.25, -0.25, 3.9, -7.0, 0.0])
    draws = np.stack([rounded(values, bound=200, generator=seeded(i)) for i in range(4000)])
    assert (np.abs(draws - values) < 1).all()
    rest = values - np.floor(values)
    stddev = np.sqrt(rest * (1 - rest) / len(draws))
    assert (np.abs(draws.mean(0) - values) <= norm.isf(ALPHA / 10) * stddev + 1e-12).all()


def test_most_tries_of_a_long_vector_succeed() -> None:
    values = clipped(np.random.default_rng(0).normal(size=4096), 1.0) * 100.0
    bound = l2_bound_squared(clip_steps=100.0, size=4096)
    kept = [np.abs(rounded(values, bound=bound, generator=seeded(i)) - values).max() for i in range(20)]
    assert min(kept) > 0.5  # rounded at random, not towards zero: that errs by less too, but see below
    means = np.mean([rounded(values, bound=bound, generator=seeded(i)) for i in range(300)], axis=0)
    assert np.abs(means - values).mean() < 0.05


def test_if_all_tries_are_too_long_the_vector_is_rounded_towards_zero() -> None:
    values = np.full(100, 0.9)
    bound = 50  # a vector of 81 rounds to about 90 ones
    assert rounded(values, bound=bound, generator=seeded(0)).tolist() == [0] * 100


def test_a_bound_is_never_below_the_clip_norm_nor_above_the_worst_rounding() -> None:
    for steps, size in [(1.0, 1), (100.0, 4), (3000.0, 2**20), (0.5, 2**10)]:
        bound = l2_bound_squared(clip_steps=steps, size=size)
        assert math.floor(steps**2) <= bound <= (steps + math.sqrt(size)) ** 2


def test_planted_bug_rounding_once_exceeds_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the check the bound is broken, so the property above has power."""
    monkeypatch.setattr(rounding, "_fits", lambda found, bound: True)
    values = clipped(np.ones(64), 4.0)
    bound = l2_bound_squared(clip_steps=4.0, size=64)
    norms = [int((rounded(values, bound=bound, generator=seeded(i)) ** 2).sum()) for i in range(200)]
    assert max(norms) > bound
