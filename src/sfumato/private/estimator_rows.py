# SPDX-License-Identifier: Apache-2.0
"""Fit an estimator to the rows of a private table.

Rows are read when the estimator first uses them, which is after it has charged its account. What is public
(parameters, columns, whether there is a target) is checked before, of a pipeline for all steps together.

Unit       Estimators protect one row, so the table must have a contribution bound of 1.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from sfumato.accounting.guarantee import Relation
from sfumato.errors import BudgetExceededError, ColumnTypeError, InvalidParameterError
from sfumato.estimators.public_facts import PublicFacts, ReadLater
from sfumato.ledger import Account
from sfumato.statistics.sources.schema import no_numbers
from sfumato.statistics.sources.tables import PrivateTable

__all__ = ["feature_columns", "fit"]

Estimator = TypeVar("Estimator")


def fit(
    table: PrivateTable,
    estimator: Estimator,
    *,
    target: str | None = None,
    features: Sequence[str] | None = None,
    account: Account | None = None,
    purpose: str | None = None,
) -> Estimator:
    """Return a copy of an estimator, or of a pipeline, fitted to a private table.

    Args:
        table: The private rows, with a contribution bound of 1.
        estimator: An estimator of `sfumato.estimators`, or a pipeline of them. It is not changed.
        target: The column to predict. Rows with a label that the estimator does not know are left out. None
            for estimators without a target.
        features: The columns to learn from. Default: all columns of numbers but the target and the unit.
        account: The account to charge. Default: the estimator's own, if it has one.
        purpose: What the fit is for. The account keeps it.

    Returns:
        The fitted copy.

    Raises:
        InvalidParameterError: If a unit may have several rows, or a setting is wrong. Nothing is spent.
        BudgetExceededError: If the account cannot pay. Nothing is spent.
    """
    from sklearn.base import clone

    from sfumato.estimators.pricing import private_steps

    if table.contribution_bound != 1:
        raise InvalidParameterError(
            f"estimators protect one row, but a unit of this data may have {table.contribution_bound}. Open "
            "it with contribution_bound=1, or ask for statistics."
        )
    model: Any = clone(estimator)  # type: ignore[type-var]  # whatever scikit-learn can copy
    steps = private_steps(model)  # refuses what would learn without paying
    classes = next((step.public_classes() for step in steps if step.public_classes() is not None), None)
    rows = _Later(table, feature_columns(table, features, target), target, classes)
    for step in steps:
        step.set_params(**_terms(step, table, account, purpose))
    if any(Relation.parse(step.relation).replaces for step in steps):
        rows.keep_all()
    if len(steps) > 1:  # one alone asks all of this itself, before it is charged
        _require_payable(model, rows.facts(), account)
    return model.fit(rows.features()) if target is None else model.fit(rows.features(), rows.target())


def _require_payable(pipeline: Any, facts: PublicFacts, account: Account | None) -> None:
    """Refuse a pipeline of which some step could not be fitted or paid, before the first one is charged."""
    from sfumato.estimators.pricing import event_of, require_fitting

    require_fitting(pipeline, facts)
    if account is not None and not account.admits(event_of(pipeline)):
        raise BudgetExceededError(
            f"the steps of the pipeline together cost more than account {account.name!r} has left, of "
            f"{account.budget}. Give them smaller budgets, leave one out, or add budget with `sfumato "
            "ledger grant`. Nothing was spent, and the data was not touched."
        )


def _terms(step: Any, table: PrivateTable, account: Account | None, purpose: str | None) -> dict[str, Any]:
    """Return account, unit and relation, as far as an estimator takes them."""
    own: dict[str, Any] = {"privacy_unit": table.privacy_unit}
    if account is not None:  # an estimator may have one of its own
        own |= {"account": account, "relation": account.relation, "purpose": purpose}
    names = step.get_params(deep=False)
    return {name: value for name, value in own.items() if name in names}


def feature_columns(
    table: PrivateTable, features: Sequence[str] | None, target: str | None
) -> tuple[str, ...]:
    """Return the columns to learn from: those given, or all columns of numbers but the target and the unit.

    Args:
        table: The private rows. Only the schema is looked at.
        features: The columns, or None.
        target: The column to predict, or None.

    Returns:
        The names of the columns.

    Raises:
        ColumnTypeError: If there is no column of numbers.
    """
    if features is not None:
        return tuple(features)
    named: list[str] = []
    for name in table.schema:
        with suppress(ColumnTypeError):
            named += [table[name].name] if name not in (target, table.owned.unit) else []
    if not named:
        raise no_numbers(list(table.schema))
    return tuple(named)


class _Later:
    """Rows that are read when an estimator first asks for them, which is after it has paid."""

    def __init__(
        self, table: PrivateTable, features: tuple[str, ...], target: str | None, classes: Any
    ) -> None:
        labels = None if classes is None or target is None else classes.tolist()
        self._rows = table.rows(*features, *([] if target is None else [target]), classes=labels)
        self._classes = None if labels is None else classes
        self._width, self._target = len(features), target
        self._all = False
        self._read: Any = None

    def keep_all(self) -> None:
        """Keep rows with missing values, as NaN: their number is public where a neighbor replaces one."""
        if not self._rows.has_every_row():
            raise InvalidParameterError(
                "where neighbors replace a row, the number of rows is public, but how many a filter leaves, "
                "how many units have one, or how many lines of a CSV file can be read, is not. Fit with "
                "relation='add-remove', or make a Parquet file or a table without a filter, of one row a "
                "unit, and open it without privacy_unit."
            )
        self._all = True

    def facts(self) -> PublicFacts:
        """Return what is known before a row is read."""
        return PublicFacts.of(self.features(), None if self._target is None else self.target())

    def features(self) -> "_Part":
        """Return X."""
        return _Part(lambda: self._matrix()[:, : self._width], n_features=self._width)

    def target(self) -> "_Part":
        """Return y: numbers, or labels."""
        return _Part(self._labels)

    def _labels(self) -> Any:
        column = self._matrix()[:, self._width]
        if self._classes is None:
            return column
        if not self._all:
            return self._classes[column.astype(np.intp)]
        known = ~np.isnan(column)
        labels = np.full(len(column), None, dtype=object)  # which is no class
        labels[known] = self._classes[column[known].astype(np.intp)]
        return labels

    def _matrix(self) -> Any:
        """Read all rows, once."""
        if self._read is None:
            batches = list(self._rows.every_batch() if self._all else self._rows.batches())
            width = len(self._rows.names)
            self._read = np.concatenate(batches) if batches else np.zeros((0, width))
        return self._read


class _Part(ReadLater):
    """Some columns of rows that are read later, as numpy and scikit-learn take them."""

    def __init__(self, read: Callable[[], Any], *, n_features: int | None = None) -> None:
        self._read, self.n_features = read, n_features

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._read(), dtype=dtype)
