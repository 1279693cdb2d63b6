# SPDX-License-Identifier: Apache-2.0
import logging
import sys
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InvalidParameterError
from sfumato.federated.clients.client_rows import (
    AssignedRows,
    ClientRows,
    LazyRows,
    readable_rows,
    require_clients,
)

LIKE = (torch.zeros(1, 2), {"y": torch.zeros(1, dtype=torch.int64)})


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=30))
def test_every_assigned_row_is_with_its_client_and_no_other(assignment):
    rows = AssignedRows((torch.arange(len(assignment)),), torch.tensor(assignment), clients=5)
    for client in range(5):
        wanted = [place for place, owner in enumerate(assignment) if owner == client]
        assert rows.rows(client)[0].tolist() == rows.row_numbers(client).tolist() == wanted


def test_assigned_rows_may_be_nested_and_of_any_shape():
    data = torch.arange(6.0).reshape(3, 2), {"y": torch.arange(3)}
    x, y = AssignedRows(data, torch.tensor([1, 0, 1]), clients=2).rows(1)
    assert x.tolist() == [[0.0, 1.0], [4.0, 5.0]] and y["y"].tolist() == [0, 2]


def test_a_data_set_is_not_copied_for_its_clients():
    data = (torch.zeros(1000, 10),)
    rows = AssignedRows(data, torch.arange(1000) % 100, clients=100)
    held = [value for value in vars(rows).values() if isinstance(value, torch.Tensor)]
    assert rows._data[0] is data[0] and sum(value.numel() for value in held) == 1000 + 101


@pytest.mark.parametrize("wrong", [torch.zeros(2), torch.zeros(3, 1), torch.tensor([0, 1, 2])])
def test_wrong_assignments_are_refused(wrong):
    with pytest.raises(InvalidParameterError):
        AssignedRows((torch.zeros(3),), wrong, clients=2)


def lazy(read=lambda client: None):
    return LazyRows(read, clients=10_000, like=LIKE)


def test_lazy_rows_are_read_when_asked_for():
    read = []
    rows = lazy(lambda client: read.append(client) or LIKE)
    assert len(rows) == 10_000 and rows.like[1]["y"].shape == (0,) and read == []
    rows.rows(7)
    assert read == [7]


@pytest.mark.parametrize("client", [-1, 2, 10_000])
def test_clients_that_do_not_exist_are_refused(client):
    few = AssignedRows((torch.zeros(3),), torch.tensor([0, 1, 1]), clients=2)
    with pytest.raises(InvalidParameterError, match="numbered from 0 to 1"):
        few.rows(client)
    with pytest.raises(InvalidParameterError):
        LazyRows(lambda client: LIKE, clients=2, like=LIKE).rows(client)


@pytest.mark.parametrize("clients", [0, -1, 1.5])
def test_no_clients_are_refused(clients):
    with pytest.raises(InvalidParameterError):
        LazyRows(lambda client: LIKE, clients=clients, like=LIKE)
    with pytest.raises(InvalidParameterError):
        AssignedRows((torch.zeros(3),), torch.zeros(3), clients=clients)


def test_both_kinds_hold_the_rows_of_clients_and_show_none():
    few = AssignedRows((torch.tensor([123.0]),), torch.zeros(1), clients=1)
    assert isinstance(few, ClientRows) and isinstance(lazy(), ClientRows)
    assert repr(few) == "AssignedRows(clients=1)" and repr(lazy()) == "LazyRows(clients=10000)"


@pytest.mark.parametrize("given", [[(torch.zeros(2, 3),)], (torch.zeros(2, 3),), None])
def test_what_does_not_say_whose_rows_they_are_is_refused_with_advice(given):
    with pytest.raises(InvalidParameterError, match=r"LazyRows\(lambda client"):
        require_clients(given)
    require_clients(LazyRows(lambda _: (torch.zeros(1),), clients=1, like=(torch.zeros(0),)))


def test_rows_that_are_not_as_declared_are_none():
    def fails(_):
        raise OSError("a row")

    like = (torch.zeros(0, 3),)
    for read in (
        fails,
        lambda _: (torch.ones(2, 4),),
        lambda _: (torch.ones(2, 3).double(),),
        lambda _: None,
    ):
        assert readable_rows(LazyRows(read, clients=1, like=like), 0)[0].shape == (0, 3)
    fine = LazyRows(lambda _: (torch.ones(2, 3),), clients=1, like=like)
    assert readable_rows(fine, 0)[0].shape == (2, 3)


class Panic(BaseException):
    """Like `pyo3_runtime.PanicException`, of polars and tokenizers."""


def panics(_):
    raise Panic("client 5")


def warns(_):
    warnings.warn("client 5", stacklevel=1)
    print("client 5")  # noqa: T201 - what must not be seen
    logging.getLogger("touchy").error("client 5")
    torch.set_grad_enabled(False)
    raise ValueError("client 5")


@pytest.mark.parametrize(
    "read",
    [
        lambda _: sys.exit("client 5"),
        panics,
        warns,
        lambda _: (torch.ones(2, 3).to_sparse(),),
        lambda _: (torch.ones(2, 3, device="meta"),),
        lambda _: (torch.ones(2, 3).to_mkldnn(),),
    ],
)
def test_a_client_whose_rows_fail_or_are_held_in_another_way_has_none_and_nothing_tells(
    read, capsys, caplog, recwarn
):
    found = readable_rows(LazyRows(read, clients=1, like=(torch.zeros(0, 3),)), 0)[0]
    assert found.shape == (0, 3) and found.layout is torch.strided and found.device.type == "cpu"
    assert capsys.readouterr() == ("", "") and not caplog.records and not recwarn.list
    assert torch.is_grad_enabled()


def test_rows_that_require_gradients_are_rows_without():
    rows = LazyRows(lambda _: (torch.ones(2, 3, requires_grad=True),), clients=1, like=(torch.zeros(0, 3),))
    found = readable_rows(rows, 0)[0]
    assert found.shape == (2, 3) and not found.requires_grad


def test_clients_without_rows_are_counted():
    assert AssignedRows((torch.zeros(3),), torch.tensor([0, 0, 4]), clients=5).without_rows == 3
