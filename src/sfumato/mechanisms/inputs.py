# SPDX-License-Identifier: Apache-2.0
"""Validation of numbers: private values, which no message may show, and public parameters, kept as float64.

`settle` replaces the parameters of a frozen mechanism by the equal float64, so that the noise, the event and
the repr use the same number. A number that float64 cannot hold exactly is refused: only the caller knows in
which direction rounding is safe.

Guarantee  A private value that is not a number is refused with a message that does not contain it, and the
           error has no cause that does: conversion errors of Python and numpy quote their input. No
           conversion warns either, since a warning that depends on the data would be a release that was not
           charged.
Edge cases Text is refused even if it reads as a number, and so are complex numbers. `numbers` accepts NaN and
           infinity; `number` refuses them. Values beyond float64 are refused; `clippable` turns them into an
           infinity.
"""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato.accounting.guarantee import Relation
from sfumato.errors import InvalidParameterError

__all__ = [
    "array",
    "check_relation",
    "clippable",
    "number",
    "numbers",
    "parameter",
    "settle",
    "settle_bounds",
    "whole_number",
]

_NUMERIC = "biufO"  # numpy's kinds: bool, signed, unsigned, floating; object may hold fractions
_LARGEST = 2**62  # integers beyond could overflow 64 bits once noise is added
_T = TypeVar("_T")


def array(values: npt.ArrayLike, *, what: str) -> npt.NDArray[Any]:
    """Return private values as an array of whatever type they have."""
    given = _quietly(lambda: np.asarray(values))
    if given is None:
        raise InvalidParameterError(f"{what} cannot be read as an array; nothing was released.")
    return given


def numbers(values: npt.ArrayLike, *, what: str) -> npt.NDArray[np.float64]:
    """Return private values as float64.

    >>> numbers(["secret"], what="scores")
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: scores must be real numbers; nothing was released.
    """
    given = _quietly(lambda: np.asarray(values))
    known = None
    if given is not None and given.dtype.kind in _NUMERIC:
        known = _quietly(lambda: given.astype(np.float64))
    if known is None:
        raise InvalidParameterError(f"{what} must be real numbers; nothing was released.")
    return known


def clippable(values: npt.ArrayLike, *, what: str) -> npt.NDArray[np.float64]:
    """Return private values as float64, those beyond it as infinities, for callers that clip or drop them.

    >>> clippable([1, -(10**400)], what="ages")
    array([  1., -inf])
    """
    given = _quietly(lambda: np.asarray(values))
    if given is None or given.dtype.kind != "O":  # only Python's own numbers can be too large
        return numbers(values, what=what)
    inside = _quietly(lambda: np.array([_in_range(value) for value in given.ravel()], dtype=object))
    return numbers(given if inside is None else inside.reshape(given.shape), what=what)


def number(value: float) -> float:
    """Return one private value as a finite float64.

    >>> number("secret")
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: the value to release is not a finite number, so it cannot have ...
    """
    known = _quietly(lambda: float(value)) if isinstance(value, Real) else None  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
    if known is None or not math.isfinite(known):
        raise InvalidParameterError(
            "the value to release is not a finite number, so it cannot have the stated sensitivity. "
            "Clamp it to public bounds first; nothing was released."
        )
    return known


def whole_number(value: int, *, what: str = "the value to release") -> int:
    """Return one private value as an integer of at most 2^62 in size."""
    if not (isinstance(value, Integral) and -_LARGEST <= value <= _LARGEST):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            f"{what} is not a whole number of at most 2^62 in size. "
            "Round and clamp it first; nothing was released."
        )
    return int(value)


def parameter(name: str, given: float) -> float:
    """Return a public parameter, checked to be a number, as the equal float64."""
    known = _quietly(lambda: float(given))
    if known is None or known != given:
        raise InvalidParameterError(
            f"{name} must be a number that float64 holds exactly, but {given!r} was given. "
            "Round it yourself: a sensitivity up, an epsilon down."
        )
    return known


def settle(mechanism: object, *names: str) -> None:
    """Store the named parameters of a frozen mechanism, checked to be numbers, as the equal float64."""
    for name in names:
        object.__setattr__(mechanism, name, parameter(name, getattr(mechanism, name)))


def settle_bounds(mechanism: object, bounds: tuple[float, float]) -> None:
    """Check the `bounds` of a frozen mechanism and store them as the equal float64."""
    _check.bounds(bounds=bounds)
    lower, upper = (parameter("bounds", bound) for bound in bounds)
    object.__setattr__(mechanism, "bounds", (lower, upper))


def check_relation(relation: Relation) -> None:
    """Require a `Relation`."""
    if not isinstance(relation, Relation):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            f"relation must be a Relation, but {relation!r} was given. Use Relation.parse(...) for text."
        )


def _in_range(value: Any) -> Any:
    """Return a value, or the infinity of its sign if float64 cannot hold a number so large."""
    try:
        return float(value) if isinstance(value, Real) else value
    except OverflowError:
        positive: bool = value > 0  # type: ignore[operator]  # real numbers have an order
        return math.inf if positive else -math.inf


def _quietly(convert: Callable[[], _T]) -> _T | None:
    """Return what `convert` returns; None if it fails, in whatever way: any error may quote the value.

    Callers raise after this returned, not while the error is handled, so that theirs does not carry it along.
    """
    try:
        with np.errstate(all="ignore"):
            return convert()
    except Exception:
        return None
