# SPDX-License-Identifier: Apache-2.0
"""The door: private data with a unit and a budget, to which every question, fit and training run is charged.

Guarantee  Whatever is asked through the door is charged to one account before it is computed, for the unit
           and the relation that the door was opened with; what the budget does not cover is refused, with
           nothing computed. All of it together is within the budget (`ledger`).
Unit       A row, or a column that names the unit of each row. Of one unit at most `contribution_bound` rows
           ever count. Estimators take one row a unit, so `fit` needs a bound of 1.
Ledger     A file or a database keeps the account. Without one it lasts as long as the object: the budget
           holds, nothing is left behind, and every release says that it was not recorded.
Rows       No row is read before it is paid for: whether rows can be read at all may tell what they hold.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from sfumato import statistics
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import ColumnTypeError, InvalidParameterError, QueryFailedError
from sfumato.ledger import Account, Budget, Ledger
from sfumato.ledger.statement import Statement
from sfumato.statistics.columns.table_columns import TableRows
from sfumato.statistics.query import Query
from sfumato.statistics.release import Release
from sfumato.statistics.sources.schema import Types, no_numbers
from sfumato.statistics.sources.tables import PrivateTable, private_table

__all__ = ["PrivateData", "fit", "open"]

Arguments = ParamSpec("Arguments")
Answered = TypeVar("Answered")
Estimator = TypeVar("Estimator")


def _of_column(
    function: Callable[Concatenate[Any, Arguments], Answered],
) -> Callable[Concatenate["PrivateData", str, Arguments], Answered]:
    """Return a method that asks a function of `statistics` about a column of numbers."""

    @wraps(function)
    def method(
        self: "PrivateData", column: str, *args: Arguments.args, **terms: Arguments.kwargs
    ) -> Answered:
        return function(self.table[column], *args, **terms, **self._charged())  # type: ignore[arg-type]

    return method


def _of_categories(
    function: Callable[Concatenate[Any, Arguments], Answered],
) -> Callable[Concatenate["PrivateData", str, Arguments], Answered]:
    """Return a method that asks a function of `statistics` about a column of categories."""

    @wraps(function)
    def method(
        self: "PrivateData", column: str, *args: Arguments.args, **terms: Arguments.kwargs
    ) -> Answered:
        return function(self.table.categories(column), *args, **terms, **self._charged())  # type: ignore[arg-type]

    return method


def _of_rows(
    function: Callable[Concatenate[Any, Arguments], Answered],
) -> Callable[Concatenate["PrivateData", Sequence[str], Arguments], Answered]:
    """Return a method that asks a function of `statistics` about several columns."""

    @wraps(function)
    def method(
        self: "PrivateData", columns: Sequence[str], *args: Arguments.args, **terms: Arguments.kwargs
    ) -> Answered:
        return function(self.table.rows(*columns), *args, **terms, **self._charged())  # type: ignore[arg-type]

    return method


class PrivateData:
    """Private data behind its account; get one with `sfumato.open`.

    Every method that asks takes the arguments of the function of its name in `sfumato.statistics`, with the
    name of a column in place of the values; the account and the relation are the door's own.
    """

    def __init__(self, table: PrivateTable, account: Account) -> None:
        self.table = table
        self.account = account

    def __repr__(self) -> str:
        return f"<PrivateData {self.account.name!r}, {self.account.spent()} spent; {self.table!r}>"

    sum = _of_column(statistics.sum)
    mean = _of_column(statistics.mean)
    variance = _of_column(statistics.variance)
    standard_deviation = _of_column(statistics.standard_deviation)
    clipped_share = _of_column(statistics.clipped_share)
    median = _of_column(statistics.median)
    quantile = _of_column(statistics.quantile)
    quantiles = _of_column(statistics.quantiles)
    bounds = _of_column(statistics.bounds)
    first_above = _of_column(statistics.first_above)
    coinpress_mean = _of_column(statistics.coinpress_mean)
    karwa_vadhan_mean = _of_column(statistics.karwa_vadhan_mean)
    top_k = _of_categories(statistics.top_k)
    stable_histogram = _of_categories(statistics.stable_histogram)
    covariance = _of_rows(statistics.covariance)
    correlation = _of_rows(statistics.correlation)
    principal_components = _of_rows(statistics.principal_components)
    coinpress_means = _of_rows(statistics.coinpress_means)
    coinpress_covariance = _of_rows(statistics.coinpress_covariance)

    @wraps(statistics.histogram)
    def histogram(self, column: str, **terms: Any) -> Release[statistics.Histogram]:
        """Count the rows of each bin (`edges`), or of each category (`categories`)."""
        named = terms.get("categories") is not None
        values = self.table.categories(column) if named else self.table[column]
        return statistics.histogram(values, **terms, **self._charged())

    def count(
        self, *, epsilon: float, delta: float = 0.0, level: float = 0.95, purpose: str | None = None
    ) -> Release[float]:
        """Count the rows."""
        relation = self.account.relation
        return self.release(
            self.table.count(epsilon=epsilon, delta=delta, relation=relation, level=level), purpose=purpose
        )

    def left_out_share(
        self,
        *,
        epsilon: float,
        most_rows: int | None = None,
        delta: float = 0.0,
        level: float = 0.95,
        purpose: str | None = None,
    ) -> Release[float | None]:
        """Find which share of the rows `contribution_bound` leaves out (`PrivateTable.left_out_share`)."""
        query = self.table.left_out_share(
            epsilon=epsilon,
            most_rows=most_rows,
            delta=delta,
            relation=self.account.relation,
            level=level,
        )
        return self.release(query, purpose=purpose)

    def keys(
        self, *columns: str, epsilon: float, delta: float, purpose: str | None = None
    ) -> Release[list[Any]]:
        """Find the keys of columns that many units have."""
        query = self.table.keys(*columns, epsilon=epsilon, delta=delta, relation=self.account.relation)
        return self.release(query, purpose=purpose)

    def filter(self, *predicates: Any) -> "PrivateData":
        """Return the rows for which predicates hold, behind the same account."""
        return PrivateData(self.table.filter(*predicates), self.account)

    def release(self, query: Query[Answered], *, purpose: str | None = None) -> Release[Answered]:
        """Charge and compute a query of `table`, such as `table.group_by(...).mean(...)`."""
        return query.release(account=self.account, purpose=purpose)

    # --- models -------------------------------------------------------------------------------------------

    def fit(
        self,
        estimator: Estimator,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        purpose: str | None = None,
    ) -> Estimator:
        """Return a copy of an estimator of `sfumato.estimators`, or a pipeline of them, fitted and charged.

        `features` are all columns of numbers but the target and the unit, unless they are named.
        """
        return fit(
            self.table, estimator, target=target, features=features, account=self.account, purpose=purpose
        )

    def train(
        self,
        model: Any,
        *,
        features: Sequence[str],
        target: str,
        classes: int | Sequence[Any] | None,
        public_size: int,
        expected_batch_size: float,
        epsilon: float | None = None,
        delta: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        noise_multiplier: float | None = None,
        clip_norm: float | None = None,
        loss: Any = None,
        learning_rate: float | None = None,
        optimizer: Any = None,
        evaluation: Any = None,
        purpose: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        progress: bool = True,
        runtime: Any = None,
    ) -> Any:
        """Train a torch model on columns of numbers, in place; return the run (`sfumato.train`).

        `features` come as one float32 row, `target` as a label from 0 to `classes` - 1: rows with any other
        are left out. `classes` may also list the labels themselves, of any type, and their places in the list
        are learned; without classes (None) the target comes as float32. A unit is an owner of up to
        `contribution_bound` rows. For anything else build a `Trainer` with `account=data.account`.
        """
        from sfumato import training

        rows = _deferred(self.table, tuple(features), target, classes)
        return training.train(
            model,
            rows,
            contribution_bound=self.table.contribution_bound if rows.by_owner else None,
            public_size=public_size,
            expected_batch_size=expected_batch_size,
            epsilon=epsilon,
            delta=delta,
            epochs=epochs,
            steps=steps,
            noise_multiplier=noise_multiplier,
            clip_norm=clip_norm,
            loss=training.cross_entropy if loss is None else loss,
            learning_rate=learning_rate,
            optimizer=optimizer,
            evaluation=evaluation,
            relation=self.account.relation,
            privacy_unit=self.account.privacy_unit,
            account=self.account,
            purpose=purpose or "training of a network",
            folder=folder,
            progress=progress,
            runtime=runtime,
        )

    # --- the account --------------------------------------------------------------------------------------

    @property
    def budget(self) -> Budget:
        """The budget, grants included."""
        return self.account.budget

    def spent(self) -> Guarantee:
        """Return what all releases together promise."""
        return self.account.spent()

    def statement(self) -> Statement:
        """Return the paragraph for an auditor."""
        return self.account.statement()

    def _charged(self) -> dict[str, Any]:
        return {"account": self.account, "relation": self.account.relation}


def fit(
    table: PrivateTable,
    estimator: Estimator,
    *,
    target: str | None = None,
    features: Sequence[str] | None = None,
    account: Account | None = None,
    purpose: str | None = None,
) -> Estimator:
    """Return a copy of an estimator, or a pipeline, fitted to a table for its unit; charged, if it can be.

    `features` are all columns of numbers but the target and the unit, unless they are named. A target of
    classes may be of any type that the estimator's `classes` have; rows with another label are left out.
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
    rows = _Later(table, _features(table, features, target), target, classes)
    for step in steps:
        step.set_params(**_terms(step, table, account, purpose))
    if any(Relation.parse(step.relation).replaces for step in steps):
        rows.keep_all()
    return model.fit(rows.features()) if target is None else model.fit(rows.features(), rows.target())


def _terms(step: Any, table: PrivateTable, account: Account | None, purpose: str | None) -> dict[str, Any]:
    """Return account, unit and relation, as far as an estimator takes them."""
    own: dict[str, Any] = {"privacy_unit": table.privacy_unit}
    if account is not None:  # an estimator may have one of its own
        own |= {"account": account, "relation": account.relation, "purpose": purpose}
    names = step.get_params(deep=False)
    return {name: value for name, value in own.items() if name in names}


def _features(table: PrivateTable, features: Sequence[str] | None, target: str | None) -> tuple[str, ...]:
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
        self._width = len(features)
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

    def features(self) -> "_Part":
        """Return X."""
        return _Part(lambda: self._matrix()[:, : self._width])

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


class _Part:
    """Some columns of rows that are read later, as numpy and scikit-learn take them."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._read(), dtype=dtype)


def _required(classes: Any) -> list[Any]:
    """Return the labels of classes, if they are a list of different ones."""
    listed = isinstance(classes, list | tuple | np.ndarray)
    if not listed or len(classes) < 2 or len(set(map(str, classes))) < len(classes):
        raise InvalidParameterError(
            "classes must be a number of classes, or a list of two or more different labels, in order: "
            "classes=['no', 'yes']."
        )
    return list(classes)


def _deferred(
    table: PrivateTable, features: tuple[str, ...], target: str, classes: int | Sequence[Any] | None
) -> Any:
    """Return the rows of a table as a training run takes them, once it is paid for."""
    import torch

    from sfumato.training.data.units import Deferred

    label = torch.float32 if classes is None else torch.int64
    if classes is None or (isinstance(classes, int | np.integer) and not isinstance(classes, bool)):
        rows = table.rows(*features, target)
    else:
        labels = _required(classes)
        rows, classes = table.rows(*features, target, classes=labels), len(labels)
    return Deferred(
        blank=(torch.zeros(0, len(features)), torch.zeros(0, dtype=label)),
        read=lambda: _read(rows, classes),
        by_owner=table.owned.unit is not None,
    )


def _read(rows: TableRows, classes: int | None) -> tuple[tuple[Any, Any], Any]:
    """Return features and targets, and the owner of each row, or raise without quoting what was read."""
    import torch

    try:
        matrix, owners = rows.read()
        known = np.isfinite(matrix).all(1)
        if classes is not None:  # a loss would quote any other label
            known &= np.isin(matrix[:, -1], np.arange(classes))
        matrix = matrix[known]
        with np.errstate(all="ignore"):
            x = torch.from_numpy(matrix[:, :-1].astype(np.float32))
            y = torch.from_numpy(matrix[:, -1].astype(np.float32 if classes is None else np.int64))
        return (x, y), None if owners is None else torch.from_numpy(owners[known])
    except Exception:  # of an engine or a file: its message and its class may tell what it read
        pass  # and is raised below, so that our error does not carry theirs along
    raise QueryFailedError(
        "the rows to train on could not be read. What was reserved for the run stays spent. Check that the "
        "columns exist and are numbers, and the engine's own log."
    )


def open(
    name: str,
    data: Any,
    *,
    privacy_unit: str | None = None,
    contribution_bound: int = 1,
    budget: Budget | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    relation: Relation | str | None = None,
    types: Types | None = None,
    table: str | None = None,
    engine: Any = None,
) -> PrivateData:
    """Open private data: the unit and the budget are stated here, once, for everything that is asked of it.

    `data` is whatever `statistics.private_table` takes: a path, a frame, a database, an Ibis table. `types`
    declares what columns are, `{"age": "number"}`: in a CSV file every other one is text.
    `privacy_unit` names the column that says whose a row is; None: each row is a unit. `budget` is needed
    for a new account; one that is in the `ledger` already has its own.

    >>> import pandas as pd
    >>> from sfumato import Budget
    >>> people = pd.DataFrame({"age": [20.0, 30.0, 40.0] * 100})
    >>> clients = open("people", people, budget=Budget(epsilon=1, delta=1e-6))
    >>> release = clients.mean("age", bounds=(0, 100), epsilon=0.5)
    >>> print(clients.spent())
    (0.5, 1e-06)-differential privacy for one row, add-remove neighbors
    """
    rows = private_table(
        data,
        privacy_unit=privacy_unit,
        contribution_bound=contribution_bound,
        types=types,
        table=table,
        engine=engine,
    )
    account = _ledger(ledger).open(name, privacy_unit=rows.privacy_unit, budget=budget, relation=relation)
    return PrivateData(rows, account)


def _ledger(ledger: Ledger | str | os.PathLike[str] | None) -> Ledger:
    if ledger is None:
        return Ledger.temporary()
    return ledger if isinstance(ledger, Ledger) else Ledger(ledger)
