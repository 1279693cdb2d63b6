# SPDX-License-Identifier: Apache-2.0
"""Ranges: the sensitivity of bins and blocks, consistency, stated variance, and the promised error."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.accounting import composition
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.queries.bin_blocks import _best_block, _consistent, _mean_variance, _variance
from sfumato.queries.ranges import Ranges, ranges
from sfumato.statistics.columns.columns import column_of
from sfumato.testing import seeded

BOUNDS = (0.0, 1024.0)


def skewed(rows: int = 5000) -> np.ndarray:
    return np.floor(np.random.default_rng(0).lognormal(3, 1, rows))  # ties


def given_to_noise(monkeypatch, values, owners, bound):
    """Return the counts that noise is added to."""
    seen = []
    data = column_of(values, owners=owners, contribution_bound=bound)
    question = Ranges(bounds=BOUNDS, bins=16, epsilon=1.0, contribution_bound=bound)
    noise = type(question.noise())
    add = noise.add
    with monkeypatch.context() as patch:
        patch.setattr(
            noise, "add", lambda self, numbers, **named: seen.append(numbers) or add(self, numbers, **named)
        )
        question.answer(data, generator=seeded(0))
    return seen[0], question.noise()


@settings(max_examples=30)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.floats(width=64)), min_size=1, max_size=20),
    bound=st.integers(1, 3),
)
def test_a_unit_moves_bins_and_blocks_by_at_most_what_noise_is_made_for(rows, bound):
    with pytest.MonkeyPatch.context() as patch:
        owners, values = [r[0] for r in rows], [r[1] for r in rows]
        kept = [r for r in rows if r[0] != rows[0][0]]
        whole, noise = given_to_noise(patch, values, owners, bound)
        part, _ = given_to_noise(patch, [r[1] for r in kept] or [np.nan], [r[0] for r in kept] or [0], bound)
    change = whole - part
    assert np.abs(change).sum() <= noise.l1_sensitivity
    assert np.linalg.norm(change) <= noise.l2_sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_event_costs_the_epsilon_that_was_given(relation):
    question = Ranges(bounds=BOUNDS, epsilon=0.5, relation=relation, contribution_bound=3)
    cost = composition.basic_epsilon(question.event(), delta=0.0, relation=Relation.parse(relation))
    assert 0.49 < cost <= 0.5


def test_the_variance_of_a_range_is_that_of_the_least_squares_estimate():
    bins, block, draw = 10, 4, np.random.default_rng(1)
    found = np.array([_consistent(draw.normal(size=bins), draw.normal(size=3), block) for _ in range(40_000)])
    for first, last in ((0, 10), (0, 4), (2, 3), (3, 9), (8, 10)):
        assert found[:, first:last].sum(1).var() == pytest.approx(
            _variance(first, last, bins, block), rel=0.05
        )


@pytest.mark.parametrize(("bins", "block"), [(12, 4), (13, 4), (9, 3), (10, 10), (7, 1)])
def test_the_mean_variance_is_that_of_all_ranges(bins, block):
    each = [_variance(a, b, bins, block) for a in range(bins) for b in range(a + 1, bins + 1)]
    assert _mean_variance(bins, block) == pytest.approx(np.mean(each))


def test_ranges_of_1024_bins_have_at_most_035_of_the_error_of_noisy_bins():
    theory = _mean_variance(1024, _best_block(1024)) * 4 / (1026 / 3)  # noise has twice the scale
    assert theory <= 0.25
    values, draw = skewed(), np.random.default_rng(2)
    truth = np.r_[0, np.cumsum(np.histogram(values.clip(*BOUNDS), np.linspace(*BOUNDS, 1025))[0])]
    ours, flat, covered = [], [], []
    for seed in range(8):
        release = ranges(values, bounds=BOUNDS, epsilon=1.0, generator=seeded(seed))
        for _ in range(150):
            first, last = sorted(draw.choice(1025, 2, replace=False))
            cell, exact_count = release.between(first, last), truth[last] - truth[first]
            ours.append((cell.value - exact_count) ** 2)
            flat.append((last - first) * 2 * np.exp(-1) / (1 - np.exp(-1)) ** 2)
            covered.append(exact_count in cell.interval)
    assert np.mean(ours) <= 0.35 * np.mean(flat)
    assert np.mean(covered) >= 0.93


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_ranges_are_consistent_exact_at_a_large_epsilon_and_alike_in_an_engine(delta):
    values = [*skewed(), np.nan, np.inf, -np.inf, 1e300]
    found = ranges(values, bounds=BOUNDS, epsilon=1e3, delta=delta)
    clients = sf.open("x", pd.DataFrame({"x": values}), budget=sf.Budget(epsilon=1e4, delta=1e-5))
    in_engine = clients.ranges("x", bounds=BOUNDS, epsilon=1e3, delta=delta)
    for first, last in ((0, 1024), (3, 40), (100, 101)):
        known = np.array(values[:-4])
        truth = ((known >= first) & (known < last)).sum() + (first == 0) + 2 * (last == 1024)
        assert found.between(first, last).value == pytest.approx(truth, abs=2)
        assert in_engine.between(first, last).value == pytest.approx(truth, abs=2)
    assert found.between(0, 50).value + found.between(50, 90).value == pytest.approx(
        found.between(0, 90).value
    )
    assert len(clients.account.releases()) == 1


def test_the_distribution_function_rises_from_0_to_1():
    found = ranges(skewed(), bounds=BOUNDS, bins=64, epsilon=0.1)
    shares = [found.cdf(value) for value in np.linspace(0, 1024, 65)]
    assert shares[0] == 0 and shares[-1] == 1 and (np.diff(shares) >= 0).all()
    assert len(found.release.to_pandas()) == 64
    assert ranges([], bounds=BOUNDS, epsilon=1e-3, generator=seeded(1)).cdf(5) >= 0


@pytest.mark.parametrize(
    "wrong", [{"bins": 1}, {"bins": 10**6}, {"bounds": (1, 1)}, {"epsilon": 0}, {"relation": "zero-out"}]
)
def test_parameters_are_checked_at_birth(wrong):
    with pytest.raises(InvalidParameterError):
        Ranges(**{"bounds": BOUNDS, "epsilon": 1.0} | wrong)
    with pytest.raises(InvalidParameterError, match="above"):
        ranges([1.0], bounds=BOUNDS, epsilon=1).between(2, 1)
