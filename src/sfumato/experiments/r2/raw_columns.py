# SPDX-License-Identifier: Apache-2.0
"""The rows of `public_rows` as they were published: codes, months, and amounts of money in dollars.

The loaders of `sfumato.datasets` map each column to 0..1. Here this is undone, as R2 does not say that it
scaled anything. Amounts outside of the declared ranges stay at their ends.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from sfumato.datasets.columns import Column, Number
from sfumato.datasets.credit import COLUMNS
from sfumato.datasets.embedded import BREAST_CANCER_COLUMNS
from sfumato.experiments.r2 import public_rows
from sfumato.experiments.r2.public_rows import Floats, Part

__all__ = ["decoded", "raw_parts"]


def raw_parts(*, quick: bool) -> tuple[Part, Part]:
    """Return the rows to learn from and those to test with, with columns as they were published.

    Args:
        quick: Whether the run is a quick one.

    Returns:
        The two parts.
    """
    columns = BREAST_CANCER_COLUMNS if quick else COLUMNS
    train, test = public_rows.parts(quick=quick)
    return train._replace(features=decoded(columns, train.features)), test._replace(
        features=decoded(columns, test.features)
    )


def decoded(columns: Sequence[Column], features: Floats) -> Floats:
    """Return the columns that features were made from; a category is the place of its value, from 1 on.

    >>> from sfumato.datasets.columns import Category
    >>> decoded([Number("age", 0, 100), Category("color", ("red", "blue"))], np.array([[0.25, 0, 1, 0]]))
    array([[25.,  2.]])
    """
    found: list[Floats] = []
    start = 0
    for column in columns:
        part = features[:, start : start + len(column.names)]
        found.append(_number(column, part[:, 0]) if isinstance(column, Number) else part.argmax(axis=1) + 1.0)
        start += len(column.names)
    return np.stack(found, axis=1)


def _number(column: Number, part: Floats) -> Floats:
    if column.log_unit is None:
        return column.lower + part * (column.upper - column.lower)
    unit = column.log_unit
    low, high = (np.sign(end) * np.log1p(abs(end) / unit) for end in (column.lower, column.upper))
    curved = low + part * (high - low)
    return cast(Floats, np.sign(curved) * np.expm1(np.abs(curved)) * unit)
