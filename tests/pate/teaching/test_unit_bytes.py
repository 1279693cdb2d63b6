# SPDX-License-Identifier: Apache-2.0
import datetime
import decimal
import uuid

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.pate.teaching.unit_bytes import MISSING, unit_bytes, unit_values

MOMENT = pd.Timestamp("2020-01-02 03:04:05.123456")


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_of_numpy_and_python_agree(value):
    assert unit_bytes(np.int64(value)) == unit_bytes(value)


@given(st.floats(width=32))
def test_fractions_of_numpy_and_python_agree(value):
    assert unit_bytes(np.float32(value)) == unit_bytes(value) == unit_bytes(np.float64(value))


@given(st.lists(st.one_of(st.integers(), st.text(), st.binary(), st.booleans()), min_size=2, max_size=2))
def test_different_values_have_different_bytes(pair):
    first, second = pair
    same = type(first) is type(second) and first == second
    assert (unit_bytes(first) == unit_bytes(second)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        ("ann", np.str_("ann")),
        (b"ann", np.bytes_(b"ann")),
        (True, np.True_),
        (MOMENT, MOMENT.to_pydatetime()),
        (MOMENT, np.datetime64(MOMENT.to_pydatetime())),
        (MOMENT.tz_localize("Europe/Paris"), MOMENT.tz_localize("Europe/Paris").tz_convert("UTC")),
        (datetime.date(2020, 1, 2), np.datetime64("2020-01-02T00:00:00.000000000")),
        (decimal.Decimal("1.50"), decimal.Decimal("1.5")),
        (("a", 1), ("a", np.int8(1))),
        (uuid.UUID(int=5), uuid.UUID(int=5)),
    ],
)
def test_equal_values_are_one_unit(one, other):
    assert unit_bytes(one) == unit_bytes(other) != MISSING


def test_a_missing_value_moves_no_other_unit():
    whole, missing = pd.Series([7, 2**53, -3]), pd.Series([7, 2**53, -3, None])
    assert missing.dtype == np.float64
    found = [unit_bytes(value) for value in unit_values(missing)]
    assert found[:3] == [unit_bytes(value) for value in unit_values(whole)] and found[3] == MISSING


def test_different_kinds_are_different_units():
    kinds = [
        1,
        1.5,
        "1",
        b"1",
        True,
        None,
        decimal.Decimal(1),
        ("1",),
        (1, "1"),
        MOMENT,
        MOMENT.tz_localize("UTC"),
    ]
    assert len({unit_bytes(value) for value in kinds}) == len(kinds)


@pytest.mark.parametrize(
    "value",
    [None, float("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), decimal.Decimal("NaN"), [1], {}, object()],
)
def test_what_identifies_nobody_is_one_unit(value):
    assert unit_bytes(value) == MISSING


def test_large_numbers_and_broken_text_have_bytes():
    assert unit_bytes(10**5000) != unit_bytes(10**5000 + 1)
    assert unit_bytes("\ud800") != unit_bytes("\ud801")


def test_containers_agree():
    wanted = [unit_bytes(value) for value in (3, 4)]
    for units in ([3, 4], np.array([3, 4]), torch.tensor([3, 4]), pd.Series([3, 4]), range(3, 5)):
        assert [unit_bytes(value) for value in unit_values(units)] == wanted
    moments = np.array(["2020-01-02", "NaT"], dtype="datetime64[ns]")
    assert [unit_bytes(v) for v in unit_values(moments)] == [unit_bytes(datetime.date(2020, 1, 2)), MISSING]


def test_two_axes_are_refused():
    with pytest.raises(InvalidParameterError):
        unit_values(np.zeros((2, 2)))
