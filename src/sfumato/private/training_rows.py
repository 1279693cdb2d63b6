# SPDX-License-Identifier: Apache-2.0
"""The rows of a private table as a training run reads them, after it is charged.

Failure    An error while rows are read quotes nothing that was read. The charge stays spent.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.statistics.columns.table_columns import TableRows
from sfumato.statistics.sources.tables import PrivateTable
from sfumato.training.data.units import Deferred

__all__ = ["read_rows", "training_rows"]


def _required(classes: Any) -> list[Any]:
    """Return the labels of classes, if they are a list of different ones."""
    listed = isinstance(classes, list | tuple | np.ndarray)
    if not listed or len(classes) < 2 or len(set(map(str, classes))) < len(classes):
        raise InvalidParameterError(
            "classes must be a number of classes, or a list of two or more different labels, in order: "
            "classes=['no', 'yes']."
        )
    return list(classes)


def training_rows(
    table: PrivateTable, features: tuple[str, ...], target: str, classes: int | Sequence[Any] | None
) -> Deferred:
    """Return the rows of a table as a training run takes them, once it is paid for."""
    label = torch.float32 if classes is None else torch.int64
    if classes is None or (isinstance(classes, int | np.integer) and not isinstance(classes, bool)):
        rows = table.rows(*features, target)
    else:
        labels = _required(classes)
        rows, classes = table.rows(*features, target, classes=labels), len(labels)
    return Deferred(
        blank=(torch.zeros(0, len(features)), torch.zeros(0, dtype=label)),
        read=lambda: read_rows(rows, classes),
        by_owner=table.owned.unit is not None,
    )


def read_rows(rows: TableRows, classes: int | None) -> tuple[tuple[Any, Any], Any]:
    """Return features and targets, and the owner of each row, or raise without quoting what was read."""
    try:
        matrix, owners = rows.read()
        known = np.isfinite(matrix).all(1)
        if classes is not None:  # a loss would quote any other label
            known &= np.isin(matrix[:, -1], np.arange(classes))
        matrix = matrix[known]
        with np.errstate(all="ignore"):
            x = torch.from_numpy(matrix[:, :-1].astype(np.float32))
            y = torch.from_numpy(matrix[:, -1].astype(np.float32 if classes is None else np.int64))
        return (x, y), None if owners is None else torch.from_numpy(owners[known])
    except Exception:  # of an engine or a file: its message and its class may tell what it read
        pass  # and is raised below, so that our error does not carry theirs along
    raise QueryFailedError(
        "the rows to train on could not be read. What was reserved for the run stays spent. Check that the "
        "columns exist and are numbers, and the engine's own log."
    )
