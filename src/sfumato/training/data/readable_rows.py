# SPDX-License-Identifier: Apache-2.0
"""Examples of a data set as rows of one public form.

Guarantee  What becomes of an example depends on it and on random draws, never on another one. An example that
           cannot be read or collated, or that has another form than the first one that can, contributes
           nothing: no error and no warning tells that it is there.
Edge cases Such an example becomes a row of zeros whose loss is multiplied by 0. Tensors and arrays are
           copied: a data set may read its next example into the same memory. The form is how an example is
           nested, and the types and shapes in it: that of the first one that can be read is public. Numbers
           of another type are converted to the type of that example where it can hold them.
Failure    If none of the first 100 examples can be read, the run is refused before it is charged.
Not here   What a data set keeps of the examples that it was asked for, such as a cache of its own.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sfumato._failures import ordinary
from sfumato.errors import InvalidParameterError
from sfumato.training.data import tree
from sfumato.training.data.augmentation import quietly
from sfumato.training.data.modes import kept_modes
from sfumato.training.data.silence import silent

__all__ = ["BATCH", "READABLE", "ReadableRows", "form", "zero_of"]

BATCH: Final = "batch"  # the key of a row: what `training_step` gets as its batch
READABLE: Final = "readable"  # the key of 1 or 0: whether the example could be read

_READABLE, _NOT = torch.ones(()), torch.zeros(())
_NUMBER: Final = bool | int | float | np.generic
_TRIED: Final = 100  # examples that are asked for the form: a data set in which none works is an error
_WHOLE: Final = range(-(2**63), 2**63)  # numbers that fit in a tensor


class ReadableRows(Dataset[dict[str, Any]]):
    """Examples as rows. `collate` makes a batch of one example; without it torch's own does.

    >>> rows = ReadableRows([(0.5, 1), (0.5, "no number")])
    >>> rows[0], rows[1]
    ({'batch': (0.5, 1), 'readable': tensor(1.)}, {'batch': (0.0, 0), 'readable': tensor(0.)})
    """

    one_form: Final = True  # of all rows: whoever asks for them need not look

    def __init__(self, data: Any, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self._data, self._collate = data, collate
        self._first: Any = None
        self._form: Hashable = None
        for name in ("user_ids", "public_size"):  # what the data says of its units
            if hasattr(data, name):
                setattr(self, name, getattr(data, name))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        with silent():
            if self._form is None:
                self._settle()
            return [self._read(number) for number in numbers]

    def _settle(self) -> None:
        """Take the form of the first example that can be read."""
        first = quietly("the data set", self._form_row)
        wanted = form(_like(first, first))  # what every row is compared with went the way of every row
        if wanted != form(first):
            raise InvalidParameterError(
                "the first example has an array or a tensor of a class whose conversion gives another form, "
                "so no row would have the form of the first. Return plain tensors, numpy arrays and numbers."
            )
        self._first, self._form = first, wanted

    def _form_row(self) -> Any:
        failure: Exception | None = None
        for number in range(min(len(self._data), _TRIED)):
            try:
                return ordinary(lambda number=number: tree.changed(self._row(number), zero_of))
            except Exception as error:  # one row alone must not decide whether a run begins
                failure = failure or error
        raise failure or IndexError

    def _read(self, number: int) -> dict[str, Any]:
        try:
            row = ordinary(lambda: _like(self._row(number), self._first))
            readable = form(row) == self._form
        except Exception:  # whether an example can be read must not be seen
            row, readable = None, False
        return {BATCH: row, READABLE: _READABLE} if readable else {BATCH: self._first, READABLE: _NOT}

    def _row(self, number: int) -> Any:
        with kept_modes():
            example = self._data[number]
            return self._collated(example)

    def _collated(self, example: Any) -> Any:
        return example if self._collate is None else tree.mapped(self._collate([example]), _only)


def _only(tensor: Tensor) -> Tensor:
    if not tensor.dim() or tensor.shape[0] != 1:
        raise InvalidParameterError(
            "collate_fn must return tensors with one row for each example on their first axis: a clipped "
            "gradient is one row's. Keep other tensors out of the batch."
        )
    return tensor[0]


def form(value: Any) -> Hashable:
    """Return how a row is nested, and the types and shapes in it: rows of one form make up one batch.

    >>> form((0.5, torch.zeros(2))) == form((0.7, torch.ones(2))) != form((1, torch.ones(2)))
    True
    """
    if isinstance(value, Tensor):
        return type(value), value.shape, value.dtype, value.device, value.layout, value.requires_grad
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return type(array), array.shape, array.dtype
    inner = tree.parts(value)
    if inner is not None:
        names = tuple(cast("Mapping[Any, Any]", value)) if isinstance(value, Mapping) else ()
        return type(value), names, tuple(map(form, inner))
    return type(value), value in _WHOLE if type(value) is int else None


def zero_of(leaf: Any) -> Any:
    """Return zero in the place of a number, a tensor or an array; anything else as it is.

    It is of a plain class: an `IntEnum` may have no zero, and rows of `np.memmap` are plain arrays elsewhere.
    """
    if isinstance(leaf, Tensor):
        return torch.zeros_like(leaf, requires_grad=False)
    if isinstance(leaf, np.ndarray):
        array = cast("np.ndarray[Any, Any]", leaf)
        return np.zeros(array.shape, array.dtype)
    if isinstance(leaf, np.number | np.bool_):
        return type(leaf)(0)
    plain = next((kind for kind in (bool, int, float, complex) if isinstance(leaf, kind)), None)
    return leaf if plain is None else plain(0)


def _like(value: Any, first: Any) -> Any:
    """Return a row nested and typed like the first one, as far as it can be; `form` says whether it is.

    >>> _like([1, np.float32(2.0)], (0.5, 0.5))
    (1.0, 2.0)
    """
    inner, own = tree.parts(first), tree.parts(value)
    if inner is None or own is None:
        return value if inner is not None or own is not None else _leaf_like(value, first)
    if isinstance(first, Mapping) or isinstance(value, Mapping):
        names = list(cast("Mapping[Any, Any]", first))
        given = cast("Mapping[Any, Any]", value)
        if len(given) != len(names):
            return given
        own = [given[name] for name in names]
    if len(own) != len(inner):
        return value
    return tree.rebuilt(first, map(_like, own, inner))


def _leaf_like(value: Any, first: Any) -> Any:
    """Return a value in the type of the first one; as it is where that type cannot hold it."""
    if isinstance(first, Tensor) and isinstance(value, Tensor):
        found = value.detach().to(first.device, first.dtype).clone()  # it may be read into again
        rounds = first.is_floating_point() and not value.is_complex()
        return found if rounds or bool((found == value).all()) else value
    if isinstance(first, np.ndarray) and isinstance(value, np.ndarray):
        wanted, given = cast("np.ndarray[Any, Any]", first), cast("np.ndarray[Any, Any]", value)
        if np.ma.is_masked(given):  # what is masked has no value
            return given
        # Of the same shape, and of no subclass. A copy can be written to, and torch can take it.
        array = np.array(given, dtype=wanted.dtype, order="C")
        rounds = wanted.dtype.kind == "f" and given.dtype.kind in "biuf"
        return array if rounds or array.dtype == given.dtype or bool((array == given).all()) else given
    if isinstance(first, _NUMBER) and isinstance(value, _NUMBER):
        number: Any = type(first)(value)
        return number if isinstance(first, float | np.floating) or number == value else value
    return value
