# SPDX-License-Identifier: Apache-2.0
"""Train the clients of a cohort at once, in one process.

The parameters of clients are stacked, [clients, ...], and `torch.func.vmap` takes one local step of all of
them. The results are those of a loop over `local_training.local_update`, up to rounding.

Guarantee  An update is computed from the rows of its own client alone: the model and the loss see one client.
           Shapes are public too, and who fails is tried again apart from the others, in the same shapes. So
           other clients do not even change how an update is rounded, which chaotic local training (high
           rates, many steps) would amplify. What is left is a client's place among those that are computed
           at once: on a CPU with more than two threads, torch may round functions such as tanh differently
           where threads meet. torch's random state is not moved.
           No client can stop a round. One whose rows cannot be read, are not nested, shaped and typed like
           `like`, or make the model fail, has an update of zeros. One whose numbers are not finite has an
           update that is not finite, and clipping leaves it out.
Edge cases If vmap cannot run a model (dropout, values that decide what is computed), or the rows of a batch
           are mixed (batch normalization), clients are trained one after another, with one warning. This is
           found out with made-up rows, in the mode (training or evaluation) that the model has. So is a model
           that keeps something of rows, which no round may run (`integrity.release_barrier`). Models with
           an LSTM on a CPU are trained so, too, without a warning: oneDNN's kernel for one client is faster
           than products for all of them.
           On a GPU, an index out of range stops the process, whoever has it.
Not here   Clipping and noise: `training.engine.contributions`.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfumato import _check
from sfumato._failures import ordinary
from sfumato.errors import InvalidParameterError, SfumatoError
from sfumato.federated.clients.client_rows import ClientRows, readable_rows
from sfumato.federated.clients.local_training import LocalTraining, local_update
from sfumato.federated.clients.stacked_training import PIECE, stacked_updates
from sfumato.training.data import rows as row_trees
from sfumato.training.engine import parameter_values
from sfumato.training.engine.contributions import Federation
from sfumato.training.engine.functional import needs_autograd
from sfumato.training.integrity.release_barrier import Barrier

__all__ = ["VectorizedClients"]

_AT_ONCE: Final = 32  # clients; more take memory and are hardly faster
_IDLE: Final = 1000  # the seed of the row of places without a client
_SAME: Final = 1e-3  # how far two ways to compute an update may be apart, as a share of its norm


class VectorizedClients:
    """Trains the clients of a cohort at once: a `Contributor` for `Runtime(engine=...)`.

    The data of the run is `(torch.arange(len(rows)),)`, the numbers of the clients.

    Args:
        rows: What clients hold.
        training: How clients learn.
        clients_at_once: How many clients are computed at once, empty places included. It changes speed and
            rounding only.
        counted: Whether the number of clients sets the sampling rate of the run, and is public.
        vectorize: Whether to train these clients at once, or one after another. Default: what is faster.

    Raises:
        InvalidParameterError: If `clients_at_once` is no positive whole number.

    >>> from sfumato.federated.clients.partitions import iid
    >>> rows = iid((torch.zeros(30, 2), torch.zeros(30, dtype=torch.int64)), clients=10)
    >>> clients = VectorizedClients(rows, LocalTraining(batch_size=3))
    >>> updates = clients.contributions(nn.Linear(2, 2), (torch.tensor([4, 7]),), step=0)
    >>> {name: list(update.shape) for name, update in updates.items()}
    {'weight': [2, 2, 2], 'bias': [2, 2]}
    """

    def __init__(
        self,
        rows: ClientRows,
        training: LocalTraining,
        *,
        clients_at_once: int = _AT_ONCE,
        counted: bool = False,
        vectorize: bool | None = None,
    ) -> None:
        _check.count(clients_at_once=clients_at_once)
        self._rows, self._training, self._size = rows, training, clients_at_once
        self._counted, self._wanted, self._vectorized = counted, vectorize, False
        self._rehearsed: tuple[nn.Module, list[bool]] | None = None  # with the modes of its parts

    def __repr__(self) -> str:
        loss = getattr(self._training.loss, "__qualname__", type(self._training.loss).__qualname__)
        settings = ", ".join(
            f"{name}={getattr(self._training, name)!r}"
            for name in ("epochs", "batch_size", "learning_rate", "momentum", "proximal", "full_weight_rows")
        )
        return f"VectorizedClients({settings}, loss={loss})"  # not how many: that is private unless declared

    @property
    def federation(self) -> Federation:
        """That units are clients."""
        return Federation(public_clients=len(self._rows) if self._counted else None)

    def contributions(self, model: nn.Module, batch: Sequence[Any], *, step: int) -> Mapping[str, Tensor]:
        """Return the update of each client of a cohort.

        Args:
            model: The model of the server. It is not changed.
            batch: The numbers of the clients, [clients], in a tuple.
            step: The number of the round, from 0 on.

        Returns:
            For each trainable parameter, by name, one update for each client: [clients, *shape].
        """
        self.rehearse(model)
        places = parameter_values.find(model).parameters
        clients = [int(client) for client in batch[0].tolist()]
        updates = {name: p.detach().new_empty((len(clients), *p.shape)) for name, p in places.items()}
        for begin in range(0, len(clients), self._size):
            part = slice(begin, begin + self._size)
            for name, found in self._part(model, clients[part], step).items():
                updates[name][part] = found
        return updates

    def statement(self) -> str:
        """Return what a contribution is, in a sentence.

        Returns:
            The sentence.
        """
        return self._training.statement()

    def rehearse(self, model: nn.Module) -> None:
        """Find out on made-up rows whether clients can be trained at once. Call it before a run is charged.

        Args:
            model: The model that will be trained.

        Raises:
            InvalidParameterError: If the model or the loss fails on rows of these shapes and types.
            NotPrivateError: If the model keeps something of the rows that it sees.
        """
        modes = [module.training for module in model.modules()]
        if self._rehearsed is not None and self._rehearsed[0] is model and self._rehearsed[1] == modes:
            return
        can = _rehearsed(model, self._rows.like, self._training, slots=self._size)
        wanted = self._wanted if self._wanted is not None else not _is_faster_alone(model)
        self._vectorized, self._rehearsed = can and wanted, (model, modes)
        if wanted and not can:
            warnings.warn(
                "torch.func.vmap cannot train this model for many clients at once; they are trained one "
                "after another, slowly. Leave out dropout and layers that mix the rows of a batch.",
                stacklevel=2,
            )

    def _part(self, model: nn.Module, clients: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return the updates of some clients."""
        held = [self._held(client, _device(model)) for client in clients]
        places = parameter_values.find(model).parameters
        updates = {name: p.detach().new_empty((len(clients), *p.shape)) for name, p in places.items()}
        waiting = (
            [range(len(clients))] if self._vectorized else [range(i, i + 1) for i in range(len(clients))]
        )
        while waiting:
            part = waiting.pop()
            found = self._together(model, held, part, clients, step) if self._vectorized else None
            if found is None and len(part) > 1:
                waiting += [part[: len(part) // 2], part[len(part) // 2 :]]
                continue
            if found is None:
                found = self._alone(model, held[part[0]], clients[part[0]], step)
            for name, update in found.items():
                updates[name][part.start : part.stop] = update
        return updates

    def _together(
        self, model: nn.Module, held: Sequence[Any], part: range, clients: Sequence[int], step: int
    ) -> dict[str, Tensor] | None:
        """Return the updates of a part of the clients, with empty places around it; None if one fails."""
        none = row_trees.take(held[0], slice(0, 0))
        idle = _made_up(self._rows.like, 1, _IDLE, _device(model))
        rows = [own if place in part else none for place, own in enumerate(held)]
        try:
            found = ordinary(
                lambda: stacked_updates(
                    model, rows, self._training, clients=clients, step=step, slots=self._size, idle=idle
                )
            )
        except Exception:  # a client is the reason: made-up rows were no problem. The message may quote a row
            return None
        return {name: update[part.start : part.stop] for name, update in found.items()}

    def _alone(self, model: nn.Module, rows: Sequence[Any], client: int, step: int) -> dict[str, Tensor]:
        """Return the update of one client by the reference, and zeros if its rows make the model fail."""
        try:
            return ordinary(lambda: local_update(model, rows, self._training, client=client, step=step))
        except Exception:  # rehearsed on made-up rows, so these rows, or how many there are, are the reason
            return {name: torch.zeros_like(p) for name, p in parameter_values.find(model).parameters.items()}

    def _held(self, client: int, device: torch.device) -> Sequence[Any]:
        """Return the rows of a client on a device; none if they cannot be read or are not as declared."""
        try:
            return row_trees.mapped(readable_rows(self._rows, client), lambda t: t.to(device))
        except Exception:  # it has more rows than fit
            return row_trees.mapped(self._rows.like, lambda t: t.to(device))


def _device(model: nn.Module) -> torch.device:
    return next(iter(parameter_values.find(model).parameters.values())).device


def _is_faster_alone(model: nn.Module) -> bool:
    """Whether one client after another is faster: torch has a kernel for a whole LSTM on a CPU."""
    fused = _device(model).type == "cpu" and torch.backends.mkldnn.is_available()
    return fused and any(isinstance(module, nn.LSTM) and not module.proj_size for module in model.modules())


def _rehearsed(model: nn.Module, like: Sequence[Any], training: LocalTraining, *, slots: int) -> bool:
    """Whether clients can be stacked; refuse what fails on made-up rows, or keeps something of them."""
    work = partial(_can_be_stacked, model, like, training, slots=slots)

    def fill_caches() -> None:
        local_update(model, _made_up(like, 2, _IDLE, _device(model)), training, client=0, step=0)

    try:
        return Barrier(model).run(work, fill_caches, thorough=True)
    except (SfumatoError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # on made-up rows: no private number is in it
        raise InvalidParameterError(
            "the model or the loss fails on made-up rows with the shapes and types of the clients' rows, "
            f"{_shapes(like)}: {str(error).partition(chr(10))[0] or type(error).__name__}. The model has "
            f"parameters of {_types(model.parameters())}."
        ) from error


def _shapes(like: Sequence[Any]) -> str:
    """Return the shapes and types of rows as a text."""
    parts = list(row_trees.tensors(like))
    return ", ".join(f"[{', '.join(['rows', *map(str, t.shape[1:])])}] of {_types([t])}" for t in parts)


def _types(values: Iterable[Tensor]) -> str:
    return ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in values}))


def _can_be_stacked(model: nn.Module, like: Sequence[Any], training: LocalTraining, *, slots: int) -> bool:
    """Whether stacked clients get the updates of the reference, on made-up rows."""
    size = min(training.batch_size, PIECE + 2)  # rows; larger batches are made of pieces, too
    gentle = replace(training, epochs=1, batch_size=size, learning_rate=_SAME, momentum=0.0, proximal=0.0)
    sizes = (size + 2, 2, 3)  # some batches must be filled; none is of a single row
    held = [_made_up(like, size, seed, _device(model)) for seed, size in enumerate(sizes)]
    idle = _made_up(like, 1, _IDLE, _device(model))
    wanted = [local_update(model, rows, gentle, client=c, step=0) for c, rows in enumerate(held)]
    if needs_autograd(model.modules()):
        return False
    try:
        found = stacked_updates(
            model, held, gentle, clients=range(len(held)), step=0, slots=max(slots, len(held)), idle=idle
        )
    except (torch.OutOfMemoryError, InvalidParameterError):
        raise
    except Exception:  # vmap cannot run it: the reference did
        return False
    return all(_same({n: v[place] for n, v in found.items()}, update) for place, update in enumerate(wanted))


def _made_up(like: Sequence[Any], count: int, seed: int, device: torch.device) -> Sequence[Any]:
    """Return rows of declared shapes: random numbers, and 0 or 1 where they are whole."""
    draws = torch.Generator().manual_seed(seed)

    def drawn(t: Tensor) -> Tensor:
        shape = (count, *t.shape[1:])
        made = torch.randn(shape, generator=draws)
        return (made if t.is_floating_point() else made > 0).to(device, t.dtype)

    return row_trees.mapped(like, drawn)


def _same(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    flat, reference = (
        torch.cat([update[name].flatten().double() for name in wanted]) for update in (found, wanted)
    )
    eps = max(torch.finfo(value.dtype).eps for value in wanted.values())
    return bool((flat - reference).norm() <= max(_SAME, 50 * eps) * reference.norm())
