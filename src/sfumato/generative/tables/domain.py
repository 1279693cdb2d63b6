# SPDX-License-Identifier: Apache-2.0
"""Declared columns of a table: the values that each may have, and the whole number that stands for each.

A category has one code for each listed value, a number one for each bin. With `missing=True`, which is the
default, one more code stands for everything else: None, NaN, values that are not listed, text that is not a
number. It is decoded as None in a column of categories and as NaN in a column of numbers. With
`missing=False` the last listed value or the first bin stands for all of these.

Guarantee  The code of a cell depends on that cell and on the declaration, and on nothing else. No value
           raises, warns, or changes the code of another cell.
Edge cases Numbers beyond the bounds, infinite ones too, count in the first or the last bin. Text that Python
           reads as a number counts as that number, because one word in a file makes a whole column text. A
           cell is a listed value if they say the same: 1, 1.0, True, "1", "01" and "TRUE" are one category,
           because one other cell can turn each into another. Two such values are refused, and so are values
           that count as missing: numbers of 1e15 and above, empty texts, words such as "NA".
Failure    Names and shapes are public, and wrong ones are refused. No message shows a value of the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.cells import (
    UNKNOWN,
    Cells,
    UnknownDomainError,
    cells_of,
    numbers_of,
    place_of,
    places_of,
    require_columns,
)

__all__ = ["Category", "Domain", "Field", "Number", "UnknownDomainError"]

Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Plain = str | int | float | bool
_MOST_CODES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Category:
    """A column of categories.

    Args:
        values: All values that the column may have: texts, whole numbers, floats or booleans. They are
            public, and must not be read off the data.
        missing: Whether there is one more code, for missing and unlisted values. Say False if you know that
            there are none: then noise cannot make any. Otherwise synthetic rows have blanks if the noisy
            counts show more of them than noise alone makes.

    Raises:
        InvalidParameterError: If a value is listed twice, in another writing too, is of another type or
            counts as missing, or there is no code at all.

    >>> Category(values=("tea", "coffee")).size
    3
    """

    values: tuple[Plain, ...]
    missing: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.values, str) or not isinstance(self.values, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise InvalidParameterError("values must be a list of the column's categories, as ['f', 'm'].")
        object.__setattr__(self, "values", tuple(self.values))
        plain = all(type(value) in (str, int, float, bool) and value == value for value in self.values)
        if not plain or len(set(self.values)) < len(self.values):
            raise InvalidParameterError(
                "values must be different texts, whole numbers, floats or booleans. Missing values need no "
                "entry: missing=True has a code for them."
            )
        if not 0 < self.size <= _MOST_CODES:
            raise InvalidParameterError("values must list at least one category, or have missing=True.")
        places_of(self.values)  # refuses values that no column could tell apart

    @property
    def size(self) -> int:
        """The number of codes."""
        return len(self.values) + self.missing

    def encode(self, cells: Cells) -> Codes:
        """Return the code of each cell.

        Args:
            cells: The private cells.

        Returns:
            The codes.
        """
        places = places_of(self.values)
        other = self.size - 1
        return np.fromiter((place_of(cell, places, other) for cell in cells), np.int64, len(cells))

    def decode(self, codes: Codes, randomness: np.random.Generator) -> npt.NDArray[Any]:
        """Return the value of each code.

        Args:
            codes: The codes.
            randomness: Not used: a category has one value.

        Returns:
            The values, None for the code of missing ones.
        """
        known = np.empty(self.size, dtype=object)
        known[: len(self.values)] = self.values
        found = known[codes]
        kinds = {type(value) for value in self.values}
        return found if self.missing or len(kinds) > 1 or kinds == {str} else np.array(found.tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """A column of numbers, which are counted in bins.

    Args:
        lower: The smallest number, public. Smaller ones count as it.
        upper: The largest number, public. Larger ones count as it.
        bins: The number of bins, or their edges from `lower` to `upper`. A bin holds its lower edge; the last
            one also its upper edge. If it holds one whole number alone, both of its edges are that number.
        whole: Whether the numbers are whole. There is at most one bin for each.
        missing: Whether there is one more code, for missing values; see `Category`.

    Raises:
        InvalidParameterError: If a parameter is out of range.

    >>> Number(lower=0, upper=9, bins=5, whole=True, missing=False).edges
    (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    """

    lower: float
    upper: float
    bins: int | tuple[float, ...] = 32
    whole: bool = False
    missing: bool = True

    def __post_init__(self) -> None:
        _check.summable(bounds=(self.lower, self.upper))
        if self.whole and not (float(self.lower).is_integer() and float(self.upper).is_integer()):
            raise InvalidParameterError("bounds of whole numbers must be whole.")
        if isinstance(self.bins, int):
            _check.count(bins=self.bins)
            _check.in_range(1, _MOST_CODES, bins=self.bins)
        else:
            object.__setattr__(self, "bins", tuple(float(edge) for edge in self.bins))
            self._check_edges(self.bins)

    def _check_edges(self, edges: tuple[float, ...]) -> None:
        alone = self.whole and len(edges) > 2 and edges[-2] == edges[-1]  # the last bin is one whole number
        rises = all(one < two for one, two in pairwise(edges[:-1] if alone else edges))
        whole = not self.whole or all(edge.is_integer() for edge in edges)
        if not (len(edges) >= 2 and rises and whole and (edges[0], edges[-1]) == (self.lower, self.upper)):
            raise InvalidParameterError(
                f"edges must rise from lower={self.lower!r} to upper={self.upper!r}, and be whole if the "
                "numbers are."
            )

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges of the bins. That above whole numbers is one more than the largest."""
        if not isinstance(self.bins, int):
            return (*self.bins[:-1], self.bins[-1] + self.whole)
        if not self.whole:
            return tuple(np.linspace(self.lower, self.upper, self.bins + 1).tolist())
        count = int(self.upper) - int(self.lower) + 1
        bins = min(self.bins, count)
        return tuple(float(int(self.lower) + place * count // bins) for place in range(bins + 1))

    @property
    def size(self) -> int:
        """The number of codes."""
        return len(self.edges) - 1 + self.missing

    @property
    def exact(self) -> bool:
        """Whether float64, and so a whole number of 64 bits, holds every whole number between the bounds."""
        return max(abs(self.lower), abs(self.upper)) <= 2.0**53

    def encode(self, cells: Cells) -> Codes:
        """Return the code of each cell.

        Args:
            cells: The private cells.

        Returns:
            The codes.
        """
        return self.encode_numbers(numbers_of(cells))

    def encode_numbers(self, values: Floats) -> Codes:
        """Return the code of each number; NaN is missing.

        Args:
            values: The private numbers.

        Returns:
            The codes.
        """
        found = np.searchsorted(np.array(self.edges[1:-1]), values, side="right").astype(np.int64)
        found[np.isnan(values)] = self.size - 1 if self.missing else 0
        return found

    def decode(self, codes: Codes, randomness: np.random.Generator) -> npt.NDArray[Any]:
        """Return a number for each code, drawn uniformly from its bin.

        Args:
            codes: The codes.
            randomness: The source of randomness.

        Returns:
            The numbers: int64 if they are whole and none can be missing, else float64 with NaN for missing.
        """
        edges = np.array(self.edges)
        bins = np.minimum(codes, len(edges) - 2)
        low, high = edges[bins], edges[bins + 1]
        drawn = low + randomness.random(len(codes)) * (high - low)
        drawn = np.minimum(drawn, np.nextafter(high, low))  # rounding must not reach the next bin
        drawn = np.minimum(np.floor(drawn) if self.whole else drawn, self.upper)
        if not self.missing:
            return drawn.astype(np.int64) if self.whole else drawn
        return np.where(codes == self.size - 1, np.nan, drawn)


Field = Category | Number


@dataclass(frozen=True)
class Domain:
    """The columns of a table and what each may hold.

    Args:
        columns: The name of each column and its declaration.

    Raises:
        InvalidParameterError: If there is no column, or something else is declared.

    >>> domain = Domain({"age": Number(lower=0, upper=99, bins=10, whole=True), "sex": Category(values="fm")})
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: values must be a list of the column's categories, as ['f', 'm'].
    >>> domain = Domain({"sex": Category(values=["f", "m"])})
    >>> domain.encode({"sex": ["m", "f", None, "unknown"]}).ravel()
    array([1, 0, 2, 2])
    """

    columns: Mapping[str, Field]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", dict(self.columns))
        named = all(isinstance(name, str) for name in self.columns)  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        if not self.columns or not named:
            raise InvalidParameterError("a domain needs columns, each with its name: {'age': Number(...)}.")
        for name, declared in self.columns.items():
            if not isinstance(declared, Category | Number):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
                raise UnknownDomainError(UNKNOWN.format(name))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.columns)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of codes of each column."""
        return tuple(declared.size for declared in self.columns.values())

    def place(self, name: str) -> int:
        """Return the number of a column.

        Args:
            name: Its name.

        Returns:
            The number, from 0.

        Raises:
            InvalidParameterError: If there is no such column.
        """
        if name not in self.columns:
            raise InvalidParameterError(
                f"there is no column {name!r}. The columns are: {', '.join(self.names)}."
            )
        return self.names.index(name)

    def encode(self, frame: Any) -> Codes:
        """Return the code of every cell.

        Args:
            frame: A DataFrame, or columns by name. It must have the domain's columns, and no others.

        Returns:
            The codes, [rows, columns].

        Raises:
            UnknownDomainError: If the frame has a column that is not declared.
            InvalidParameterError: If it lacks a column, or its columns differ in length.
        """
        require_columns(frame, self.names)
        found = [declared.encode(cells_of(frame[name])) for name, declared in self.columns.items()]
        if len({len(codes) for codes in found}) > 1:
            raise InvalidParameterError("all columns must have the same number of rows.")
        return np.column_stack(found)

    def decode(self, codes: Codes, *, seed: int | None = None) -> Any:
        """Return a table for codes.

        Args:
            codes: The codes, [rows, columns].
            seed: Where in its bin each number lies. None draws anew.

        Returns:
            A pandas DataFrame. Whole numbers are int64, or Int64 where one may be missing.

        Raises:
            InvalidParameterError: If a code does not exist, or the shape is another.
        """
        import pandas as pd  # a second to import

        known = np.asarray(codes)
        inside = known.ndim == 2 and known.shape[1] == len(self.sizes) and known.dtype.kind in "iu"
        if not inside or (known < 0).any() or (known >= np.array(self.sizes)).any():
            raise InvalidParameterError("codes must be whole numbers, [rows, columns], below the sizes.")
        randomness = np.random.default_rng(seed)
        made = {
            name: declared.decode(known[:, place].astype(np.int64), randomness)
            for place, (name, declared) in enumerate(self.columns.items())
        }
        for name, declared in self.columns.items():
            if isinstance(declared, Number) and declared.whole and declared.missing and declared.exact:
                made[name] = pd.array(made[name], dtype="Int64")  # pyright: ignore[reportArgumentType] - NaN is missing
        return pd.DataFrame(made)

    def to_dict(self) -> dict[str, Any]:
        """Return the declarations as plain values.

        Returns:
            The values, by column.
        """
        return {name: _plain(declared) for name, declared in self.columns.items()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Domain":
        """Return the domain of plain values, as `to_dict` wrote them.

        Args:
            plain: The values, by column.

        Returns:
            The domain.
        """
        kinds: dict[str, Any] = {"category": Category, "number": Number}
        return cls({name: kinds[kind](**rest) for name, (kind, rest) in plain.items()})


def _plain(declared: Field) -> tuple[str, dict[str, Any]]:
    if isinstance(declared, Category):
        return "category", {"values": list(declared.values), "missing": declared.missing}
    bins = declared.bins if isinstance(declared.bins, int) else list(declared.bins)
    return "number", {
        "lower": declared.lower,
        "upper": declared.upper,
        "bins": bins,
        "whole": declared.whole,
        "missing": declared.missing,
    }
