# SPDX-License-Identifier: Apache-2.0
"""Change rows at random before they are learned from, each unit on its own.

Guarantee  What `augment` makes of a unit's rows depends on these rows and on random draws, never on the rows
           of another unit. It is called for all units at once, but sees one of them (`isolation`), or it is
           called once for each unit.
Unit       `rows_per_unit` consecutive rows: all views of a row, and all rows of an owner. Mixing within a
           unit is allowed.
Failure    The message of an `augment` that fails may quote a row. It is not repeated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from sfumato._failures import ordinary
from sfumato.errors import InvalidParameterError, QueryFailedError, SfumatoError, UnsupportedUseError
from sfumato.training.data import rows, tree
from sfumato.training.isolation.isolated_rows import Isolated

__all__ = ["Augment", "Augmenter", "quietly"]

T = TypeVar("T")
Augment = Callable[[Any, torch.Generator], Any]  # (rows, where to draw from) -> as many rows
_SPREAD = 0x9E3779B97F4A7C15  # an odd number: seeds of units that follow one another are far apart


class Augmenter:
    """Applies an augmentation to all units at once if possible, otherwise one by one."""

    def __init__(self, augment: Augment) -> None:
        self._augment = augment
        self._at_once = True

    def __call__(self, batch: tuple[Any, ...], *, rows_per_unit: int, seed: int) -> tuple[Any, ...]:
        """Return the rows of a batch, changed; the same for the same seed."""
        units = rows.count(batch) // rows_per_unit
        if self._at_once:
            try:
                return ordinary(lambda: self._isolated(batch, units, seed))
            except UnsupportedUseError:
                self._at_once = False  # it would mix rows, or catches an error that any row may cause
            except (SfumatoError, torch.OutOfMemoryError, MemoryError):
                raise
            except Exception:
                self._at_once = False  # it looks at values, or leaves torch: it gets one unit after another
        return quietly("augment", lambda: self._one_by_one(batch, units, seed))

    def _isolated(self, batch: tuple[Any, ...], units: int, seed: int) -> tuple[Any, ...]:
        isolated = Isolated(units, own_tensors=True, generators=True)
        blocks = tree.mapped(batch, lambda t: t.reshape(units, -1, *t.shape[1:]))
        with isolated:
            own = tree.mapped(blocks, isolated.block)
            changed = self._changed(own, seed)
            return tree.mapped(changed, lambda t: isolated.join(t).flatten(0, 1))

    def _one_by_one(self, batch: tuple[Any, ...], units: int, seed: int) -> tuple[Any, ...]:
        size = rows.count(batch) // units
        each = [
            self._changed(rows.take(batch, slice(i * size, (i + 1) * size)), seed + _SPREAD * i)
            for i in range(units)
        ]
        return tree.zipped(each, torch.cat)

    def _changed(self, own: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
        """Return the rows of one unit, changed."""
        found = self._augment(own, torch.Generator().manual_seed(seed % (1 << 63)))
        size = next(tree.tensors(own)).shape[0]
        tensors: Sequence[Tensor] = list(tree.tensors(found)) if _is_batch(found) else []
        if not tensors or any(not t.dim() or t.shape[0] != size for t in tensors):
            raise InvalidParameterError("augment must return as many rows as it gets, in the same order.")
        return tuple(found) if isinstance(found, tuple | list) else (found,)


def _is_batch(found: Any) -> bool:
    return isinstance(found, tuple | list | Mapping | Tensor)


def quietly(name: str, work: Callable[[], T]) -> T:
    """Run a function of the caller on private rows. If it fails, its message is not repeated."""
    try:
        return ordinary(work)
    except SfumatoError:
        raise
    except Exception as error:
        failure = type(error).__name__
    # Outside the handler: an error raised inside it would be chained to the one that may quote a row.
    raise QueryFailedError(
        f"{name} failed on rows of a batch ({failure}). The original message is left out, as it may quote "
        "private values. It must accept every possible row: try it on synthetic rows."
    )
