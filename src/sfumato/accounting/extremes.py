# SPDX-License-Identifier: Apache-2.0
"""Numbers that are too large or too small for float64: a clear error instead of a traceback.

Guarantee  A function marked `in_floats` takes fractions and every other real number as the nearest float, and
           raises `InvalidParameterError` where a number is too large or too small to compute with. What it
           returns is what it would return for the same floats.
Edge cases Whole numbers stay whole numbers: a count is not rounded. Overflow and invalid operations inside
           numpy give infinity or NaN, which the functions read as "no claim".
"""

import numbers
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sfumato.errors import InvalidParameterError, SfumatoError

__all__ = ["in_floats", "too_extreme"]

# What the errors of Python, numpy and scipy contain if a number is too large or too small.
_MESSAGES_OF_EXTREMES = (
    "math domain",
    "different signs",
    "Maximum allowed size",
    "array is too big",
    "cannot convert float",
    "must be finite",
    "is NaN",
)

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def too_extreme(error: Exception) -> InvalidParameterError:
    """Return the error for numbers that cannot be computed with."""
    return InvalidParameterError(
        "a number that was given, or what follows from it, is too large or too small to compute with "
        f"({type(error).__name__}). Use an epsilon and a noise multiplier from 1e-100 to 1e100, a "
        "delta of at least 1e-300, and fewer than 1e15 steps."
    )


def in_floats(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Have a function compute in floats, and refuse what does not fit in them.

    >>> @in_floats
    ... def double(value: float) -> float:
    ...     return 2.0 * value
    >>> from fractions import Fraction
    >>> double(Fraction(1, 4))
    0.5
    """

    @wraps(function)
    def computed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            plain = [_as_float(value) for value in args]
            named = {name: _as_float(value) for name, value in kwargs.items()}
            with np.errstate(all="ignore"):
                return function(*plain, **named)  # pyright: ignore[reportCallIssue] - the same, as floats
        except SfumatoError:
            raise
        except (ArithmeticError, MemoryError) as error:
            raise too_extreme(error) from error
        except ValueError as error:
            if not any(message in str(error) for message in _MESSAGES_OF_EXTREMES):
                raise  # a mistake in a function that the caller gave
            raise too_extreme(error) from error

    return computed


def _as_float(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    as_float = float(value)  # an OverflowError for whole numbers above 1e308
    return value if isinstance(value, numbers.Integral) else as_float
