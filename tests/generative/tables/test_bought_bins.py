# SPDX-License-Identifier: Apache-2.0
"""Bought bins keep quartiles of skewed and tied numbers at every epsilon, and cost one noisy histogram."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting.price import price
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.bought_bins import BinsQuestion
from sfumato.generative.tables.domain import Domain
from sfumato.statistics.noise import WholeNoise
from sfumato.testing import seeded

ROWS = 20_000
DRAWS = np.random.default_rng(0)
GAINS = np.where(
    DRAWS.random(ROWS) < 0.92, 0, np.minimum(np.exp(DRAWS.normal(8.5, 1.2, ROWS)).round(), 99_999)
)
COLUMNS = {
    "gains of which most are zero": (GAINS, True),
    "ages": (np.clip(DRAWS.gamma(8, 4.8, ROWS).round() + 10, 17, 90), True),
    "lognormal": (np.exp(DRAWS.normal(3, 1.5, ROWS)), False),
    "pareto": (DRAWS.pareto(1.5, ROWS) + 1, False),
    "zeros": (np.where(DRAWS.random(ROWS) < 0.6, 0.0, DRAWS.normal(1000, 300, ROWS)), False),
    "tied": (np.where(DRAWS.random(ROWS) < 0.5, 40, DRAWS.normal(40, 10, ROWS).round()), True),
    "negative": (-np.exp(DRAWS.normal(3, 1.5, ROWS)), False),
    "constant": (np.full(ROWS, 5.25), False),
    "whole constant": (np.full(ROWS, 5.0), True),
    "all zero": (np.zeros(ROWS), False),
    "rates": (DRAWS.beta(2, 5, ROWS), False),
    "years": (DRAWS.integers(1950, 2025, ROWS).astype(float), True),
}
QUARTILES = (0.25, 0.5, 0.75)


def question(**given):
    return BinsQuestion(
        **{"epsilon": 0.1, "bins": 32, "whole": False, "smallest": 2**-20, "largest": 2.0**40} | given
    )


def drawn(values, *, epsilon, whole, seed=0):
    found = question(epsilon=epsilon, whole=whole).buy(values, generator=seeded(seed))
    return found, found.decode(found.encode(values), np.random.default_rng(seed))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("name", COLUMNS)
def test_quartiles_and_means_are_kept(name, epsilon):
    """Epsilon is a tenth of that of a whole release of one column."""
    values, whole = COLUMNS[name]
    found, numbers = drawn(values, epsilon=epsilon, whole=whole)
    assert len(found.edges) <= 34
    np.testing.assert_allclose(np.quantile(numbers, QUARTILES), np.quantile(values, QUARTILES), rtol=0.03)
    np.testing.assert_allclose(numbers.mean(), values.mean(), rtol=0.12)


@pytest.mark.parametrize("name", COLUMNS)
def test_few_rows_are_beyond_the_bins_and_none_at_a_large_epsilon(name):
    values, whole = COLUMNS[name]
    for epsilon, share in ((0.1, 0.01), (100.0, 0.0)):
        found, _ = drawn(values, epsilon=epsilon, whole=whole)
        assert np.mean((values < found.lower) | (values > found.upper)) <= share


def test_more_epsilon_does_not_make_the_quartiles_worse():
    for name in ("lognormal", "zeros", "tied", "gains of which most are zero"):
        values, whole = COLUMNS[name]
        true = np.quantile(values, QUARTILES)
        size = max(np.abs(true).max(), 1.0)
        errors = [
            np.abs(np.quantile(drawn(values, epsilon=epsilon, whole=whole)[1], QUARTILES) - true).max() / size
            for epsilon in (0.1, 10.0)
        ]
        assert errors[1] <= errors[0] + 0.01, name


def test_zero_has_a_bin_of_its_own():
    values, _ = COLUMNS["zeros"]
    _, numbers = drawn(values, epsilon=1.0, whole=False)
    assert abs(np.mean(numbers == 0) - np.mean(values == 0)) < 0.001


def test_a_tail_that_is_spread_over_many_sizes_is_not_cut_off():
    draws = np.random.default_rng(1)
    values = np.concatenate([draws.uniform(1, 2, 2700), 2.0 ** draws.uniform(2, 14, 300)])
    found, _ = drawn(values, epsilon=0.4, whole=False)
    assert np.mean(values > found.upper) < 0.02


@pytest.mark.parametrize("whole", [False, True])
def test_bins_cover_everything_if_nothing_is_seen(whole):
    for values in (np.array([]), np.array([3.0, np.nan, np.inf, -np.inf])):
        found = question(whole=whole).buy(values, generator=seeded(0))
        assert (found.lower, found.upper) == (-(2.0**40), 2.0**40) and len(found.edges) == 33


@settings(max_examples=40)
@given(
    st.lists(st.floats() | st.sampled_from([0.0, -0.0, 5e-324, 1e308]), max_size=6),
    st.booleans(),
    st.sampled_from([1, 2, 32]),
    st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_no_value_makes_a_purchase_fail(values, whole, bins, epsilon):
    cells = np.array(values, dtype=np.float64)
    found = question(whole=whole, bins=bins, epsilon=epsilon).buy(cells, generator=seeded(0))
    assert Domain.from_dict(Domain({"x": found}).to_dict()).columns["x"] == found
    back = found.decode(found.encode(cells), np.random.default_rng(0))
    assert np.isnan(back).tolist() == np.isnan(cells).tolist()


@settings(max_examples=40)
@given(st.lists(st.floats(), max_size=8), st.lists(st.floats(), max_size=3), st.booleans())
def test_a_unit_moves_the_counts_by_its_rows(rows, added, whole):
    seen = []

    def add(self, numbers, *, generator=None):
        seen.append(numbers)
        return numbers.astype(float)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WholeNoise, "add", add)
        for values in (rows, rows + added):
            question(whole=whole, rows_per_unit=3).buy(np.array(values, dtype=float), generator=seeded(0))
    assert np.abs(seen[1] - seen[0]).sum() <= 3


@pytest.mark.parametrize("rows_per_unit", [1, 4])
def test_the_price_is_the_stated_epsilon(rows_per_unit):
    event = question(epsilon=0.5, rows_per_unit=rows_per_unit).event()
    assert price(event, delta=1e-9).epsilon == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bins": 0},
        {"epsilon": 0.0},
        {"smallest": 2.0**41},
        {"smallest": 1e-250},
        {"smallest": 1e-190, "largest": 1e190},
        {"largest": 1e290},
        {"whole": True, "largest": 2.5},
        {"whole": True, "largest": 2.0**60},
        {"rows_per_unit": 0},
    ],
)
def test_wrong_parameters_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        question(**wrong)
