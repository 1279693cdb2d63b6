# SPDX-License-Identifier: Apache-2.0
"""A mistake in a filter or a new column is told in our words, and costs nothing."""

import datetime

import ibis
import pandas as pd
import pytest

import sfumato as sf
from sfumato.errors import InvalidParameterError
from sfumato.statistics.sources.tables import private_table

pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")

ROWS = pd.DataFrame({"age": [30.0, 40.0], "sex": ["f", "m"], "ill": [True, False]})
OTHER = ibis.table({"age": "float64"}, name="other")

FILTERS = {
    "a column that is not there": (lambda row: row.height > 1, "no column 'height'"),
    "a name that is not there": (lambda row: row["height"] > 1, "no column 'height'"),
    "a deferred column that is not there": (ibis._.height > 1, "no column 'height'"),
    "a deferred name that is not there": (ibis._["height"] > 1, "no column 'height'"),
    "True": (True, "Python bool"),
    "a function to False": (lambda row: False, "Python bool"),
    "a text": ("age > 30", "Python str"),
    "the name of a column": ("ill", "Python str"),
    "a number": (1, "Python int"),
    "nothing": (None, "Python NoneType"),
    "the whole row": (lambda row: row, "Python Table"),
    "an expression of numbers": (lambda row: row.age, "returns float64, not true or false"),
    "a number as an expression": (ibis.literal(1), "returns int8, not true or false"),
    "text compared with a number": (lambda row: row.sex > 3, "text with a number"),
    "deferred text compared with a number": (ibis._.sex > 3, "text with a number"),
    "a date compared with a number": (lambda row: row.age > datetime.date(2020, 1, 1), "incompatible types"),
    "a number that is negated as text is not": (lambda row: -row.sex == "f", "text with a number"),
    "a function of another type": (lambda row: row.sex.abs() > 1, "of this type has no 'abs'"),
    "and": (lambda row: row.age > 1 and row.age < 9, r"\(a\) & \(b\)"),
    "in": (lambda row: row.age in [1.0, 2.0], "isin"),
    "a function that fails": (lambda row: 1 / 0, "raises ZeroDivisionError"),
    "a function of nothing": (lambda: True, "raises TypeError with the row"),
    "a class": (int, "raises TypeError with the row"),
    "another table": (OTHER.age > 3, "expression of another table"),
    "more than one row": (lambda row: row.age > row.age.mean(), "reads more than one row"),
}


def checked(error: pytest.ExceptionInfo) -> None:
    """Nothing of Ibis is left in an error, nor carried along with it."""
    assert error.value.__cause__ is None and error.value.__context__ is None
    assert "ibis." not in str(error.value).replace("ibis.cases", "")


@pytest.mark.parametrize("name", FILTERS)
def test_a_mistake_in_a_filter_is_told_and_costs_nothing(name):
    predicate, told = FILTERS[name]
    clients = sf.open("clients", ROWS, budget=sf.Budget(epsilon=1, delta=1e-6))
    for data in (private_table(ROWS), clients):
        with pytest.raises(InvalidParameterError, match=told) as error:
            data.filter(predicate)
        checked(error)
    assert clients.spent().epsilon == 0


def test_a_filter_says_which_columns_there_are_and_shows_a_right_one():
    with pytest.raises(InvalidParameterError) as error:
        private_table(ROWS).filter(lambda row: row.height > 1)
    assert str(error.value).endswith(
        "such as table.filter(lambda row: row.age >= 18). The columns are: age (float64), sex (string), "
        "ill (boolean)."
    )
    with pytest.raises(InvalidParameterError, match="it has no test"):
        private_table(ROWS).filter()


def test_several_tests_can_be_a_list():
    table = private_table(ROWS).filter([ibis._.age > 30, lambda row: row.sex == "m"])
    assert table.count(epsilon=1e3).release().value == 1


COLUMNS = {
    "a column that is not there": (lambda row: row.height, "no column 'height'"),
    "the name of a column": ("age", "Python str"),
    "nothing": (None, "Python NoneType"),
    "a list": ([1, 2], "Python list"),
    "the whole row": (lambda row: row, "Python Table"),
    "text and a number": (lambda row: row.sex + row.age, "text with a number"),
    "another table": (OTHER.age, "expression of another table"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_mistake_in_a_new_column_is_told(name):
    value, told = COLUMNS[name]
    with pytest.raises(InvalidParameterError, match=told) as error:
        private_table(ROWS).mutate(new=value)
    checked(error)


def test_a_new_column_may_be_a_number():
    table = private_table(ROWS).mutate(one=1, half=lambda row: row.age / 2)
    assert table["one"].moments((0, 2)).count == 2
    assert table["half"].ordered((0, 99)).tolist() == [15.0, 20.0]


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t["height"],
        lambda t: t[["age"]],
        lambda t: t.categories("height"),
        lambda t: t.rows("age", "height"),
        lambda t: t.rows(["age"]),
        lambda t: t.keys("height", epsilon=1, delta=1e-3),
        lambda t: t.keys(["sex"], epsilon=1, delta=1e-3),
        lambda t: t.group_by("height", keys=["f"]),
        lambda t: t.group_by(["sex"], keys=["f"]),
        lambda t: t.group_by("sex", keys="f"),
        lambda t: t.group_by("sex", keys=1),
        lambda t: t.group_by("sex", keys=[["f"]]),
        lambda t: t.group_by("sex", keys=["f"]).mean("height", bounds=(0, 1), epsilon=1),
        lambda t: t.group_by("sex", keys=["f"]).sum("sex", bounds=(0, 1), epsilon=1),
    ],
)
def test_columns_and_keys_that_cannot_be_are_refused(ask):
    with pytest.raises(InvalidParameterError) as error:
        ask(private_table(ROWS))
    checked(error)
