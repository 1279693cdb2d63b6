# SPDX-License-Identifier: Apache-2.0
"""All ranks hold the same rows under the same numbers, or the run is refused.

Guarantee  A batch is a set of numbers, and each rank takes its share of them. If number 7 is one person on
           one rank and another person on the next, a person may be in a batch twice, but noise is sized for
           one contribution. So before the first step, and after the run was charged, ranks compare what they
           hold: the number of units, who owns which row, all bytes of tensors, and the indices of subsets. If
           rows are computed when they are read, no rank reads them all: at every step all ranks read the same
           two units of the batch, chosen at random, and compare these.
Failure    Ranks that differ all stop. A data set whose row differs from one reading to the next cannot be
           compared, and is refused: random changes belong into `augment`, which runs after it.
Edge cases A difference in a share f of lazily read rows stays unseen for t steps with a chance of
           (1 - f)^(2 t).
Not here   Secrets: ranks exchange hashes with a secret key of 256 bits, made for this run by rank 0, so the
           messages reveal nothing of the rows. That ranks differ is a fact about the setup.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from sfumato.errors import InvalidParameterError
from sfumato.training import distributed
from sfumato.training.data import tree
from sfumato.training.data.units import Units

__all__ = ["Agreement", "digest"]

_COMPARED = 2  # units of each batch
_PIECE = 1 << 24  # bytes that are hashed at once


class Agreement:
    """Compares the rows of all ranks; alone, it does nothing."""

    def __init__(self, units: Units) -> None:
        self._units = units
        self._repeatable = False  # whether a row was read twice, and was the same
        self._key = distributed.first_decides(lambda: os.urandom(32)) if distributed.size() > 1 else b""

    def require_settings(self, settings: dict[str, str]) -> None:
        """Raise unless all ranks were started with the same public settings."""
        difference = "the ranks were started with different settings"
        self._require(lambda: digest(self._key, sorted(settings.items())), difference)

    def require_rows(self) -> None:
        """Raise unless all ranks hold the same rows, as far as that is known without computing any."""
        difference = "the ranks hold different rows, or the same in another order"
        self._require(lambda: digest(self._key, (self._units.num_units, self._units.held())), difference)

    def require_batch(self, units: Tensor, step: int) -> None:
        """Raise unless all ranks read the same in some units of a batch, if rows are computed."""
        if distributed.size() == 1 or not self._units.computes_rows:
            return
        real = units[units < self._units.num_units]  # canaries come after them
        if not len(real):
            return
        chosen = real[self._places(len(real), step)]
        self._require(lambda: self._read(chosen), "the ranks read different rows under the same number")

    def _places(self, count: int, step: int) -> Tensor:
        drawn = hashlib.blake2b(step.to_bytes(8, "big"), key=self._key, digest_size=8 * _COMPARED).digest()
        return torch.tensor([int.from_bytes(drawn[i::_COMPARED], "big") % count for i in range(_COMPARED)])

    def _read(self, chosen: Tensor) -> bytes:
        found = digest(self._key, self._units.read(chosen))
        if self._repeatable:
            return found
        self._repeatable = found == digest(self._key, self._units.read(chosen))
        if not self._repeatable:
            raise InvalidParameterError(
                "the data set returns another row each time the same number is read, so ranks cannot "
                "find out whether they hold the same rows. Make random changes in augment=..., which is "
                "given rows that were read, or train in one process."
            )
        return found

    def _require(self, compute: Callable[[], bytes], difference: str) -> None:
        if distributed.size() > 1 and not distributed.alike(compute):
            raise InvalidParameterError(
                f"{difference}, so one unit could be in a batch more than once. Pass the same data in the "
                "same order to every rank: split and shuffle with a seed that all ranks share "
                "(torch.utils.data.random_split(..., generator=torch.Generator().manual_seed(...))), or do "
                "it once and let all ranks read the result."
            )


def digest(key: bytes, value: Any) -> bytes:
    """Return a keyed hash of nested data: tensors by all their bytes, data sets by what they are made of."""
    state = hashlib.blake2b(key=key, digest_size=32)
    for part in _parts(value):
        state.update(len(part).to_bytes(8, "big"))  # so that no two sequences of parts are hashed alike
        state.update(part)
    return state.digest()


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    yield type(value).__qualname__.encode()
    if isinstance(value, Tensor):
        yield repr((tuple(value.shape), str(value.dtype))).encode()
        yield from _bytes(value)
    elif isinstance(value, np.ndarray):
        yield repr((value.shape, str(value.dtype))).encode()
        yield np.ascontiguousarray(value).tobytes()
    elif (inside := _inside(value)) is not None:
        yield str(len(inside)).encode()
        yield from (part for inner in inside for part in _parts(inner))
    elif isinstance(value, str | bytes | int | float | bool | None):
        yield repr(value).encode()
    elif hasattr(value, "__len__"):
        yield str(len(value)).encode()


def _inside(value: Any) -> list[Any] | None:
    """Return what a data set or a container is made of; None if that cannot be known."""
    if isinstance(value, TensorDataset):
        return list(value.tensors)
    if isinstance(value, Subset):
        whole = cast("Subset[Any]", value)
        return [torch.as_tensor(list(whole.indices), dtype=torch.int64), whole.dataset]
    if isinstance(value, ConcatDataset):
        return list(cast("ConcatDataset[Any]", value).datasets)
    inside = tree.parts(value)
    return [*cast("Mapping[Any, Any]", value), *inside] if isinstance(value, Mapping) and inside else inside


def _bytes(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the content of a tensor, piece by piece."""
    flat = tensor.detach().reshape(-1)
    for piece in flat.split(max(1, _PIECE // max(1, tensor.element_size()))):
        yield piece.cpu().contiguous().view(torch.uint8).numpy().data.cast("B")
