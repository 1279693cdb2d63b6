# SPDX-License-Identifier: Apache-2.0
"""Private rows for teachers: arrays at hand, or rows of a source that are read once the job is charged.

Guarantee  Before the charge only the shape of a row is used, and whether there are units and groups. These
           are public. `read` is called after the charge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.pate.teaching import rows

__all__ = ["DeferredRows", "PrivateRows", "given_rows"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class PrivateRows:
    """Rows that teachers learn from, at hand.

    Args:
        features: One row for each example.
        labels: The label of each row.
        units: What identifies the unit of each row, or None if each row is a unit.
        groups: The privacy group of each row, or None.
    """

    features: Any
    labels: Any
    units: Sequence[Any] | Any = None
    groups: Sequence[Any] | Any = None

    def __repr__(self) -> str:
        return "PrivateRows(...)"

    @property
    def blank(self) -> Any:
        """Features of which only type and shape may be looked at."""
        return self.features

    @property
    def by_unit(self) -> bool:
        """Whether a unit may have several rows."""
        return self.units is not None

    @property
    def grouped(self) -> bool:
        """Whether rows have privacy groups."""
        return self.groups is not None

    def read(self) -> "PrivateRows":
        """Return the rows.

        Returns:
            These rows.
        """
        return self


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DeferredRows:
    """Rows of a source that are read after the job is charged.

    Args:
        columns: The number of feature columns, which is public.
        read: Returns the rows. Its errors must not quote what was read. A failure leaves the job spent.
        by_unit: Whether the rows that `read` returns have units.
        grouped: Whether they have privacy groups.

    Raises:
        InvalidParameterError: If there is no column.

    >>> rows = DeferredRows(columns=2, read=lambda: PrivateRows(features=np.ones((3, 2)), labels=[0, 1, 0]))
    >>> rows.blank.shape, rows.read().features.shape
    ((0, 2), (3, 2))
    """

    columns: int
    read: Callable[[], PrivateRows] = field(repr=False)
    by_unit: bool = False
    grouped: bool = False

    def __post_init__(self) -> None:
        _check.count(columns=self.columns)

    @property
    def blank(self) -> Any:
        """Features without a row."""
        return np.zeros((0, self.columns))


def _check_lengths(features: Any, **columns: Any) -> None:
    for name, values in columns.items():
        if values is not None and len(values) != rows.row_count(features):
            raise InvalidParameterError(f"{name} must have one entry for each row of features.")


def given_rows(features: Any, labels: Any, units: Any, groups: Any) -> PrivateRows | DeferredRows:
    """Return the rows that a caller gave, as arrays or deferred."""
    if not isinstance(features, DeferredRows):
        _check_lengths(rows.check_features(features), labels=labels, units=units, groups=groups)
        return PrivateRows(features=features, labels=labels, units=units, groups=groups)
    if any(part is not None for part in (labels, units, groups)):
        raise InvalidParameterError("deferred rows bring their labels, units and groups: pass None for them.")
    return features
