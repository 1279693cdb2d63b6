# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import chi2, norm

from sfumato.errors import InvalidParameterError
from sfumato.federated.secure_sum.encoding import client_generator, decode, encode, noise_share, whole_numbers
from sfumato.federated.secure_sum.secure_sum import IntegerNoise, SecureSum
from sfumato.testing import seeded

ALPHA = 1e-6
DIMENSION = 24
updates = hnp.arrays(np.float64, DIMENSION, elements=st.floats())  # zero, huge, infinite, NaN


def mechanism(**options):
    facts = {"dimension": DIMENSION, "clip_norm": 1.0, "noise_multiplier": 1.0, "cohort": 10}
    return SecureSum(**{**facts, "least_survivors": 5, **options})


def lifted(residues, modulus):
    return (residues + modulus // 2) % modulus - modulus // 2


@given(updates, st.floats(1e-3, 1e3), st.integers(0, 2**30))
def test_the_integers_of_any_update_keep_the_bounds(update, clip_norm, seed):
    found = mechanism(clip_norm=clip_norm)
    numbers = [int(x) for x in whole_numbers(update, found, seed=seed, generator=seeded(seed))]
    assert sum(x * x for x in numbers) <= found.l2_bound_squared
    assert sum(abs(x) for x in numbers) <= found.l1_bound


@given(updates, st.sampled_from(list(IntegerNoise)), st.integers(0, 2**30))
def test_one_client_moves_the_sum_modulo_m_by_at_most_the_bounds(update, noise, seed):
    """Zero-out: the client takes part and adds the same noise, with its update or with zeros."""
    found = mechanism(noise=noise)
    with_update, without = (
        encode(x, found, seed=seed, generator=seeded(seed)) for x in (update, np.zeros(DIMENSION))
    )
    moved = [int(x) for x in lifted((with_update - without) % found.modulus, found.modulus)]
    assert sum(x * x for x in moved) <= found.l2_bound_squared
    assert sum(abs(x) for x in moved) <= found.l1_bound
    assert min(with_update) >= 0 and max(with_update) < found.modulus


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_counts_as_zeros_with_noise(value):
    update = np.ones(DIMENSION)
    update[3] = value
    own = [encode(x, mechanism(), seed=1, generator=seeded(2)) for x in (update, np.zeros(DIMENSION))]
    assert (own[0] == own[1]).all() and own[0].any()


def test_without_much_noise_the_decoded_mean_is_the_mean_of_clipped_updates():
    found = mechanism(dimension=500, noise_multiplier=1e-4, cohort=50, least_survivors=50, bits=24)
    rows = np.random.default_rng(0).normal(size=(50, 500)) * np.linspace(0.001, 0.2, 50)[:, None]
    total = sum(encode(row, found, seed=9, generator=seeded(i)) for i, row in enumerate(rows))
    clipped = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    error = decode(total, found, seed=9) / 50 - clipped.mean(0)
    rounding = 0.5 / found.scale / np.sqrt(50)  # of one coordinate of the mean
    assert np.abs(error).max() < 6 * (rounding + 1e-4 * found.l2_bound / found.scale / 50)
    assert np.abs(error).max() < 1e-4


@pytest.mark.parametrize("noise", list(IntegerNoise))
def test_decoding_has_the_right_mean_and_the_stated_noise(noise):
    found = mechanism(noise=noise)
    update = np.random.default_rng(1).normal(size=DIMENSION)
    update /= np.linalg.norm(update)
    draws = np.stack(
        [decode(encode(update, found, seed=i, generator=seeded(i)), found, seed=i) for i in range(500)]
    )
    stddev = found.share_stddev / found.scale
    assert np.abs(draws.mean(0) - update).max() < norm.isf(ALPHA / 2 / DIMENSION) * stddev * 1.01 / np.sqrt(
        2000
    )
    ratio = ((draws - update) ** 2).sum() / (stddev**2 + 0.25 / found.scale**2)
    assert chi2.ppf(ALPHA, draws.size) * 0.98 < ratio < chi2.isf(ALPHA, draws.size) * 1.02


def _variance_of_sums(generators, found, rounds=60):
    total = []
    for turn in range(rounds):
        shares = [noise_share(found, generator=own.fork("noise", turn)) for own in generators]
        total.append(np.sum(shares, axis=0))
    return float(np.mean(np.square(total)))


def test_shares_of_different_clients_are_independent_and_a_shared_seed_is_noticed():
    found = mechanism(dimension=256)
    expected = 10 * found.share_stddev**2
    freedom = 60 * 256
    own = [client_generator(seeded(3), i, 0) for i in range(10)]
    assert (
        chi2.ppf(ALPHA, freedom)
        < _variance_of_sums(own, found) / expected * freedom
        < chi2.isf(ALPHA, freedom)
    )
    planted = [client_generator(seeded(3), 0, 0) for _ in range(10)]  # the bug: all draw the same noise
    assert _variance_of_sums(planted, found) / expected * freedom > chi2.isf(ALPHA, freedom)


def test_planted_bug_a_modulus_that_is_too_small_is_noticed():
    found = mechanism(dimension=256, noise_multiplier=0.05)
    rows = np.tile(np.random.default_rng(0).normal(size=256) / 20, (10, 1))  # all clients want the same
    encoded = [encode(row, found, seed=4, generator=seeded(i)) for i, row in enumerate(rows)]
    truth = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)).sum(0)
    error = decode(sum(encoded), found, seed=4) - truth
    stddev = np.sqrt(10) * found.share_stddev / found.scale
    assert np.abs(error).max() < 6 * stddev
    small = found.modulus // 8
    wrapped = np.asarray(lifted(sum(encoded) % small, small)) % found.modulus
    assert np.abs(decode(wrapped, found, seed=4) - truth).max() > 6 * stddev


def test_sums_wrap_around_without_an_error():
    found = mechanism()
    assert np.isfinite(decode(np.full(found.size, 10**12), found, seed=0)).all()


def test_other_shapes_are_refused():
    with pytest.raises(InvalidParameterError, match="vector of 24"):
        encode(np.zeros(25), mechanism(), seed=0)
    with pytest.raises(InvalidParameterError, match="32 coordinates"):
        decode(np.zeros(24, np.int64), mechanism(), seed=0)


def test_secure_noise_is_the_default_and_never_repeats():
    first, second = (encode(np.zeros(DIMENSION), mechanism(), seed=0) for _ in range(2))
    assert (first != second).any()
