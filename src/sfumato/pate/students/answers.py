# SPDX-License-Identifier: Apache-2.0
"""Answers about public rows: one class for each row, and -1 for rows that were not answered.

Guarantee  Answers were released and charged before they come here. Messages may show them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _check
from sfumato._torch import is_tensor
from sfumato.errors import InvalidParameterError

__all__ = ["UNANSWERED", "checked_answers"]

UNANSWERED = -1


def checked_answers(answers: Any, *, classes: int, rows: int) -> npt.NDArray[np.int64]:
    """Return answers as an array of whole numbers.

    Args:
        answers: One class for each row, from 0, or -1 where there is no answer: a tensor, an array or a list.
        classes: The number of classes.
        rows: The number of public rows.

    Returns:
        Int64 [rows].

    Raises:
        InvalidParameterError: If shape, type or a value is wrong, or no row was answered.

    >>> checked_answers([2, -1, 0], classes=3, rows=3)
    array([ 2, -1,  0])
    >>> checked_answers([-1, -1], classes=3, rows=2)
    Traceback (most recent call last):
    sfumato.errors.InvalidParameterError: none of 2 public rows was answered: a student has nothing to ...
    """
    _check.count(classes=classes)
    if classes < 2:
        raise InvalidParameterError(f"classes must be 2 or more, but {classes} was given.")
    if rows < 1:
        raise InvalidParameterError("there are no public rows: a student learns from public rows alone.")
    given = np.asarray(answers.detach().cpu() if is_tensor(answers) else answers)
    if given.shape != (rows,) or given.dtype.kind not in "iu":
        raise InvalidParameterError(
            f"answers must be whole numbers, one for each of {rows} public rows, but they are {given.dtype} "
            f"of shape {list(given.shape)}."
        )
    known = given.astype(np.int64)
    wrong = known[(known < UNANSWERED) | (known >= classes)]
    if len(wrong):
        raise InvalidParameterError(
            f"answers must be classes from 0 to {classes - 1}, or -1 where there is none, but one of them is "
            f"{wrong[0]}."
        )
    if not (known >= 0).any():
        raise InvalidParameterError(
            f"none of {rows} public rows was answered: a student has nothing to learn. Ask more queries, or "
            "answer with a lower threshold."
        )
    return known
