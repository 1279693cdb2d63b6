# SPDX-License-Identifier: Apache-2.0
"""What clients hold: the rows of each client, by the number of the client.

The number of clients, and the shapes and types of their rows, are public. How many rows a client has is not.

Guarantee  A client is read when it is in a cohort, and not before. Nothing is kept of it afterwards.
Edge cases A client may have no rows.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from sfumato import _check
from sfumato._failures import ordinary
from sfumato.errors import InvalidParameterError
from sfumato.training.data import rows as row_trees
from sfumato.training.data import tree
from sfumato.training.data.modes import kept_modes
from sfumato.training.data.readable_rows import form
from sfumato.training.data.silence import silent

__all__ = ["AssignedRows", "ClientRows", "LazyRows", "readable_rows", "require_clients"]


@runtime_checkable
class ClientRows(Protocol):
    """The rows of all clients."""

    def __len__(self) -> int:
        """Return the number of clients."""
        ...

    @property
    def like(self) -> Sequence[Any]:
        """Tensors of no row at all, in the shapes and types of every client's rows: public facts."""
        ...

    def rows(self, client: int) -> Sequence[Any]:
        """Return the rows of one client: tensors with one row an example.

        Args:
            client: The number of the client, from 0 on.

        Returns:
            The tensors, nested like `like`.
        """
        ...


class AssignedRows:
    """The rows of a data set in memory, each assigned to one client.

    Memory is that of the data set and of one index: [rows], sorted by client, and [clients] of counts.

    Args:
        data: Tensors with one row an example.
        assignment: The client of each row, [rows], from 0 on; below 0: no client's.
        clients: How many clients there are. Some may have no row.

    Raises:
        InvalidParameterError: If there is not one client for each row, or a client that does not exist.

    >>> clients = AssignedRows((torch.arange(5.0),), torch.tensor([1, 0, 1, -1, 1]), clients=3)
    >>> len(clients), [clients.rows(client)[0].tolist() for client in range(3)]
    (3, [[1.0], [0.0, 2.0, 4.0], []])
    """

    def __init__(self, data: Sequence[Any], assignment: Tensor, *, clients: int) -> None:
        _check.count(clients=clients)
        if assignment.shape != (row_trees.count(data),):
            raise InvalidParameterError("the assignment must have one number for each row: the client's.")
        if bool((assignment >= clients).any()):
            raise InvalidParameterError(
                f"rows are assigned to clients that do not exist. Use numbers from 0 to {clients - 1}."
            )
        assignment = assignment.to("cpu", torch.int64)
        self._data = data
        order = assignment.argsort(stable=True)
        self._order = order[int((assignment < 0).sum()) :]
        counts = torch.bincount(assignment[assignment >= 0], minlength=clients)
        self._ends = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __repr__(self) -> str:
        return f"AssignedRows(clients={len(self)})"

    @property
    def like(self) -> Sequence[Any]:
        """Tensors of no row at all, in the shapes and types of the data set."""
        return row_trees.take(self._data, slice(0, 0))

    @property
    def without_rows(self) -> int:
        """How many clients have no row. It is a fact about rows: as private as they are."""
        return int((self._ends.diff() == 0).sum())

    def row_numbers(self, client: int) -> Tensor:
        """Return which rows of the data set are a client's, in their order in the data set.

        Args:
            client: The number of the client.

        Returns:
            The numbers of its rows.

        Raises:
            InvalidParameterError: If there is no such client.
        """
        _require_client(client, len(self))
        return self._order[self._ends[client] : self._ends[client + 1]]

    def rows(self, client: int) -> Sequence[Any]:
        """Return the rows of one client.

        Args:
            client: The number of the client.

        Returns:
            The tensors, nested like the data set.
        """
        chosen = self.row_numbers(client)
        return row_trees.mapped(self._data, lambda t: t[chosen.to(t.device)])


class LazyRows:
    """Rows that a function reads when a client is in a cohort, such as from a file of each client.

    Args:
        read: `read(client)` returns the rows of one client. It must return the same rows in every round, and
            read no other client.
        clients: How many clients there are.
        like: Tensors in the shapes and types that every client's rows have. They are public; only their
            shapes after the first axis, and their types, are used.

    Raises:
        InvalidParameterError: If the number of clients is no positive whole number.

    >>> clients = LazyRows(lambda c: (torch.full((c, 2), 1.0),), clients=10_000, like=(torch.zeros(1, 2),))
    >>> len(clients), clients.rows(3)[0].shape, clients.like[0].shape
    (10000, torch.Size([3, 2]), torch.Size([0, 2]))
    """

    def __init__(self, read: Callable[[int], Sequence[Any]], *, clients: int, like: Sequence[Any]) -> None:
        _check.count(clients=clients)
        row_trees.count(like)
        self._read, self._clients = read, clients
        self._like = row_trees.take(like, slice(0, 0))

    def __len__(self) -> int:
        return self._clients

    def __repr__(self) -> str:
        return f"LazyRows(clients={len(self)})"

    @property
    def like(self) -> Sequence[Any]:
        """Tensors of no row at all, in the shapes and types that were given."""
        return self._like

    def rows(self, client: int) -> Sequence[Any]:
        """Return the rows of one client, read now.

        Args:
            client: The number of the client.

        Returns:
            What the function returned.

        Raises:
            InvalidParameterError: If there is no such client.
        """
        _require_client(client, len(self))
        return self._read(client)


def readable_rows(clients: ClientRows, client: int) -> Sequence[Any]:
    """Return the rows of a client; none of them if they cannot be read, or are not as declared.

    Args:
        clients: What clients hold.
        client: The number of the client.

    Returns:
        Its rows without gradients, or `like`. Nothing is raised, shown or logged: it may quote a row.

    >>> broken = LazyRows(lambda _: (torch.ones(3, 9),), clients=1, like=(torch.zeros(1, 2),))
    >>> readable_rows(broken, 0)[0].shape
    torch.Size([0, 2])
    """
    like = clients.like
    try:
        with silent(), kept_modes():
            rows = ordinary(lambda: _converted(clients.rows(client), like))
        return like if rows is None else rows
    except Exception:  # this client does not answer
        return like


def _converted(rows: Sequence[Any], like: Sequence[Any]) -> Sequence[Any] | None:
    """Return rows on the device of the declared ones, without gradients; None if they are of another form."""
    if tree.structure(rows) != tree.structure(like):
        return None
    row_trees.count(rows)  # raises if tensors do not agree
    places = iter(row_trees.tensors(like))
    moved = row_trees.mapped(rows, lambda t: t.detach().to(next(places).device))
    none = row_trees.mapped(moved, lambda t: t[:0] if t.layout is torch.strided else t)
    wanted = row_trees.mapped(like, Tensor.detach)
    return moved if form(none) == form(wanted) else None


def require_clients(clients: object) -> None:
    """Raise unless rows are given by client. Only the type is looked at.

    Args:
        clients: What should be `ClientRows`.

    Raises:
        InvalidParameterError: If it is something else, such as a list of tensors.
    """
    if not isinstance(clients, ClientRows):
        raise InvalidParameterError(
            f"clients is a {type(clients).__name__}, which does not say what each client holds. Divide a "
            "public data set with federated.iid, dirichlet or by_user, assign rows with AssignedRows(data, "
            "assignment, clients=...), or pass a list of each client's tensors as LazyRows(lambda client: "
            "held[client], clients=len(held), like=held[0])."
        )


def _require_client(client: int, clients: int) -> None:
    if not 0 <= client < clients:
        raise InvalidParameterError(
            f"there is no client {client}. Clients are numbered from 0 to {clients - 1}."
        )
