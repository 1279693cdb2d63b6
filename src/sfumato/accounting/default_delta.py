# SPDX-License-Identifier: Apache-2.0
"""The default delta: one rule for plans, training, labels, estimators and the command line.

A delta above 0.1 is refused when a guarantee is bought (`_check.delta`). One that is not below one over the
number of units is noted (`delta_note`).

Guarantee  `default_delta(public_size)` is the largest power of ten below one over the number of units. It is
           never derived from data: without a public size there is no default, and the caller must pass a
           delta. One command has to go on without either: it uses `DELTA_OF_ANY_SIZE`, which is below one
           over the number of units of all data of less than a billion units, and says so.
Unit       The number of units must be public. A delta near 1 / size would allow a mechanism that publishes
           one unit at random, so size times the default is always below 1.
Not here   The delta of an account: a run that is charged to an account uses that account's delta.
"""

from typing import Final

from sfumato import _check
from sfumato.errors import InvalidParameterError

__all__ = ["DELTA_OF_ANY_SIZE", "default_delta", "delta_note", "delta_or_default"]

DELTA_OF_ANY_SIZE: Final = 1e-9

_LARGE = 1e-3  # if the number of units is not known: data of fewer than a thousand units is rare


def default_delta(public_size: int) -> float:
    """Return the largest power of ten below one over the number of units.

    Args:
        public_size: The number of units, which must be public.

    Returns:
        The delta.

    Raises:
        InvalidParameterError: If the size is not a whole number from 1 to 1e300.

    >>> default_delta(1437), default_delta(1000), default_delta(1)
    (0.0001, 0.0001, 0.1)
    """
    _check.count(public_size=public_size)
    if public_size >= 10**300:
        raise InvalidParameterError("public_size must be below 1e300. Give the number of units, or a delta.")
    power = len(str(public_size))  # 10 ** (digits - 1) <= size < 10 ** digits
    return float(f"1e-{power}")


def delta_note(delta: float, public_size: int | None = None) -> str | None:
    """Return a warning about a delta that is too large to protect every unit, or None.

    >>> delta_note(1e-6), delta_note(0.05)
    (None, 'delta 0.05 is large: it allows a release that reveals this share of all units')
    """
    large = delta > _LARGE if public_size is None else delta * public_size >= 1
    return (
        f"delta {delta:g} is large: it allows a release that reveals this share of all units"
        if large
        else None
    )


def delta_or_default(delta: float | None, public_size: int | None) -> float:
    """Return the delta that was given, or the default for a public size; raise if there is neither.

    >>> delta_or_default(None, 60_000), delta_or_default(1e-6, 60_000)
    (1e-05, 1e-06)
    """
    if delta is not None:
        _check.delta(delta=delta)
        return delta
    if public_size is None:
        raise InvalidParameterError(
            "an epsilon means nothing without a delta. Give delta, well below one over the number of units; "
            "with public_size it has a default."
        )
    return default_delta(public_size)
