# SPDX-License-Identifier: Apache-2.0
"""Take the local steps of several clients at once, with their parameters stacked: [clients, *shape].

Guarantee  The steps of each client are those of `local_training.local_update`, up to rounding. vmap hides the
           axis that counts clients: the model and the loss see the rows of one client.
Edge cases A batch with fewer rows than others is filled with copies of its own first row, of weight 0: they
           are finite where that row is. A client that has taken its last step rests. A client without rows
           has an update of zeros. What a client changes in buffers is dropped.
Failure    What vmap cannot run raises, mostly `RuntimeError`, and so does a row that makes the model fail.
           The message may quote a row: catch it, and do not pass it on.
Not here   Layers that mix the rows of a batch: copies would count. `vectorized` finds them out.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.utils.rnn import pad_sequence

from sfumato.federated.clients.local_training import LocalTraining, WithValues, batch_order
from sfumato.federated.clients.vmap_layers import ClientLayers
from sfumato.training.data import rows as row_trees
from sfumato.training.data import tree
from sfumato.training.engine import parameter_values
from sfumato.training.engine.losses import checked

__all__ = ["stacked_updates"]


def stacked_updates(
    model: nn.Module,
    held: Sequence[Sequence[Any]],
    training: LocalTraining,
    *,
    clients: Sequence[int],
    step: int,
) -> dict[str, Tensor]:
    """Return the updates of some clients, as `local_update` does for one.

    Args:
        model: The model of the server. It is not changed.
        held: The rows of each client, on the device of the model.
        training: How clients learn.
        clients: The numbers of the clients, in the same order.
        step: The number of the round, from 0 on.

    Returns:
        For each trainable parameter, by name, one update for each client: [clients, *shape].

    Raises:
        InvalidParameterError: If the loss does not return one number for each row.

    >>> rows = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    >>> found = stacked_updates(nn.Linear(2, 2), [rows, rows], LocalTraining(), clients=[0, 1], step=0)
    >>> found["bias"].shape
    torch.Size([2, 2])
    """
    batches = _batches(held, training, clients, step)
    order = sorted(range(len(batches)), key=lambda place: -len(batches[place]))  # who rests first is last
    stack = _Stack(model, training, len(clients))
    joined = tree.zipped(held, torch.cat)
    for number in range(len(batches[order[0]])):
        taken = [batches[place][number] for place in order if number < len(batches[place])]
        index, weights = _aligned(taken)
        stack.take_step(row_trees.take(joined, index), weights)
    return stack.updates(torch.tensor(order).argsort())


def _batches(
    held: Sequence[Sequence[Any]], training: LocalTraining, clients: Sequence[int], step: int
) -> list[list[Tensor]]:
    """Return for each client its batches, as places among the rows of all these clients."""
    found: list[list[Tensor]] = []
    begin = 0
    for client, rows in zip(clients, held, strict=True):
        count = row_trees.count(rows)
        order = batch_order(count, training, client=client, step=step)
        found.append([chosen + begin for chosen in order if len(chosen)])
        begin += count
    return found


def _aligned(batches: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return a batch of each client as [clients, width], and what each row weighs in its client's mean."""
    index = pad_sequence(batches, batch_first=True, padding_value=-1)
    real = index >= 0
    return torch.where(real, index, index[:, :1]), real / real.sum(1, keepdim=True)


class _Stack:
    """The parameters of several clients, those who rest first last."""

    def __init__(self, model: nn.Module, training: LocalTraining, clients: int) -> None:
        self._model, self._training = model, training
        self._given = {name: p.detach() for name, p in parameter_values.find(model).parameters.items()}
        self._own = {name: p.expand(clients, *p.shape).clone() for name, p in self._given.items()}
        moving = self._own if training.momentum else {}
        self._speed = {name: torch.zeros_like(value) for name, value in moving.items()}

    @torch.no_grad()
    def take_step(self, rows: Sequence[Any], weights: Tensor) -> None:
        """Take a step of as many clients as there are rows for, [clients, width, ...]."""
        count, rate = len(weights), self._training.learning_rate
        own = {name: value[:count] for name, value in self._own.items()}
        for name, gradient in self._gradients(own, rows, weights).items():
            if self._training.proximal:
                gradient.add_(own[name] - self._given[name], alpha=self._training.proximal)
            if self._training.momentum:
                gradient = self._speed[name][:count].mul_(self._training.momentum).add_(gradient)
            own[name].sub_(gradient, alpha=rate)

    def _gradients(self, own: dict[str, Tensor], rows: Sequence[Any], weights: Tensor) -> dict[str, Tensor]:
        """Return the gradient of each client's mean loss."""
        buffers = {name: value.clone() for name, value in self._model.named_buffers()}

        def mean_loss(own: dict[str, Tensor], parts: tuple[Tensor, ...], weights: Tensor) -> Tensor:
            called = WithValues(self._model, own | buffers)
            losses = checked(self._training.loss(called, *row_trees.refilled(rows, parts)), len(weights))
            return (losses * weights.to(losses.dtype)).sum()

        parts = tuple(row_trees.tensors(rows))  # flat: vmap does not know all containers
        with parameter_values.as_written(), ClientLayers() as mode:
            found = vmap(grad(mean_loss), randomness="error")(own, parts, weights.to(parts[0].device))
        mode.refuse_routes()
        return found

    def updates(self, order: Tensor) -> dict[str, Tensor]:
        """Return the parameters that were given minus those of each client, in another order of clients."""
        for name, value in self._own.items():
            value.neg_().add_(self._given[name])
        if order.equal(torch.arange(len(order))):
            return self._own
        return {name: value[order] for name, value in self._own.items()}
