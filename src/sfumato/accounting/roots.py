# SPDX-License-Identifier: Apache-2.0
"""Where a function of one number is zero: Brent's method.

Guarantee  The steps are those of `scipy.optimize.brentq`, so its root is found, to the last bit. It is
           written out here because importing scipy.optimize takes longer than all roots of a command.
Failure    A function that is NaN somewhere, or that has the same sign at both ends, raises
           `CalibrationError`: no number is made up.
Source     Brent 1973, "Algorithms for Minimization Without Derivatives", chapter 4, as scipy implements it:
           secants through two points, hyperbolas through three.
"""

import math
from collections.abc import Callable

from sfumato.errors import CalibrationError

__all__ = ["root_between"]

RELATIVE = 4 * 2.0**-52  # of the root, which no tolerance may be below
MOST_STEPS = 100


def root_between(
    function: Callable[[float], float], low: float, high: float, *, xtol: float = 2e-12
) -> float:
    """Return where a function of different signs at `low` and `high` is zero, to `xtol`.

    >>> root_between(lambda x: x * x - 2, 0.0, 2.0)
    1.4142135623731364
    """
    before, now = _Point(function, low), _Point(function, high)
    for end in (before, now):
        if end.value == 0:
            return end.at
    if before.is_negative == now.is_negative:
        raise CalibrationError("a root was looked for where the function has the same sign at both ends.")
    other, previous_step, step = before, 0.0, 0.0  # `other` is the end beyond the root
    for _ in range(MOST_STEPS):
        if before.value != 0 and now.value != 0 and before.is_negative != now.is_negative:
            other, previous_step = before, now.at - before.at
            step = previous_step
        if abs(other.value) < abs(now.value):
            before, now, other = now, other, now
        tolerance = (xtol + RELATIVE * abs(now.at)) / 2
        half = (other.at - now.at) / 2
        if now.value == 0 or abs(half) < tolerance:
            return now.at
        tried = math.nan
        if abs(previous_step) > tolerance and abs(now.value) < abs(before.value):
            tried = _interpolated(before, now, other)
        if 2 * abs(tried) < min(abs(previous_step), 3 * abs(half) - tolerance):
            previous_step, step = step, tried
        else:
            previous_step = step = half
        moved = step if abs(step) > tolerance else math.copysign(tolerance, half)
        before, now = now, _Point(function, now.at + moved)
    raise CalibrationError(f"no root was found in {MOST_STEPS} steps.")


class _Point:
    """Where the function was computed, and what it is there."""

    __slots__ = ("at", "is_negative", "value")

    def __init__(self, function: Callable[[float], float], at: float) -> None:
        self.at, self.value = float(at), float(function(at))
        if math.isnan(self.value):
            raise CalibrationError("a root was looked for of a function that has no value somewhere.")
        self.is_negative = math.copysign(1.0, self.value) < 0


def _interpolated(before: _Point, now: _Point, other: _Point) -> float:
    """Return the step to the root of a secant, or of a hyperbola; NaN where there is none."""
    if before.at == other.at:
        return -now.value * (now.at - before.at) / (now.value - before.value)
    one = (before.value - now.value) / (before.at - now.at)
    two = (other.value - now.value) / (other.at - now.at)
    bottom = two * one * (other.value - before.value)
    if bottom == 0:
        return math.nan
    return -now.value * (other.value * two - before.value * one) / bottom
