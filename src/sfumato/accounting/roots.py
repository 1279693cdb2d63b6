# SPDX-License-Identifier: Apache-2.0
"""Roots of functions of one number, by Brent's method of scipy.

scipy.optimize takes a quarter of a second to import, and most prices need no root: it is loaded here, for the
first one that does.
"""

from collections.abc import Callable

__all__ = ["root_between"]


def root_between(
    function: Callable[[float], float], low: float, high: float, *, xtol: float = 2e-12
) -> float:
    """Return where a function of different signs at `low` and `high` is zero, to `xtol`.

    >>> root_between(lambda x: x * x - 2, 0.0, 2.0)
    1.4142135623731364
    """
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=xtol))  # pyright: ignore[reportArgumentType] - a number, without full_output
