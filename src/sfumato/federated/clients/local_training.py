# SPDX-License-Identifier: Apache-2.0
"""How one client learns from its own rows between two rounds.

A client copies the model of the server, takes some steps of SGD over its rows, and answers with its update:
the model it was given, minus the model it has now. An update is used like a gradient: a server that averages
updates and takes a step of SGD with learning rate 1 does federated averaging.

Guarantee  None: an update is private until it was clipped and noise was added. It depends on the rows of one
           client alone.
Edge cases A client without rows has an update of zeros. The last batch of an epoch may be smaller. Rows whose
           loss is not finite make the update not finite, and the server leaves it out. Dropout draws from a
           seed of client and round, and torch's own random state stays as it was. Buffers of the model, such
           as running averages, are copied: what a client changes in them is dropped.
Source     McMahan et al. 2017, arXiv:1602.05629 (federated averaging); Li et al. 2020, arXiv:1812.06127
           (FedProx, `proximal`).
"""

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sfumato import _check
from sfumato.training.data import rows as row_trees
from sfumato.training.engine import parameter_values
from sfumato.training.engine.losses import Loss, cross_entropy
from sfumato.training.random_state import same_draws

__all__ = ["LocalTraining", "WithValues", "batch_order", "local_update"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTraining:
    """The steps that a client takes in a round. Nothing here changes the claim: updates are clipped.

    Args:
        epochs: How often a client passes over its rows.
        batch_size: Rows of a step.
        learning_rate: The rate of SGD.
        momentum: The momentum of SGD, which begins anew in each round.
        proximal: The weight of FedProx's term, half the squared distance from the model of the server.
        full_weight_rows: The number of rows from which on a client counts fully. The update of a client with
            fewer is multiplied by its share of this number. It is clipped afterwards, so that no client
            counts more than the noise hides. Default: every client counts the same.
        loss: `loss(model, *rows)` returns one number for each row.

    Raises:
        InvalidParameterError: If a setting is out of range.

    >>> LocalTraining(epochs=2).batch_size
    16
    """

    epochs: int = 1
    batch_size: int = 16
    learning_rate: float = 0.1
    momentum: float = 0.0
    proximal: float = 0.0
    full_weight_rows: int | None = None
    loss: Loss = cross_entropy

    def __post_init__(self) -> None:
        _check.count(epochs=self.epochs, batch_size=self.batch_size)
        _check.positive(learning_rate=self.learning_rate)
        _check.non_negative(proximal=self.proximal, momentum=self.momentum)
        if self.full_weight_rows is not None:
            _check.count(full_weight_rows=self.full_weight_rows)

    def weight(self, count: int) -> float:
        """Return what the update of a client is multiplied by, from 0 to 1.

        Args:
            count: How many rows the client has. It is private, and so is the weight.

        Returns:
            The weight.

        >>> [LocalTraining(full_weight_rows=20).weight(count) for count in (0, 5, 20, 1000)]
        [0.0, 0.25, 1.0, 1.0]
        """
        return 1.0 if self.full_weight_rows is None else min(1.0, count / self.full_weight_rows)

    def statement(self) -> str:
        """Return what a client answers with, in a sentence for statements.

        Returns:
            The sentence.
        """
        passes = "pass" if self.epochs == 1 else "passes"
        weighted = (
            ""
            if self.full_weight_rows is None
            else f", times the number of its rows divided by {self.full_weight_rows}, at most 1"
        )
        return (
            f"The update of a client is how far {self.epochs} {passes} of SGD over its own rows moved the "
            f"model{weighted}."
        )


def batch_order(count: int, training: LocalTraining, *, client: int, step: int) -> Iterator[Tensor]:
    """Yield the rows of each local step, by number.

    The order depends on the numbers of the client and the round alone, so that every way to run the same
    round takes the same steps.

    Args:
        count: How many rows the client has.
        training: How clients learn.
        client: The number of the client.
        step: The number of the round, from 0 on.

    Yields:
        Row numbers, at most `batch_size` of them.

    >>> [len(batch) for batch in batch_order(5, LocalTraining(epochs=2, batch_size=3), client=0, step=0)]
    [3, 2, 3, 2]
    """
    draws = torch.Generator().manual_seed(_seed(client, step))
    for _ in range(training.epochs):
        yield from torch.randperm(count, generator=draws).split(training.batch_size)


def local_update(
    model: nn.Module, rows: Sequence[Any], training: LocalTraining, *, client: int, step: int
) -> dict[str, Tensor]:
    """Return the update of one client.

    Args:
        model: The model of the server. It is not changed.
        rows: The rows of the client: tensors with one row an example.
        training: How clients learn.
        client: The number of the client.
        step: The number of the round, from 0 on.

    Returns:
        For each trainable parameter, by name, the value that the server gave minus the value now.

    >>> model = nn.Linear(2, 2)
    >>> rows = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    >>> sorted(local_update(model, rows, LocalTraining(), client=0, step=0))
    ['bias', 'weight']
    """
    given = {name: p.detach() for name, p in parameter_values.find(model).parameters.items()}
    own = {name: value.clone().requires_grad_() for name, value in given.items()}
    speed = {name: torch.zeros_like(value) for name, value in given.items()}
    called = WithValues(model, own | {name: value.clone() for name, value in model.named_buffers()})
    with same_draws({value.device for value in given.values()}, seed=_seed(client, step, "draws")):
        for chosen in batch_order(row_trees.count(rows), training, client=client, step=step):
            with torch.enable_grad():
                losses = training.loss(called, *row_trees.take(rows, chosen))
                gradients = torch.autograd.grad(
                    losses.mean(), list(own.values()), allow_unused=True, materialize_grads=True
                )
            with torch.no_grad():
                for (name, value), gradient in zip(own.items(), gradients, strict=True):
                    pull = training.proximal * (value - given[name])
                    speed[name].mul_(training.momentum).add_(gradient + pull)
                    value.sub_(training.learning_rate * speed[name])
    weight = training.weight(row_trees.count(rows))
    return {name: weight * (given[name] - own[name].detach()) for name in given}


def _seed(*parts: object) -> int:
    digest = hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class WithValues(nn.Module):
    """A model that is called with other values of its parameters.

    Args:
        model: The model. It is not changed.
        values: Tensors by name, in place of its parameters and buffers.
    """

    def __init__(self, model: nn.Module, values: dict[str, Tensor]) -> None:
        super().__init__()
        self._model = [model]  # in a list: its parameters are not this module's
        self._values = _at_each_place(model, values)
        self._recurrent = [[module for module in model.modules() if isinstance(module, nn.RNNBase)]]

    def forward(self, *inputs: Any) -> Any:
        """Call the model.

        Args:
            *inputs: What the model is called with.

        Returns:
            What it returns.
        """
        with _flat_weights_kept(self._recurrent[0]):
            return functional_call(self._model[0], self._values, inputs, tie_weights=False)


def _at_each_place(model: nn.Module, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return values by all names of their tensors, of which those that modules share have several.

    A module that is a part of several others counts once: torch would give such a one its value for each of
    its names, and keep the value of the last one instead of putting all back.
    """
    places = [
        (f"{path}.{name}" if path else name, held)
        for path, module in model.named_modules()
        for own in (module.named_parameters, module.named_buffers)
        for name, held in own(recurse=False, remove_duplicate=False)
    ]
    known = {id(held): values[name] for name, held in places if name in values}
    return {name: known[id(held)] for name, held in places if id(held) in known}


@contextmanager
def _flat_weights_kept(modules: Sequence[nn.RNNBase]) -> Generator[None]:
    """Put back the lists of weights that recurrent modules make anew when they are called with other ones."""
    names = ("_flat_weights", "_flat_weight_refs")
    before = [(m.__dict__, {name: m.__dict__[name] for name in names}) for m in modules]
    for held, lists in before:
        held.update({name: list(values) for name, values in lists.items()})
    try:
        yield
    finally:
        for held, lists in before:
            held.update(lists)
