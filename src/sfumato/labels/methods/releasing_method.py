# SPDX-License-Identifier: Apache-2.0
"""The interface of methods that release labels once, with noise.

Guarantee  The caller is charged for `event()` before it calls `release`, and `release` is all that uses
           labels.
"""

from collections.abc import Sequence
from typing import Protocol

from dp_accounting.dp_event import DpEvent

from sfumato.accounting.guarantee import Relation
from sfumato.labels.input_checks import ArrayLike
from sfumato.labels.learning import Released, Teach
from sfumato.mechanisms.random import Generator

__all__ = ["ReleasingMethod"]


class ReleasingMethod(Protocol):
    """A method that releases labels once, with noise."""

    @property
    def name(self) -> str:
        """The name of the method."""
        ...

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbors."""
        ...

    @property
    def classes(self) -> int:
        """The number of classes."""
        ...

    @property
    def contribution_bound(self) -> int:
        """The largest number of labels one unit may own."""
        ...

    def event(self) -> DpEvent:
        """Describe what a run costs one unit."""
        ...

    def check_size(self, *, rows: int, units: int) -> None:
        """Raise unless the method was made for this many rows and units. No label is needed."""
        ...

    def lessons(self, rows: int) -> Sequence[int]:
        """Return the number of rows that each training of a run learns from; none learns from no row."""
        ...

    def release(
        self, labels: ArrayLike, *, teach: Teach | None = None, generator: Generator | None = None
    ) -> Released:
        """Release the labels with noise, and return what to learn from."""
        ...
