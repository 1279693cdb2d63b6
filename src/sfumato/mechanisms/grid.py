# SPDX-License-Identifier: Apache-2.0
"""Real scores on a public integer grid, so that comparisons of noisy scores are exact.

Guarantee  Two values at most `sensitivity` apart lie at most `units` steps apart, whatever they are; and a
           larger value never lies on a lower step. Exact noise on `units` therefore gives exactly the epsilon
           it was sized for. The step is a power of two, from 2^-21 to 2^-20 of the sensitivity, so the grid
           costs less than a millionth of accuracy.
Neighbors  As the caller states `sensitivity`.
Edge cases NaN and infinite values are refused without being shown. Values beyond 2^61 steps are clamped,
           which does not increase the distance of any two values.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import exact, inputs
from sfumato.mechanisms.random import Generator

__all__ = ["Grid"]

_FINENESS = 20  # bits below the sensitivity
_CLAMP = 2.0**61


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid for one sensitivity.

    >>> grid = Grid(1.0)
    >>> grid.units * grid.step
    1.0
    """

    sensitivity: float

    def __post_init__(self) -> None:
        _check.positive(sensitivity=self.sensitivity)
        inputs.settle(self, "sensitivity")
        _check.in_range(1e-280, 1e280, sensitivity=self.sensitivity)

    @property
    def step(self) -> float:
        """Return the distance between neighboring grid points."""
        return math.ldexp(1.0, math.frexp(self.sensitivity)[1] - 1 - _FINENESS)

    @property
    def units(self) -> int:
        """Return the sensitivity in steps, rounded up."""
        return math.ceil(self.sensitivity / self.step)

    def place(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the step at or below each value.

        Rounding down, unlike to nearest-even, moves values that are whole steps apart by the same amount, so
        the distance grows to the next whole step and no further.
        """
        known = inputs.numbers(values, what="values")
        if not np.isfinite(known).all():
            raise InvalidParameterError(
                "a value or score is not a finite number, so it cannot have the stated sensitivity. "
                "Clamp values to public bounds first; nothing was released."
            )
        with np.errstate(over="ignore"):  # an overflow is clamped on the same line
            steps = np.clip(known / self.step, -_CLAMP, _CLAMP)
        return np.floor(steps).astype(np.int64)

    def laplace(
        self, count: int, *, multiple: float, epsilon: float, generator: Generator | None
    ) -> npt.NDArray[np.int64]:
        """Return exact Laplace noise of scale multiple * sensitivity / epsilon, in steps."""
        spread = self.spread(multiple=multiple, epsilon=epsilon)
        return exact.integers(count, power=1, spread=spread, generator=generator)

    def spread(self, *, multiple: float, epsilon: float) -> Fraction:
        """Return multiple * sensitivity / epsilon in steps, exactly; refuse one that 64 bits cannot hold."""
        spread = self.units * Fraction(multiple) / Fraction(epsilon)
        if spread > exact.MAX_SCALE:
            raise InvalidParameterError(
                f"epsilon={epsilon!r} is too small: the noise would not fit 64-bit integers. "
                f"Use at least {float(self.units * Fraction(multiple) / Fraction(exact.MAX_SCALE)):.3g}."
            )
        return spread
