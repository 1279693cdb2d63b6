# SPDX-License-Identifier: Apache-2.0
"""Memorization: are synthetic rows nearer to private training rows than to public rows of the same kind?

`near_copies` counts the private training rows that have a synthetic row within a public radius, and those
that have none. The radius is a small quantile of the distances from holdout rows to their nearest synthetic
row (`copy_test`). A generator that learned only what is true of all rows is as near to training rows as to
holdout rows; one that copied training rows is nearer. Both counts are released with noise, and the share is
compared with that of the holdout.

Guarantee  The two counts cost their event, which is charged before a private row is read and stays spent
           after a failure. One unit changes them by at most `rows_per_unit` together, as each of its rows is
           in one of them, and rows beyond that number are not counted. Whether a row is near depends on that
           row alone, without any rounding by others (`distances`). The radius, the synthetic rows and the
           holdout are public.
Neighbors  Under replace-one the counts change by at most twice as much, for which the noise is calibrated.
Unit       One row; or the unit that `units` names, of which at most `rows_per_unit` rows count.
Edge cases A row with NaN or infinity is not near. Larger values are moved to the bounds. A row without a
           unit is left out. Synthetic rows that are not finite are left out.
Failure    No value of a private row raises an error of its own.
Not here   Distances between synthetic and public rows, which cost nothing (`distances.holdout_distances`).
Source     The test of two shares: Clopper and Pearson 1934. Radius by a holdout: Meehan, Chaudhuri, Dasgupta
           2020, arXiv:2004.05675 (data-copying).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import betaincinv

from sfumato import _check
from sfumato.accounting.events import DpEvent
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError
from sfumato.generative.evaluation.distances import STEPS, grid_rows, nearest_on_grid, public_rows
from sfumato.generative.evaluation.rows import Bools, Floats
from sfumato.generative.evaluation.table_columns import Columns
from sfumato.ledger.account import Account
from sfumato.mechanisms.random import Generator
from sfumato.statistics.columns.input_values import is_missing
from sfumato.statistics.intervals import whole_half_width
from sfumato.statistics.noise import Kind, WholeNoise, l2_of_counts
from sfumato.statistics.query import Answer, Query
from sfumato.statistics.release import Release
from sfumato.statistics.terms import Terms

__all__ = [
    "CopyTest",
    "NearCopies",
    "TrainingRows",
    "copy_test",
    "near_copies",
]


_AT_ONCE = 4096  # rows


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class CopyTest:
    """What counts as near: public synthetic rows, and a radius from public rows. `copy_test` makes one.

    Attributes:
        synthetic: The synthetic rows on the grid.
        radius_squared: The square of the radius, in steps of the grid.
        holdout_near: The number of holdout rows within the radius.
        holdout_rows: The number of holdout rows.
        bounds: The bounds of all values.
        columns: The declared columns of a table; None for arrays.
    """

    synthetic: Floats
    radius_squared: float
    holdout_near: int
    holdout_rows: int
    bounds: tuple[float, float]
    columns: Columns | None

    @property
    def radius(self) -> float:
        """The radius, in units of the values."""
        return float(np.sqrt(self.radius_squared)) / STEPS * (self.bounds[1] - self.bounds[0])

    def near(self, rows: Any) -> Bools:
        """Return whether each row has a synthetic row within the radius.

        Args:
            rows: The rows, an array or a table.

        Returns:
            One truth for each row, which depends on that row alone.

        Raises:
            InvalidParameterError: If rows have another shape than synthetic ones.
        """
        return np.concatenate([self._near(part) for part in self._parts(rows)])

    def _parts(self, rows: Any) -> list[Any]:
        """Return an array in parts, as the grid takes more memory than images do."""
        if self.columns is not None or not hasattr(rows, "shape"):
            return [rows]
        return [rows[start : start + _AT_ONCE] for start in range(0, max(1, len(rows)), _AT_ONCE)]

    def _near(self, rows: Any) -> Bools:
        found = grid_rows(rows, self.bounds, self.columns)
        if found.shape[1] != self.synthetic.shape[1]:
            raise InvalidParameterError("training rows have another shape than synthetic rows.")
        return nearest_on_grid(found, self.synthetic) <= self.radius_squared


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class TrainingRows:
    """Private rows that a generator learned from.

    Args:
        rows: The rows: an array, a table, or a function that returns one and is called after the charge.
        units: The unit of each row, or a function that returns them; None if each row is a unit.
        rows_per_unit: The most rows of one unit that are counted.
        privacy_unit: What one unit is called, as the account names it.

    Raises:
        InvalidParameterError: If more than one row of a unit counts, and units are not given.
    """

    rows: Any | Callable[[], Any]
    units: Any | Callable[[], Any] = None
    rows_per_unit: int = 1
    privacy_unit: str = "row"

    def __post_init__(self) -> None:
        _check.count(rows_per_unit=self.rows_per_unit)
        _check.text(privacy_unit=self.privacy_unit)
        if self.units is None and self.rows_per_unit != 1:
            raise InvalidParameterError("rows_per_unit above 1 needs the unit of each row: pass units=...")
        if self.units is not None and self.privacy_unit == "row":
            raise InvalidParameterError("name the unit of the rows: pass privacy_unit=..., such as 'person'.")

    @property
    def contribution_bound(self) -> int:
        """The most rows of one unit that are counted."""
        return self.rows_per_unit


@dataclass(frozen=True, kw_only=True, slots=True)
class NearCopies:
    """The released share of training rows that have a synthetic row within the radius, and its comparison.

    Attributes:
        share: The share of training rows, from counts with noise.
        interval: Both ends of that share: for the noise, and for the rows as a sample.
        holdout_share: The share of holdout rows.
        holdout_interval: Both ends of that share.
        radius: The radius.
        level: The level of both intervals.
        release: The two counts with noise, near and not near, with their guarantee.
    """

    share: float
    interval: tuple[float, float]
    holdout_share: float
    holdout_interval: tuple[float, float]
    radius: float
    level: float
    release: Release[tuple[int, int]] = field(repr=False)

    @property
    def memorized(self) -> bool:
        """Whether training rows are near more often than holdout rows, beyond noise and chance."""
        return self.interval[0] > self.holdout_interval[1]

    def __str__(self) -> str:
        found = (
            f"{self.share:.2%} of the training rows ({_ends(self.interval)}) have a synthetic row within "
            f"{self.radius:.4g}, and {self.holdout_share:.2%} of the public rows "
            f"({_ends(self.holdout_interval)})."
        )
        if self.memorized:
            verdict = "MEMORIZATION: synthetic rows are nearer to training rows than to others of their kind."
        else:
            verdict = "Not more than among public rows, as far as this can be seen: no sign of memorization."
        return f"{found} {verdict} The share was released with {self.release.guarantee}."


def copy_test(
    synthetic: Any,
    holdout: Any,
    *,
    quantile: float = 0.01,
    bounds: tuple[float, float] = (0.0, 1.0),
    columns: Columns | None = None,
) -> CopyTest:
    """Return the test of `near_copies`: its radius is a quantile of the distances of holdout rows.

    Args:
        synthetic: The synthetic rows: an array [rows, ...], or a table.
        holdout: Real rows that are public, drawn from the same population as the training rows, and not used
            for training.
        quantile: The share of holdout rows that are within the radius.
        bounds: The lower and upper bound of all values.
        columns: The declared columns of tables; None for arrays.

    Returns:
        The test.

    Raises:
        InvalidParameterError: If rows differ in shape, or no synthetic row is finite.
    """
    _check.probability(quantile=quantile)
    ours, theirs = public_rows(synthetic, holdout, bounds, columns)
    away = np.sort(nearest_on_grid(theirs, ours))
    radius = float(away[int(np.ceil(quantile * len(away))) - 1])
    return CopyTest(
        synthetic=ours,
        radius_squared=radius,
        holdout_near=int((away <= radius).sum()),
        holdout_rows=len(away),
        bounds=bounds,
        columns=columns,
    )


def near_copies(
    training: TrainingRows,
    test: CopyTest,
    *,
    epsilon: float,
    delta: float = 0.0,
    relation: Relation | str = Relation.ADD_REMOVE,
    level: float = 0.95,
    account: Account | None = None,
    purpose: str | None = None,
    generator: Generator | None = None,
) -> NearCopies:
    """Release how many training rows have a synthetic row within the radius, and compare with the holdout.

    Args:
        training: The private rows. They are read after the charge.
        test: What counts as near, from public rows.
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        level: The level of the intervals. A generator that did not copy is reported with a chance of at most
            1 - level.
        account: The account to charge before any row is read. None means that no account is charged.
        purpose: The purpose that the account records. None means the name of the statistic.
        generator: The source of randomness. None means secure randomness from the operating system.

    Returns:
        The share, its interval and the comparison.

    Raises:
        InvalidParameterError: If a parameter is out of range, or the account protects another unit. Nothing
            is charged. If rows that are read later have another shape than synthetic ones, the charge stays.
        BudgetExceededError: If the account has too little budget left. Nothing is read.
        QueryFailedError: If the rows cannot be read. The cost stays charged.
    """
    _check_kinds(training, test)
    _check_shape(training.rows, test)
    question = _NearCount(
        epsilon=epsilon,
        delta=delta,
        relation=Relation.parse(relation),
        contribution_bound=training.contribution_bound,
        level=level,
        test=test,
    )
    release = Query(question, training).release(account=account, purpose=purpose, generator=generator)
    return _compared(release, question)


def _check_kinds(training: object, test: object) -> None:
    """Raise if the private rows or the test are something else, such as a frame."""
    if not isinstance(training, TrainingRows):
        raise InvalidParameterError(
            f"private rows are of type {type(training).__name__}. Pass TrainingRows(rows=...), which also "
            "says whose the rows are: units=..., rows_per_unit=... and privacy_unit=...."
        )
    if not isinstance(test, CopyTest):
        raise InvalidParameterError(
            f"the test is of type {type(test).__name__}. Pass what copy_test(synthetic, holdout) returns."
        )


def _check_shape(rows: Any, test: CopyTest) -> None:
    """Raise if an array at hand has rows of another shape, which is public. Others are read later."""
    if isinstance(rows, np.ndarray) and test.columns is None:
        size = int(np.prod(rows.shape[1:], dtype=np.int64))
        if rows.ndim < 2 or size != test.synthetic.shape[1]:
            raise InvalidParameterError(
                f"a training row has {size} values, but a synthetic row has {test.synthetic.shape[1]}."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _NearCount(Terms):
    """The numbers of training rows that are near a synthetic row, and that are not."""

    test: CopyTest

    @property
    def name(self) -> str:
        """The name of the statistic, as releases show it."""
        return "training rows near a synthetic row, and others"

    @property
    def noise(self) -> WholeNoise:
        """The noise on both counts: a row is in one of them."""
        reach = self.contribution_bound * self.relation.diameter
        return WholeNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            kind=Kind.COUNTS,
            l1_sensitivity=reach,
            l2_sensitivity=l2_of_counts(self.contribution_bound, self.relation),
            coordinates=min(2, reach),
        )

    def event(self) -> DpEvent:
        """Return the event that a release is charged with."""
        return self.noise.event()

    def answer(self, data: TrainingRows, *, generator: Generator | None) -> Answer[tuple[int, int]]:
        """Return both counts with noise."""
        rows = data.rows() if callable(data.rows) else data.rows
        units = data.units() if callable(data.units) else data.units
        counts = _counts(self.test.near(rows), units, self.contribution_bound)
        near, far = self.noise.add(counts, generator=generator).tolist()
        return Answer(value=(int(near), int(far)))


def _counts(near: Bools, units: Any, bound: int) -> list[int]:
    """Return how many rows are near and how many are not, of each unit `bound` at most together."""
    if units is None:
        return [int(near.sum()), int((~near).sum())]
    numbers = _numbered(units)
    if len(numbers) != len(near):
        raise InvalidParameterError("units must have one entry for each row.")
    owned = numbers >= 0
    size = int(numbers.max(initial=-1)) + 1
    hits, misses = (np.bincount(numbers[owned & kind], minlength=size) for kind in (near, ~near))
    counted = np.minimum(hits, bound)
    return [int(counted.sum()), int(np.minimum(misses, bound - counted).sum())]


def _numbered(units: Any) -> Any:
    """Return a number for each unit; -1 for a row without one, or with one that cannot be compared."""
    seen: dict[Any, int] = {}
    return np.array([_number_of(unit, seen) for unit in units], dtype=np.int64)


def _number_of(unit: Any, seen: dict[Any, int]) -> int:
    try:
        return -1 if is_missing(unit) else seen.setdefault(unit, len(seen))
    except Exception:  # its message may quote the unit
        return -1


def _compared(release: Release[tuple[int, int]], question: _NearCount) -> NearCopies:
    """Return the share and both intervals. A third of the error is for the noise of each count."""
    test, level = question.test, question.level
    part = (1 - level) / 3
    reach = whole_half_width(question.noise.law, level=1 - part)
    near, far = (max(0, count) for count in release.value)
    low = _clopper_pearson(max(0, near - reach), far + reach, 1 - part)[0]
    high = _clopper_pearson(near + reach, max(0, far - reach), 1 - part)[1]
    return NearCopies(
        share=near / max(1, near + far),
        interval=(low, high),
        holdout_share=test.holdout_near / test.holdout_rows,
        holdout_interval=_clopper_pearson(test.holdout_near, test.holdout_rows - test.holdout_near, level),
        radius=test.radius,
        level=level,
        release=release,
    )


def _clopper_pearson(hits: int, misses: int, level: float) -> tuple[float, float]:
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(betaincinv(hits, misses + 1, tail))
    high = 1.0 if misses == 0 else float(betaincinv(hits + 1, misses, 1 - tail))
    return low, high


def _ends(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2%} to {interval[1]:.2%}"
