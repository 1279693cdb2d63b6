# SPDX-License-Identifier: Apache-2.0
"""The draws behind the samplers of `privacy.sampling`: which units are in the batch of a step.

Guarantee  Draws are exact. A Poisson sample takes each unit independently with probability floor(2^64 rate) /
           2^64: at most the stated rate, and less than 2^-64 below it. Subsets and permutations are uniform.
           (With a secure generator: as far as its bytes are uniform.) The indices of a batch are sorted, so
           their order reveals nothing. The number of units is private: it is in no message and no repr.
Edge cases With a seeded generator, step t draws from a stream of its own, so a run resumed at t repeats
           itself. With any other generator, each call draws afresh. A shuffled order is kept until its epoch
           ends, and belongs into a checkpoint (`state_dict`): a fresh one could show a unit twice in an
           epoch.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, resolve, uniform_below, words

__all__ = [
    "CyclicSampler",
    "IndependentSampler",
    "Sampler",
    "ShuffledSampler",
    "permutation",
    "poisson",
    "subset",
    "truncated_poisson",
]

Indices = npt.NDArray[np.int64]


class Sampler(Protocol):
    """The batches of one run over one data set."""

    def batch(self, step: int) -> Tensor:
        """Return the sorted int64 indices of the units in the batch of `step`, counted from 0; maybe none."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: tensors and whole numbers."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        ...


# --- draws ---------------------------------------------------------------------------------------------


def poisson(num_units: int, sampling_rate: float, generator: Generator | None = None) -> Indices:
    """Return each of 0 ... num_units - 1 with the chance `sampling_rate`, independently.

    A unit is in if its 64 random bits, read as a number, are below floor(2^64 rate). The first 8 of them
    decide unless they equal those of the bound; only then, once in 256, the other 56 are drawn.

    >>> poisson(3, 1.0).tolist()
    [0, 1, 2]
    """
    bound = int(sampling_rate * 2.0**64)  # exact, as scaling by a power of two is, then rounded down
    if bound >= 2**64:
        return np.arange(num_units)
    first, rest = divmod(bound, 2**56)
    leading = np.empty(num_units, dtype=np.uint8)
    if num_units:
        resolve(generator).fill(leading.data)
    taken = np.flatnonzero(leading <= first)
    tied = np.flatnonzero(leading[taken] == first)
    out = tied[words(len(tied), generator) >> np.uint64(8) >= np.uint64(rest)]
    return np.delete(taken, out)


def subset(source_size: int, size: int, generator: Generator | None = None) -> Indices:
    """Return a uniformly random subset of `size` of 0 ... source_size - 1, sorted.

    The first `size` different values of independent uniform draws: no value is preferred, so no subset is.
    Where that would be most of them, those left out are drawn instead.

    >>> subset(4, 4).tolist(), subset(4, 0).tolist()
    ([0, 1, 2, 3], [])
    """
    if 2 * size > source_size:
        return np.delete(np.arange(source_size), subset(source_size, source_size - size, generator))
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < size:
        drawn = np.append(drawn, uniform_below(source_size, size + size // 2 + 8, generator))
        _, first_seen = np.unique(drawn, return_index=True)
        drawn = drawn[np.sort(first_seen)]
    return np.sort(drawn[:size])


def truncated_poisson(
    num_units: int, sampling_rate: float, batch_size: int, generator: Generator | None = None
) -> Indices:
    """Return a Poisson sample, or a uniformly random `batch_size` of it if it is larger."""
    taken = poisson(num_units, sampling_rate, generator)
    return taken if len(taken) <= batch_size else taken[subset(len(taken), batch_size, generator)]


def permutation(size: int, generator: Generator | None = None) -> Indices:
    """Return 0 ... size - 1 in uniformly random order: that of as many random words, no two of them equal.

    >>> sorted(permutation(3).tolist())
    [0, 1, 2]
    """
    while True:
        keys = words(size, generator)
        order = np.argsort(keys, kind="stable")
        if np.all(
            np.diff(keys[order]) > 0
        ):  # else redraw all: given that none are equal, no order is preferred
            return order


# --- samplers --------------------------------------------------------------------------------------------


class IndependentSampler:
    """Batches that are drawn anew at each step, whatever came before."""

    def __init__(self, draw: Callable[[Generator], Indices], generator: Generator | None) -> None:
        self._draw = draw
        self._generator = resolve(generator)

    def batch(self, step: int) -> Tensor:
        """Draw the batch of a step (see `Sampler`)."""
        _require_step(step)
        return torch.from_numpy(self._draw(_stream(self._generator, "sampling", step)))

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Accept what `state_dict` returned."""
        _require_keys(state, set())


class CyclicSampler:
    """Batches that cut 0 ... num_units - 1 in order, the same in every epoch; the last may be short."""

    def __init__(self, num_units: int, batch_size: int) -> None:
        self._order = torch.arange(num_units)
        self._batch_size = batch_size

    def batch(self, step: int) -> Tensor:
        """Return the batch of a step (see `Sampler`)."""
        _require_step(step)
        return _cut(self._order, self._batch_size, step)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Accept what `state_dict` returned."""
        _require_keys(state, set())


class ShuffledSampler:
    """Batches that cut a fresh permutation in each epoch; the last of an epoch may be short."""

    def __init__(self, num_units: int, batch_size: int, generator: Generator | None) -> None:
        self._num_units = num_units
        self._batch_size = batch_size
        self._generator = resolve(generator)
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def batch(self, step: int) -> Tensor:
        """Return the batch of a step (see `Sampler`)."""
        _require_step(step)
        epoch, position = divmod(step, -(-self._num_units // self._batch_size))
        if epoch != self._epoch:
            self._begin(epoch, position)
        return _cut(self._order, self._batch_size, position)

    def _begin(self, epoch: int, position: int) -> None:
        if not self._generator.seeded and (position != 0 or epoch < self._epoch):
            raise InvalidParameterError(
                "the order of this epoch is not known any more, and a fresh one could show a unit twice. "
                "Resume with the sampler's load_state_dict(...), or at the first step of a new epoch."
            )
        drawn = permutation(self._num_units, _stream(self._generator, "shuffle", epoch))
        self._epoch, self._order = epoch, torch.from_numpy(drawn)

    def state_dict(self) -> dict[str, Any]:
        """Return the current epoch, -1 before the first, and its order."""
        return {"epoch": self._epoch, "order": self._order.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the epoch that `state_dict` saw."""
        _require_keys(state, {"epoch", "order"})
        epoch, order = state["epoch"], state["order"]
        if not (_is_whole(epoch) and epoch >= -1 and _is_order(order, self._num_units if epoch >= 0 else 0)):
            raise InvalidParameterError(_NOT_A_STATE)
        self._epoch, self._order = epoch, order.clone()


_NOT_A_STATE = "this is not a state of this sampler. Use what its state_dict() returned here."


def _stream(generator: Generator, label: str, index: int) -> Generator:
    """Return the stream of one step or epoch: a fork if a seed makes it repeatable, else the same one."""
    return generator.fork(label, index) if generator.seeded else generator


def _cut(order: Tensor, batch_size: int, step: int) -> Tensor:
    batches = -(-len(order) // batch_size)
    start = step % batches * batch_size
    return order[start : start + batch_size].sort().values


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_order(value: object, size: int) -> bool:
    if not (isinstance(value, Tensor) and value.dtype == torch.int64 and value.shape == (size,)):
        return False
    return bool((value.cpu().sort().values == torch.arange(size)).all())


def _require_step(step: int) -> None:
    if not (_is_whole(step) and step >= 0):
        raise InvalidParameterError(f"step must be a whole number, 0 or more, but {step!r} was given.")


def _require_keys(state: Mapping[str, Any], keys: set[str]) -> None:
    if set(state) != keys:
        raise InvalidParameterError(_NOT_A_STATE)
