# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sfumato.datasets import Examples
from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.testing import seeded
from sfumato.training.data.units import Units, open_rows, public_size_of

X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
INDEX = torch.tensor([4, 1, 1])


class MapStyle(Dataset):
    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        return self.examples[i]


class Stream(IterableDataset):
    def __iter__(self):
        yield 1


@pytest.mark.parametrize(
    "data",
    [(X, Y), [X, Y], TensorDataset(X, Y), Examples(X, Y), MapStyle([(X[i], int(Y[i])) for i in range(6)])],
    ids=["tuple", "list", "tensor-dataset", "examples", "map-style"],
)
def test_rows_are_the_same_however_they_are_given(data):
    x, y = open_rows(data).take(INDEX)
    assert torch.equal(x, X[INDEX]) and torch.equal(y, Y[INDEX])


def test_rows_may_be_dicts_and_single_tensors():
    (batch,) = open_rows({"x": X, "y": Y}).take(INDEX)
    assert torch.equal(batch["y"], Y[INDEX])
    (batch,) = open_rows(MapStyle([{"x": X[i]} for i in range(6)])).take(INDEX)
    assert torch.equal(batch["x"], X[INDEX])
    assert torch.equal(open_rows(X).take(INDEX)[0], X[INDEX])


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        (DataLoader(TensorDataset(X, Y)), "loader.dataset"),
        (Stream(), "map-style"),
        (iter([1, 2]), "map-style"),
        ((X, Y[:5]), "same number of rows"),
        ((X, "label"), "Convert it to a tensor"),
        (3, "torch Dataset"),
    ],
    ids=["loader", "iterable", "generator", "disagreeing", "text", "number"],
)
def test_data_that_cannot_be_sampled_is_refused_with_what_to_do(data, advice):
    with pytest.raises(InvalidParameterError, match=advice):
        Units(data)


def test_public_examples_that_do_not_fit_together_are_refused_without_telling_their_shapes():
    rows = open_rows(MapStyle([(torch.zeros(3),), (torch.zeros(717),)]))
    with pytest.raises(InvalidParameterError) as refused:
        rows.take(torch.tensor([0, 1]))
    assert "717" not in str(refused.value) and refused.value.__cause__ is None


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


def panic():
    raise Panic("row 1")


class Odd(MapStyle):
    """A data set in which one example is odd."""

    def __init__(self, odd):
        super().__init__([(X[i], int(Y[i])) for i in range(6)])
        self.odd = odd

    def __getitem__(self, i):
        return self.odd() if i == 1 else super().__getitem__(i)


ODD = {
    "raises": lambda: [][3],
    "exits": lambda: sys.exit(3),
    "panics": lambda: panic(),
    "shape": lambda: (torch.ones(5), 2),
    "text": lambda: ("a", 2),
    "missing": lambda: None,
    "label": lambda: (torch.ones(2), 2.5),
    "more": lambda: (torch.ones(2), 2, 2),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_private_example_that_cannot_be_read_has_no_weight_and_stops_nothing(odd, recwarn):
    batch = Units(Odd(odd)).take(INDEX)
    assert batch.row_weights.tolist() == [1, 0, 0]
    assert torch.equal(batch.rows[0], X[INDEX] * torch.tensor([[1], [0], [0]]))
    assert batch.rows[1].tolist() == [4, 0, 0] and not recwarn


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_the_others_give_does_not_depend_on_an_example_that_cannot_be_read(odd):
    others = torch.tensor([4, 2])
    usual, strange = (Units(data).take(others) for data in (MapStyle(Odd(odd).examples), Odd(odd)))
    assert all(map(torch.equal, usual.rows, strange.rows))
    assert torch.equal(usual.row_weights, strange.row_weights)


def test_a_unit_without_the_example_that_cannot_be_read_keeps_its_other_rows():
    owners = torch.tensor([0, 1, 1, 2, 2, 2])
    batch = Units(Odd(ODD["raises"]), owners=owners, contribution_bound=2).take(
        torch.tensor([1, 0]), seeded(0)
    )
    weights = dict(zip(batch.numbers[:2].tolist(), batch.row_weights[:2].tolist(), strict=True))
    assert weights == {1: 0.0, 2: 0.5} and batch.row_weights[2:].tolist() == [1.0, 0.0]


def test_a_public_size_is_given_or_declared_and_never_counted():
    assert public_size_of((X, Y), None) is None
    assert public_size_of((X, Y), 10) == 10
    declared = TensorDataset(X, Y)
    declared.public_size = 6
    assert public_size_of(declared, None) == 6
    with pytest.raises(InvalidParameterError, match="declares"):
        public_size_of(declared, 7)


def test_a_batch_of_no_units_has_no_rows():
    none = torch.empty(0, dtype=torch.int64)
    assert Units((X, Y)).take(none).rows == ()
    assert Units((X, Y), owners=Y, contribution_bound=1).take(none).rows == ()


# --- owners ----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(-3, 4), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 99))
def test_each_owner_takes_part_with_at_most_so_many_rows_of_its_own(owners, bound, seed):
    numbers = torch.tensor(owners)
    rows = torch.arange(len(owners))
    units = Units((rows,), owners=numbers, contribution_bound=bound)
    assert units.num_units == len(set(owners))
    batch = units.take(torch.arange(units.num_units), seeded(seed))
    taken = batch.rows[0].reshape(units.num_units, batch.rows_per_unit)
    weights = batch.row_weights.reshape(taken.shape)
    for owner, mine, weight in zip(sorted(set(owners)), taken, weights, strict=True):
        assert set(numbers[mine].tolist()) == {owner}  # also where it is filled up
        counted = mine[weight > 0]
        assert len(set(counted.tolist())) == len(counted) == min(bound, owners.count(owner))
        assert weight.sum() == pytest.approx(1.0)


def test_an_owner_with_many_rows_takes_part_with_a_fresh_uniform_subset():
    units = Units((torch.arange(6),), owners=torch.zeros(6, dtype=torch.int64), contribution_bound=2)
    drawn = [tuple(sorted(units.take(torch.tensor([0]), seeded(s)).rows[0].tolist())) for s in range(1500)]
    counts = np.array([drawn.count((a, b)) for b in range(6) for a in range(b)])
    assert counts.sum() == 1500
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert chi_square < 58.5  # 14 degrees of freedom: the chance is 2e-7


def test_owners_and_their_bound_belong_together():
    with pytest.raises(InvalidParameterError, match="contribution_bound"):
        Units((X, Y), owners=Y)
    with pytest.raises(InvalidParameterError, match="owners"):
        Units((X, Y), contribution_bound=2)
    with pytest.raises(InvalidParameterError, match="one entry for each row"):
        Units((X, Y), owners=Y[:3], contribution_bound=2)
    with pytest.raises(InvalidParameterError, match="whole numbers"):
        Units((X, Y), owners=X[:, 0], contribution_bound=2)


def test_data_that_knows_its_users_is_not_cut_into_examples_unasked():
    examples = Examples(X, Y, user_ids=torch.tensor([0, 0, 1, 1, 2, 2]))
    with pytest.raises(InvalidParameterError, match="contribution_bound"):
        Units(examples)
    assert Units(examples, contribution_bound=2).num_units == 3
    assert Units(examples.tensors).num_units == 6


# --- views -----------------------------------------------------------------------------------------------


def noisy(batch, generator):
    x, y = batch
    return x + torch.randn(x.shape, generator=generator), y


def test_views_are_copies_of_a_row_that_share_its_weight():
    batch = Units((X, Y), augment=noisy, views=3).take(torch.tensor([2, 5]), seeded(0))
    assert batch.rows_per_unit == 3
    assert batch.rows[1].tolist() == [2, 2, 2, 5, 5, 5]
    assert torch.allclose(batch.row_weights, torch.full((6,), 1 / 3))
    assert len(batch.rows[0].unique(dim=0)) == 6
    again = Units((X, Y), augment=noisy, views=3).take(torch.tensor([2, 5]), seeded(0))
    assert torch.equal(batch.rows[0], again.rows[0])


def test_views_and_owners_go_together():
    units = Units(
        (X, Y), owners=torch.tensor([0, 0, 0, 1, 1, 2]), contribution_bound=2, augment=noisy, views=2
    )
    batch = units.take(torch.arange(3), seeded(0))
    weights = batch.row_weights.reshape(3, batch.rows_per_unit)
    assert batch.rows_per_unit == 4
    assert torch.allclose(weights.sum(1), torch.ones(3))
    assert weights[2].tolist() == [0.5, 0.5, 0.0, 0.0]


def test_an_augmentation_that_loses_rows_is_refused():
    with pytest.raises(InvalidParameterError, match="as many"):
        Units((X, Y), augment=lambda b, g: (b[0][:0], b[1][:0])).take(torch.arange(6), seeded(0))
    with pytest.raises(InvalidParameterError, match="augment"):
        Units((X, Y), views=2)


def test_how_many_units_there_are_is_in_no_repr():
    assert "6" not in repr(Units((X, Y))).split(" at ")[0]


class Failing(MapStyle):
    def __getitem__(self, i):
        raise ValueError(f"cannot read row {i}: {self.examples[i]}")


@pytest.mark.parametrize(
    "units",
    [
        lambda: Units(Failing([(X[i], Y[i]) for i in range(6)])),
        lambda: Units((X, Y), augment=lambda b, g: [][int(b[1][0])]),
        lambda: Units((X, Y), augment=lambda b, g: panic()),
    ],
    ids=["data set", "augment", "panic"],
)
def test_what_a_data_set_or_an_augmentation_says_of_a_row_is_not_repeated(units):
    with pytest.raises(QueryFailedError, match="failed on rows of a batch") as caught:
        units().take(torch.tensor([2, 5]), seeded(0))
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert "cannot read" not in str(caught.value)


def test_a_rehearsal_sees_rows_as_augmentation_makes_them():
    """An augmentation may return other rows than it gets, such as a noisy image beside the clean one."""

    def noisy(rows, generator):
        (x,) = rows
        return x + torch.randn(x.shape), x.sum(1), x

    units = Units((torch.ones(4, 3),), augment=noisy, views=2)
    assert [tuple(part.shape) for part in units.blank(2)] == [(2, 3), (2,), (2, 3)]
    assert [tuple(part.shape) for part in units.blank(0)] == [(0, 3), (0,), (0, 3)]
    assert units.blank(2)[1].tolist() == [0, 0]
    assert [len(part) for part in units.take(torch.tensor([1, 2])).rows] == [4, 4, 4]
