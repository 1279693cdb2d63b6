# SPDX-License-Identifier: Apache-2.0
"""Synthetic or public rows with a class number each: images, or rows of numbers.

Edge cases A class may have no rows. Values that are not finite are allowed here, as a broken generator
           returns them: `finite` says which rows have none, and each measure says what it does with the
           rest.
Failure    A wrong shape, a label that is no class number, and a pixel outside [0, 1] are refused by name.
Not here   Private rows: this module quotes shapes, and reads values at once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato._torch import is_tensor
from sfumato.errors import InvalidParameterError

__all__ = [
    "Bools",
    "Floats",
    "Integers",
    "LabeledRows",
    "array_of",
    "check_same_kind",
    "labeled_rows",
    "sample",
    "without_torch",
]

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_ROUNDING = 1e-6  # of pixels: float32 arithmetic may leave [0, 1] by less


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LabeledRows:
    """Rows with a class number each, checked.

    Args:
        features: Images [rows, channels, height, width] from 0 to 1, or numbers [rows, columns].
        labels: The class number of each row, from 0, [rows].
        classes: The number of classes.

    Raises:
        InvalidParameterError: If shapes differ, a label is no class number, or a pixel is outside [0, 1].

    >>> rows = LabeledRows(features=np.zeros((3, 2)), labels=np.array([0, 0, 2]), classes=3)
    >>> rows.counts.tolist(), rows.of_class(2).shape
    ([2, 0, 1], (1, 2))
    """

    features: Floats
    labels: Integers
    classes: int

    def __post_init__(self) -> None:
        _check.count(classes=self.classes)
        shape = self.features.shape
        if len(shape) not in (2, 4) or 0 in shape:
            raise InvalidParameterError(
                "rows must be images [rows, channels, height, width] or numbers [rows, columns], at least "
                f"one row, but the shape is {list(shape)}."
            )
        if self.labels.shape != shape[:1]:
            raise InvalidParameterError(
                f"there are {shape[0]} rows, but labels have the shape {list(self.labels.shape)}: give one "
                "label for each row."
            )
        if not ((self.labels >= 0) & (self.labels < self.classes)).all():
            raise InvalidParameterError(f"labels must be class numbers from 0 to {self.classes - 1}.")
        if self.is_images and _beyond(self.features):
            raise InvalidParameterError("pixels must lie between 0 and 1: rescale the images first.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_images(self) -> bool:
        """Whether the rows are images."""
        return self.features.ndim == 4

    @property
    def flat(self) -> Floats:
        """The rows as [rows, numbers]."""
        return self.features.reshape(len(self.features), -1)

    @property
    def counts(self) -> Integers:
        """The number of rows of each class."""
        return np.bincount(self.labels, minlength=self.classes)

    @property
    def present(self) -> list[int]:
        """The classes that have rows."""
        return [int(number) for number in np.flatnonzero(self.counts)]

    @property
    def finite(self) -> Bools:
        """Whether each row has finite values only."""
        return np.asarray(np.isfinite(self.flat).all(axis=1))

    def of_class(self, number: int) -> Floats:
        """Return the rows of one class as [rows, numbers].

        Args:
            number: The class.

        Returns:
            The rows, possibly none.
        """
        return self.flat[self.labels == number]

    def take(self, rows: Integers | Bools) -> "LabeledRows":
        """Return some of the rows.

        Args:
            rows: The numbers of the rows, or whether to take each. At least one must be taken.

        Returns:
            These rows, with the same classes.
        """
        return LabeledRows(features=self.features[rows], labels=self.labels[rows], classes=self.classes)

    def require_finite(self, name: str) -> None:
        """Raise if a value is not finite.

        Args:
            name: What the rows are, such as "holdout".

        Raises:
            InvalidParameterError: If a value is not finite.
        """
        if not self.finite.all():
            raise InvalidParameterError(
                f"{name} rows hold a value that is not finite. Leave these rows out, and report how many "
                "there were: a generator that returns them has failed (`collapse.find_collapse` says so)."
            )


def labeled_rows(features: Any, labels: Any, *, classes: int) -> LabeledRows:
    """Return arrays or tensors as rows with labels.

    Args:
        features: Images [rows, channels, height, width] from 0 to 1, or numbers [rows, columns].
        labels: The class number of each row, from 0.
        classes: The number of classes.

    Returns:
        The rows: images in float32, numbers in float64.

    Raises:
        InvalidParameterError: If shapes differ, or values are not numbers, class numbers or pixels.

    >>> len(labeled_rows([[0.5, 1.0], [2.0, 3.0]], [1, 0], classes=2))
    2
    """
    rows = array_of(features, name="features")
    numbers = array_of(labels, name="labels")
    if not np.isfinite(numbers).all() or (numbers != np.round(numbers)).any():
        raise InvalidParameterError("labels must be whole numbers, one for each row.")
    stored = rows.astype(np.float32 if rows.ndim == 4 else np.float64)
    return LabeledRows(features=stored, labels=numbers.astype(np.int64), classes=classes)


def array_of(values: Any, *, name: str) -> Floats:
    """Return an array or tensor of numbers as an array, in floating point.

    Args:
        values: The numbers.
        name: What they are, for the error.

    Returns:
        The array.

    Raises:
        InvalidParameterError: If the values are not numbers.
    """
    try:
        found = np.asarray(without_torch(values))
        return found if found.dtype.kind == "f" else found.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidParameterError(f"{name} must be an array of numbers.") from None


def without_torch(values: Any) -> Any:
    """Return a tensor as an array of numpy, which has no floats of fewer than 32 bits that we use.

    Args:
        values: A tensor on any device, or anything else.

    Returns:
        The array; what is no tensor is returned as it is.
    """
    if not is_tensor(values):
        return values
    found = values.detach().cpu()
    return (found.float() if found.is_floating_point() and found.element_size() < 4 else found).numpy()


def check_same_kind(synthetic: LabeledRows, holdout: LabeledRows) -> None:
    """Raise if synthetic rows and the holdout differ in shape or in the number of classes.

    Args:
        synthetic: The synthetic rows.
        holdout: The public rows.

    Raises:
        InvalidParameterError: If they differ.
    """
    here, there = list(synthetic.features.shape[1:]), list(holdout.features.shape[1:])
    if here != there:
        raise InvalidParameterError(
            f"a synthetic row has the shape {here}, but one of the holdout has {there}."
        )
    if synthetic.classes != holdout.classes:
        raise InvalidParameterError(
            f"synthetic rows have {synthetic.classes} classes, but the holdout has {holdout.classes}."
        )


def sample(rows: int, most: int, *, seed: int) -> Integers:
    """Return which rows to use: all of them, or `most` drawn at random, in order.

    Args:
        rows: The number of rows.
        most: The most rows to use.
        seed: The seed of the draw. It decides what is measured, and protects nobody.

    Returns:
        The numbers of the rows.
    """
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, size=most, replace=False))


def _beyond(pixels: Floats) -> bool:
    """Whether a finite pixel is outside [0, 1]."""
    known = pixels[np.isfinite(pixels)]
    return bool(((known < -_ROUNDING) | (known > 1 + _ROUNDING)).any())
