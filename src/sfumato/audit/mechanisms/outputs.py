# SPDX-License-Identifier: Apache-2.0
"""The outputs of a mechanism in a form in which events can be searched: a kind, and numbers.

The kind is the structure of an output without its numbers: "a number", "an array of 2 x 3", "a pair of None
and a number", "the word 'yes'". Outputs of one kind have equally many numbers. Two outputs are equal exactly
if their kinds and all bits of their numbers (as float64) are equal, so a mechanism that leaks by a shape, by
a None or by a last bit is read as it is.

Edge cases NaN is part of the kind, not a number; infinities are numbers. Tensors of every type of number are
           read, with their gradients or without. A whole number that float64 cannot hold is refused, and so
           is anything that is not a number, an array, a tuple, list, dict or dataclass of these, or
           hashable.
"""

import enum
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sfumato._containers import parts
from sfumato._torch import is_tensor
from sfumato.errors import InvalidParameterError

__all__ = ["Outputs", "commonest_kind", "read"]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Kind = Hashable


class _Token(enum.Enum):
    """What stands for numbers in a kind. No output equals it."""

    NUMBER = "number"
    ARRAY = "array"
    MISSING = "NaN"

    def __repr__(self) -> str:
        return self.value


_NUMERIC = "biuf"  # numpy's kinds of real numbers


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of many runs on one data set."""

    kinds: tuple[Kind, ...]
    rows: Sequence[Floats]  # the numbers of each, [numbers of its kind]
    _known: dict[Kind, tuple[Flags, Floats]] = field(
        default_factory=dict[Kind, Any], compare=False, repr=False
    )

    def __len__(self) -> int:
        return len(self.kinds)

    def part(self, start: int, stop: int) -> "Outputs":
        """Return the outputs from one place to another."""
        return Outputs(self.kinds[start:stop], self.rows[start:stop])

    def keys(self) -> list[Hashable]:
        """Return a key of each output: equal keys for equal outputs."""
        return [(kind, row.tobytes()) for kind, row in zip(self.kinds, self.rows, strict=True)]

    def of_kind(self, kind: Kind) -> tuple[Flags, Floats]:
        """Return a mask of the outputs of a kind, and their numbers: [of the kind, numbers]."""
        if kind not in self._known:  # asked by every score
            mask = np.array([known == kind for known in self.kinds], dtype=np.bool_)
            chosen = [self.rows[i] for i in np.flatnonzero(mask).tolist()]
            self._known[kind] = mask, np.stack(chosen) if chosen else np.empty((0, 0))
        return self._known[kind]


def commonest_kind(*groups: Outputs) -> Kind:
    """Return the most frequent kind with numbers or, if there is none, of all kinds."""
    counted = Counter(kind for outputs in groups for kind, row in _pairs(outputs) if row.size)
    counted = counted or Counter(kind for outputs in groups for kind in outputs.kinds)
    return counted.most_common(1)[0][0]


def _pairs(outputs: Outputs) -> Iterable[tuple[Kind, Floats]]:
    return zip(outputs.kinds, outputs.rows, strict=True)


def read(outputs: Iterable[object]) -> Outputs:
    """Read the outputs of many runs. An array is read along its first axis.

    >>> read([1.5, None, (True, 2.5)]).kinds
    (number, None, (number, number))
    """
    if isinstance(outputs, np.ndarray) and outputs.ndim >= 1 and outputs.dtype.kind in _NUMERIC:
        rows = outputs.astype(np.float64).reshape(len(outputs), -1)
        if not np.isnan(rows).any():
            kind = _array_kind(outputs.shape[1:])
            return Outputs((kind,) * len(rows), list(rows))
    found = [_taken_apart(output) for output in outputs]
    return Outputs(tuple(kind for kind, _ in found), [np.array(row, dtype=np.float64) for _, row in found])


def _taken_apart(output: Any) -> tuple[Kind, Iterable[float]]:
    if isinstance(output, Real):
        value = _number(output)
        return (_Token.NUMBER, (value,)) if value == value else (_Token.MISSING, ())
    if output is None or isinstance(output, str | bytes):
        return output, ()
    if isinstance(output, Mapping):
        return _joined(cast("Mapping[Any, Any]", output).items())
    inner = parts(output)
    if inner is not None:
        return _joined(inner)
    if hasattr(output, "__array__"):
        return _array(output)
    if not isinstance(output, Hashable):
        raise InvalidParameterError(
            f"an output of type {type(output).__name__} cannot be compared with others. Return numbers, "
            "arrays, tuples of them, or something hashable."
        )
    return output, ()


def _number(output: Real) -> float:
    try:
        return float(output)
    except OverflowError:
        raise InvalidParameterError(
            "an output is a number above 1e308, which cannot be read as float64. Return its logarithm, or "
            "its digits as text."
        ) from None


def _joined(members: Iterable[Any]) -> tuple[Kind, Iterable[float]]:
    found = [_taken_apart(part) for part in members]
    return tuple(kind for kind, _ in found), [value for _, row in found for value in row]


def _array(output: Any) -> tuple[Kind, Iterable[float]]:
    known = _as_numpy(output)
    if known.dtype.kind not in _NUMERIC:
        return _joined(known.tolist()) if known.ndim else _taken_apart(known.item())
    flat = known.astype(np.float64).ravel()
    missing = np.isnan(flat)
    if not missing.any():
        return _array_kind(known.shape), flat
    return (_Token.MISSING, _array_kind(known.shape), missing.tobytes()), flat[~missing]


def _as_numpy(output: Any) -> npt.NDArray[Any]:
    if not is_tensor(output):
        return np.asarray(output)
    known = output.detach().cpu().to_dense().resolve_conj()
    return (known.double() if known.is_floating_point() else known).numpy()  # exact: no type has more digits


def _array_kind(shape: tuple[int, ...]) -> Kind:
    return (_Token.ARRAY, *shape) if shape else _Token.NUMBER
