# SPDX-License-Identifier: Apache-2.0
"""From measurements of several seeds to one line: groups, and cells with a mean and its error."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from sfumato.experiments.experiment import Row
from sfumato.report.spread import half_interval, mean_of

__all__ = ["by_setting", "shown"]


def by_setting(rows: Iterable[Row], *names: str, value: str) -> dict[Any, list[float]]:
    """Return the values of all seeds for each setting, in the order in which settings first come.

    Args:
        rows: The measurements.
        names: The names whose values tell a setting from another. With one name, keys are its values; with
            more, keys are tuples.
        value: The name of what is collected.

    Returns:
        From setting to values.

    >>> rows = [{"noise": 1, "seed": s, "right": 0.5 + s / 10} for s in (0, 1)]
    >>> by_setting(rows, "noise", value="right")
    {1: [0.5, 0.6]}
    """
    found: dict[Hashable, list[float]] = {}
    for row in rows:
        key = row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
        if row[value] is not None:
            found.setdefault(key, []).append(float(row[value]))
    return found


def shown(values: Sequence[float], *, digits: int = 2, percent: bool = False) -> str:
    """Return a mean and its error, as a cell of a table shows them.

    >>> shown([0.915, 0.917, 0.919], percent=True)
    '91.70 ± 0.50'
    """
    scale = 100 if percent else 1
    error = half_interval(values)
    mean = f"{scale * mean_of(values):.{digits}f}"
    return mean if error is None else f"{mean} ± {scale * error:.{digits}f}"
