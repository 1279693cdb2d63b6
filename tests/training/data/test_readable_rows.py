# SPDX-License-Identifier: Apache-2.0
import enum
import math
import sys
import warnings

import numpy as np
import pytest
import torch

from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.training.data import tree
from sfumato.training.data.readable_rows import ReadableRows
from sfumato.training.data.units import open_rows


class Kind(enum.IntEnum):
    A = 1
    B = 2


def mapped_file(folder):
    """Return an array that is held in a file."""
    held = np.memmap(folder / "rows", dtype=np.float32, mode="w+", shape=(3, 2))
    held[:] = 1
    return held


def readable(*examples, collate=None):
    """Return which examples can be read."""
    rows = ReadableRows(examples, collate)
    return [bool(rows[i]["readable"]) for i in range(len(examples))]


@pytest.mark.parametrize(
    ("good", "odd"),
    [
        (1, 2.5),
        (1, math.nan),
        (1, 2**63),
        (1, None),
        (0.5, "a"),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), np.zeros(2)),
        (torch.zeros(2, dtype=torch.int64), torch.full((2,), 0.5)),
        (torch.zeros(2, dtype=torch.int64), torch.full((2,), math.nan)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2), np.array(["a", "b"])),
        (np.zeros(2), np.full(2, 1j)),
        (np.zeros(2), np.ma.array(np.ones(2), mask=[True, False])),
        (np.array(1), np.array([1])),
        (Kind.A, 2.5),
        (torch.zeros(2), torch.full((2,), 1j)),
        (np.zeros(2, dtype=np.int64), np.full(2, 0.5)),
        ((1, 2), (1, 2, 3)),
        ((1, 2), {"a": 1, "b": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
    ],
)
def test_rows_of_another_form_are_left_out(good, odd):
    assert readable(good, good, odd, good) == [True, True, False, True]


@pytest.mark.parametrize(
    ("good", "other"),
    [
        (1, 2.0),
        (1, True),
        (1, np.int32(2)),
        (0.5, 1),
        (np.float32(0.5), 0.25),
        (torch.zeros(2), torch.ones(2).double()),
        (torch.zeros(2), torch.ones(2, requires_grad=True)),
        (torch.zeros(2, dtype=torch.int64), torch.ones(2)),
        (np.zeros(2), np.ones(2)[::-1]),
        (np.zeros(2), np.ones(2, dtype=np.int64)),
        ((1, 2), [3, 4]),
        ({"a": 1, "b": 0.5}, {"b": 1, "a": 2}),
    ],
)
def test_numbers_of_another_type_are_converted_to_that_of_the_first_example(good, other):
    rows = ReadableRows([good, other, good])
    assert bool(rows[1]["readable"])
    first, second = (tree.leaves(rows[i]["batch"]) for i in (0, 1))
    assert [type(leaf) for leaf in first] == [type(leaf) for leaf in second]
    (batch,) = open_rows(rows).take(torch.tensor([1, 0]))
    assert batch["readable"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("row", "plain"),
    [
        (np.array(3), np.array(3)),
        (np.ma.array([1.0, 2.0]), np.array([1.0, 2.0])),
        (np.ones(1)[::-1], np.ones(1)),
        (np.asfortranarray(np.ones((2, 3))), np.ones((2, 3))),
        (np.broadcast_to(np.float32(1), (3,)), np.ones(3, dtype=np.float32)),
        (Kind.A, 1),
        (np.float64(0.5), 0.5),
        (True, True),
    ],
)
def test_rows_of_numpy_and_enums_are_what_plain_rows_are(row, plain):
    assert readable(row, row, plain) == readable(plain, plain, row) == [True] * 3
    rows, plains = open_rows(ReadableRows([row, row])), open_rows(ReadableRows([plain, plain]))
    (found,), (wanted,) = (each.take(torch.tensor([0, 1])) for each in (rows, plains))
    assert found["readable"].tolist() == [1, 1] and torch.equal(found["batch"], wanted["batch"])


def test_rows_of_a_file_that_is_mapped_into_memory_can_be_read(tmp_path):
    held = mapped_file(tmp_path)
    assert readable(*held) == [True] * 3 and readable(*((row, 1) for row in held)) == [True] * 3


def test_a_form_that_no_row_would_have_is_refused():
    class Odd(torch.Tensor):
        def detach(self):
            return super().detach().double()

        def to(self, *args):
            return super().to(*args).as_subclass(torch.Tensor)

    with pytest.raises(InvalidParameterError, match="plain tensors"):
        readable(torch.ones(2).as_subclass(Odd))


def test_a_row_that_is_read_only_warns_of_nothing():
    row = np.ones(2, dtype=np.float32)
    row.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        try:
            open_rows(ReadableRows([(row, 1), (row, 2)])).take(torch.tensor([0, 1]))
        finally:
            torch.set_warn_always(before)


def test_the_rows_of_a_batch_are_of_one_form_in_whatever_order_names_come():
    rows = ReadableRows([{"x": torch.ones(2), "y": 1}, {"y": 2, "x": torch.ones(2)}, {"y": 3}])
    (batch,) = open_rows(rows).take(torch.tensor([2, 1, 0]))
    assert list(batch["batch"]) == ["x", "y"] and batch["batch"]["y"].tolist() == [0, 2, 1]
    assert batch["readable"].tolist() == [0, 1, 1] and batch["batch"]["x"].sum(1).tolist() == [0, 2, 2]


@pytest.mark.parametrize("made", [torch.zeros(2), np.zeros(2), np.zeros(2, dtype=np.float16)])
def test_an_example_that_is_read_into_the_memory_of_the_last_one_does_not_change_that_one(made):
    class Reusing:
        def __len__(self):
            return 5

        def __getitem__(self, number):
            made[...] = 9 if number == 3 else number  # row 3 would be in the place of all before it
            return made, number

    rows, weights = open_rows(Reusing(), private=True).weighed(torch.tensor([0, 1, 3]))
    assert rows[0].tolist() == [[0, 0], [1, 1], [9, 9]] and weights.tolist() == [1, 1, 1]


def test_a_row_that_cannot_be_collated_is_left_out():
    def collate(examples):
        (x,) = examples
        return torch.ones(x, 2)  # as many rows as the number says

    assert readable(1, 2, 0, "a", collate=collate) == [True, False, False, False]
    with pytest.raises(InvalidParameterError, match="one row for each example"):
        readable(2, 2, collate=collate)
    assert readable(2, 1, collate=collate) == [False, True]


def test_nothing_of_the_first_example_but_its_form_is_kept():
    rows = ReadableRows([(torch.full((2,), 7.0), np.full(2, 7.0), 7), "no row"])
    tensor, array, number = rows[1]["batch"]
    assert tensor.tolist() == [0, 0] and array.tolist() == [0, 0] and number == 0


@pytest.mark.parametrize("broken", [1, 99, 100])
def test_the_form_is_that_of_the_first_example_that_can_be_read(broken):
    class Fails(list):
        def __getitem__(self, number):
            return super().__getitem__(number) if number >= broken else sys.exit("secret")

    rows = ReadableRows(Fails([torch.ones(2)] * 101))
    if broken < 100:
        assert [bool(rows[i]["readable"]) for i in (broken - 1, broken)] == [False, True]
    else:
        with pytest.raises(QueryFailedError):
            rows[100]


def test_examples_of_which_none_can_be_read_are_an_error_that_does_not_quote_them():
    class Fails(list):
        def __getitem__(self, number):
            raise ValueError("secret")

    with pytest.raises(QueryFailedError, match="ValueError") as failed:
        ReadableRows(Fails([1]))[0]
    assert "secret" not in str(failed.value) and failed.value.__context__ is None
