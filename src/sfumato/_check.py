# SPDX-License-Identifier: Apache-2.0
"""Named validators: `_check.positive(clip_norm=clip_norm)`.

Each takes keyword arguments and raises `InvalidParameterError` that names the parameter, the value given and
what is allowed. All comparisons are written so that NaN fails.
"""

# Annotations state what callers should pass; these functions check callers that pass something else.
# pyright: reportUnnecessaryIsInstance=false

import difflib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence

from sfumato.errors import InvalidParameterError


def _fail(name: str, value: object, allowed: str) -> InvalidParameterError:
    return InvalidParameterError(f"{name} must be {allowed}, but {value!r} was given.")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def positive(**values: float) -> None:
    """Require finite numbers above zero.

    >>> positive(clip_norm=0.0)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: clip_norm must be a finite number above 0, but 0.0 was given.
    """
    for name, value in values.items():
        if not (_is_number(value) and 0 < value < math.inf):
            raise _fail(name, value, "a finite number above 0")


def non_negative(**values: float) -> None:
    """Require finite numbers that are zero or more."""
    for name, value in values.items():
        if not (_is_number(value) and 0 <= value < math.inf):
            raise _fail(name, value, "a finite number, 0 or more")


def finite(**values: float) -> None:
    """Require finite numbers of any sign."""
    for name, value in values.items():
        if not (_is_number(value) and -math.inf < value < math.inf):
            raise _fail(name, value, "a finite number")


def in_range(lower: float, upper: float, **values: float) -> None:
    """Require `lower <= value <= upper`."""
    for name, value in values.items():
        if not (_is_number(value) and lower <= value <= upper):
            raise _fail(name, value, f"a number from {lower:g} to {upper:g}")


def probability(**values: float) -> None:
    """Require a number strictly between 0 and 1, as a delta must be."""
    for name, value in values.items():
        if not (_is_number(value) and 0 < value < 1):
            raise _fail(name, value, "a number strictly between 0 and 1")


LARGEST_DELTA = 0.1  # the default for a handful of units; above it a guarantee is nearly worthless


def delta(**values: float) -> None:
    """Require a delta of a new guarantee: above 0, and small enough to be useful.

    >>> delta(delta=0.5)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: delta must be at most 0.1, but 0.5 was given. ...
    """
    probability(**values)
    for name, value in values.items():
        if not value <= LARGEST_DELTA:
            raise InvalidParameterError(
                f"{name} must be at most {LARGEST_DELTA:g}, but {value!r} was given. It is the chance that "
                "the guarantee fails altogether: choose far less than one over the number of people, such "
                "as 1e-6."
            )


def rate(**values: float) -> None:
    """Require a number above 0 and at most 1, as a sampling rate must be."""
    for name, value in values.items():
        if not (_is_number(value) and 0 < value <= 1):
            raise _fail(name, value, "a number above 0 and at most 1")


def count(**values: int) -> None:
    """Require whole numbers of at least 1 (an integral float is refused)."""
    for name, value in values.items():
        if not (isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= 1):
            raise _fail(name, value, "a whole number, 1 or more")


NARROWEST = 1e-280  # width of bounds: what is divided by less could leave float64
_SCALES = (1e-100, 1e100)  # squares of these, and of ratios to them, stay in float64


def scale(**values: float) -> None:
    """Require numbers by which private values can be divided, and their squares: 1e-100 to 1e100."""
    for name, value in values.items():
        if not (_is_number(value) and _SCALES[0] <= value <= _SCALES[1]):
            raise _fail(name, value, f"a number from {_SCALES[0]:g} to {_SCALES[1]:g}")


def bounds(**values: tuple[float, float]) -> None:
    """Require `(lower, upper)` with finite `lower < upper`, and a width that is safe to divide by."""
    for name, value in values.items():
        ok = (
            isinstance(value, tuple | list)
            and len(value) == 2
            and all(_is_number(v) and -math.inf < v < math.inf for v in value)
            and value[0] < value[1]
            and NARROWEST <= float(value[1]) - float(value[0]) < math.inf
        )
        if not ok:
            raise _fail(
                name,
                value,
                f"a pair (lower, upper) of finite numbers with lower < upper, at least {NARROWEST:g} apart",
            )


WIDEST = 1e280  # size of bounds: sums of so large numbers stay in float64
_FINEST = 2.0**-40  # of a bound: a smaller standard deviation could be lost beside it in float64


def summable(**values: tuple[float, float]) -> None:
    """Require bounds between which values can be added up: of at most 1e280 in size.

    >>> summable(bounds=(0.0, 1e300))
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: bounds must be a pair of numbers of at most 1e+280 in size, but ...
    """
    bounds(**values)
    for name, value in values.items():
        if not max(abs(bound) for bound in value) <= WIDEST:
            raise _fail(name, value, f"a pair of numbers of at most {WIDEST:g} in size")


def squarable(**values: tuple[float, float]) -> None:
    """Require bounds between which values, and their distances, can be squared: 1e-100 to 1e100."""
    bounds(**values)
    for name, (lower, upper) in values.items():
        if not (max(abs(lower), abs(upper)) <= _SCALES[1] and upper - lower >= _SCALES[0]):
            raise _fail(
                name,
                (lower, upper),
                f"a pair of numbers of at most {_SCALES[1]:g} in size and at least {_SCALES[0]:g} apart, as "
                "their squares are computed",
            )


def resolvable(value: float, *, within: tuple[float, float], name: str = "stddev") -> None:
    """Require a standard deviation that is not lost in float64 beside any number within bounds."""
    largest = max(abs(bound) for bound in within)
    if not value >= largest * _FINEST:
        raise _fail(name, value, f"at least {largest * _FINEST:g}: float64 has no finer steps there")


def text(**values: str) -> None:
    """Require a string that is not empty."""
    for name, value in values.items():
        if not (isinstance(value, str) and value.strip()):
            raise _fail(name, value, "a non-empty string")


def keywords(given: Iterable[str], known: Sequence[str], elsewhere: Mapping[str, str] | None = None) -> None:
    """Require names of keywords that there are. `elsewhere` has our names for those of other libraries.

    >>> keywords(["epsilom"], ["epsilon", "delta"])
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: unknown keyword 'epsilom'. Did you mean 'epsilon'?
    >>> keywords(["lr"], ["learning_rate"], {"lr": "learning_rate"})
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: unknown keyword 'lr'. Did you mean 'learning_rate'?
    """
    for name in given:
        if name not in known:
            own = (elsewhere or {}).get(name)
            close = [own] if own else difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(known)}."
            raise InvalidParameterError(f"unknown keyword {name!r}. {hint}")
