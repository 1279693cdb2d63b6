# SPDX-License-Identifier: Apache-2.0
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.training.data import rows
from sfumato.training.data.rows import Grouping


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def nested(count):
    x = torch.arange(count * 2.0).reshape(count, 2)
    return (x, {"a": x[:, 0], "b": [x + 1, None]}, None)


@given(st.integers(0, 5))
def test_rows_of_a_nested_batch_are_counted(count):
    assert rows.count(nested(count)) == count
    assert [t.shape[0] for t in rows.tensors(nested(count))] == [count] * 3


@pytest.mark.parametrize("batch", [(torch.zeros(3), torch.zeros(4)), (torch.zeros(3), torch.tensor(1.0))])
def test_tensors_with_other_numbers_of_rows_are_refused_without_a_size(batch):
    with pytest.raises(InvalidParameterError, match=r"batch axis to the front") as error:
        rows.count(batch)
    assert not any(digit in str(error.value) for digit in "0123456789")  # a batch's size is private


def test_a_batch_without_a_tensor_is_refused():
    with pytest.raises(InvalidParameterError, match=r"no tensor"):
        rows.count((None, {}))


def test_what_is_no_tensor_is_named_by_its_type_only():
    with pytest.raises(InvalidParameterError, match=r"holds a str") as error:
        rows.count((torch.zeros(2), ["a secret"]))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "index", [slice(1, 3), torch.tensor([1, 2]), torch.tensor([False, True, True, False])]
)
def test_taking_rows_keeps_the_nesting(index):
    x, named, nothing = rows.take(nested(4), index)
    assert torch.equal(x, nested(4)[0][1:3])
    assert torch.equal(named["b"][0], x + 1) and named["b"][1] is None and nothing is None


def test_a_named_tuple_keeps_its_names():
    (pair,) = rows.take((Pair(torch.arange(3), torch.arange(3) * 2),), slice(1, 2))
    assert isinstance(pair, Pair) and pair.y.tolist() == [2]


def test_a_clone_shares_no_memory():
    x = torch.zeros(2)
    (copy,) = rows.cloned((x,))
    x.fill_(1)
    assert copy.tolist() == [0, 0]


@given(st.integers(1, 5), st.integers(0, 9))
def test_repeating_fills_up_from_the_start(count, wanted):
    x = rows.repeat_to(nested(count), wanted)[0]
    assert x.tolist() == [nested(count)[0][i % count].tolist() for i in range(wanted)]


@given(st.integers(0, 5), st.integers(0, 4))
def test_padding_is_zeros_and_never_a_copy(count, more):
    x, named, _ = rows.padded(nested(count), count + more)
    assert torch.equal(x[:count], nested(count)[0])
    assert x.shape[0] == count + more and not x[count:].any() and not named["a"][count:].any()


@given(st.integers(0, 4), st.integers(1, 3))
def test_rows_of_a_unit_are_summed_and_its_value_is_spread(units, per_unit):
    grouping = Grouping(units=units, per_unit=per_unit)
    x = torch.arange(float(grouping.rows * 2)).reshape(grouping.rows, 2)
    wanted = [x[i * per_unit : (i + 1) * per_unit].sum(0).tolist() for i in range(units)]
    assert grouping.summed(x).tolist() == wanted
    assert grouping.spread(torch.arange(units)).tolist() == [i for i in range(units) for _ in range(per_unit)]


@pytest.mark.parametrize("per_unit", [0, -1, 1.5])
def test_a_unit_has_at_least_one_row(per_unit):
    with pytest.raises(InvalidParameterError, match=r"per_unit"):
        Grouping(units=1, per_unit=per_unit)
