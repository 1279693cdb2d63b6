# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training.data.owners import Owned

OWNERS = torch.tensor([7, 3, 7, 7, 3, 9])


@given(
    owners=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    bound=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_an_owner_takes_part_with_its_own_rows_at_most_the_bound_and_weights_of_one(owners, bound, seed):
    owned = Owned(torch.tensor(owners), bound)
    names = sorted(set(owners))
    index, width, weights = owned.draw(torch.arange(len(names)), seeded(seed))
    for name, own, weight in zip(names, index.view(-1, width), weights.view(-1, width), strict=True):
        assert {owners[row] for row in own.tolist()} == {name}  # padding too
        real = own[weight > 0].tolist()
        assert len(set(real)) == len(real) == min(owners.count(name), bound)
        assert float(weight.sum()) == pytest.approx(1.0)


def test_a_fresh_subset_is_drawn_each_time():
    owned = Owned(torch.zeros(50, dtype=torch.int64), 3)
    drawn = {tuple(owned.draw(torch.tensor([0]), seeded(seed))[0].tolist()) for seed in range(20)}
    assert len(drawn) > 15


def test_owners_are_counted_and_listed_in_order():
    owned = Owned(OWNERS, 2)
    order, counts = owned.held()
    assert len(owned) == 3 and counts.tolist() == [2, 3, 1]
    assert order.tolist() == [1, 4, 0, 2, 3, 5]
    assert owned.first_rows(torch.tensor([1, 2])).tolist() == [0, 2, 5]


@pytest.mark.parametrize(
    ("owners", "bound", "message"),
    [
        (None, 2, "owners=..."),
        (OWNERS, None, "pass contribution_bound"),
        (OWNERS, 0, "contribution_bound"),
        (OWNERS.float(), 2, "whole numbers"),
        (OWNERS[:3], 2, "one entry for each row"),
    ],
)
def test_owners_that_make_no_sense_are_refused(owners, bound, message):
    with pytest.raises(InvalidParameterError, match=message):
        Owned.of(owners, bound, 6)


def test_without_owners_rows_are_units():
    assert Owned.of(None, None, 6) is None
