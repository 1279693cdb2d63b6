# SPDX-License-Identifier: Apache-2.0
"""Checks of labels, which are secret, and of priors, owners and evaluation rows, which are public.

Labels become one whole number from 0 to classes - 1 for each row of features.

Guarantee  A whole number outside of the classes is read as the nearest class: one label cannot make a run
           fail, which would reveal it. Labels are refused only by type and shape, which belong to all labels
           together. A message states what labels must be. It does not show a label, how many were wrong, or
           which classes occur. The number of rows, the number of classes, priors and who owns which row are
           public, like features. They are checked before anything is charged: `check_shape` and all
           functions called `checked_...`, except `checked_labels`, use no secret label.
Edge cases Fractions, probabilities, text, missing values, a second axis and another number of rows are
           refused: soft labels have no label to replace. True and False are the classes 1 and 0. A list has
           no type other than that of its entries, and a single entry could cause a refusal: `check_shape`
           accepts only arrays and tensors. Evaluation labels are not protected, and are refused if they are
           outside of the classes.
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

__all__ = [
    "ArrayLike",
    "check_classes",
    "check_features",
    "check_shape",
    "checked_evaluation",
    "checked_labels",
    "checked_owners",
    "checked_prior",
]

ArrayLike = Tensor | npt.NDArray[Any] | Sequence[Any]
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_NAMES = "iubUS"  # numpy's kinds: signed, unsigned, bool, text, bytes


def check_classes(classes: int) -> None:
    """Raise unless there are two classes or more: with one class, the label is not a secret."""
    _check.count(classes=classes)
    if classes < 2:
        raise InvalidParameterError(
            f"classes must be 2 or more, but {classes!r} was given. Pass the number of possible classes, "
            "whether or not all of them occur."
        )


def check_features(features: Tensor, *, what: str = "features") -> None:
    """Raise unless features are a tensor with at least one row."""
    if not (isinstance(features, Tensor) and features.dim() and len(features)):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            f"{what} must be a tensor with one row for each example, and at least one row."
        )


def check_shape(labels: ArrayLike, *, rows: int) -> None:
    """Raise unless there is one label for each row, by length and type alone. No label is used.

    Args:
        labels: The labels.
        rows: The number of rows of features.

    Raises:
        InvalidParameterError: If length or type are wrong. Nothing is spent.

    >>> check_shape(torch.rand(2, 3), rows=2)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: labels must be whole numbers, one for each of 2 rows ...
    """
    shape = getattr(labels, "shape", None)
    if shape is None:
        shape = (len(labels),) if hasattr(labels, "__len__") else ()
    if tuple(shape) != (rows,) or not _is_whole(labels):
        raise InvalidParameterError(
            f"labels must be whole numbers, one for each of {rows} rows of features, in a tensor or a numpy "
            "array; fractions, text, rows of probabilities and lists are not accepted. Nothing was spent."
        )


def _is_whole(labels: ArrayLike) -> bool:
    """Whether labels are whole numbers by a type that has no missing values. A list has no type."""
    kind: Any = getattr(labels, "dtype", None)
    if isinstance(kind, torch.dtype):
        return kind in _WHOLE
    return isinstance(kind, np.dtype) and kind.kind in "iub"


def checked_labels(labels: ArrayLike, *, classes: int, rows: int) -> Tensor:
    """Return secret labels as int64 on the CPU.

    Args:
        labels: The labels.
        classes: The number of classes.
        rows: The number of rows of features.

    Returns:
        One label for each row, moved to the nearest class.

    Raises:
        InvalidParameterError: If shape or type are wrong.

    >>> checked_labels([0, 2, 1], classes=3, rows=3)
    tensor([0, 2, 1])
    >>> checked_labels([0, 7, -1], classes=3, rows=3)
    tensor([0, 2, 0])
    >>> checked_labels([0.0, 0.5, 1.0], classes=3, rows=3)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: labels must be whole numbers from 0 to 2, one for each of 3 rows ...
    """
    given = _whole_numbers(labels, classes=classes, rows=rows, what="labels")
    return torch.from_numpy(given.clip(0, classes - 1).astype(np.int64))


def _whole_numbers(labels: ArrayLike, *, classes: int, rows: int, what: str) -> npt.NDArray[Any]:
    check_classes(classes)
    given = inputs.array(labels.cpu() if isinstance(labels, Tensor) else labels, what=what)
    if given.shape != (rows,) or not (rows == 0 or given.dtype.kind in "iub"):
        raise _no_labels(what, classes, rows)
    return given.astype(np.int8) if given.dtype.kind == "b" else given


def _no_labels(what: str, classes: int, rows: int) -> InvalidParameterError:
    return InvalidParameterError(
        f"{what} must be whole numbers from 0 to {classes - 1}, one for each of {rows} rows of features; "
        "fractions and rows of probabilities are not accepted. Nothing was released."
    )


def checked_evaluation(evaluation: tuple[Tensor, ArrayLike], *, classes: int) -> tuple[Tensor, Tensor]:
    """Return features and labels that are NOT protected.

    Args:
        evaluation: A pair: features, and a label for each row.
        classes: The number of classes.

    Returns:
        The features, and the labels as int64 on the device of the features.

    Raises:
        InvalidParameterError: If the pair, its shapes or a label are wrong.

    >>> checked_evaluation((torch.zeros(2, 4), [0, 2]), classes=3)[1]
    tensor([0, 2])
    """
    if not (isinstance(evaluation, tuple | list) and len(evaluation) == 2):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidParameterError(
            "evaluation must be a pair: features, and a label for each of their rows."
        )
    features, labels = evaluation
    check_features(features, what="evaluation features")
    what, rows = "evaluation labels", len(features)
    known = _whole_numbers(labels, classes=classes, rows=rows, what=what)
    if not bool(((known >= 0) & (known < classes)).all()):
        raise _no_labels(what, classes, rows)
    return features, torch.from_numpy(known.astype(np.int64)).to(features.device)


def checked_prior(prior: ArrayLike, *, classes: int, rows: int) -> npt.NDArray[np.float64]:
    """Return public weights of the classes, normalized.

    Args:
        prior: Weights [classes] for all rows, or [rows, classes]: finite, not below zero, above zero
            somewhere in each row.
        classes: The number of classes.
        rows: The number of rows.

    Returns:
        Float64 [rows, classes] with sum 1 in each row.

    Raises:
        InvalidParameterError: If the weights or their shape are wrong.

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


def checked_owners(owners: ArrayLike, *, rows: int, contribution_bound: int) -> Tensor:
    """Return the number of each row's owner.

    Args:
        owners: Whole numbers or names, one for each row. Fractions are refused: it is not clear whether two
            are the same person.
        rows: The number of rows.
        contribution_bound: The largest number of rows of one owner.

    Returns:
        Int64 numbers from 0, one for each row.

    Raises:
        InvalidParameterError: If shape or type are wrong, or an owner has more rows.

    >>> checked_owners(["ann", "bob", "ann"], rows=3, contribution_bound=2)
    tensor([0, 1, 0])
    """
    _check.count(contribution_bound=contribution_bound)
    given = inputs.array(owners.cpu() if isinstance(owners, Tensor) else owners, what="owners")
    if given.shape != (rows,):
        raise InvalidParameterError(
            f"owners must name who owns each of {rows} rows, but their shape is {list(given.shape)}."
        )
    if rows and given.dtype.kind not in _NAMES:
        raise InvalidParameterError(
            f"owners must be whole numbers or names, one for each row, but they are of type {given.dtype}."
        )
    _, numbers, counts = np.unique(given, return_inverse=True, return_counts=True)
    most = int(counts.max(initial=0))
    if most > contribution_bound:
        raise InvalidParameterError(
            f"contribution_bound={contribution_bound}, but an owner has {most} rows. Pass "
            f"contribution_bound={most}, or drop rows of that owner first."
        )
    return torch.from_numpy(numbers.astype(np.int64))
