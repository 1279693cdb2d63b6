# SPDX-License-Identifier: Apache-2.0
"""The mean of a few values, such as those of several seeds, and how sure it is.

An error is half of the 95% confidence interval of the mean by Student's t; of one value nothing is known.
"""

import math
import statistics
from collections.abc import Sequence

__all__ = ["half_interval", "mean_of"]


def mean_of(values: Sequence[float]) -> float:
    """Return the mean, or NaN of nothing.

    >>> mean_of([0.5, 0.7])
    0.6
    """
    return statistics.fmean(values) if values else math.nan


def half_interval(values: Sequence[float], *, confidence: float = 0.95) -> float | None:
    """Return half of the confidence interval of the mean, or None if there are fewer than two values.

    >>> round(half_interval([0.915, 0.917, 0.919]), 5)
    0.00497
    """
    from scipy import stats

    if len(values) < 2:
        return None
    factor = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1))
    return factor * statistics.stdev(values) / math.sqrt(len(values))
