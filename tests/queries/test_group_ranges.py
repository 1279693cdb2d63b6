# SPDX-License-Identifier: Apache-2.0
"""Ranges of groups: the sensitivity of one vector of all groups, the truth, intervals, and refusals."""

import datetime
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato import queries as q
from sfumato.errors import BudgetExceededError, ColumnTypeError, InvalidParameterError
from sfumato.statistics.contributions.owned_rows import OwnedRows
from sfumato.statistics.noise import WholeNoise
from sfumato.statistics.sources.tables import private_table
from sfumato.testing import seeded

BOUNDS = (0.0, 128.0)
KEYS = ["a", "b", "c", "nobody"]


def frame(rows: int = 4000) -> pd.DataFrame:
    """Return skewed and tied values, some missing, infinite or huge, of units with several rows."""
    draw = np.random.default_rng(0)
    amount = np.floor(draw.lognormal(3, 1, rows))
    amount[::11] = np.nan
    amount[:40:4] = [np.inf, -np.inf, 1e300, -1e300, 128.0, 0.0, -0.0, 5e-324, np.nan, 127.999]
    return pd.DataFrame(
        {
            "who": draw.integers(0, rows // 4, rows),
            "region": draw.choice([*KEYS[:3], "other", None], rows, p=[0.7, 0.15, 0.05, 0.05, 0.05]),
            "amount": amount,
            "day": draw.choice(pd.date_range("2024-01-01", "2024-02-29"), rows),
        }
    )


DATA = frame()


def exact(key: str, lower: float, upper: float, data: pd.DataFrame = DATA) -> int:
    """Return the rows with a value from `lower` to below `upper`, and those at the upper bound in its bin."""
    values = data[data.region == key].amount.dropna().clip(*BOUNDS)
    return int(((values >= lower) & ((values < upper) | (upper == BOUNDS[1]))).sum())


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(
    ("unit", "bound", "within"),
    [(None, 1, {}), ("who", 40, {}), ("who", 80, {"rows_per_group": 20, "groups_per_unit": 4})],
)
def test_at_a_large_epsilon_all_ranges_are_the_exact_ones(relation, delta, unit, bound, within):
    table = private_table(DATA, privacy_unit=unit, contribution_bound=bound)
    groups = q.group_by(table, "region", keys=KEYS, **within)
    found = groups.ranges("amount", bounds=BOUNDS, bins=128, epsilon=1e6, delta=delta, relation=relation)
    assert found.keys == KEYS
    for key in KEYS:
        for lower, upper in ((0, 128), (0, 1), (3, 40), (20, 21), (127, 128), (64, 64)):
            assert found[key].between(lower, upper).value == pytest.approx(exact(key, lower, upper), abs=0.5)
        whole = exact(key, 0, 128)
        assert found[key].cdf(20) == pytest.approx(exact(key, 0, 20) / whole if whole else 0, abs=0.01)


@pytest.mark.parametrize(("bounds", "bins"), [((0.0, 50.0), 50), ((-7.0, 93.0), 100), ((0.0, 0.7), 7)])
def test_tied_values_at_the_edges_count_in_the_bin_above(bounds, bins):
    edges = np.linspace(*bounds, bins + 1)
    data = pd.DataFrame({"region": "a", "amount": np.repeat(edges, np.arange(1, bins + 2))})
    groups = q.group_by(private_table(data), "region", keys=["a"])
    found = groups.ranges("amount", bounds=bounds, bins=bins, epsilon=1e6)["a"]
    assert [round(n) for n in found.counts] == np.histogram(data.amount, edges)[0].tolist()


def test_keys_of_several_columns_conditions_and_truncated_dates():
    table = private_table(DATA).mutate(month=lambda row: row.day.try_cast("date").truncate("M"))
    months = [datetime.date(2024, month, 1) for month in (1, 2)]
    groups = q.group_by(table, "region", "month", keys={"region": ["a", "b"], "month": months})
    found = groups.ranges("amount", bounds=BOUNDS, bins=16, epsilon=1e6, where=lambda row: row.amount >= 16)
    kept = DATA[(DATA.amount >= 16) & (DATA.day.dt.month == 2)]
    assert found["b", months[1]].between(0, 64).value == pytest.approx(exact("b", 0, 64, kept), abs=0.5)
    told = found.release.to_pandas()
    assert list(told.columns[1:5]) == ["key_region", "key_month", "from", "to"] and len(told) == 4 * 16


def given_to_noise(patch, rows, within) -> tuple[np.ndarray, WholeNoise]:
    """Return the vector that noise is added to, and the noise."""
    made = pd.DataFrame(rows, columns=["who", "region", "amount"])
    table = private_table(made, privacy_unit="who", contribution_bound=4)
    add = WholeNoise.add
    seen: list[tuple[np.ndarray, WholeNoise]] = []
    with patch.context() as patched:
        patched.setattr(
            WholeNoise, "add", lambda self, n, **how: seen.append((n, self)) or add(self, n, **how)
        )
        groups = q.group_by(table, "region", keys=["a", "b", "c"], **within)
        groups.ranges("amount", bounds=(0, 4), bins=4, epsilon=1.0, generator=seeded(0))
    [found] = seen
    return found


@settings(max_examples=12)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.floats(width=64)), min_size=1, max_size=24
    ),
    within=st.sampled_from(
        [{}, {"rows_per_group": 2}, {"groups_per_unit": 2}, {"rows_per_group": 1, "groups_per_unit": 3}]
    ),
)
def test_a_unit_moves_the_vector_of_all_groups_by_at_most_what_noise_is_made_for(rows, within):
    other = [(99, "a", 1.0)]  # so that no table is empty
    with pytest.MonkeyPatch.context() as patch:
        whole, noise = given_to_noise(patch, rows + other, within)
        part, _ = given_to_noise(patch, [r for r in rows if r[0] != rows[0][0]] + other, within)
    change = whole - part
    assert np.abs(change).sum() <= noise.l1_sensitivity
    assert np.linalg.norm(change) <= noise.l2_sensitivity * (1 + 1e-12)
    assert np.count_nonzero(change) <= noise.coordinates


@pytest.mark.parametrize("within", [{}, {"rows_per_group": 2}])
def test_a_unit_with_many_rows_in_all_groups_reaches_the_sensitivity(within, monkeypatch):
    """The bound is not loose: the noise is not larger than it must be."""
    crowded = [(0, "abc"[i % 3] if within else "a", 1.5) for i in range(24)]
    whole, noise = given_to_noise(monkeypatch, [*crowded, (99, "a", 1.0)], within)
    part, _ = given_to_noise(monkeypatch, [(99, "a", 1.0)], within)
    assert np.abs(whole - part).sum() == noise.l1_sensitivity
    assert np.linalg.norm(whole - part) == pytest.approx(noise.l2_sensitivity)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("within", [{}, {"rows_per_group": 1}])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_charge_is_the_epsilon_that_was_given_whatever_the_number_of_groups(relation, within, delta):
    table = private_table(DATA, privacy_unit="who", contribution_bound=3)
    scales = set()
    for count in (3, 40):  # a unit has 3 rows, so it is in up to 3 groups
        groups = q.group_by(table, "region", keys=[f"k{i}" for i in range(count)], **within)
        found = groups.ranges("amount", bounds=BOUNDS, bins=8, epsilon=0.5, delta=delta, relation=relation)
        assert 0.49 < found.guarantee.epsilon <= 0.5 and found.guarantee.delta == delta
        scales.add(found.question.noise().law.stddev)
    assert len(scales) == 1


def test_two_bounds_need_less_gaussian_noise():
    table = private_table(DATA, privacy_unit="who", contribution_bound=4)
    deviations = [
        q.group_by(table, "region", keys=KEYS, **within)
        .ranges("amount", bounds=BOUNDS, bins=8, epsilon=0.5, delta=1e-6)
        .question.noise()
        .law.stddev
        for within in ({}, {"rows_per_group": 1, "groups_per_unit": 4})
    ]
    assert deviations[0] / deviations[1] == pytest.approx(math.sqrt(4), rel=0.02)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_intervals_cover_the_truth(delta):
    table, covered = private_table(DATA), []
    groups = q.group_by(table, "region", keys=KEYS[:3])
    draw = np.random.default_rng(3)
    for seed in range(20):
        found = groups.ranges(
            "amount", bounds=BOUNDS, bins=64, epsilon=0.3, delta=delta, level=0.9, generator=seeded(seed)
        )
        for key in KEYS[:3]:
            first, last = sorted(draw.choice(65, 2, replace=False))
            cell = found[key].between(2 * first, 2 * last)
            covered.append(exact(key, 2 * first, 2 * last) in cell.interval)
            assert cell.interval.upper - cell.value < 600  # not trivially wide
    assert np.mean(covered) >= 0.78  # 60 intervals at 0.9: a chance below 1e-3 to be under 0.78


def test_ranges_of_groups_are_one_charge_and_are_refused_before_data_is_read(monkeypatch):
    clients = sf.open("clients", DATA, privacy_unit="who", budget=sf.Budget(epsilon=1, delta=1e-6))
    groups = clients.group_by("region", keys=KEYS)
    found = groups.ranges("amount", bounds=BOUNDS, bins=8, epsilon=0.7, purpose="amounts by region")
    assert [each.purpose for each in clients.account.releases()] == ["amounts by region"]
    assert clients.spent().epsilon == pytest.approx(0.7)
    assert found.release.name == "ranges of amount by region"
    parts = found["a"].between(0, 32).value + found["a"].between(32, 80).value
    assert parts == pytest.approx(found["a"].between(0, 80).value)
    monkeypatch.setattr(OwnedRows, "table", lambda *given: pytest.fail("data was read"))
    with pytest.raises(BudgetExceededError):
        groups.ranges("amount", bounds=BOUNDS, bins=8, epsilon=0.7)
    assert len(clients.account.releases()) == 1


@pytest.mark.parametrize(
    ("keys", "terms", "says"),
    [
        (q.Discovered(), {}, "need public keys"),
        (None, {}, "without group_by"),
        (KEYS, {"bins": 1}, "bins"),
        (KEYS, {"bins": 10**6}, "bins"),
        ([f"k{i}" for i in range(2000)], {"bins": 1024}, "fewer bins or keys"),
        (KEYS, {"bounds": (1, 1)}, "bounds"),
        (KEYS, {"bounds": (1.0, 1.0 + 2e-16)}, "bounds"),
        (KEYS, {"epsilon": 0}, "epsilon"),
        (KEYS, {"epsilon": math.nan}, "epsilon"),
        (KEYS, {"delta": 1.0}, "delta"),
        (KEYS, {"level": 1.0}, "level"),
        (KEYS, {"relation": "zero-out"}, "add-remove and replace-one"),
        (KEYS, {"column": "nothing"}, "no column 'nothing'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_charged(keys, terms, says, monkeypatch):
    clients = sf.open("clients", DATA, budget=sf.Budget(epsilon=9, delta=1e-6))
    monkeypatch.setattr(OwnedRows, "table", lambda *given: pytest.fail("data was read"))
    asked = {"column": "amount", "bounds": BOUNDS, "epsilon": 1.0} | terms
    groups = clients.group_by("region", keys=keys) if keys is not None else clients.group_by()
    with pytest.raises(InvalidParameterError, match=says):
        groups.ranges(asked.pop("column"), **asked)
    assert not clients.account.releases()


def test_a_column_of_text_and_a_group_that_is_not_there_are_refused():
    groups = q.group_by(private_table(DATA), "region", keys=KEYS)
    with pytest.raises(ColumnTypeError):
        groups.ranges("region", bounds=BOUNDS, epsilon=1)
    found = groups.ranges("amount", bounds=BOUNDS, bins=4, epsilon=1)
    with pytest.raises(InvalidParameterError, match="no group 'z'"):
        found["z"]
    with pytest.raises(InvalidParameterError, match="above"):
        found["a"].between(2, 1)
