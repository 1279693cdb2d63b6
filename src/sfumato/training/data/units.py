# SPDX-License-Identifier: Apache-2.0
"""Training data as privacy units: one row each, or one owner with several rows.

Guarantee  `Units.take` returns consecutive rows of each requested unit, computed from that unit's rows alone,
           at most `contribution_bound` of them, with weights that average a unit's rows and views before its
           gradient is clipped. So one unit is one contribution, however many rows it owns. The numbers of
           rows and units are private: they are in no message and no repr.
Unit       A row, or with `owners` an owner (`data.owners`). `augment` sees `views` copies of each row of one
           unit at a time (`data.augmentation`).
Edge cases An example of a map-style data set that cannot be read, or has another form than the first one, is
           a row of zeros of weight 0: no row may decide whether a run fails (`data.readable_rows`).
           `Deferred` rows are read by `Units.open`, which a run calls after it was paid for and has begun:
           whether they can be read at all may depend on what they hold.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms.random import Generator, words
from sfumato.training import distributed
from sfumato.training.data import rows, tree
from sfumato.training.data.augmentation import Augment, Augmenter, quietly
from sfumato.training.data.owners import Owned
from sfumato.training.data.readable_rows import BATCH, READABLE, ReadableRows
from sfumato.training.data.silence import silent

__all__ = [
    "Augment",
    "Batch",
    "Deferred",
    "RowSource",
    "Units",
    "moved",
    "open_rows",
    "public_size_of",
    "weighed",
]


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of some units, `rows_per_unit` consecutive ones each; weights of None are all 1."""

    rows: tuple[Any, ...]
    rows_per_unit: int = 1
    row_weights: Tensor | None = None
    numbers: Tensor | None = None  # of the rows, before any views of them were made


@dataclass(frozen=True, kw_only=True, slots=True)
class Deferred:
    """Rows that must not be read before they are paid for.

    `blank` has their shapes and types and no row; `read` returns all rows, and who owns each: None exactly
    where not `by_owner`. Whatever it raises must not quote what it read.
    """

    blank: tuple[Tensor, ...]
    read: Callable[[], tuple[tuple[Tensor, ...], Tensor | None]]
    by_owner: bool = False
    public_units: int = 0  # how many units there are, if that is public


class RowSource(Protocol):
    """Rows by number."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Any, ...]:
        """Return the rows of an index, in its order; at least one."""
        ...

    def held(self) -> Any:
        """Return what the rows are made of, as it was given."""
        ...


class _TensorRows:
    """Tensors, nested in any way that `tree` knows, rows on the first axis."""

    def __init__(self, tensors: tuple[Any, ...]) -> None:
        self._tensors = tensors
        self._count = rows.count(tensors)

    def __len__(self) -> int:
        return self._count

    def take(self, index: Tensor) -> tuple[Any, ...]:
        return rows.take(self._tensors, index)

    def held(self) -> Any:
        return self._tensors


class _DatasetRows:
    """A map-style torch data set, collated as a torch loader would. Its rows are no secret: they may fail."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._context = silent if hasattr(dataset, "one_form") else nullcontext  # such rows are private

    def __len__(self) -> int:
        return len(self._dataset)

    def held(self) -> Any:
        return self._dataset

    def take(self, index: Tensor) -> tuple[Any, ...]:
        stacked = getattr(self._dataset, "stacked", None) if self._context is silent else None
        if stacked is not None:  # it is one of ours, which is silent itself
            return quietly("the data set", lambda: stacked(index.tolist()))
        with self._context():
            return _collated(quietly("the data set", lambda: self._examples(index.tolist())))

    def _examples(self, numbers: list[int]) -> list[Any]:
        at_once = getattr(self._dataset, "__getitems__", None)  # as torch's own loader asks for them
        return [self._dataset[i] for i in numbers] if at_once is None else at_once(numbers)


class _PrivateRows(_DatasetRows):
    """The same with rows that must not fail: what cannot be read is a row of zeros, of weight 0."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self._readable = ReadableRows(dataset)

    def take(self, index: Tensor) -> tuple[Any, ...]:
        return self.weighed(index)[0]

    def weighed(self, index: Tensor) -> tuple[tuple[Any, ...], Tensor]:
        """Return the rows of an index, and the weight of each: 1, or 0 if it cannot be read."""
        with silent():  # torch may warn of what it collates
            read = self._readable.__getitems__(index.tolist())
            return _collated([row[BATCH] for row in read]), torch.stack([row[READABLE] for row in read])


def _collated(examples: list[Any]) -> tuple[Any, ...]:
    try:
        batch = default_collate(examples)
    except (RuntimeError, TypeError):  # its message would tell shapes or types of rows
        raise InvalidParameterError(
            "the examples of the data set cannot be put into one batch: their tensors differ in shape or "
            "number, or are no tensors. Pad or crop each example to one shape in the data set itself."
        ) from None
    return tuple(batch) if isinstance(batch, list | tuple) else (batch,)


def open_rows(data: Any, *, private: bool = False) -> RowSource:
    """Return the rows of tensors, of a `TensorDataset`, or of a map-style torch `Dataset`.

    A `private` row that cannot be read must not show, and becomes zeros; another one raises.

    >>> len(open_rows((torch.zeros(5, 2), torch.zeros(5))))
    5
    """
    _refuse(data)
    if hasattr(data, "train") and hasattr(data, "public_size"):  # one of sfumato.datasets, with its test part
        return open_rows(data.train, private=private)
    if isinstance(data, TensorDataset):
        return _TensorRows(data.tensors)
    if isinstance(data, Tensor | Mapping):
        return _TensorRows((data,))
    if isinstance(data, tuple | list):
        return _TensorRows(tuple(data))
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return _PrivateRows(data) if private and not hasattr(data, "one_form") else _DatasetRows(data)
    raise InvalidParameterError(
        f"cannot take rows from a {type(data).__name__}. Pass tensors in a tuple, or a torch Dataset with "
        "__getitem__ and __len__."
    )


def weighed(source: RowSource, index: Tensor) -> tuple[tuple[Any, ...], Tensor | None]:
    """Return rows with their weights, 1 or 0; None where all of them can be read."""
    return source.weighed(index) if isinstance(source, _PrivateRows) else (source.take(index), None)


def _refuse(data: Any) -> None:
    if isinstance(data, DataLoader):
        raise InvalidParameterError(
            "a DataLoader has a sampler of its own, and the guarantee holds only for the one it is computed "
            "for. Pass its data set (loader.dataset), and expected_batch_size instead of batch_size."
        )
    if isinstance(data, IterableDataset) or (hasattr(data, "__next__") and hasattr(data, "__iter__")):
        raise InvalidParameterError(
            "rows must be had by number, but the data can only be iterated: which rows are in a batch would "
            "be decided by their order. Pass a map-style Dataset or tensors."
        )


def public_size_of(data: Any, public_size: int | None) -> int | None:
    """Return the number of units that may be known: the one given, or what the data declares of itself.

    >>> public_size_of((torch.zeros(5, 2),), None) is None
    True
    """
    declared = getattr(data, "public_size", None)
    if public_size is None:
        return declared
    _check.count(public_size=public_size)
    if declared is not None and declared != public_size:
        raise InvalidParameterError(
            f"public_size={public_size} was given, but the data declares {declared}. Leave it out, or give "
            "the same."
        )
    return public_size


class Units:
    """The privacy units of a data set: `Units(data)` by rows, `Units(data, owners=..., ...)` by owners.

    >>> owners = torch.tensor([7, 7, 9, 7])
    >>> units = Units((torch.arange(4), torch.zeros(4)), owners=owners, contribution_bound=2)
    >>> batch = units.take(torch.tensor([0, 1]))
    >>> batch.rows_per_unit, batch.row_weights.tolist()
    (2, [0.5, 0.5, 1.0, 0.0])
    """

    def __init__(
        self,
        data: Any,
        *,
        owners: Tensor | Sequence[Hashable] | None = None,
        contribution_bound: int | None = None,
        augment: Augment | None = None,
        views: int = 1,
    ) -> None:
        _check.count(views=views)
        if views > 1 and augment is None:
            raise InvalidParameterError(f"views={views} copies of a row are all the same without augment=...")
        self._deferred = data if isinstance(data, Deferred) else None
        self._contribution_bound, self._opened = contribution_bound, False
        if self._deferred is None:
            self._source = open_rows(data, private=True)
            declared = _owners_of(data) if owners is None else owners
        else:
            self._source = open_rows(self._deferred.blank)
            declared = torch.zeros(0, dtype=torch.int64) if self._deferred.by_owner else None
        self._owned = Owned.of(declared, contribution_bound, len(self._source))
        self._augment, self._views = None if augment is None else Augmenter(augment), views

    @property
    def deferred(self) -> bool:
        """Whether rows must be read by `open`."""
        return self._deferred is not None

    def open(self) -> None:
        """Read deferred rows; rows that are here already stay."""
        if self._deferred is not None:
            # An engine may return rows in another order each time: all ranks must number them alike.
            data, owners = distributed.first_decides(self._deferred.read)
            self._source = open_rows(data, private=True)
            self._owned = Owned.of(owners, self._contribution_bound, len(self._source))
            self._opened = True

    @property
    def num_units(self) -> int:
        """How many there are: private unless it was declared public. Before `open`, what is public of it."""
        if self._deferred is not None and not self._opened:
            return self._deferred.public_units
        return len(self._source) if self._owned is None else len(self._owned)

    @property
    def rows_per_unit(self) -> int | None:
        """How many rows each unit has in a batch; None if that depends on who is in it, which is private.

        >>> Units((torch.zeros(4),)).rows_per_unit
        1
        """
        return self._views if self._owned is None or self._contribution_bound == 1 else None

    @property
    def by_owner(self) -> bool:
        """Whether a unit is an owner of rows, and not one row."""
        return self._owned is not None

    @property
    def plain(self) -> bool:
        """Whether a unit is one row, as the data has it: no owner of several, and no changed copies."""
        return self._owned is None and self._augment is None

    @property
    def computes_rows(self) -> bool:
        """Whether rows are computed when they are read, instead of being held in tensors."""
        return isinstance(self._source, _DatasetRows)

    def held(self) -> tuple[Any, ...]:
        """Return what decides which row has which number: tensors or a data set, and the owners of rows."""
        return self._source.held(), None if self._owned is None else self._owned.held()

    def read(self, units: Tensor) -> tuple[Any, ...]:
        """Return rows of some units as they are read, the same each time: nothing drawn, nothing changed."""
        return self._source.take(units if self._owned is None else self._owned.first_rows(units))

    def blank(self, units: int) -> tuple[Any, ...] | None:
        """Return rows of zeros in the shape of the data's, to rehearse with; None if there is no row.

        Of a map-style data set one example is loaded, for its shapes alone. `augment` gets the zeros too, as
        it may return rows of another shape.
        """
        if self._augment is None:
            return self._zeros(units)
        zeros = self._zeros(max(units, 1))  # none at all would not show what shape they get
        changed = None if zeros is None else self._augment(zeros, rows_per_unit=1, seed=0)
        return None if changed is None else rows.take(changed, slice(0, units))

    def _zeros(self, units: int) -> tuple[Any, ...] | None:
        if self._deferred is not None:
            return rows.padded(self._deferred.blank, units)
        if isinstance(self._source, _TensorRows):  # whose shapes are known without any row
            return rows.padded(self._source.take(torch.zeros(0, dtype=torch.int64)), units)
        if not len(self._source):
            return None
        one = self._source.take(torch.zeros(1, dtype=torch.int64))
        return rows.padded(rows.take(one, slice(0, 0)), units)

    def take(self, units: Tensor, generator: Generator | None = None) -> Batch:
        """Return the rows of some units; of none, a batch without rows."""
        if not len(units):
            return Batch(())
        if self._owned is None:
            found, readable = weighed(self._source, units)
            batch = Batch(found, row_weights=readable, numbers=units)
        else:
            numbers, width, weights = self._owned.draw(units, generator)
            found, readable = weighed(self._source, numbers)
            batch = Batch(found, width, weights if readable is None else weights * readable, numbers)
        if self._augment is None:
            return batch
        return self._viewed(batch, self._augment, generator)

    def _viewed(self, batch: Batch, augment: Augmenter, generator: Generator | None) -> Batch:
        views = self._views
        copies = torch.arange(rows.count(batch.rows)).repeat_interleave(views)
        many = rows.take(batch.rows, copies)
        seed = int(words(1, generator)[0] >> np.uint64(1))
        changed = augment(many, rows_per_unit=batch.rows_per_unit * views, seed=seed)
        weights = torch.ones(len(copies)) if batch.row_weights is None else batch.row_weights[copies]
        return Batch(changed, batch.rows_per_unit * views, weights / views, batch.numbers)


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device."""
    return tree.mapped(batch, lambda t: t.to(device, non_blocking=True))


# --- owners ----------------------------------------------------------------------------------------------


def _owners_of(data: Any) -> Tensor | None:
    """Return the owners of the rows if the data states them: then the unit is not an example."""
    inner = data.train if hasattr(data, "train") and hasattr(data, "public_size") else data
    return getattr(inner, "user_ids", None)
