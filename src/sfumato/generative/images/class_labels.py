# SPDX-License-Identifier: Apache-2.0
"""Labels of private images as class numbers: one reader for every method, and for files and arrays alike.

Guarantee  What one label becomes depends on that label alone, and not on the type of its column: one label
           that is missing turns whole numbers into floats, one word turns them into text. So no type of label
           is refused, because one row may have chosen it. No value raises or warns.
Edge cases A label is the class that it says: 2, 2.0, "2" and "02" are class 2 (`cell_meaning`), in numpy,
           torch, pandas, polars and pyarrow, in lists and in columns of objects. What says no class is -1,
           and its image is left out: 0.5, -1, a number from `classes` on, a word, a date, a missing or masked
           label.
Failure    Something that is not one column is refused. No message shows a label.
"""

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sfumato.errors import InvalidParameterError
from sfumato.generative.tables.cells import numbers_of
from sfumato.statistics.columns.input_values import quietly

__all__ = ["class_numbers", "nothing_counted", "one_for_each"]

Integers = npt.NDArray[np.int64]


def class_numbers(labels: Any, *, classes: int) -> Integers:
    """Return the class number of each label; -1 for what is no class.

    Args:
        labels: A tensor, an array, a Series, a pyarrow array or a list.
        classes: The number of classes, which is public.

    Returns:
        The class numbers.

    Raises:
        InvalidParameterError: If labels are not one column.

    >>> class_numbers([1, 2.0, "0", "tea", None, 0.5, 3], classes=3)
    array([ 1,  2,  0, -1, -1, -1, -1])
    """
    numbers = numbers_of(_cells(labels))
    known = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < classes)  # NaN is none of these
    return np.where(known, numbers, -1.0).astype(np.int64)


def one_for_each() -> InvalidParameterError:
    """Return the error for labels that are not one column with an entry for each image."""
    return InvalidParameterError(
        "labels must have one class number for each image: a list, array, tensor or Series of one dimension, "
        "with as many entries as there are images. Of one-hot labels pass labels.argmax(1)."
    )


def nothing_counted(classes: int) -> str:
    """Return what is wrong if no noisy count is above its noise; counts were released, so this is free.

    Args:
        classes: The number of classes.

    Returns:
        A sentence.
    """
    return (
        "Warning: no count of images was above its noise, so the images are little but noise. Either epsilon "
        "is too small for so few images, or few labels are class numbers: they must be whole numbers from 0 "
        f"to {classes - 1}."
    )


def _cells(labels: Any) -> Any:
    if isinstance(labels, Tensor):
        return _one_column(_of_tensor(labels))
    if isinstance(labels, str | bytes | Mapping | Set) or hasattr(labels, "columns"):
        raise one_for_each()
    if hasattr(labels, "to_pylist"):  # pyarrow
        return labels.to_pylist()
    if isinstance(labels, np.ma.MaskedArray):
        return _one_column(labels).tolist()  # None where it is masked
    if hasattr(labels, "dtype"):
        array = quietly(lambda: np.asarray(labels))
        if array is None:
            raise one_for_each()
        return _of_array(_one_column(array))
    listed = quietly(lambda: list(labels))
    if listed is None:
        raise one_for_each()
    return [_plain(label) for label in listed]


def _one_column(values: Any) -> Any:
    if values.ndim != 1:
        raise one_for_each()
    return values


def _of_tensor(labels: Tensor) -> npt.NDArray[Any]:
    plain = labels.detach().cpu()
    plain = plain.dequantize() if plain.is_quantized else plain.to_dense()
    return _real(plain.numpy()) if plain.is_complex() else plain.double().numpy()


def _of_array(array: npt.NDArray[Any]) -> Any:
    """Return cells to read one by one, whatever type one of them gave to all."""
    kind = array.dtype.kind
    if kind in "biuf":
        return array
    if kind == "c":
        return _real(array)
    if kind == "m":  # whole numbers beside a duration
        return array.astype(np.int64)
    if kind == "S":  # whole numbers beside bytes
        return [quietly(label.decode) for label in array.tolist()]
    return [_plain(label) for label in array.tolist()]


def _real(array: npt.NDArray[np.complexfloating[Any]]) -> npt.NDArray[Any]:
    return np.where(np.imag(array) == 0, np.real(array), np.nan)


def _plain(label: Any) -> Any:
    """Return a label out of an array, a tensor or a pyarrow scalar that holds it alone."""
    if isinstance(label, np.generic):
        return label  # a long double is its own item
    for name in ("as_py", "item"):
        if hasattr(label, name):
            return quietly(getattr(label, name))
    return label
