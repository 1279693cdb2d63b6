# SPDX-License-Identifier: Apache-2.0
"""Parameters of questions about values between public bounds, whose number may be public, too.

Neighbors  `public_size` declares the number of rows, which is then not estimated with noise.
Edge cases Values are rounded to 2^-20 of half the width of the bounds. `interval` widens an interval by that.
"""

from dataclasses import dataclass

import numpy as np

from sfumato import _check
from sfumato.mechanisms import inputs
from sfumato.statistics.columns.columns import STEPS, Bounds
from sfumato.statistics.release import Covers, Interval
from sfumato.statistics.terms import Terms

__all__ = ["FAILED", "GRID", "BoundedTerms"]

GRID = 1 / (4 * STEPS)  # of the width of the bounds: the largest rounding error of a value
FAILED: tuple[str, ...] = ("failed: too few rows for this epsilon",)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedTerms(Terms):
    """The parameters of a question about values between public bounds.

    Args:
        epsilon: The privacy budget of this release.
        delta: The delta of the guarantee. 0 means pure differential privacy.
        relation: Which data sets are neighbors: a `Relation` or its name, such as "replace-one".
        contribution_bound: The most rows of one privacy unit that count. It must equal that of the data.
        level: The confidence level of the interval, between 0 and 1.
        column: The name of the column, as releases show it.
        bounds: Lower and upper bound, public. Values outside are clipped to them.
        public_size: The number of rows, if it is public. None means that it is private.

    Raises:
        InvalidParameterError: If a parameter is out of range.
    """

    bounds: Bounds
    public_size: int | None = None

    def __post_init__(self) -> None:
        Terms.__post_init__(self)
        inputs.settle_bounds(self, self.bounds)
        if self.public_size is not None:
            _check.count(public_size=self.public_size)

    @property
    def width(self) -> float:
        return self.bounds[1] - self.bounds[0]

    def interval(self, lower: float, upper: float, covers: tuple[Covers, ...]) -> Interval:
        """Return an interval of shares of the width as one of values, widened by the rounding error.

        Args:
            lower: Its lower end, as a share of the width of the bounds.
            upper: Its upper end.
            covers: What the interval covers, and with which confidence.

        Returns:
            The interval in units of the column.
        """
        ends = [self.bounds[0] + self.width * u for u in (lower - GRID, upper + GRID)]
        ends = np.clip(ends, *self.bounds).tolist()
        return Interval(lower=ends[0], upper=ends[1], level=self.level, covers=covers)
