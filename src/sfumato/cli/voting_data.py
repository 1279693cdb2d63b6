# SPDX-License-Identifier: Apache-2.0
"""The data of `sfumato pate`: a named public set by its recipe, or the user's own CSV or Parquet files.

Guarantee  What is public of a file of private rows (columns, classes) comes from flags and from its schema.
           Its rows are read after the job is charged. The files of public and of evaluation rows are read
           before, and are not protected.
Edge cases A public row that cannot be used is refused with its number, so that answers are in the order of
           the file. An evaluation row that cannot be used is left out.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.cli.column_types import column_types
from sfumato.cli.own_classes import own_classes
from sfumato.cli.pate_settings import OWN, PateSettings
from sfumato.errors import InvalidParameterError
from sfumato.pate.students.column_models import column_models
from sfumato.pate.students.supervised import Student
from sfumato.pate.teaching.classifier import Classifier
from sfumato.pate.votes.aggregators import Aggregator, GNMax

__all__ = ["VotingData", "named_data", "own_data"]

_TEACHERS, _NOISE = 250, 0.16
_ALL_ROWS = 2**31 - 1  # of one owner: PATE needs no bound


@dataclass(frozen=True, kw_only=True, eq=False)
class VotingData:
    """What teachers and the student learn from, with what is public of it."""

    name: str
    teacher: Classifier
    student: Student
    rows: Any  # private
    labels: Any
    public: Any
    student_public: Any
    evaluation: tuple[Any, Any] | None
    classes: int | Sequence[Hashable]
    teachers: int
    usual: tuple[Aggregator, Sequence[float] | None]
    public_size: int | None = None
    privacy_unit: str | None = None


def named_data(settings: PateSettings) -> VotingData:
    """Return a public set, split as its recipe says."""
    from sfumato.datasets import load
    from sfumato.pate.recipes import RECIPES, recipe

    given = [
        f"--{name.replace('_', '-')}" for name in (*OWN, "evaluation") if getattr(settings, name) is not None
    ]
    if given:
        raise InvalidParameterError(f"{', '.join(given)} is not for a public data set: leave it out.")
    if settings.data not in RECIPES:
        raise InvalidParameterError(
            f"unknown data {settings.data!r}. Use one of: {', '.join(RECIPES)}; or a CSV or Parquet file."
        )
    made = recipe(load(settings.data), seed=settings.seed or 0)
    teachers = made.teachers if settings.teachers is None else settings.teachers
    return VotingData(
        name=made.name,
        teacher=made.teacher,
        student=made.student,
        rows=made.features,
        labels=made.labels,
        public=made.public,
        student_public=made.student_public,
        evaluation=made.evaluation,
        classes=made.classes,
        teachers=teachers,
        usual=made.aggregator(teachers),
        public_size=made.public_size,
    )


def own_data(settings: PateSettings) -> VotingData:
    """Return the user's own files; no private row is read."""
    from sfumato.private.estimator_rows import feature_columns
    from sfumato.private.voting_rows import voting_rows
    from sfumato.statistics.sources.tables import private_table

    target, source = _required(settings)
    types = column_types(settings.type or []) or None
    classes = own_classes(settings.classes, settings.label)
    bound = settings.contribution_bound
    if bound is None:
        bound = 1 if settings.privacy_unit is None else _ALL_ROWS
    table = private_table(
        settings.data, privacy_unit=settings.privacy_unit, contribution_bound=bound, types=types
    )
    features = feature_columns(table, settings.feature, target)
    teacher, student = column_models(scaled=False)
    teachers = _TEACHERS if settings.teachers is None else settings.teachers
    return VotingData(
        name=Path(str(settings.data)).name,
        teacher=teacher,
        student=student,
        rows=voting_rows(table, features, target, classes),
        labels=None,
        public=_public(source, features, types),
        student_public=None,
        evaluation=_labeled(settings.evaluation, features, target, classes, types),
        classes=classes,
        teachers=teachers,
        usual=(GNMax(stddev=_NOISE * teachers), None),
        privacy_unit=table.privacy_unit,
    )


def _required(settings: PateSettings) -> tuple[str, str]:
    """Return the target and the file of public rows, or raise if a flag is missing."""
    if not Path(str(settings.data)).exists():
        raise InvalidParameterError(f"there is no file {settings.data!r}.")
    if settings.target is None or settings.public is None:
        raise InvalidParameterError(
            "pass --target, the column of labels, and --public, a file of public rows without labels, with "
            "your own file."
        )
    if (settings.classes is None) == (settings.label is None):
        raise InvalidParameterError(
            "pass either --classes or one --label for each class with your own file: the classes are public, "
            "so they are never read from private rows."
        )
    return settings.target, settings.public


def _known(types: dict[str, str] | None, columns: Sequence[str]) -> dict[str, str] | None:
    """Return the types of these columns: a file of public rows has no target, and maybe no unit."""
    return None if types is None else {name: types[name] for name in columns if name in types} or None


def _public(source: str, features: tuple[str, ...], types: dict[str, str] | None) -> Any:
    """Return all public rows in the order of their file, or raise with the number of the first wrong one."""
    from sfumato.statistics.sources.table_sources import is_lines
    from sfumato.statistics.sources.tables import private_table

    batches = list(private_table(source, types=_known(types, features)).rows(*features).every_batch())
    found = np.concatenate(batches) if batches else np.zeros((0, len(features)))
    wrong = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(wrong):
        column = features[int(np.argmin(np.isfinite(found[wrong[0]])))]
        raise InvalidParameterError(
            f"row {wrong[0] + 1} of {source!r} (1 is the first after the header) has no number in the column "
            f"{column!r}. Answers are in the order of the public rows: remove this row, or complete it."
        )
    if is_lines(source):
        lines = sum(1 for line in Path(source).read_bytes().splitlines() if line.strip()) - 1
        if lines != len(found):
            raise InvalidParameterError(
                f"{lines - len(found)} of {lines} lines of {source!r} are no rows: they have another number "
                "of fields than the header. Correct them: answers are in the order of the public rows."
            )
    return found


def _labeled(
    source: str | None,
    features: tuple[str, ...],
    target: str,
    classes: int | list[str],
    types: dict[str, str] | None,
) -> tuple[Any, Any] | None:
    from sfumato.private.voting_rows import voting_rows
    from sfumato.statistics.sources.tables import private_table

    if source is None:
        return None
    table = private_table(source, types=_known(types, (*features, target)))
    read = voting_rows(table, features, target, classes).read()
    return read.features, read.labels
