# SPDX-License-Identifier: Apache-2.0
"""The rows of a private table as teachers read them, after the job is charged; and `PrivateData.pate`.

Unit       All rows of a unit are in one teacher, so PATE needs no contribution bound. The bound that the data
           was opened with holds all the same: further rows of a unit are left out. A unit is known by its
           entry in the unit column, which decides its teacher, whatever other rows there are.
Edge cases Rows with a missing value, or with a label that is none of the classes, are left out.
Failure    An error while rows are read quotes nothing that was read. The charge stays spent.
"""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidParameterError, QueryFailedError
from sfumato.statistics.columns.table_columns import TableRows
from sfumato.statistics.sources.tables import PrivateTable

if TYPE_CHECKING:  # joblib and the accountants are loaded when teachers are trained
    from sfumato.pate.planning import Job
    from sfumato.pate.private_rows import DeferredRows, PrivateRows
    from sfumato.pate.run import PateRun
    from sfumato.pate.settings import VoteKeywords
    from sfumato.pate.students.supervised import Student
    from sfumato.pate.teaching.classifier import Classifier
    from sfumato.private.private_data import PrivateData

__all__ = ["pate", "public_matrix", "voting_rows"]

_OWN = ("account", "relation", "privacy_unit", "units")  # fixed by how the data was opened


def pate(
    self: "PrivateData",
    teacher: "Classifier",
    student: "Student",
    *,
    features: Sequence[str],
    target: str,
    classes: int | Sequence[Hashable],
    public: Any,
    job: "Job | None" = None,
    student_public: Any = None,
    evaluation: tuple[Any, Any] | None = None,
    groups: str | None = None,
    **keywords: "Unpack[VoteKeywords]",
) -> "PateRun":
    """Let teachers learn from parts of this data and answer about public rows, from which a student learns.

    Account, relation and privacy unit are those of this data. Rows are read after the job is charged.

    Args:
        teacher: A classifier of scikit-learn, a pipeline, or a `TorchClassifier`. Each teacher is a copy.
        student: What learns from the answers, such as `SupervisedStudent(estimator)`.
        features: The columns that become one float64 row.
        target: The column of labels.
        classes: The public list of labels, or their number if they are 0, 1, ...
        public: Public rows without labels: a frame with these columns, or an array of them in this order.
            They are not protected.
        job: The job, as `pate.plan` returns it. Default: planned from the keywords.
        student_public: The same public rows with the features that the student takes, if these are others.
        evaluation: Rows as the student takes them, and their labels, which are NOT protected.
        groups: The column with the privacy group of each row, 0 for the strictest, if budgets are individual.
        **keywords: Other fields of `pate.VoteSettings`, such as `epsilon`, `teachers` and `purpose`.

    Returns:
        The run: the student, the answers and their guarantee.

    Raises:
        InvalidParameterError: If a setting is missing, unknown or out of range. Nothing is spent.
        UnsupportedModelError: If the teacher or the student does not work on public rows. Nothing is spent.
        BudgetExceededError: If the budget does not cover the job. Nothing is spent.
        QueryFailedError: If the rows cannot be read, or no query was answered. The job is spent.
    """
    from sfumato.pate.pipeline import train

    given = [name for name in _OWN if name in keywords]
    if given:
        raise InvalidParameterError(
            f"{', '.join(given)} is fixed by how the data was opened. Leave it out, or use pate.train with "
            "account=data.account."
        )
    columns = tuple(features)
    rows = voting_rows(self.table, columns, target, classes, groups=groups)
    if evaluation is not None and student_public is None and len(evaluation) == 2:
        evaluation = public_matrix(evaluation[0], columns, what="evaluation"), evaluation[1]
    own: VoteKeywords = {
        "account": self.account,
        "purpose": keywords.get("purpose") or "answers of teachers about public rows",
    }
    return train(
        teacher,
        student,
        rows,
        None,
        public=public_matrix(public, columns),
        classes=classes,
        job=job,
        student_public=student_public,
        evaluation=evaluation,
        **{**keywords, **own},
    )


def voting_rows(
    table: PrivateTable,
    features: tuple[str, ...],
    target: str,
    classes: int | Sequence[Hashable],
    *,
    groups: str | None = None,
) -> "DeferredRows":
    """Return the rows of a table as teachers take them, once the job is paid for.

    Args:
        table: The private rows.
        features: The columns of numbers to learn from.
        target: The column of labels.
        classes: The public list of labels, or their number if they are 0, 1, ...
        groups: The column of privacy groups, if budgets are individual.

    Returns:
        The deferred rows.

    Raises:
        InvalidParameterError: If a column is missing or has another type, by the schema. Nothing is read.
    """
    from sfumato.pate.private_rows import DeferredRows
    from sfumato.pate.teaching.rows import class_list

    names = class_list(classes)
    if not features:
        raise InvalidParameterError("pass features=[...], the columns to learn from.")
    columns = (*features, *(() if groups is None else (groups,)), target)
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise InvalidParameterError(
            f"the column {twice!r} is used twice: features must be different columns, without the target"
            f"{'' if groups is None else ' and the column of groups'}."
        )
    rows = table.rows(*columns, classes=None if _is_number(classes) else list(names))
    return DeferredRows(
        columns=len(features),
        read=lambda: _read(rows, names, width=len(features)),
        by_unit=table.owned.unit is not None,
        grouped=groups is not None,
    )


def public_matrix(public: Any, features: Sequence[str], *, what: str = "public") -> npt.NDArray[np.float64]:
    """Return public rows as an array with the columns that teachers see.

    Args:
        public: A pandas or pyarrow table with these columns, or an array of them in this order.
        features: The names of the columns.
        what: What the rows are, for messages.

    Returns:
        Float64 [rows, columns].

    Raises:
        InvalidParameterError: If a column is missing or no number, or the array has another width.

    >>> public_matrix([[1, 2], [3, 4]], ("age", "income")).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    named = getattr(public, "column_names", getattr(public, "columns", None))
    missing = [] if named is None else [name for name in features if name not in list(named)]
    if missing:
        raise InvalidParameterError(f"{what} rows lack the column {missing[0]!r}, which teachers learn from.")
    try:
        parts = public if named is None else np.column_stack([public[name] for name in features])
        matrix = np.asarray(parts, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidParameterError(f"{what} rows must be numbers, as the columns of features are.") from None
    if matrix.ndim != 2 or matrix.shape[1] != len(features):
        raise InvalidParameterError(
            f"{what} rows must have {len(features)} columns, as the private ones have, but their shape is "
            f"{list(matrix.shape)}."
        )
    return matrix


def _is_number(classes: Any) -> bool:
    return isinstance(classes, int | np.integer) and not isinstance(classes, bool)


def _read(rows: TableRows, names: tuple[Hashable, ...], *, width: int) -> "PrivateRows":
    """Return the rows, or raise without quoting what was read."""
    from sfumato.pate.private_rows import PrivateRows

    try:
        matrix, units = rows.read_with_units()
        grouped = len(rows.names) > width + 1
        last = matrix[:, -1]
        return PrivateRows(
            features=matrix[:, :width],
            labels=last if rows.classes is None else [names[int(place)] for place in last],
            units=units,
            groups=matrix[:, width] if grouped else None,
        )
    except Exception:  # of an engine or a file: its message and its class may tell what it read
        pass  # and is raised below, so that our error does not carry theirs along
    raise QueryFailedError(
        "the rows for teachers could not be read. What was reserved for the job stays spent. Check that the "
        "columns exist and are numbers, and the engine's own log."
    )
