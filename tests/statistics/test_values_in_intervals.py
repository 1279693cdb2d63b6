# SPDX-License-Identifier: Apache-2.0
"""A released number lies within its interval: also of groups without rows, where noise is all there is."""

import numpy as np
import pandas as pd
import pytest

from sfumato import queries as q
from sfumato import statistics as s
from sfumato.statistics.intervals import around
from sfumato.testing import seeded

UNIT, DEBT = (0.0, 1.0), (-5.0, 0.0)
VALUES = {
    "no rows": np.zeros(0),
    "one row": np.array([0.5]),
    "ties at an end": np.zeros(40),
    "a skew": np.r_[np.zeros(30), 1.0],
}
OF_NUMBERS = {
    "count": lambda x, **k: s.count(x, **k),
    "sum": lambda x, **k: s.sum(x, bounds=UNIT, **k),
    "sum of debts": lambda x, **k: s.sum(x, bounds=DEBT, **k),
    "mean": lambda x, **k: s.mean(x, bounds=UNIT, **k),
    "mean of a population": lambda x, **k: s.mean(x, bounds=UNIT, population=True, **k),
    "mean of a known size": lambda x, **k: s.mean(x, bounds=UNIT, public_size=7, **k),
    "variance": lambda x, **k: s.variance(x, bounds=UNIT, **k),
    "standard deviation": lambda x, **k: s.standard_deviation(x, bounds=UNIT, **k),
    "clipped share": lambda x, **k: s.clipped_share(x, bounds=UNIT, **k),
    "median": lambda x, **k: s.median(x, bounds=UNIT, level=0.95, **k),
    "histogram": lambda x, **k: s.histogram(x, edges=[0.0, 0.3, 0.6, 1.0], **k),
}


def numbers_of(release) -> list[float]:
    return list(release.parts.numbers) if release.parts is not None else [release.value]


def require_inside(numbers, intervals) -> None:
    for number, interval in zip(numbers, intervals, strict=True):
        assert number is None or number in interval, f"{number} is not in {interval}"


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("rows", VALUES)
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_number_lies_in_its_interval(name, rows, delta):
    for seed in range(20):
        terms = {"epsilon": 0.1, "delta": delta, "generator": seeded(seed)}
        release = OF_NUMBERS[name](VALUES[rows], **terms)
        if release.value is not None:
            known = release.interval if isinstance(release.interval, tuple) else (release.interval,)
            require_inside(numbers_of(release), known)


TABLE = pd.DataFrame(
    {"who": [i // 2 for i in range(60)], "key": ["a"] * 57 + ["b"] * 3, "x": [0.0] * 50 + [1.0] * 10}
)
KEYS = ["a", "b", "empty"]


def opened(**terms) -> s.PrivateTable:
    return s.private_table(TABLE, **terms)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_numbers_of_groups_lie_in_their_intervals(delta):
    groups = opened().group_by("key", keys=KEYS)
    terms = {"epsilon": 0.2, "delta": delta}
    asked = [
        opened().count(**terms),
        opened(privacy_unit="who", contribution_bound=1).left_out_share(**terms),
        groups.count(**terms),
        groups.sum("x", bounds=UNIT, **terms),
        groups.mean("x", bounds=UNIT, **terms),
    ]
    for query in asked:
        for seed in range(25):
            release = query.release(generator=seeded(seed))
            if release.value is not None:
                known = release.interval if isinstance(release.interval, tuple) else (release.interval,)
                require_inside(numbers_of(release), known)


STATISTICS = {
    "n": q.count(),
    "known": q.count("x"),
    "people": q.count_distinct("who"),
    "total": q.sum("x", bounds=UNIT),
    "debts": q.sum("x", bounds=DEBT),
    "average": q.mean("x", bounds=UNIT),
    "square": q.variance("x", bounds=UNIT),
    "spread": q.standard_deviation("x", bounds=UNIT),
    "typical": q.median("x", bounds=UNIT, interval=True),
}


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_cells_of_a_query_lie_in_their_intervals(delta):
    table = opened(privacy_unit="who", contribution_bound=2)
    query = q.group_by(table, "key", keys=KEYS).agg(epsilon=1.0, delta=delta, **STATISTICS)
    for seed in range(25):
        found = query.release(generator=seeded(seed))
        for name in STATISTICS:
            require_inside([cell.value for cell in found[name]], [cell.interval for cell in found[name]])


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_ranges_lie_in_their_intervals(delta):
    for seed in range(5):
        terms = {"bounds": UNIT, "bins": 16, "epsilon": 0.2, "delta": delta, "generator": seeded(seed)}
        whole = q.ranges(np.zeros(0), **terms)
        empty = q.group_by(opened(), "key", keys=KEYS).ranges("x", **terms)["empty"]
        for ends in [(0.0, 0.5), (0.25, 0.3), (0.5, 1.0), (0.0, 1.0)]:
            for cell in (whole.between(*ends), empty.between(*ends)):
                require_inside([cell.value], [cell.interval])


def test_an_interval_is_clipped_where_the_number_allows_it():
    assert around(-2.0, 5.0, level=0.95, within=(0.0, np.inf)).lower == -2.0
    assert around(-7.0, 5.0, level=0.95, within=(0.0, np.inf)).upper == 0.0
    assert around(3.0, 5.0, level=0.95, within=(0.0, np.inf)).lower == 0.0


def test_intervals_of_means_of_small_groups_cover_the_truth():
    """Coverage, at a noise for which the noisy number of rows is often below 1."""
    groups, covered = opened().group_by("key", keys=["b"]), []
    for seed in range(200):
        release = groups.mean("x", bounds=UNIT, epsilon=0.5).release(generator=seeded(seed))
        covered.append(1.0 in release.interval[0])
    assert np.mean(covered) > 0.9
