# SPDX-License-Identifier: Apache-2.0
"""Clients of a run, extended with synthetic canary clients.

In a federated run a client gives an update in place of a gradient. A canary client is nobody: its update is
as long as it is told, in a coordinate of its own (`canary_coordinates`). It is drawn into cohorts, clipped,
added up and covered by noise like any other client. Other clients are asked as before, with the model alone:
they do not know that there are canaries.

A row of a batch has three numbers: that of the client, that of the canary (0 for a client, below 0 for a
made-up client of a trial), and the length of the update.

Guarantee  A client is asked as often, with the same model, as in a run without canaries. Its update is zero
           in the coordinates of canaries, and that of a canary is zero in the model's own.
Failure    Updates of other names or shapes than the model's parameters are refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.audit.runs.canary_coordinates import ModelWithCanaries
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.training.engine import parameter_values
from sfumato.training.engine.contributions import Contributor, NoisySummer, SummerOfContributions
from sfumato.training.engine.tape.operation import norm_dtype

__all__ = ["MADE_UP", "ClientsWithCanaries", "with_canaries"]

MADE_UP = (-1, -2, -3, -4)  # made-up clients: ones, random numbers, the first tensor alone, the last alone


def with_canaries(engine: Any) -> Any:
    """Return what computes the contributions of a run, with canary clients among the others.

    Args:
        engine: The engine of a run. One that computes gradients of rows is returned as it is.

    Returns:
        An engine for batches in which some rows are canaries.

    Raises:
        InvalidParameterError: If sums are computed by real clients, which canaries could not join.
    """
    if isinstance(engine, SummerOfContributions):
        return engine.over(ClientsWithCanaries)
    if isinstance(engine, NoisySummer):
        raise InvalidParameterError(
            f"{type(engine).__name__} takes sums of real clients, and canaries are none of them. Audit a "
            "simulation with the same settings (federate(..., noise=..., audit=...)), or attack the sums "
            "with audit.RoundCanaries."
        )
    return ClientsWithCanaries(engine) if isinstance(engine, Contributor) else engine


class ClientsWithCanaries:
    """A contributor that answers for canaries itself, and asks another one for clients.

    Args:
        inner: Gives the updates of clients.
    """

    def __init__(self, inner: Contributor) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    def statement(self) -> str:
        """Return what a contribution is, in a sentence.

        Returns:
            The sentence.
        """
        return self._inner.statement()

    def all_made_up(self, batch: Sequence[Any]) -> bool:
        """Return whether no client is in a batch.

        Args:
            batch: The rows of the units.

        Returns:
            True if all of them are canaries or made up.
        """
        return bool((batch[-2] != 0).all())

    def contributions(self, model: nn.Module, batch: Sequence[Any], *, step: int) -> Mapping[str, Tensor]:
        """Return the updates of clients and canaries.

        Args:
            model: The model of the server beside the coordinates of canaries.
            batch: The rows of the units.
            step: The number of the round, from 0 on.

        Returns:
            For each trainable parameter, by name, one update for each unit: [units, *shape].
        """
        assert isinstance(model, ModelWithCanaries)  # the run of an audit has one
        *own, places, pulls = batch
        named = parameter_values.find(model).parameters
        found = {
            name: torch.zeros((len(places), *p.shape), dtype=norm_dtype(p), device=p.device)
            for name, p in named.items()
        }
        clients = (places == 0).nonzero().flatten()
        if len(clients):
            asked = [column[clients] for column in own]
            given = self._inner.contributions(model.model, asked, step=step)
            self._put(found, clients, given, model)
        _add_canaries_(found, named, model, places, pulls)
        for number in MADE_UP:
            _add_made_up_(found, (places == number).nonzero().flatten(), pulls, number)
        return found

    def _put(
        self, found: dict[str, Tensor], clients: Tensor, given: Mapping[str, Tensor], model: ModelWithCanaries
    ) -> None:
        """Put the updates of clients where they belong; raise if they are of another shape."""
        own = parameter_values.find(model.model).parameters
        wanted = {name: (len(clients), *p.shape) for name, p in own.items()}
        if {name: tuple(value.shape) for name, value in given.items()} != wanted:
            raise SfumatoError(
                "contributions must have one entry for each trainable parameter, [units, *shape]. "
                f"{type(self._inner).__name__} returned others: give zeros for a unit without an answer."
            )
        for name, value in given.items():
            place = found[f"model.{name}"]
            place[clients.to(place.device)] = value.to(place)


def _add_canaries_(
    found: Mapping[str, Tensor],
    named: Mapping[str, Tensor],
    model: ModelWithCanaries,
    places: Tensor,
    pulls: Tensor,
) -> None:
    """Set the update of each canary, in its own coordinates."""
    rows = (places > 0).nonzero().flatten()
    numbers, tables = places[rows], model.canaries.tables
    names = {id(p): name for name, p in named.items()}
    for table, weights in zip(tables, model.canaries.weights, strict=True):
        update = found[names[id(table.weight)]]
        length = weights[numbers.to(weights.device)].to(update) * pulls[rows].to(update)
        update[rows.to(update.device), numbers.to(update.device), 0] = length


def _add_made_up_(found: Mapping[str, Tensor], rows: Tensor, pulls: Tensor, number: int) -> None:
    """Set the update of made-up clients, in the model's own tensors."""
    own = [name for name in found if name.startswith("model.")]
    if not len(rows) or not own:
        return
    draws = torch.Generator().manual_seed(0)
    kept = {-1: own, -2: own, -3: own[:1], -4: own[-1:]}[number]
    for name in kept:
        update = found[name]
        shape = update.shape[1:]
        pattern = torch.randn(shape, generator=draws) if number == -2 else torch.ones(shape)
        lengths = pulls[rows].to(update).view(-1, *[1] * len(shape))
        update[rows.to(update.device)] = lengths * pattern.to(update)
