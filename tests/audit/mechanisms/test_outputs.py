# SPDX-License-Identifier: Apache-2.0
"""Outputs keep everything that can tell two data sets apart."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.audit.mechanisms.outputs import commonest_kind, read
from sfumato.errors import InvalidParameterError


@dataclass(frozen=True)
class Pair:
    value: float | None
    word: str


DIFFERENT = [
    1.0,
    1.0 + 2**-52,
    -0.0,
    0.0,
    math.nan,
    math.inf,
    None,
    "1.0",
    "number",
    b"1",
    (1.0,),
    (1.0, None),
    (None, 1.0),
    (1.0, math.nan),
    ((1.0,), 1.0),
    (1.0, (1.0,)),
    np.array([1.0, 2.0]),
    np.array([[1.0, 2.0]]),
    np.array([1.0, math.nan]),
    np.array([math.nan, 1.0]),
    {"a": 1.0},
    {"b": 1.0},
    Pair(1.0, "yes"),
    Pair(None, "yes"),
    Pair(1.0, "no"),
    frozenset({1}),
]


def test_different_outputs_have_different_names():
    assert len(set(read(DIFFERENT).keys())) == len(DIFFERENT)


def test_equal_outputs_have_equal_names():
    assert read(DIFFERENT).keys() == read(DIFFERENT).keys()
    assert len(set(read([1, 1.0, True, np.float32(1), np.array(1.0), torch.tensor(1)]).keys())) == 1


@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_an_array_is_read_as_the_list_of_its_rows(values):
    rows = np.array(values)
    assert read(rows).keys() == read(values).keys()
    assert read(np.stack([rows, rows], axis=1)).keys() == read([np.array([v, v]) for v in values]).keys()


def test_the_numbers_of_one_kind_are_a_table():
    mask, rows = read([(1.0, None), (2.0, 3.0), None, (4.0, 5.0)]).of_kind(read([(0, 0)]).kinds[0])
    assert mask.tolist() == [False, True, False, True]
    assert rows.tolist() == [[2.0, 3.0], [4.0, 5.0]]


def test_the_commonest_kind_is_one_with_numbers_if_there_are_any():
    outputs = read([None, None, None, 1.0, 2.0, (1.0, 2.0)])
    assert commonest_kind(outputs) == outputs.kinds[3]
    assert commonest_kind(read(["yes", "no", "no"])) == "no"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8])
def test_tensors_of_every_type_are_read_with_their_gradients_or_without(dtype):
    plain = torch.tensor([1.0, 2.0]).to(dtype)
    assert read([plain]).keys() == read([np.array([1.0, 2.0])]).keys()
    if dtype.is_floating_point:
        leaf = plain.clone().requires_grad_()
        assert read([leaf, leaf * 1]).keys() == read([plain, plain]).keys()
    assert read([plain.to_sparse()]).keys() == read([plain]).keys()


@pytest.mark.parametrize("huge", [10**400, -(10**400), Fraction(10**400)], ids=["large", "small", "fraction"])
def test_a_number_that_float64_cannot_hold_is_refused(huge):
    for output in (huge, (1.0, huge), {"a": huge}):
        with pytest.raises(InvalidParameterError, match="digits as text"):
            read([output])
    assert len(set(read([str(huge), str(huge + 1)]).keys())) == 2


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidParameterError, match="type set cannot be compared"):
        read([{1, 2}])
