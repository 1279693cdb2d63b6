# SPDX-License-Identifier: Apache-2.0
"""Take the local steps of several clients at once, with their parameters stacked: [clients, *shape].

Guarantee  The steps of each client are those of `local_training.local_update`, up to rounding. vmap hides the
           axis that counts clients: the model and the loss see the rows of one client.
           All shapes are public: there are always `slots` clients with equally many rows. Kernels round by
           shape, and many local steps can amplify a rounding to the size of an update: if shapes depended on
           who else takes part, one client would move the updates of all others.
           A batch of more than `PIECE` rows is computed in pieces of one shape, whose gradients are added up.
           So a step over all rows of a client costs what its rows cost, however large `batch_size` is. A
           piece in which a client has no row adds zeros to it, which rounds nothing.
Edge cases A batch with fewer rows is filled with copies of its own first row, of weight 0: they are finite
           where that row is. A client that has taken its last step, has no rows or is not there has the
           `idle` row, and does not move. What a client changes in buffers is dropped.
Failure    What vmap cannot run raises, mostly `RuntimeError`, and so does a row that makes the model fail.
           The message may quote a row: catch it, and do not pass it on.
Not here   Layers that mix the rows of a batch: copies would count. `vectorized` finds them out.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from sfumato.federated.clients.local_training import LocalTraining, WithValues, batch_order
from sfumato.federated.clients.vmap_layers import ClientLayers
from sfumato.training.data import rows as row_trees
from sfumato.training.data import tree
from sfumato.training.engine import parameter_values
from sfumato.training.engine.losses import checked

__all__ = ["PIECE", "stacked_updates"]

PIECE: Final = 128  # rows of each client that are computed at once, at most
_VECTORS: Final = 64  # numbers: two vectors of 16 at a time, on each of two threads


def stacked_updates(
    model: nn.Module,
    held: Sequence[Sequence[Any]],
    training: LocalTraining,
    *,
    clients: Sequence[int],
    step: int,
    slots: int | None = None,
    idle: Sequence[Any] | None = None,
) -> dict[str, Tensor]:
    """Return the updates of some clients, as `local_update` does for one.

    Args:
        model: The model of the server. It is not changed.
        held: The rows of each client, on the device of the model.
        training: How clients learn.
        clients: The numbers of the clients, in the same order.
        step: The number of the round, from 0 on.
        slots: How many clients are computed, the last ones of them empty; None: no more than there are.
        idle: One row that is nobody's, for places that rest; None: zeros.

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
    stack = _Stack(model, training, len(clients) if slots is None else slots)
    idle = row_trees.padded(row_trees.take(held[0], slice(0, 0)), 1) if idle is None else idle
    joined = tree.zipped([idle, *held], torch.cat)
    for number in range(max(map(len, batches))):
        taken = [own[number] if number < len(own) else None for own in batches]
        width = _width(min(training.batch_size, PIECE), stack.slots)
        pieces = _pieces(taken, stack.slots, width)
        stack.take_step((row_trees.take(joined, index), weights) for index, weights in pieces)
    return stack.updates([training.weight(row_trees.count(rows)) for rows in held])


def _batches(
    held: Sequence[Sequence[Any]], training: LocalTraining, clients: Sequence[int], step: int
) -> list[list[Tensor]]:
    """Return for each client its batches, as places among the idle row and the rows of all clients."""
    found: list[list[Tensor]] = []
    begin = 1
    for client, rows in zip(clients, held, strict=True):
        count = row_trees.count(rows)
        order = batch_order(count, training, client=client, step=step)
        found.append([chosen + begin for chosen in order if len(chosen)])
        begin += count
    return found


def _width(batch_size: int, slots: int) -> int:
    """Return how many rows each client has in a step, such that no vector of a processor is cut off.

    Torch rounds the last few numbers of a long row, of which `slots * width` is a factor, in another way.

    >>> _width(10, 8), _width(16, 32)
    (16, 16)
    """
    least = _VECTORS // math.gcd(slots, _VECTORS)
    return -(-batch_size // least) * least


def _pieces(batches: Sequence[Tensor | None], slots: int, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pieces of each client's batch as [slots, width], and what a row weighs in its client's mean."""
    for begin in range(0, max(len(chosen) for chosen in batches if chosen is not None), width):
        index, weights = torch.zeros(slots, width, dtype=torch.int64), torch.zeros(slots, width)
        for place, chosen in enumerate(batches):
            if chosen is not None and len(chosen) > begin:
                part = chosen[begin : begin + width]
                index[place] = part[0]
                index[place, : len(part)] = part
                weights[place, : len(part)] = 1 / len(chosen)
        yield index, weights


def _along(clients: Tensor, values: Tensor) -> Tensor:
    """Return one number for each client in a shape that fits [clients, ...]."""
    return clients.to(values.device).view(-1, *[1] * (values.dim() - 1))


class _Stack:
    """The parameters of several clients."""

    def __init__(self, model: nn.Module, training: LocalTraining, slots: int) -> None:
        self._model, self._training, self.slots = model, training, slots
        self._given = {name: p.detach() for name, p in parameter_values.find(model).parameters.items()}
        self._own = {name: p.expand(slots, *p.shape).clone() for name, p in self._given.items()}
        moving = self._own if training.momentum else {}
        self._speed = {name: torch.zeros_like(value) for name, value in moving.items()}

    @torch.no_grad()
    def take_step(self, pieces: Iterable[tuple[Sequence[Any], Tensor]]) -> None:
        """Take a step of all clients whose rows have a weight; rows of a piece are [slots, width, ...]."""
        total, moves = dict[str, Tensor](), torch.zeros(self.slots, dtype=torch.bool)
        for rows, weights in pieces:
            there = weights.any(1)
            moves |= there
            for name, gradient in self._gradients(self._own, rows, weights).items():
                gradient.masked_fill_(_along(~there, gradient), 0.0)  # it may be NaN: see below
                total[name] = total[name].add_(gradient) if name in total else gradient
        for name, gradient in total.items():
            own = self._own[name]
            rests = _along(~moves, own)
            if self._training.proximal:
                gradient.add_(own - self._given[name], alpha=self._training.proximal)
            gradient.masked_fill_(rests, 0.0)  # it may be NaN, as the idle row may be no input
            if self._training.momentum:
                speed = self._speed[name].mul_(self._training.momentum).add_(gradient)
                gradient = speed.masked_fill(rests, 0.0)
            own.sub_(gradient, alpha=self._training.learning_rate)

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

    def updates(self, weights: Sequence[float]) -> dict[str, Tensor]:
        """Return the parameters that were given minus those of the first clients, times their weights."""
        count = len(weights)
        return {
            name: (self._given[name] - own)[:count] * own.new_tensor(weights).view(-1, *[1] * (own.dim() - 1))
            for name, own in self._own.items()
        }
