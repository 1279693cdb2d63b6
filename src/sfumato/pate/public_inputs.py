# SPDX-License-Identifier: Apache-2.0
"""What is public of a labeling job: rows to ask about, rows of the student, evaluation rows, and classes.

All of it is checked before the charge. Messages may quote it.

Guarantee  Of private rows only the names of columns, shapes and types are looked at, which are public.
Edge cases Tables with the same columns in another order are put into the order of the private table, or of
           the student's. Rows that are no table have no names: their columns must be in the same order.
           Private labels in a list have no type of their own. If none of them is a class, nothing shows it.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato._torch import is_tensor
from sfumato.errors import InvalidParameterError
from sfumato.pate.teaching import rows

__all__ = ["PublicInputs", "first_rows", "public_inputs", "taken_rows"]

_NUMERIC = "biufc"  # numpy's kinds


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class PublicInputs:
    """Public rows, as teachers and the student see them.

    Attributes:
        public: The rows to ask about, as teachers see them.
        seen: The same rows as the student sees them.
        names: The labels, in the order of class numbers.
        evaluation: Rows as the student sees them, and the numbers of their classes; or None.
    """

    public: Any
    seen: Any
    names: tuple[Hashable, ...]
    evaluation: tuple[Any, Any] | None = None


def public_inputs(
    public: Any,
    *,
    like: Any,
    labels: Any,
    classes: int | Sequence[Hashable],
    student_public: Any = None,
    evaluation: tuple[Any, Any] | None = None,
) -> PublicInputs:
    """Return what is public, checked.

    Args:
        public: The rows to ask about.
        like: The private rows, of which names, shape and type are looked at.
        labels: The private labels, of which the type is looked at; or None.
        classes: The list of labels, or their number.
        student_public: The rows as the student sees them, if that is different.
        evaluation: Rows as the student sees them, and their labels.

    Returns:
        The inputs.

    Raises:
        InvalidParameterError: If something is missing, does not match, or is no class.
    """
    names = rows.class_list(classes)
    _require_like_types(labels, names)
    known = in_order(
        _finite(rows.check_features(public, what="public")), like, what="public", model="private"
    )
    seen = known if student_public is None else student_public
    if not hasattr(seen, "__len__") and not hasattr(seen, "shape"):
        raise InvalidParameterError("student_public must be rows: an array, a tensor, a table or a list.")
    if _length(seen) != rows.row_count(known):
        raise InvalidParameterError("student_public must have the same rows as public, in the same order.")
    return PublicInputs(
        public=known,
        seen=seen,
        names=names,
        evaluation=None if evaluation is None else _evaluation(evaluation, seen, names),
    )


def in_order(given: Any, like: Any, *, what: str, model: str) -> Any:
    """Return a table with its columns in the order of another one.

    Args:
        given: The rows.
        like: The rows whose order counts.
        what: What the rows are, for messages.
        model: What the other rows are.

    Returns:
        The rows; unchanged if one of the two is no table.

    Raises:
        InvalidParameterError: If the tables have other columns.

    >>> import pandas as pd
    >>> found = in_order(pd.DataFrame({"b": [1], "a": [2]}), pd.DataFrame({"a": [3], "b": [4]}),
    ...                  what="public", model="private")
    >>> list(found.columns)
    ['a', 'b']
    """
    mine, other = _columns(given), _columns(like)
    if mine is None or other is None or mine == other:
        return given
    if len(mine) != len(other) or set(mine) != set(other) or len(set(mine)) != len(mine):
        missing = [name for name in other if name not in mine] or [n for n in mine if n not in other] or mine
        raise InvalidParameterError(
            f"{what} rows and {model} rows must have the same columns, each once: {missing[0]!r} is not in "
            "both."
        )
    return given[other] if hasattr(given, "iloc") else given.select(other)


def first_rows(features: Any, count: int) -> Any:
    """Return the first rows of an array, a tensor, a table, a sparse matrix or a list."""
    if hasattr(features, "iloc"):
        return features.iloc[:count]
    return features.tocsr()[:count] if hasattr(features, "tocsr") else features[:count]


def taken_rows(features: Any, order: Any) -> Any:
    """Return some of a student's rows, by number."""
    if isinstance(features, list | tuple):
        return [features[number] for number in order]
    return rows.take(rows.check_features(features, what="student_public"), order)


def _columns(features: Any) -> list[Any] | None:
    found = getattr(features, "columns", None)
    return None if found is None or not hasattr(features, "shape") else list(found)


def _length(features: Any) -> int:
    return rows.row_count(features) if hasattr(features, "shape") else len(features)


def _finite(public: Any) -> Any:
    """Return public rows; teachers would refuse missing numbers only after the charge."""
    if rows.finite_rows(public).all():
        return public
    wrong = int(np.flatnonzero(~rows.finite_rows(public))[0])
    raise InvalidParameterError(
        f"public rows hold missing or infinite numbers, first in row {wrong} (from 0). Leave these rows out."
    )


def _require_like_types(labels: Any, names: tuple[Hashable, ...]) -> None:
    """Raise if labels of this type can never equal a class: every row would be left out."""
    kind = "i" if is_tensor(labels) else getattr(getattr(labels, "dtype", None), "kind", None)
    if kind is None:
        return
    if kind in _NUMERIC and all(isinstance(name, str) for name in names):
        raise InvalidParameterError(
            "the private labels are numbers and every class is text, so that no row would count. Pass the "
            "number of classes, or labels by name."
        )
    if kind == "S" and all(isinstance(name, str) for name in names):
        raise InvalidParameterError(
            "the private labels are bytes and every class is text, so that no row would count. Decode them."
        )


def _evaluation(evaluation: Any, seen: Any, names: tuple[Hashable, ...]) -> tuple[Any, Any]:
    if not isinstance(evaluation, tuple) or len(evaluation) != 2:  # pyright: ignore[reportUnknownArgumentType] - callers may not be typed
        raise InvalidParameterError("evaluation must be rows and their labels: evaluation=(X_test, y_test).")
    features: Any = in_order(
        rows.check_features(evaluation[0], what="evaluation"), seen, what="evaluation", model="the student's"
    )
    labels: Any = evaluation[1]
    if not hasattr(labels, "__len__") or len(labels) != rows.row_count(features):
        raise InvalidParameterError("evaluation must have one label for each row.")
    truth = rows.class_numbers(labels, names)
    if (truth < 0).any():
        raise InvalidParameterError(
            f"evaluation: the label of row {int(np.argmin(truth))} (from 0) is none of the classes. Leave "
            "such rows out, or write labels as the classes are written."
        )
    return features, truth
