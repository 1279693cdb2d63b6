# SPDX-License-Identifier: Apache-2.0
"""What comes in: labels, which are secret; priors and owners, which are public.

Promise    Labels come out as one whole number from 0 to classes - 1 for each row of features, or are refused.
           A refusal says what labels must be: not one that was given, how many were wrong, or which classes
           occur.
Public     The number of rows, the number of classes, priors and who owns which row are public, like features.
Edges      Fractions, probabilities, text, missing values, a second axis and another number of rows are
           refused: soft labels have no label to replace. True and False are the classes 1 and 0.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfumato import _check
from sfumato.errors import InvalidParameterError
from sfumato.mechanisms import inputs

__all__ = ["Given", "check_classes", "check_shape", "checked_labels", "checked_owners", "checked_prior"]

Given = Tensor | npt.NDArray[Any] | Sequence[Any]


def check_classes(classes: int) -> None:
    """Require two classes or more: where there is one, the label is no secret."""
    _check.count(classes=classes)
    if classes < 2:
        raise InvalidParameterError(
            f"classes must be 2 or more, but {classes!r} was given. Say how many there could be, "
            "whichever occur."
        )


def check_shape(labels: Given, *, rows: int) -> None:
    """Require one label for each row, by length and type alone: these are public, and no label is looked at.

    >>> check_shape(torch.rand(2, 3), rows=2)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: labels must be whole numbers, one for each of 2 rows ...
    """
    shape = tuple(getattr(labels, "shape", (len(labels),)))
    kind = str(getattr(labels, "dtype", "int"))  # a list has none, but for that of its entries
    if shape != (rows,) or not any(name in kind for name in ("int", "bool")):
        raise InvalidParameterError(
            f"labels must be whole numbers, one for each of {rows} rows of features; fractions, text and "
            "rows of probabilities are no labels. Nothing was spent."
        )


def checked_labels(labels: Given, *, classes: int, rows: int) -> Tensor:
    """Return labels as int64 on the CPU, one for each of `rows` rows of features.

    >>> checked_labels([0, 2, 1], classes=3, rows=3)
    tensor([0, 2, 1])
    >>> checked_labels([0, 7, 1], classes=3, rows=3)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: labels must be whole numbers from 0 to 2, one for each of 3 rows ...
    """
    check_classes(classes)
    given = inputs.array(labels.cpu() if isinstance(labels, Tensor) else labels, what="labels")
    fits = given.shape == (rows,) and (rows == 0 or given.dtype.kind in "iub")
    if not (fits and bool(((given >= 0) & (given < classes)).all())):
        raise InvalidParameterError(
            f"labels must be whole numbers from 0 to {classes - 1}, one for each of {rows} rows of features; "
            "fractions and rows of probabilities are no labels. Nothing was released."
        )
    return torch.from_numpy(given.astype(np.int64))


def checked_prior(prior: Given, *, classes: int, rows: int) -> npt.NDArray[np.float64]:
    """Return public weights of the classes as float64 [rows, classes]; one list of them stands for every row.

    Weights need not add up to 1, but must be finite, not below zero, and above zero somewhere in each row.

    >>> checked_prior([1, 3], classes=2, rows=2)
    array([[0.25, 0.75],
           [0.25, 0.75]])
    """
    check_classes(classes)
    given = inputs.numbers(prior.detach().cpu() if isinstance(prior, Tensor) else prior, what="prior")
    if given.shape not in ((classes,), (rows, classes)):
        raise InvalidParameterError(
            f"prior must hold one weight for each of {classes} classes, once or for each of {rows} rows, but "
            f"its shape is {list(given.shape)}."
        )
    given = np.broadcast_to(given, (rows, classes))
    totals = given.sum(1, keepdims=True)
    if not (bool((given >= 0).all()) and bool(((totals > 0) & (totals < np.inf)).all())):
        raise InvalidParameterError(
            "prior must be weights of the classes: finite, not below zero, and above zero "
            "somewhere in each row."
        )
    return given / totals


def checked_owners(owners: Given, *, rows: int, contribution_bound: int) -> None:
    """Require one owner for each row, and no owner of more than `contribution_bound` rows.

    >>> checked_owners(["ann", "bob", "ann"], rows=3, contribution_bound=2)
    """
    _check.count(contribution_bound=contribution_bound)
    given = inputs.array(owners.cpu() if isinstance(owners, Tensor) else owners, what="owners")
    if given.shape != (rows,):
        raise InvalidParameterError(
            f"owners must name who owns each of {rows} rows, but their shape is {list(given.shape)}."
        )
    most = int(np.unique(given, return_counts=True)[1].max(initial=0))
    if most > contribution_bound:
        raise InvalidParameterError(
            f"contribution_bound={contribution_bound}, but an owner has {most} rows. Say "
            f"contribution_bound={most}, or drop rows of that owner first."
        )
