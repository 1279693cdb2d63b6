# SPDX-License-Identifier: Apache-2.0
import datetime
import math
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sfumato.errors import InvalidParameterError
from sfumato.statistics.columns.categories import categories_of
from sfumato.statistics.columns.columns import column_of

SECRET = "Ada Lovelace"


@pytest.mark.parametrize(
    "values",
    [
        ["tea", None, "tea", "milk"],
        np.array(["tea", None, "tea", "milk"], dtype=object),
        pd.Series(["tea", None, "tea", "milk"]),
        pd.Series(["tea", None, "tea", "milk"], dtype="category"),
        pl.Series(["tea", None, "tea", "milk"]),
    ],
    ids=lambda v: type(v).__module__ + type(v).__name__ + str(getattr(v, "dtype", "")),
)
def test_categories_are_counted_and_missing_ones_left_out(values):
    column = categories_of(values)
    assert column.tally(["milk", "tea", "water"]).tolist() == [1, 2, 0]
    assert dict(column.tallies()) == {"tea": 2, "milk": 1}


def test_numbers_and_dates_are_categories_too():
    assert categories_of([1, 2, 2, math.nan]).tally([2, 3]).tolist() == [2, 0]
    day = datetime.date(2020, 1, 1)
    assert categories_of([day, day]).tally([day]).tolist() == [2]


def test_at_most_the_bound_of_each_owner_is_kept():
    column = categories_of(["a", None, "b", "a"], owners=[1, 1, 1, 2], contribution_bound=1)
    assert dict(column.tallies()) in ({"a": 2}, {"a": 1, "b": 1})
    assert (column.privacy_unit, column.contribution_bound) == ("owner", 1)


DAY, NOON = datetime.date(2024, 5, 1), datetime.datetime(2024, 5, 1, 12)
MIXED = [3, "b", 2.5, b"x", DAY, NOON, datetime.time(9), Decimal("1.5"), 1 + 2j, True]


def test_categories_of_any_mixture_are_bounded_whatever_else_is_there():
    rows = MIXED * 20
    owners = [place // 40 for place in range(len(rows))]
    before = categories_of(rows, owners=owners, contribution_bound=3)
    assert sum(before.tallies().values()) == 15
    others = [NOON.replace(tzinfo=datetime.UTC), Decimal("9"), object(), frozenset([1])]
    after = categories_of([*others, *rows], owners=[99] * 4 + owners, contribution_bound=3).tallies()
    assert all(after[category] - count in (0, 1) for category, count in before.tallies().items())
    assert sum(after.values()) == 18


def test_a_category_that_most_rows_of_an_owner_have_counts_most():
    rows = (["common"] * 9 + ["rare"]) * 2000
    counted = categories_of(rows, owners=[place // 10 for place in range(len(rows))]).tallies()
    assert counted["rare"] == pytest.approx(200, abs=5 * np.sqrt(2000 * 0.09))


def test_a_series_gives_its_name():
    assert categories_of(pd.Series(["a"], name="drink")).name == "drink"


def test_a_column_passes_as_it_is():
    column = categories_of(["a"])
    assert categories_of(column) is column


def unhashable():
    values = np.empty(2, dtype=object)
    values[:] = [{SECRET: 1}, {SECRET: 2}]
    return values


@pytest.mark.parametrize("values", [[["a", "b"]], np.array([["a", "b"]]), "a", None, 3], ids=repr)
def test_what_is_no_column_is_refused(values):
    with pytest.raises(InvalidParameterError, match=r"one column|must be categories"):
        categories_of(values)


def test_one_row_does_not_decide_what_another_one_is():
    # numpy reads NaN beside text as the text "nan", unless None is among them.
    assert dict(categories_of([math.nan, "a"]).tallies()) == {"a": 1}
    assert dict(categories_of([math.nan, "a", None]).tallies()) == {"a": 1}
    assert dict(categories_of([1, "1"]).tallies()) == {1: 1, "1": 1}
    kept = categories_of(["x", "y", "z"], owners=["1", 1, (2,)])
    assert len(kept.tallies()) == 3
    assert len(categories_of(["x", "y"], owners=["1", 1]).tallies()) == 2


def test_what_is_no_category_is_refused_unseen():
    with pytest.raises(InvalidParameterError) as refused:
        categories_of(unhashable())
    assert SECRET not in str(refused.value)
    assert refused.value.__context__ is None


@pytest.mark.parametrize(
    ("one", "others"),
    [
        (True, 1),
        (1, True),
        (1.0, 1),
        (-0.0, 0.0),
        (np.float64(-0.0), 0.0),
        ((True,), (1,)),
        ((-0.0,), (0.0,)),
        (Decimal("1.0"), Decimal("1.00")),
        (
            datetime.datetime(2020, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
            datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
        ),
    ],
    ids=repr,
)
def test_one_row_does_not_decide_how_the_category_of_others_is_written(one, others):
    alone = categories_of([others] * 500).tallies()
    for values in ([one] + [others] * 500, [others] * 500 + [one]):
        found = categories_of(values).tallies()
        written = {repr(category): found[category] for category in found}
        assert written[repr(next(iter(alone)))] in (500, 501)
        assert sum(written.values()) == 501 and len(found) == len(written)


def test_a_category_that_is_asked_about_gets_all_that_are_equal_to_it():
    assert categories_of([True, 1, 1.0, np.int64(1), 2]).tally([1, 2]).tolist() == [4, 1]
    assert categories_of([-0.0, 0.0]).tally([-0.0]).tolist() == [2]


def test_scalars_of_numpy_are_those_of_python():
    found = categories_of([np.int64(1), 1, np.str_("a"), "a", np.True_]).tallies()
    assert [(type(category), found[category]) for category in found] == [(int, 2), (str, 2), (bool, 1)]


def test_what_a_value_says_when_it_cannot_be_written_is_not_passed_on():
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError(SECRET)

    with pytest.raises(InvalidParameterError) as refused:
        categories_of([Silent()])
    assert SECRET not in str(refused.value)
    assert refused.value.__context__ is None


@pytest.mark.parametrize("values", [np.array([b"a", b"b", b"a"]), [b"a", b"b", b"a"]])
def test_bytes_are_categories_and_no_text(values):
    assert categories_of(values).tally([b"a", b"b"]).tolist() == [2, 1]
    categories_of(values).require_fitting([b"a"])
    with pytest.raises(InvalidParameterError):
        column_of(values)


def test_categories_of_pandas_have_the_type_of_what_they_are():
    numbers = categories_of(pd.Series([1, 2, 1], dtype="category"))
    numbers.require_fitting([1, 2])
    assert numbers.tally([1, 2]).tolist() == [2, 1]
    texts = categories_of(pd.Series(["x", "y"], dtype="category"))
    texts.require_fitting(["x"])
    for column, wrong in ((numbers, "x"), (texts, 1)):
        with pytest.raises(InvalidParameterError):
            column.require_fitting([wrong])


@pytest.mark.parametrize(
    "pair",
    [
        (Decimal("1.0"), Decimal("1.00")),
        (
            datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")),
        ),
    ],
)
def test_other_categories_do_not_change_which_of_two_equal_ones_comes_first(pair):
    units, values = np.repeat(np.arange(50), 2).tolist(), [*pair] * 50

    def found(others):
        tallies = categories_of(
            values + others, owners=units + [f"other {i}" for i in range(len(others))]
        ).tallies()
        return [tallies[each] for each in pair]

    alone = found([])
    assert sum(alone) == 50
    assert all(found([Decimal(i) / 7 for i in range(1, n)]) == alone for n in range(2, 60))
