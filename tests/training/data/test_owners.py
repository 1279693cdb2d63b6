# SPDX-License-Identifier: Apache-2.0
import traceback
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sfumato.errors import InvalidParameterError
from sfumato.testing import seeded
from sfumato.training import train
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


NAMES = ["di", "ann", "di", "di", "ann", "eve"]


@pytest.mark.parametrize(
    "owners",
    [
        NAMES,
        tuple(NAMES),
        np.array(NAMES),
        np.array(NAMES, dtype=object),
        pd.Series(NAMES),
        pd.Series(NAMES).astype("category"),
        [(name, 1) for name in NAMES],
        [b.encode() for b in NAMES],
        [7, 3, 7, 7, 3, 9],
        np.array([7, 3, 7, 7, 3, 9]),
    ],
)
def test_names_are_owners_as_numbers_are(owners):
    owned = Owned.of(owners, 2, 6)
    assert owned is not None and sorted(owned.held()[1].tolist()) == [1, 2, 3]
    starts = np.cumsum([0, *owned.held()[1].tolist()])
    rows = [set(owned.held()[0][a:b].tolist()) for a, b in pairwise(starts)]
    assert sorted(map(sorted, rows)) == [[0, 2, 3], [1, 4], [5]]


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, pd.NA, pd.NaT])
def test_a_row_without_an_owner_takes_part_in_no_step(missing):
    owned = Owned.of(["ann", missing, "bob", missing, "ann"], 5, 5)
    assert owned is not None and len(owned) == 2
    assert sorted(owned.held()[0].tolist()) == [0, 2, 4]
    assert {row for seed in range(20) for row in owned.draw(torch.arange(2), seeded(seed))[0].tolist()} == {
        0,
        2,
        4,
    }


@pytest.mark.parametrize(
    "owners",
    [
        list(OWNERS),  # tensors equal nothing but themselves: each row would be an owner
        [object()] * 6,
        [["a"]] * 6,
        "secret",
        b"secret",
        {f"secret{i}": i for i in range(6)},
        {f"secret{i}" for i in range(6)},
        [("secret", torch.tensor(1))] * 6,
        np.array([["secret"]] * 6),
        ["secret"] * 5,
    ],
)
def test_owners_that_are_no_names_are_refused_and_not_shown(owners):
    with pytest.raises(InvalidParameterError, match=r"^owners must") as refused:
        Owned.of(owners, 2, 6)
    shown = "".join(traceback.format_exception(refused.value)).split("InvalidParameterError")[-1]
    assert "secret" not in shown


def test_a_run_by_names_is_the_run_by_their_numbers():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    numbers = torch.arange(60) // 3
    names = [f"person {n:02}" for n in numbers.tolist()]

    def trained(owners):
        model = nn.Linear(3, 2)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        run = train(
            model,
            (x, (x[:, 0] > 0).long()),
            owners=owners,
            contribution_bound=2,
            public_size=20,
            expected_batch_size=10,
            steps=3,
            epsilon=8.0,
            delta=1e-4,
            generator=seeded(0),
            progress=False,
        )
        return run.guarantee, model.weight.detach()

    by_number, by_name = trained(numbers), trained(names)
    assert by_name[0] == by_number[0] and torch.equal(by_name[1], by_number[1])
