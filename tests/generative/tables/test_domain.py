# SPDX-License-Identifier: Apache-2.0
"""Codes depend on their own cell alone; no value raises, warns or changes another code."""

import math
import warnings
from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.domain import Category, Domain, Number, UnknownDomainError


class Hostile:
    """Raises whenever it is looked at."""

    def __hash__(self):
        raise RuntimeError("hash")

    def __eq__(self, other):
        raise RuntimeError("equal")

    def __float__(self):
        raise RuntimeError("float")

    def __str__(self):
        raise RuntimeError("text")


POISON = [
    None, math.nan, math.inf, -math.inf, 1e308, -1e308, 10**400, -(10**400), "", "word", "nan", "inf", "1_0",
    "x" * 10_000, b"bytes", 1 + 2j, np.complex128(1j), [], {}, (1, 2), np.array([1.0]), np.float32(np.nan),
    pd.NA, pd.NaT, date(2020, 1, 1), Decimal("sNaN"), Decimal("1e999"), Fraction(10**400, 1), Hostile(),
    object(), np.str_("a"), True, "\ud800",
]  # fmt: skip

DOMAIN = Domain(
    {
        "kind": Category(values=["a", "b", 3]),
        "sure": Category(values=["a", "b"], missing=False),
        "size": Number(lower=0, upper=10, bins=5),
        "age": Number(lower=0, upper=99, bins=10, whole=True, missing=False),
    }
)
ROWS = [("a", "a", 2.5, 30), ("b", "b", 9.9, 99), (3, "a", 0.0, 0)]


def table(rows):
    return {name: [row[place] for row in rows] for place, name in enumerate(DOMAIN.names)}


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("poison", POISON, ids=lambda value: type(value).__name__)
def test_a_poisoned_cell_changes_its_own_code_only(poison, column):
    clean = DOMAIN.encode(table(ROWS))
    row = [*ROWS[1]]
    row[column] = poison
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = DOMAIN.encode(table([ROWS[0], tuple(row), ROWS[2]]))
    changed = np.zeros(clean.shape, dtype=bool)
    changed[1, column] = True
    np.testing.assert_array_equal(found[~changed], clean[~changed])
    assert (found >= 0).all() and (found < DOMAIN.sizes).all()


@pytest.mark.parametrize("poison", [None, math.nan, "word", math.inf, pd.NA, 1e300, [1]], ids=repr)
def test_a_frame_whose_types_a_value_changes_has_the_same_other_codes(poison):
    clean = DOMAIN.encode(pd.DataFrame(table(ROWS * 3)))
    for name in DOMAIN.names:
        cells = table(ROWS * 3)
        cells[name][4] = poison  # pandas makes the column float or object
        found = DOMAIN.encode(pd.DataFrame(cells))
        np.testing.assert_array_equal(np.delete(found, 4, axis=0), np.delete(clean, 4, axis=0))


def test_a_file_with_one_word_in_a_column_of_numbers_has_the_same_other_codes():
    domain = Domain({"age": Number(lower=0, upper=99, bins=10, whole=True), "code": Category(values=[1, 2])})
    clean = domain.encode({"age": [5, 15, 95], "code": [1, 2, 1]})
    found = domain.encode({"age": ["5", "15", "old"], "code": ["1", "2.", "none"]})
    np.testing.assert_array_equal(found[0], clean[0])
    assert found[1, 0] == clean[1, 0] and found[2].tolist() == [10, 2]


def test_unknown_values_have_the_code_of_missing_ones_or_of_the_last_value():
    assert DOMAIN.columns["kind"].encode(["zebra", None, "3", 3.0]).tolist() == [3, 3, 2, 2]
    assert DOMAIN.columns["sure"].encode(["zebra", None]).tolist() == [1, 1]
    assert DOMAIN.columns["size"].encode([None, "word", math.nan]).tolist() == [5, 5, 5]
    assert DOMAIN.columns["age"].encode([None, "word"]).tolist() == [0, 0]


def test_long_texts_are_categories():
    declared = Category(values=["x" * 300, "y"])
    assert declared.encode([None, "", math.inf, "x" * 300, math.nan]).tolist() == [2, 2, 2, 0, 2]


@pytest.mark.parametrize(
    "values", [["1", "1.0"], ["1", "01"], ["1", True], ["TRUE", True], ["0.1", 0.1], [2, "2"]]
)
def test_categories_that_no_column_could_tell_apart_are_refused(values):
    with pytest.raises(InvalidParameterError, match="are the same value"):
        Category(values=values)


@pytest.mark.parametrize(
    "value", ["", " ", "NA", "NULL", "nan", math.inf, "inf", "1e400", 2**53, "1234567890123456789", 1e15]
)
def test_categories_that_count_as_missing_are_refused(value):
    with pytest.raises(InvalidParameterError, match="cannot be a category"):
        Category(values=[value, "z"])


def test_numbers_beyond_the_bounds_count_in_the_outermost_bins():
    assert DOMAIN.columns["size"].encode([-1e9, -math.inf, 1e9, math.inf, 10.0, 10**400]).tolist() == [
        0, 0, 4, 4, 4, 4,
    ]  # fmt: skip


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 40), st.integers(0, 2**32))
def test_whole_numbers_come_back_in_their_bin_and_whole(lower, width, bins, seed):
    declared = Number(lower=lower, upper=lower + width + 1, bins=bins, whole=True, missing=False)
    values = np.arange(lower, lower + width + 2)
    codes = declared.encode(values)
    assert set(codes) == set(range(declared.size))  # no bin is empty
    back = declared.decode(codes, np.random.default_rng(seed))
    assert back.dtype == np.int64
    np.testing.assert_array_equal(declared.encode(back), codes)


@given(st.lists(st.floats(0, 10), min_size=1), st.integers(0, 2**32))
def test_decoded_numbers_have_the_code_they_came_from(values, seed):
    declared = DOMAIN.columns["size"]
    codes = declared.encode(values)
    back = declared.decode(codes, np.random.default_rng(seed))
    np.testing.assert_array_equal(declared.encode(back), codes)


def test_missing_codes_are_decoded_as_none_and_nan():
    frame = DOMAIN.decode(np.array([[3, 0, 5, 2], [2, 1, 0, 0]]), seed=0)
    assert frame["kind"].tolist() == [None, 3] and math.isnan(frame["size"][0])
    assert frame["sure"].tolist() == ["a", "b"] and frame["age"].dtype == np.int64


def test_decoding_is_uniform_inside_a_bin():
    drawn = Number(lower=0, upper=1, bins=1, missing=False).decode(
        np.zeros(4000, dtype=np.int64), np.random.default_rng(0)
    )
    assert abs(drawn.mean() - 0.5) < 0.03 and drawn.max() > 0.99 and drawn.min() < 0.01


def test_explicit_edges_are_used():
    declared = Number(lower=0, upper=100, bins=(0, 1, 10, 100), whole=True, missing=False)
    assert declared.encode([0, 1, 9, 10, 100, 101]).tolist() == [0, 1, 1, 2, 2, 2]
    assert declared.decode(np.array([2] * 2000), np.random.default_rng(0)).max() == 100


def test_a_column_that_is_not_declared_names_both_ways_out():
    with pytest.raises(UnknownDomainError, match=r"'city'.*Category.*Number.*UnknownCategory.*UnknownNumber"):
        DOMAIN.encode({**table(ROWS), "city": [1, 2, 3]})
    with pytest.raises(UnknownDomainError, match="'city'"):
        Domain({"city": None})


def test_wrong_tables_are_refused_by_name_and_shape():
    with pytest.raises(InvalidParameterError, match="no column 'age'"):
        DOMAIN.encode({name: cells for name, cells in table(ROWS).items() if name != "age"})
    with pytest.raises(InvalidParameterError, match="same number of rows"):
        DOMAIN.encode({**table(ROWS), "age": [1]})
    with pytest.raises(InvalidParameterError, match="DataFrame"):
        DOMAIN.encode([1, 2])
    with pytest.raises(InvalidParameterError, match="one dimension"):
        DOMAIN.encode({**table(ROWS), "age": np.zeros((3, 2))})
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(InvalidParameterError, match="same name"):
        Domain({"a": Number(lower=0, upper=1)}).encode(twice)


def test_wrong_codes_are_refused():
    for codes in (np.array([[9, 0, 0, 0]]), np.array([[0, 0]]), np.array([[0.5, 0, 0, 0]])):
        with pytest.raises(InvalidParameterError, match="codes"):
            DOMAIN.decode(codes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Category(values=["a", "a"]),
        lambda: Category(values=[None]),
        lambda: Category(values=[math.nan]),
        lambda: Category(values=[], missing=False),
        lambda: Category(values="ab"),
        lambda: Number(lower=1, upper=1),
        lambda: Number(lower=0, upper=math.inf),
        lambda: Number(lower=0.5, upper=2, whole=True),
        lambda: Number(lower=0, upper=2, bins=0),
        lambda: Number(lower=0, upper=2, bins=(0, 3)),
        lambda: Number(lower=0, upper=2, bins=(0, 1.5, 2), whole=True),
        lambda: Domain({}),
    ],
)
def test_wrong_declarations_are_refused(make):
    with pytest.raises(InvalidParameterError):
        make()


def test_a_domain_comes_back_from_plain_values():
    assert Domain.from_dict(DOMAIN.to_dict()) == DOMAIN


def test_whole_numbers_are_whole_in_a_table_also_where_one_is_missing():
    field = Number(lower=0, upper=9, bins=2, whole=True)
    made = Domain({"a": field, "b": replace(field, missing=False)}).decode(np.array([[0, 0], [2, 1]]), seed=0)
    assert made.dtypes.astype(str).tolist() == ["Int64", "int64"] and made["a"].isna().tolist() == [
        False,
        True,
    ]


def test_the_last_bin_may_be_one_whole_number():
    field = Number(lower=0, upper=5, bins=(0, 3, 5, 5), whole=True, missing=False)
    assert field.edges == (0, 3, 5, 6)
    assert field.encode([0, 2, 3, 4, 5, 9]).tolist() == [0, 0, 1, 1, 2, 2]
    assert field.decode(np.array([2]), np.random.default_rng(0)).tolist() == [5]
    with pytest.raises(InvalidParameterError):
        Number(lower=0.0, upper=5.0, bins=(0, 3, 5, 5))
