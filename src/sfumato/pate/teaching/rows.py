# SPDX-License-Identifier: Apache-2.0
"""The rows that one teacher learns from: taken, cleaned and hashed without an error that a row could cause.

Guarantee  What one row holds changes nothing for the rows of other teachers: each teacher's rows are
           converted and cleaned by themselves, into the type that public rows have.
Edge cases A label that equals no class leaves its row out, and so does a missing or infinite number in an
           array of numbers. 1, 1.0 and True are the same label: a missing label turns a column of whole
           numbers into floats. So is "1" where 1 is a class: a label that is text turns a column into text.
           Fractions stay fractions where public rows have whole numbers. Text and mixed tables are left to
           the estimator. A column of categories gets those of the public rows, and other values are missing
           there; where the public column has none, its values are objects.
Failure    Types and shapes are refused by `check_features` and `class_numbers`; they belong to all rows.
"""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato._torch import is_tensor
from sfumato.errors import InvalidParameterError
from sfumato.pate.teaching.unit_bytes import unit_values

__all__ = [
    "check_features",
    "class_list",
    "class_numbers",
    "digest",
    "finite_rows",
    "like_public",
    "public_type",
    "row_count",
    "row_shape",
    "take",
]

Numbers = npt.NDArray[np.int64]
_NUMERIC = "biufc"  # numpy's kinds
_WHOLE = "biu"
_MOST_CLASSES = 2**15 - 1  # votes are int16


def class_list(classes: int | Sequence[Hashable]) -> tuple[Hashable, ...]:
    """Return the classes, from a number of classes or a list of them.

    Args:
        classes: The number of classes, which are then 0, 1, ..., or a list of different labels.

    Returns:
        The labels, in order.

    Raises:
        InvalidParameterError: If there are fewer than two, more than int16 can count, or equal ones.

    >>> class_list(3), class_list(["no", "yes"])
    ((0, 1, 2), ('no', 'yes'))
    """
    if not isinstance(classes, Sequence | np.ndarray):
        _check.count(classes=classes)
    listed: list[Any] = (
        unit_values(classes) if isinstance(classes, Sequence | np.ndarray) else [*range(classes)]
    )
    if not 2 <= len(listed) <= _MOST_CLASSES or len(set(listed)) != len(listed):
        raise InvalidParameterError(
            f"classes must be from 2 to {_MOST_CLASSES} different labels, or their number, and public: they "
            "are not taken from the private labels."
        )
    return tuple(listed)


def class_numbers(labels: Any, classes: Sequence[Hashable]) -> Numbers:
    """Return the number of each row's class, and -1 for a label that is none.

    Args:
        labels: One private label for each row, in an array, a tensor, a series or a list.
        classes: The labels that count, in order.

    Returns:
        The numbers.

    Raises:
        InvalidParameterError: If labels have another shape.

    >>> class_numbers(["no", "yes", None, ["no"]], ("no", "yes")).tolist()
    [0, 1, -1, -1]
    """
    if len(getattr(labels, "shape", (0,))) != 1:
        raise InvalidParameterError(
            "labels must have one entry for each row: a list or an array of one axis."
        )
    known = {label: number for number, label in enumerate(classes)}
    named = {str(label): number for label, number in known.items()}
    return np.array([_number(label, known, named) for label in unit_values(labels)], dtype=np.int64)


def _number(label: Any, known: Mapping[Hashable, int], named: Mapping[str, int]) -> int:
    try:
        found = known.get(label, -1)
        if found >= 0 or not isinstance(label, str):
            return found
        return named[label] if label in named else known.get(float(label), -1)
    except Exception:  # one that has no hash, or text that is no number
        return -1


def check_features(features: Any, *, what: str = "features") -> Any:
    """Return features whose rows can be taken; raise by type and shape alone.

    Args:
        features: An array, a tensor, a DataFrame or a sparse matrix, one row for each example.
        what: What they are, for the message.

    Returns:
        The features; a sparse matrix in rows.

    Raises:
        InvalidParameterError: If they are something else. A list has no type other than that of its entries.
    """
    rows = len(getattr(features, "shape", ())) > 0
    if not (rows and (hasattr(features, "__getitem__") or _sparse(features))):
        raise InvalidParameterError(
            f"{what} must be an array, a tensor, a DataFrame or a sparse matrix, one row for each example."
        )
    return features.tocsr() if _sparse(features) else features


def row_count(features: Any) -> int:
    """Return the number of rows."""
    return int(features.shape[0])


def row_shape(features: Any) -> tuple[int, ...]:
    """Return the shape of one row, which is public."""
    return tuple(int(size) for size in features.shape[1:])


def take(features: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Return some rows, by number, as a copy.

    >>> take(np.array([[1], [2], [3]]), np.array([2, 0])).tolist()
    [[3], [1]]
    """
    if hasattr(features, "iloc"):
        return features.iloc[rows]
    if is_tensor(features):
        import torch

        return features[torch.from_numpy(rows).to(features.device)]
    return features[rows]


def public_type(public: Any) -> Any:
    """Return the type that features have: one for an array, one for each column of a table, or None.

    >>> public_type(np.zeros((1, 2), dtype=np.float32))
    dtype('float32')
    """
    if hasattr(public, "iloc"):
        return dict(public.dtypes)
    return public.dtype if isinstance(public, np.ndarray) and public.dtype.kind in _NUMERIC else None


def like_public(features: Any, kind: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Return rows in the type of public ones, and which of them can be used.

    Args:
        features: The private rows of one teacher.
        kind: What `public_type` returned, or None to leave the type as it is.

    Returns:
        All rows, and a mask.

    >>> like_public(np.array([[1], [None]], dtype=object), np.dtype("float64"))[1].tolist()
    [True, False]
    """
    if hasattr(features, "iloc"):
        features = _columns_like(features, kind if isinstance(kind, dict) else {})
    elif isinstance(features, np.ndarray) and isinstance(kind, np.dtype):
        numbers = features if features.dtype.kind in _NUMERIC else _as_numbers(features)
        known = finite_rows(numbers)
        safe = np.where(known.reshape(-1, *[1] * (numbers.ndim - 1)), numbers, 0)
        features = _cast(safe, kind)
        return features, known & finite_rows(features)
    return features, finite_rows(features)


def _cast(numbers: npt.NDArray[Any], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return numbers in another type, unless it would round fractions to whole numbers."""
    if kind.kind in _WHOLE and numbers.dtype.kind not in _WHOLE:
        whole = (np.abs(numbers) < 2**53) & (numbers == np.round(numbers))
        return numbers.astype(kind) if whole.all() else numbers
    return numbers.astype(kind)  # a number that is too large becomes infinite here


def _as_numbers(features: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    flat = [_as_number(value) for value in features.ravel().tolist()]
    return np.array(flat, dtype=np.float64).reshape(features.shape)


def _as_number(value: Any) -> float:
    try:
        return float(value)
    except Exception:  # text, None, a list: its row is left out
        return np.nan


def _columns_like(features: Any, kinds: Mapping[Any, Any]) -> Any:
    """Return a table whose columns have public types, where they can have them."""
    changed = features.copy()
    for name in features.columns:
        with suppress(Exception):  # a missing value in whole numbers: the column stays as it is
            column, kind = _without_categories(features[name]), kinds.get(name)
            changed[name] = column
            cast = column if kind is None else column.astype(kind)
            if hasattr(kind, "categories") or _keeps(cast, column):
                changed[name] = cast
    return changed


def _without_categories(column: Any) -> Any:
    """Return the values alone: a list of categories was made from the rows of all teachers."""
    return column.astype(object) if hasattr(column.dtype, "categories") else column


def _keeps(cast: Any, column: Any) -> bool:
    kind = cast.dtype.kind
    return kind == "f" or (kind in _WHOLE and bool((cast == column).all()))


def finite_rows(features: Any) -> npt.NDArray[np.bool_]:
    """Return which rows hold finite numbers only; all of them where features are not numbers.

    >>> finite_rows(np.array([[1.0, 2.0], [np.nan, 0.0]])).tolist()
    [True, False]
    """
    known = np.ones(row_count(features), dtype=np.bool_)
    if _sparse(features):
        entries = features.tocoo()
        known[entries.coords[0][~np.isfinite(entries.data)]] = False
        return known
    if hasattr(features, "iloc"):
        numeric = all(getattr(kind, "kind", "O") in _NUMERIC for kind in features.dtypes)
        features = features.to_numpy() if numeric else None
    if is_tensor(features):
        return features.isfinite().reshape(len(features), -1).all(1).cpu().numpy()
    if isinstance(features, np.ndarray) and features.dtype.kind in _NUMERIC and features.size:
        return np.asarray(np.isfinite(features).reshape(len(features), -1).all(axis=1))
    return known


def digest(features: Any, labels: Numbers, key: bytes) -> bytes:
    """Return a keyed hash of rows: without the key, nobody can test which rows they were.

    Args:
        features: The rows.
        labels: Their classes.
        key: The key.

    Returns:
        32 bytes.
    """
    if is_tensor(features):
        features = features.detach().cpu().numpy()
    state = hashlib.blake2b(labels.tobytes(), key=key, digest_size=32)
    if isinstance(features, np.ndarray) and features.dtype.kind in _NUMERIC:
        state.update(f"{features.dtype.str} {features.shape}".encode())
        state.update(np.ascontiguousarray(features).data.cast("B") if features.size else b"")
    else:
        state.update(str(joblib.hash(features, hash_name="sha1")).encode())
    return state.digest()


def _sparse(features: Any) -> bool:
    return hasattr(features, "tocsr")
