# SPDX-License-Identifier: Apache-2.0
"""Private columns: what a statistic may ask of its rows, wherever they lie.

Guarantee  Whatever a column hands out counts at most `contribution_bound` rows of one privacy unit; which
           rows of a unit are kept depends on that unit's rows alone (`bounding`), and they are those that a
           table keeps. Sums are exact: each value is first put
           on a grid of 2^-20 of half the width of the bounds, so a sum is a whole number of steps that
           float64 holds, in whatever order it is added up, and one row moves it by at most `STEPS`.
Missing    Nulls and NaN are left out, as are rows of no owner: they contribute nothing. Infinities are
           clipped to the bounds like any other value. What is not a number is refused, unseen.
Copies     None of arrays of float64: they are read when a release is computed, so do not write into one that
           a column was made of. What is missing is judged when the column is made.
Where      `ArrayColumn` and `ArrayRows` hold rows in memory; a table (`tables`) lets its engine compute the
           same.
Source     Sums of floats that are rounded on the way have a larger sensitivity than they should: Casacuberta,
           Shoemate, Vadhan, Wagaman 2022, arXiv:2207.10635.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import inputs
from sfumato.statistics.contributions.contribution_bound import kept
from sfumato.statistics.contributions.unit_draws import draw_of, whole_draw
from sfumato.statistics.sources.schema import not_a_number, plain_type_of

__all__ = [
    "MOST_ROWS",
    "STEPS",
    "ArrayColumn",
    "ArrayRows",
    "Bounds",
    "Column",
    "Moments",
    "Rows",
    "column_of",
    "in_steps",
    "is_missing",
    "name_of",
    "objects_of",
    "quietly",
    "rows_of",
]

Bounds = tuple[float, float]
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_T = TypeVar("_T")


STEPS = 2**20  # of the grid, from the middle of the bounds to either end
MOST_ROWS = 2**33  # whose sum float64 still holds exactly
_NO_NUMBERS = ("text", "binary", "date", "timestamp")  # of `schema`
_CHUNK = 2**16  # rows at a time: what is computed on the way stays in the processor's cache
_MOST_GAPS = 8  # numbers of owners for each row, of which most are nobody's: memory for each of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """The number of rows, and the sums of q and of q^2 / STEPS over them, each rounded to whole steps.

    q is a value's distance from the middle of the bounds in steps, from -STEPS to STEPS once it is clipped.
    """

    count: int
    total: int
    squares: int


class Column(Protocol):
    """One private column of numbers."""

    @property
    def name(self) -> str:
        """What the numbers are."""
        ...

    @property
    def privacy_unit(self) -> str:
        """Who is protected."""
        ...

    @property
    def contribution_bound(self) -> int:
        """The most rows one unit has."""
        ...

    def moments(self, bounds: Bounds, *, squares: bool = True) -> Moments:
        """Return the sums of the clipped values and of their squares, around the middle of the bounds.

        Squares that are not wanted need not be computed: they are then 0.
        """
        ...

    def histogram(self, edges: Floats) -> Counts:
        """Count the rows in [edge i, edge i + 1); what is outside is counted in the first or the last bin."""
        ...

    def ordered(self, bounds: Bounds) -> Floats:
        """Return all values, clipped and in order: for mechanisms that need each of them."""
        ...


class Rows(Protocol):
    """Several private columns of numbers, row by row."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the columns are."""
        ...

    @property
    def privacy_unit(self) -> str:
        """Who is protected."""
        ...

    @property
    def contribution_bound(self) -> int:
        """The most rows one unit has."""
        ...

    def batches(self) -> Iterator[Floats]:
        """Yield all rows, some at a time: [rows, columns]. A row with a missing value is left out."""
        ...


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory, one for each privacy unit, or owned by the units that `owners` names."""

    values: Floats  # [rows, columns], without missing ones
    names: tuple[str, ...]
    privacy_unit: str = "row"
    contribution_bound: int = 1

    def batches(self) -> Iterator[Floats]:
        """Yield all rows at once."""
        yield self.values


@dataclass(frozen=True)
class ArrayColumn:
    """One column in memory."""

    values: Floats  # [rows], without missing ones
    name: str = "values"
    privacy_unit: str = "row"
    contribution_bound: int = 1

    def moments(self, bounds: Bounds, *, squares: bool = True) -> Moments:
        """Return the sums of the clipped values and of their squares, around the middle of the bounds."""
        total = squared = 0
        for start in range(0, len(self.values), _CHUNK):
            steps = in_steps(self.values[start : start + _CHUNK], bounds)
            total += int(steps.sum())
            squared += int(np.rint(steps * steps / STEPS).sum()) if squares else 0
        return Moments(count=len(self.values), total=total, squares=squared)

    def histogram(self, edges: Floats) -> Counts:
        """Count the rows of each bin."""
        counts = np.zeros(len(edges) - 1, dtype=np.int64)
        if len(counts) == 1:
            return counts + len(self.values)
        for start in range(0, len(self.values), _CHUNK):
            places = _places(self.values[start : start + _CHUNK], edges)
            counts += np.bincount(places, minlength=len(counts))
        return counts

    def ordered(self, bounds: Bounds) -> Floats:
        """Return all values, clipped and in order."""
        return np.sort(np.clip(self.values, *bounds))


def in_steps(values: Floats, bounds: Bounds) -> Floats:
    """Return values as whole steps from the middle of the bounds, clipped.

    >>> in_steps(np.array([0.0, 1.0, 9.0]), (0, 2)) / STEPS
    array([-1.,  0.,  1.])
    """
    lower, upper = bounds
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    return np.clip(np.rint((np.clip(values, lower, upper) - middle) * (STEPS / half)), -STEPS, STEPS)


def _places(values: Floats, edges: Floats) -> npt.NDArray[np.intp]:
    """Return the bin of each value: by search, or by a guess that is set right where bins are evenly wide."""
    if not _even(edges):
        return np.searchsorted(edges[1:-1], values, side="right")
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    last = len(edges) - 2
    guess = np.clip((np.clip(values, edges[0], edges[-1]) - edges[0]) / width, 0, last).astype(np.intp)
    guess -= (values < edges[guess]) & (guess > 0)
    guess += (values >= edges[guess + 1]) & (guess < last)
    return guess


def _even(edges: Floats) -> bool:
    with np.errstate(all="ignore"):  # bins as wide as float64 itself are left to the search
        even = np.linspace(edges[0], edges[-1], len(edges))
        return bool((np.abs(even - edges) < (edges[-1] - edges[0]) / (len(edges) - 1) / 4).all())


def column_of(
    values: Any,
    *,
    name: str | None = None,
    owners: Any = None,
    contribution_bound: int = 1,
    privacy_unit: str | None = None,
) -> Column:
    """Return a private column of numbers in memory; a column of a table as it is.

    `owners` names the privacy unit of each row, of which at most `contribution_bound` rows are then kept. The
    name is that of a pandas or polars Series, if none is given.

    >>> column_of([1.0, float("nan"), 3.0]).moments((0, 2))
    Moments(count=2, total=1048576, squares=1048576)
    """
    if isinstance(values, ArrayColumn) or hasattr(values, "moments"):
        return values
    named = name or name_of(values)
    known = _floats(values, named)
    if known.ndim != 1:
        raise InvalidParameterError(f"{named} must be one column of numbers, of one dimension.")
    rows = _kept(known[:, None], owners, contribution_bound)
    return ArrayColumn(rows[:, 0], named, privacy_unit or _unit(owners), contribution_bound)


def rows_of(
    values: Any,
    *,
    names: tuple[str, ...] | None = None,
    owners: Any = None,
    contribution_bound: int = 1,
    privacy_unit: str | None = None,
) -> Rows:
    """Return private rows of numbers in memory; rows of a table as they are.

    >>> next(rows_of([[1.0, 2.0], [float("nan"), 4.0]]).batches())
    array([[1., 2.]])
    """
    if isinstance(values, ArrayRows) or hasattr(values, "batches"):
        return values
    known = _floats(values, "rows")
    if known.ndim != 2 or known.shape[1] == 0:
        raise InvalidParameterError("rows must be a matrix with at least one column: [rows, columns].")
    named = names or tuple(f"column {i}" for i in range(known.shape[1]))
    if len(named) != known.shape[1]:
        raise InvalidParameterError(f"{len(named)} names were given for {known.shape[1]} columns.")
    rows = _kept(known, owners, contribution_bound)
    return ArrayRows(rows, named, privacy_unit or _unit(owners), contribution_bound)


def name_of(values: Any) -> str:
    """Return the name that a Series carries, which is public; "values" for all else."""
    carried = getattr(values, "name", None)
    return carried if isinstance(carried, str) and carried.strip() else "values"


def is_missing(value: object) -> bool:
    """Whether a value of a private column is none at all: None, or one that is not equal to itself.

    NaN of any kind and NaT are not; pandas' NA will not say. A value that fails to compare is not missing,
    and what it says is not passed on: it may quote itself.
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    try:
        differs: Any = value != value
    except Exception:
        return isinstance(value, Decimal)  # a NaN that signals
    return differs is True or (isinstance(differs, np.bool_) and bool(differs))


def quietly(convert: Callable[[], _T]) -> _T | None:
    """Return what a conversion of a private value gives; None where it fails: its error may quote it."""
    try:
        return convert()
    except Exception:
        return None


def _floats(values: Any, what: str) -> Floats:
    """Return private values as float64, missing ones as NaN. Text is refused, even if it reads as numbers."""
    _require_numbers(values, what)  # by the type of a series, whatever is in it
    given = inputs.array(values, what=what)
    if given.dtype == np.float64:
        return given  # not copied: nobody here writes into it
    _require_numbers(given, what)
    if given.dtype.kind == "O":
        plain = [np.nan if is_missing(value) else value for value in given.ravel()]
        if any(isinstance(value, str | bytes) for value in plain):
            raise not_a_number(what, "text")
        given = np.array([*plain, None], dtype=object)[:-1].reshape(given.shape)
    return inputs.clippable(given, what=what)


def _require_numbers(values: Any, what: str) -> None:
    kind = plain_type_of(values)
    if kind in _NO_NUMBERS:
        raise not_a_number(what, kind)


def objects_of(values: Any, *, what: str) -> list[object]:
    """Return private values one by one, each as it is.

    numpy would make a list of one kind: NaN beside text becomes the text "nan", but not where None stands
    among them; whole numbers become floats beside a null, and some of them equal. One row would then decide
    what another one is. So only numpy's own arrays are read by numpy.
    """
    if not isinstance(values, np.ndarray):
        listed = quietly(lambda: _listed(values))
        if listed is not None:
            return listed
    known = inputs.array(values, what=what)
    if known.ndim != 1:
        raise InvalidParameterError(f"{what} must be one column, of one dimension.")
    return known.tolist()


def _listed(values: Any) -> list[object] | None:
    """Return a column of pyarrow, polars or pandas, or anything else that can be iterated, as a list."""
    for name in ("to_pylist", "to_list"):
        if hasattr(values, name):
            return list(getattr(values, name)())
    iterable = isinstance(values, Iterable) and not isinstance(values, str | bytes)
    # A frame, or a tensor of any library, has more dimensions or elements that are no plain values.
    return list(cast(Iterable[object], values)) if iterable and not hasattr(values, "__array__") else None


@dataclass(frozen=True)
class _Owners:
    """Who owns each row, as a number from 0 on; -1 is nobody. `draws` are those of some numbers."""

    numbers: Counts
    draws: Callable[[Counts], Counts]


def _owners(owners: Any, rows: int) -> _Owners:
    whole = isinstance(owners, np.ndarray) and owners.dtype.kind in "iu" and owners.dtype != np.uint64
    if whole and owners.shape == (rows,):  # numbers already, and there may be many
        return _numbered(owners.astype(np.int64))
    owned = objects_of(owners, what="owners")
    if len(owned) != rows:
        raise InvalidParameterError("owners must have one entry for each row.")
    numbered = _by_first(owned) or _by_first([None if is_missing(owner) else owner for owner in owned])
    if numbered is None:
        raise InvalidParameterError("owners must be names or numbers; nothing was released.")
    numbers, names = numbered
    is_nobody = np.array([is_missing(name) for name in names], dtype=bool)
    return _Owners(
        np.where(is_nobody[numbers], -1, numbers) if is_nobody.any() else numbers,
        lambda some: np.array([draw_of(names[number]) for number in some], dtype=np.int64),
    )


def _by_first(owned: list[object]) -> tuple[Counts, list[object]] | None:
    """Return a number for each owner, in the order in which they come, and all owners by their number.

    None where one of them cannot be told apart, as a NaN that signals cannot.
    """
    seen: dict[object, int] = {}
    try:
        numbers = np.array([seen.setdefault(owner, len(seen)) for owner in owned], dtype=np.int64)
    except Exception:  # whose message may quote the owner
        return None
    return numbers, list(seen)


def _numbered(owners: Counts) -> _Owners:
    lowest, highest = (int(owners.min()), int(owners.max())) if len(owners) else (0, 0)
    if highest - lowest < _MOST_GAPS * len(owners):
        return _Owners(owners - lowest, lambda some: whole_draw(some + lowest))
    names, numbers = np.unique(owners, return_inverse=True)
    return _Owners(numbers, lambda some: whole_draw(names[some]))


def _unit(owners: Any) -> str:
    return "row" if owners is None else "owner"


def _any_missing(rows: Floats) -> bool:
    parts = (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))
    return any(bool(np.isnan(part).any()) for part in parts)


def _kept(rows: Floats, owners: Any, contribution_bound: int) -> Floats:
    """Leave out rows with missing values or of nobody, then what is too much of each owner (`bounding`)."""
    _check.count(contribution_bound=contribution_bound)
    if owners is None:
        if contribution_bound != 1:
            raise InvalidParameterError(
                "contribution_bound is about units that own several rows: say whose they are with owners=..."
            )
        return rows[~np.isnan(rows).any(1)] if _any_missing(rows) else rows
    owned = _owners(owners, len(rows))
    present = (owned.numbers >= 0) & ~np.isnan(rows).any(1)
    rows = rows[present] + 0.0  # zero has no sign: which of two equal rows counts must not matter
    return rows[kept(rows, owned.numbers[present], draws=owned.draws, bound=contribution_bound)]
