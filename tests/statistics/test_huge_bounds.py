# SPDX-License-Identifier: Apache-2.0
"""Bounds that cannot work are refused before anything is charged, of arrays and of tables alike.

All others get a finite answer, whatever the values are, without a warning.
"""

import math
import sys
import warnings
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest

from sfumato import statistics as s
from sfumato.errors import InvalidParameterError
from sfumato.statistics.release import Covers
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

MOST = sys.float_info.max
BOUNDS = [
    (-MOST, MOST), (0.0, MOST), (0.0, 1e308), (1e308, MOST), (-1e200, 1e200), (0.0, 1e155), (-1e150, 1e151),
    (0.0, 1e100), (-1e90, 1e90), (1e300, 1.0000001e300), (1e16, 1e16 + 4), (1.0, 1.0 + 2**-52), (0.0, 1e-90),
    (0.0, 1e-154), (0.0, 1e-279), (-5e-324, 5e-324),
]  # fmt: skip
VALUES = np.array([0.0, 1.0, 2.0, 1e300, -1e300, math.inf, -math.inf, 5e-324, math.nan] * 20)
E, ED = {"epsilon": 5.0}, {"epsilon": 5.0, "delta": 1e-3}
QUESTIONS = {
    "sum": lambda c, r, b, t: s.sum(c, bounds=b, **E, **t),
    "sum, Gaussian": lambda c, r, b, t: s.sum(c, bounds=b, **ED, **t),
    "mean": lambda c, r, b, t: s.mean(c, bounds=b, population=True, **E, **t),
    "mean of a public number": lambda c, r, b, t: s.mean(c, bounds=b, public_size=180, **E, **t),
    "variance": lambda c, r, b, t: s.variance(c, bounds=b, **E, **t),
    "standard deviation": lambda c, r, b, t: s.standard_deviation(c, bounds=b, **E, **t),
    "clipped share": lambda c, r, b, t: s.clipped_share(c, bounds=b, **E, **t),
    "median": lambda c, r, b, t: s.median(c, bounds=b, level=0.9, **E, **t),
    "quantiles": lambda c, r, b, t: s.quantiles(c, [0.1, 0.9], bounds=b, **E, **t),
    "histogram": lambda c, r, b, t: s.histogram(c, edges=sorted({b[0], b[0] / 2 + b[1] / 2, b[1]}), **E, **t),
    "first above": lambda c, r, b, t: s.first_above(c, ranges=[b], threshold=3, **E, **t),
    "bounds": lambda c, r, b, t: s.bounds(c, smallest=max(abs(b[0]), 5e-324), largest=b[1], **E, **t),
    "covariance": lambda c, r, b, t: s.covariance(r, bounds=b, **ED, **t),
    "correlation": lambda c, r, b, t: s.correlation(r, bounds=b, **ED, **t),
    "components": lambda c, r, b, t: s.principal_components(r, components=1, bounds=b, **ED, **t),
    "components in a ball": lambda c, r, b, t: s.principal_components(
        r, components=1, clip_norm=1e100, **ED, **t
    ),
    **{
        f"{name}, stddev {stddev:g}": lambda c, r, b, t, ask=ask, one=one, stddev=stddev: ask(
            c if one else r, bounds=b, stddev=stddev, **ED, **t
        )
        for name, ask, one in [
            ("CoinPress mean", s.coinpress_mean, True),
            ("Karwa-Vadhan mean", s.karwa_vadhan_mean, True),
            ("CoinPress means", s.coinpress_means, False),
            ("CoinPress covariance", s.coinpress_covariance, False),
        ]
        for stddev in (1e-100, 1.0, 1e100)
    },
}


class Purse:
    """An account that pays for everything, and says that it did."""

    name, privacy_unit, temporary, charged = "purse", "row", True, False

    @contextmanager
    def spend(self, question, *, purpose, generator):
        self.charged = True
        yield


def numbers(answer) -> list[float]:
    """Return all numbers of an answer."""
    if answer is None or isinstance(answer, bool | str | Covers):
        return []
    if isinstance(answer, int | float):
        return [float(answer)]
    if isinstance(answer, np.ndarray):
        return answer.ravel().tolist()
    if isinstance(answer, tuple | list):
        return [number for part in answer for number in numbers(part)]
    return numbers([getattr(answer, name) for name in answer.__dataclass_fields__])


@pytest.fixture(scope="module")
def sources():
    table = private_table(pd.DataFrame({"v": VALUES, "x": VALUES[::-1].copy()}))
    array = VALUES, np.column_stack([VALUES, VALUES[::-1]])
    return {"array": array, "table": (table["v"], table.rows("v", "x"))}


@pytest.mark.parametrize("name", QUESTIONS)
def test_bounds_are_refused_before_anything_is_charged_or_have_a_finite_answer(name, sources):
    outcomes = {}
    for where, (column, rows) in sources.items():
        for bounds in BOUNDS:
            purse = Purse()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    release = QUESTIONS[name](
                        column, rows, bounds, {"account": purse, "generator": seeded(0)}
                    )
                except InvalidParameterError as refusal:
                    assert not purse.charged, refusal
                    outcomes[where, bounds] = "refused"
                    continue
            outcomes[where, bounds] = "answered"
            assert all(map(math.isfinite, numbers(release.value))), bounds
            assert not any(map(math.isnan, numbers(release.interval))), bounds
    assert all(outcomes["array", bounds] == outcomes["table", bounds] for bounds in BOUNDS)


@pytest.mark.parametrize("bounds", [(0.0, 1e155), (-1e200, 1e200), (0.0, 1e-154)])
def test_a_variance_whose_squares_leave_float64_says_so(bounds):
    for question in (s.Variance, s.StandardDeviation):
        with pytest.raises(InvalidParameterError, match="their squares are computed"):
            question(bounds=bounds, epsilon=1.0)


def test_a_sum_that_could_leave_float64_says_so():
    with pytest.raises(InvalidParameterError, match=r"at most 1e\+280 in size"):
        s.Sum(bounds=(0.0, 1e300), epsilon=1.0)
    s.Sum(bounds=(0.0, 1e280), epsilon=1.0)


def test_a_standard_deviation_too_small_for_the_bounds_says_so():
    with pytest.raises(InvalidParameterError, match="float64 has no finer steps"):
        s.coinpress_mean(VALUES, bounds=(1e16, 1e16 + 4), stddev=1e-3, **ED)
    with pytest.raises(InvalidParameterError, match="float64 has no finer steps"):
        s.karwa_vadhan_mean(VALUES, bounds=(1e16, 1e16 + 4), stddev=1.0, **ED)
