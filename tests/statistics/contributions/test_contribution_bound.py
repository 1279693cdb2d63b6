# SPDX-License-Identifier: Apache-2.0
"""Which rows of a unit count: as many as may, each with the same chance, in arrays as in tables."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import column_of, rows_of
from sfumato.statistics.contributions.contribution_bound import _packed_order, _places, is_kept, kept
from sfumato.statistics.contributions.unit_draws import DRAWS, draw_of, whole_draw
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

SIGMAS = 5.0  # a normal error is larger with probability 6e-7


def counting(rows: int, draw: int, bound: int) -> np.ndarray:
    return is_kept(np.arange(rows), rows=np.full(rows, rows), draw=np.full(rows, draw), bound=bound)


# --- the rule ---------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(0, DRAWS - 1), st.integers(1, 400))
def test_as_many_rows_count_as_there_are_and_may(rows, draw, bound):
    assert counting(rows, draw, bound).sum() == min(rows, bound)


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 35])
@pytest.mark.parametrize("bound", [1, 2, 3, 7, 12, 34])
def test_each_row_counts_for_the_same_number_of_starts(rows, bound):
    starts = [-(-DRAWS * start // rows) for start in range(rows)]  # the least draw of each start
    counted = np.sum([counting(rows, draw, bound) for draw in starts], axis=0)
    assert counted.tolist() == [min(rows, bound)] * rows


@given(st.integers(2, 300), st.integers(0, DRAWS - 1), st.data())
def test_the_places_of_arrays_are_those_of_the_rule(rows, draw, data):
    bound = data.draw(st.integers(1, rows - 1))
    start = np.array([draw * rows // DRAWS + 1])
    places = _places(np.array([rows]), start=start, bound=bound)
    assert places[0].tolist() == np.flatnonzero(counting(rows, draw, bound)).tolist()


@given(
    st.lists(
        st.sampled_from([-1.5, 0.0, 1.0, 1 + 2**-52, 1 + 2**-40, 5e-324, 1e300, -1e300, 2.0]), max_size=40
    )
)
def test_values_that_differ_in_their_last_bits_are_in_order(values):
    found, units = np.array(values, dtype=float), np.arange(len(values)) // 7
    for bits in (1, 12, 40):
        order = _packed_order(found, units, bits)
        assert order.tolist() == sorted(order, key=lambda i: (units[i], found[i]))
        assert sorted(order) == list(range(len(values)))


def test_the_shortcut_for_one_row_is_the_rule():
    place, rows, draw = np.arange(9), np.full(9, 9), np.arange(9) * DRAWS // 9
    for start in draw:
        by_rule = (place + (start * rows >> 30) + 1) % rows < 1
        assert is_kept(place, rows=rows, draw=np.full(9, start), bound=1).tolist() == by_rule.tolist()


@pytest.mark.parametrize("bound", [1, 10, DRAWS, 10**30])
def test_nothing_overflows_for_units_of_billions_of_rows(bound):
    rows = np.array([2**33 - 1])
    with np.errstate(all="raise"):
        last = is_kept(rows - 1, rows=rows, draw=np.array([DRAWS - 1]), bound=bound)
    assert last.tolist() == [((2**33 - 2) * min(bound, DRAWS) + 2**33 - 8) % (2**33 - 1) < min(bound, DRAWS)]


def slow(rows: list[tuple[int, float]], bound: int) -> Counter:
    """The same by the words of the rule: unit by unit, in the order of the values."""
    found = Counter()
    for unit in {unit for unit, _ in rows}:
        values = sorted(value for owner, value in rows if owner == unit)
        most = min(bound, len(values))
        start = draw_of(unit) * len(values) // DRAWS + 1
        found.update(
            (unit, value) for r, value in enumerate(values) if (r * most + start) % len(values) < most
        )
    return found


owned_rows = st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 2).map(float)), max_size=40)


@given(owned_rows, st.integers(1, 5), st.randoms(use_true_random=False))
def test_arrays_follow_the_rule_in_whatever_order_their_rows_are(rows, bound, order):
    expected = slow(rows, bound)
    order.shuffle(rows)
    units = np.array([unit for unit, _ in rows], dtype=np.int64)
    values = np.array([value for _, value in rows])
    mask = kept(values[:, None], units, draws=whole_draw, bound=bound)
    assert Counter(zip(units[mask].tolist(), values[mask].tolist(), strict=True)) == expected


@given(owned_rows, st.integers(1, 3), st.integers(0, 5))
def test_without_a_unit_the_rows_of_all_others_stay(rows, bound, gone):
    def found(some):
        return column_of([v for _, v in some], owners=[u for u, _ in some], contribution_bound=bound)

    others = [row for row in rows if row[0] != gone]
    here, there = (Counter(found(some).ordered((-9, 9)).tolist()) for some in (rows, others))
    mine = slow([row for row in rows if row[0] == gone], bound)
    assert here - there == Counter(value for _, value in mine.elements())


# --- arrays and tables ------------------------------------------------------------------------------------


def visits(rows: int = 3000, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    number = draw.integers(-200, 300, rows) * draw.choice([1, 10**13], rows)
    return pd.DataFrame(
        {
            "number": number,
            "text": [f"patient {n}" for n in number],
            "digits": [str(n) for n in number],
            "half": number / 2,
            "flag": (draw.random(rows) < 0.01).astype(float),
            "cost": np.round(draw.lognormal(2, 1, rows), 1),
            "ward": draw.choice(["heart", "Bone", "é", "eye"], rows),
        }
    )


@pytest.mark.parametrize("bound", [1, 4])
@pytest.mark.parametrize("unit", ["number", "text", "digits", "half"])
@pytest.mark.parametrize("source", ["pandas", "parquet", "csv"])
def test_arrays_and_tables_keep_the_same_rows(source, unit, bound, tmp_path):
    frame = visits()
    if source == "parquet":
        frame.to_parquet(tmp_path / "v.parquet")
    elif source == "csv":
        frame.to_csv(tmp_path / "v.csv", index=False)
    opened = frame if source == "pandas" else tmp_path / f"v.{source}"
    types = {"flag": "number", "cost": "number"} if source == "csv" else None
    table = private_table(opened, privacy_unit=unit, contribution_bound=bound, types=types)
    units = {"owners": frame[unit], "contribution_bound": bound}
    for name in ("flag", "cost"):
        here = column_of(frame[name].to_numpy(), **units)
        assert table[name].moments((0, 50)) == here.moments((0, 50))
        assert table[name].ordered((0, 50)).tolist() == here.ordered((0, 50)).tolist()
    both = next(rows_of(frame[["flag", "cost"]].to_numpy(), **units).batches())
    there = np.concatenate(list(table.rows("flag", "cost").batches()))
    assert sorted(map(tuple, there.tolist())) == sorted(map(tuple, both.tolist()))
    wards = categories_of(frame["ward"], **units)
    assert dict(table.categories("ward").tallies()) == dict(wards.tallies())


def test_a_number_that_is_missing_or_of_another_kind_changes_no_rows_of_others():
    frame = visits()
    before = private_table(frame, privacy_unit="number", contribution_bound=2)["cost"].ordered((0, 1e9))
    for other in (None, 7.5, 2**70, "x"):
        extra = pd.DataFrame({"number": [other], "cost": [1e9]})
        table = private_table(pd.concat([frame, extra]), privacy_unit="number", contribution_bound=2)
        after = table["cost"].ordered((0, 1e9)).tolist()
        assert after[: len(before)] == before.tolist() and len(after) == len(before) + (other is not None)


@pytest.mark.parametrize(
    "kind", ["int64", "uint64", "float64", "Int64", "int64[pyarrow]", "object", "category", "str", "string"]
)
def test_units_are_read_alike_in_all_types_of_pandas(kind):
    frame = visits()
    frame["number"] = frame["number"].abs()
    expected = private_table(frame, privacy_unit="number", contribution_bound=2)["cost"].ordered((0, 1e9))
    typed = frame.assign(number=frame["number"].astype(kind), again=frame["number"].astype(kind))
    extra = pd.DataFrame({"number": [None], "cost": [7.0]}).astype(
        {"number": typed["again"].dtype}, errors="ignore"
    )
    for source in (typed, pd.concat([typed, extra], ignore_index=True)):
        found = private_table(source, privacy_unit="number", contribution_bound=2)["cost"].ordered((0, 1e9))
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "days", ["datetime64[ns]", "datetime64[s]", "datetime64[ns, UTC]", "bool", "timedelta64[ns]"]
)
def test_a_missing_unit_of_another_type_changes_no_rows_of_others(days):
    frame = visits().assign(number=lambda f: (f["number"].abs() % 97).astype(days))
    expected = private_table(frame, privacy_unit="number", contribution_bound=2)["cost"].ordered((0, 1e9))
    extra = pd.DataFrame({"number": pd.Series([None], dtype=object), "cost": [7.0]})
    both = pd.concat([frame.astype({"number": object}), extra], ignore_index=True)
    found = private_table(both, privacy_unit="number", contribution_bound=2)["cost"].ordered((0, 1e9))
    assert found.tolist() == expected.tolist()


def test_owners_are_read_alike_as_an_array_a_list_and_floats():
    frame = visits()
    for given_owners in (frame["number"], frame["number"].tolist(), frame["number"].astype(float).to_numpy()):
        column = column_of(frame["cost"].to_numpy(), owners=given_owners, contribution_bound=2)
        expected = column_of(
            frame["cost"].to_numpy(), owners=frame["number"].to_numpy(), contribution_bound=2
        )
        assert column.ordered((0, 99)).tolist() == expected.ordered((0, 99)).tolist()


def test_far_apart_numbers_of_owners_take_no_memory():
    column = column_of([1.0, 2.0, 3.0], owners=np.array([-(2**63), 2**63 - 1, 2**63 - 1]))
    assert column.moments((0, 9)).count == 2


def test_zero_has_no_sign_whichever_row_counts():
    owners, values = [1] * 40, [0.0, -0.0] * 20
    column = column_of(values, owners=owners, contribution_bound=20)
    assert not np.signbit(column.ordered((-1, 1))).any()
    frame = pd.DataFrame({"u": owners, "x": values, "y": values})
    table = private_table(frame, privacy_unit="u", contribution_bound=20)
    assert not np.signbit(table["x"].ordered((-1, 1))).any()
    assert not np.signbit(np.concatenate(list(table.rows("x", "y").batches()))).any()
    assert not np.signbit(table.rows("x", "y").read()[0]).any()


# --- against uniform sampling -----------------------------------------------------------------------------


def skewed(seed: int = 0) -> dict[str, pd.DataFrame]:
    """Values of 1500 units, most of which have more rows than may count."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 80, 1500)
    units = np.repeat(np.arange(1500) * 17 + seed, sizes)
    rows = len(units)
    heavy = np.concatenate([units, np.full(20 * rows // 10, 10**6)])
    columns = {
        "a flag of 1%": (draw.random(rows) < 0.01).astype(float),
        "a flag of 90%": (draw.random(rows) < 0.9).astype(float),
        "one flag in each unit": np.concatenate([np.arange(size) == 0 for size in sizes]).astype(float),
        "heavy ties": draw.choice([0.0, 0.5, 1.0], rows, p=[0.9, 0.09, 0.01]),
        "skewed costs": np.clip(draw.lognormal(0, 1.5, rows) / 100, 0, 1),
        "rising with the unit": units / units.max(),
    }
    found = {name: pd.DataFrame({"unit": units, "x": values}) for name, values in columns.items()}
    ill = np.concatenate([(draw.random(rows) < 0.05), np.ones(len(heavy) - rows)]).astype(float)
    return {**found, "one heavy user": pd.DataFrame({"unit": heavy, "x": ill})}


def sampled(frame: pd.DataFrame, bound: int) -> tuple[float, float]:
    """The mean over `bound` rows drawn uniformly from each unit: its expectation and standard deviation."""
    units = frame.groupby("unit")["x"].agg(["mean", "count", lambda x: x.var(ddof=0)])
    size, spread = units["count"], units.iloc[:, 2]
    counted = np.minimum(size, bound)
    variance = counted * spread * (size - counted) / np.maximum(size - 1, 1)
    total = counted.sum()
    return float((counted * units["mean"]).sum() / total), float(np.sqrt(variance.sum()) / total)


COLUMNS = list(skewed())


@pytest.mark.parametrize("bound", [1, 3, 10])
@pytest.mark.parametrize("name", COLUMNS)
def test_the_mean_is_that_of_uniform_sampling(name, bound):
    frame = skewed()[name]
    expected, error = sampled(frame, bound)
    rows = column_of(frame["x"].to_numpy(), owners=frame["unit"].to_numpy(), contribution_bound=bound)
    assert rows.ordered((0, 1)).mean() == pytest.approx(expected, abs=SIGMAS * error + 1e-12)
    table = private_table(frame, privacy_unit="unit", contribution_bound=bound)
    assert table["x"].ordered((0, 1)).tolist() == rows.ordered((0, 1)).tolist()


@pytest.mark.parametrize(
    "bias",
    [
        lambda place, *, rows, draw, bound: place < bound,
        lambda place, *, rows, draw, bound: place >= rows - bound,
        lambda place, *, rows, draw, bound: (place * bound + 1) % rows < bound,
    ],
    ids=["the smallest", "the largest", "the same place in each unit"],
)
def test_a_biased_choice_is_noticed(bias, monkeypatch):
    monkeypatch.setattr("sfumato.statistics.contributions.owned_rows.is_kept", bias)
    frame = skewed()["skewed costs"]
    expected, error = sampled(frame, 3)
    rows = private_table(frame, privacy_unit="unit", contribution_bound=3)["x"]
    assert abs(rows.ordered((0, 1)).mean() - expected) > SIGMAS * error
