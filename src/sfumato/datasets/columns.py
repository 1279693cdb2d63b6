# SPDX-License-Identifier: Apache-2.0
"""Table columns as numbers between 0 and 1, by rules fixed before any row is read.

The L2 norm of a row is at most the square root of the number of columns before encoding.

Guarantee  The features of one row depend on that row alone. Ranges and categories are declared here in the
           code. A value outside its range is moved to the nearer end, and an unknown category has a place of
           its own.
Edge cases A number that is missing, unreadable or NaN becomes 0; infinities go to the ends of the range.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _check

__all__ = ["Category", "Column", "Number", "encode", "encoded_names"]

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Number:
    """A numeric column with a declared range; `log_unit` spreads the small amounts of a skewed one (money).

    >>> age = Number("age", 0, 100)
    >>> age.encode(np.array(["25", "250", "?"])).tolist()
    [[0.25], [1.0], [0.0]]
    """

    name: str
    lower: float
    upper: float
    log_unit: float | None = None

    def __post_init__(self) -> None:
        _check.bounds(bounds=(self.lower, self.upper))
        if self.log_unit is not None:
            _check.positive(log_unit=self.log_unit)

    @property
    def names(self) -> tuple[str, ...]:
        """The one feature that it becomes."""
        return (self.name,)

    def encode(self, values: npt.NDArray[np.str_]) -> npt.NDArray[np.float32]:
        """Return [N, 1] between 0 and 1."""
        numbers = np.array([_number(value) for value in values], dtype=np.float64)
        clipped = np.clip(numbers, self.lower, self.upper)
        low, high, at = (
            self._curve(np.array([self.lower])),
            self._curve(np.array([self.upper])),
            self._curve(clipped),
        )
        return np.nan_to_num((at - low) / (high - low), nan=0.0).astype(np.float32)[:, None]

    def _curve(self, values: _Floats) -> _Floats:
        if self.log_unit is None:
            return values
        return np.sign(values) * np.log1p(np.abs(values) / self.log_unit)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


@dataclass(frozen=True, slots=True)
class Category:
    """A column with a declared list of values, and one more place for everything else.

    >>> Category("color", ("red", "blue")).encode(np.array(["blue", "mauve"])).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    name: str
    values: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """One feature a value, and the catch-all."""
        return tuple(f"{self.name}={value}" for value in (*self.values, "other"))

    def encode(self, values: npt.NDArray[np.str_]) -> npt.NDArray[np.float32]:
        """Return [N, values + 1], a one in each row."""
        place = {value: index for index, value in enumerate(self.values)}
        indices = [place.get(str(value), len(self.values)) for value in values]
        return np.eye(len(self.values) + 1, dtype=np.float32)[np.array(indices, dtype=np.int64)]


Column = Number | Category


def encode(columns: Sequence[Column], table: npt.NDArray[np.str_]) -> Tensor:
    """Return float32 features of a table of text, column by column."""
    parts = [column.encode(table[:, index]) for index, column in enumerate(columns)]
    return torch.from_numpy(np.concatenate(parts, axis=1))


def encoded_names(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the names of the features that `encode` makes."""
    return tuple(name for column in columns for name in column.names)
