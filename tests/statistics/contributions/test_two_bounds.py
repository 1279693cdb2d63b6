# SPDX-License-Identifier: Apache-2.0
"""Two bounds of one unit keep every row with the same probability, whatever its value and its group are."""

import numpy as np
import pandas as pd
import pytest

from sfumato import queries as q
from sfumato.statistics.contributions.owned_rows import Within
from sfumato.statistics.contributions.unit_draws import DRAWS, draw_of, redrawn
from sfumato.statistics.groups.grouped_rows import groups_of
from sfumato.statistics.sources.tables import private_table

UNITS, KEYS, ROWS = 2000, list("abcd"), 4
SPREAD = 8.0  # standard deviations: the draws are fixed, and this is how far off a statistic may be


def crowd(named: bool, *, ordered: bool = False, tied: bool = False) -> pd.DataFrame:
    """Return units with four rows in each of four groups; values are uniform, or rise, or are tied."""
    units = np.repeat(np.arange(UNITS), len(KEYS) * ROWS)
    values = np.random.default_rng(0).uniform(0, 100, len(units))
    if ordered:
        values = np.tile(np.arange(len(KEYS) * ROWS) * 6.0 + 5, UNITS)
    if tied:
        values = np.round(values / 50) * 50
    who = [f"u{unit}" for unit in units] if named else units
    return pd.DataFrame({"who": who, "key": np.tile(np.repeat(KEYS, ROWS), UNITS), "x": values})


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (2, 2), (1, 4), (4, 1)])
def test_means_and_medians_of_all_groups_are_those_of_the_values(named, rows, groups):
    table = private_table(crowd(named), privacy_unit="who", contribution_bound=16)
    grouped = q.group_by(table, "key", keys=KEYS, rows_per_group=rows, groups_per_unit=groups)
    asked = grouped.agg(
        n=q.count(), m=q.mean("x", bounds=(0, 100)), mid=q.median("x", bounds=(0, 100)), epsilon=1e5
    )
    values = asked.release().values
    kept = UNITS * groups / len(KEYS)
    assert np.allclose(values["n"], kept * rows, atol=5 * rows * np.sqrt(kept))
    assert np.allclose(values["m"], 50, atol=5)  # they were 20, 42, 59 and 80 with one draw for both bounds
    assert np.allclose(values["mid"], 50, atol=8)


@pytest.mark.parametrize("kind", [{}, {"ordered": True}, {"tied": True}])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("bounds", [None, (1, 1), (2, 2), (3, 2), (1, 3)])
def test_every_row_is_kept_with_the_same_probability(kind, named, bounds):
    """By a chi-square statistic over the 16 places of rows, in the order of groups and values."""
    frame = crowd(named, **kind)
    frame["spot"] = frame.sort_values(["who", "key", "x"], kind="stable").groupby("who").cumcount()
    table = private_table(frame, privacy_unit="who", contribution_bound=3 if bounds is None else 6)
    within = None
    if bounds is not None:
        within = Within(keys=("key0",), rows=bounds[0], groups=bounds[1])
    names = {"key0": table.owned.expression["key"], "x": table.owned.expression["x"]}
    kept = table.owned.kept(names, beside={"spot": table.owned.expression["spot"]}, within=within)
    found = table.owned.table(kept).to_pandas()
    share = (3 if bounds is None else bounds[0] * bounds[1]) / 16
    assert len(found) == round(UNITS * 16 * share)
    counts = np.bincount(found["spot"].astype(int), minlength=16)
    expected, spread = UNITS * share, UNITS * share * (1 - share)
    moved = ((counts - expected) ** 2 / spread).sum()
    assert moved < 16 + SPREAD * np.sqrt(2 * 16), counts


def test_the_draws_of_both_bounds_are_independent():
    for draws in (
        np.array([draw_of(f"u{i}") for i in range(40000)]),
        np.array([*map(draw_of, range(40000))]),
    ):
        for place in (0, 1, 5):
            again = redrawn(draws, place)
            assert again.min() >= 0 and again.max() < DRAWS
            table = np.zeros((8, 8))
            np.add.at(table, (draws * 8 >> 30, again * 8 >> 30), 1)
            expected = len(draws) / 64
            assert ((table - expected) ** 2 / expected).sum() < 63 + SPREAD * np.sqrt(2 * 63)


def test_sources_keep_the_same_rows(tmp_path):
    frame = crowd(True)
    frame.to_parquet(tmp_path / "rows.parquet")
    frame.sample(frac=1, random_state=1).to_parquet(tmp_path / "shuffled.parquet")
    within = Within(keys=("key0",), rows=2, groups=2)
    found = []
    for source in (frame, tmp_path / "rows.parquet", tmp_path / "shuffled.parquet"):
        owned = private_table(source, privacy_unit="who", contribution_bound=4).owned
        groups = groups_of(owned, ["key"], KEYS)
        names = {"key0": owned.expression["key"], "x": owned.expression["x"]}
        kept = owned.table(owned.kept(names, only=groups.wanted, within=within)).to_pandas()
        found.append(kept.sort_values(["unit", "key0", "x"]).reset_index(drop=True))
    assert found[0].equals(found[1]) and found[0].equals(found[2]) and len(found[0]) == UNITS * 4
