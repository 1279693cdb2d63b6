# SPDX-License-Identifier: Apache-2.0
"""Private data with a unit and a budget, to which every statistic, fit and training run is charged.

A ledger in a file or a database keeps the account. Without one the account lasts as long as the object: the
budget holds, and every release states that it was not recorded.

Guarantee  Every release is charged to one account before it is computed, for the unit and the relation that
           the data was opened with. A release that the budget does not cover is refused, and nothing is
           computed. All releases together stay within the budget (`ledger`).
Unit       A row, or the value of a column that names the unit of each row. At most `contribution_bound` rows
           of one unit count. Estimators take one row of a unit, so `fit` needs a bound of 1.
Failure    No row is read before it is charged: whether rows can be read may depend on their values.
"""

import os
from collections.abc import Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from sfumato import statistics
from sfumato.accounting.guarantee import Guarantee, Relation
from sfumato.errors import InvalidParameterError
from sfumato.ledger import Account, Budget, Ledger
from sfumato.ledger.statement import Statement
from sfumato.private.column_methods import of_categories, of_column, of_rows
from sfumato.private.estimator_rows import fit
from sfumato.private.query_methods import (
    agg,
    group_by,
    join,
    join_by_unit,
    keys,
    left,
    left_out_share,
    mutate,
    ranges,
    sql,
)
from sfumato.private.synthetic_rows import synthesize
from sfumato.private.views import data_view
from sfumato.private.voting_rows import pate
from sfumato.statistics.query import Query
from sfumato.statistics.release import Release
from sfumato.statistics.sources.schema import Types
from sfumato.statistics.sources.tables import PrivateTable, private_table

if TYPE_CHECKING:  # torch is loaded when something is trained
    from torch import nn

    from sfumato.accounting.plan import Plan
    from sfumato.training.description import Optimization, Privacy, RunKeywords, Storage
    from sfumato.training.run import TrainingRun
    from sfumato.training.run_audit import RunAudit
    from sfumato.training.runtime import Runtime

__all__ = ["PrivateData", "open"]

Answered = TypeVar("Answered")
# Fixed by how the data was opened. A sampler of a fixed size would fail on data of another size.
_OWN = ("account", "relation", "privacy_unit", "owners", "contribution_bound", "mechanism", "sampling")
Estimator = TypeVar("Estimator")


class PrivateData:
    """Private data with its account; get one with `sfumato.open`.

    The methods for statistics take the arguments of the function of the same name in `sfumato.statistics`,
    with the name of a column (or a list of names) in place of the values. The account and the relation are
    those of this data.

    Args:
        table: The private rows.
        account: The account that every release is charged to.
    """

    def __init__(self, table: PrivateTable, account: Account) -> None:
        self.table = table
        self.account = account

    def __repr__(self) -> str:
        return f"<PrivateData {self.account.name!r}, {self.account.spent()} spent; {self.table!r}>"

    _repr_html_ = data_view
    sum = of_column(statistics.sum)
    mean = of_column(statistics.mean)
    variance = of_column(statistics.variance)
    standard_deviation = of_column(statistics.standard_deviation)
    clipped_share = of_column(statistics.clipped_share)
    median = of_column(statistics.median)
    quantile = of_column(statistics.quantile)
    quantiles = of_column(statistics.quantiles)
    bounds = of_column(statistics.bounds)
    first_above = of_column(statistics.first_above)
    coinpress_mean = of_column(statistics.coinpress_mean)
    karwa_vadhan_mean = of_column(statistics.karwa_vadhan_mean)
    top_k = of_categories(statistics.top_k)
    stable_histogram = of_categories(statistics.stable_histogram)
    covariance = of_rows(statistics.covariance)
    correlation = of_rows(statistics.correlation)
    principal_components = of_rows(statistics.principal_components)
    coinpress_means = of_rows(statistics.coinpress_means)
    coinpress_covariance = of_rows(statistics.coinpress_covariance)

    @wraps(statistics.histogram)
    def histogram(self, column: str, **terms: Any) -> Release[statistics.Histogram]:
        """Count the rows of each bin (`edges`), or of each category (`categories`)."""
        named = terms.get("categories") is not None
        values = self.table.categories(column) if named else self.table[column]
        return statistics.histogram(values, **terms, **self.charged())

    def count(
        self, *, epsilon: float, delta: float = 0.0, level: float = 0.95, purpose: str | None = None
    ) -> Release[float]:
        """Count the rows.

        Args:
            epsilon: The privacy budget of this release.
            delta: The delta of this release. 0 for pure differential privacy.
            level: The confidence level of the interval.
            purpose: What the release is for. The account keeps it.

        Returns:
            The release, with the count, its interval and its guarantee.

        Raises:
            BudgetExceededError: If the budget does not cover the release. Nothing is spent.
        """
        relation = self.account.relation
        return self.release(
            self.table.count(epsilon=epsilon, delta=delta, relation=relation, level=level), purpose=purpose
        )

    left_out_share = left_out_share
    keys = keys
    mutate = mutate
    join = join
    join_by_unit = join_by_unit
    group_by = group_by
    agg = agg
    sql = sql
    ranges = ranges
    left = left

    def filter(self, *predicates: Any) -> "PrivateData":
        """Return the rows for which predicates hold, with the same account.

        Args:
            *predicates: Conditions on one row, such as `data.table["age"] > 18`.

        Returns:
            The filtered data. Nothing is read or charged yet.

        Raises:
            UnsupportedUseError: If a predicate could look at other rows, or fail on some value.
        """
        return PrivateData(self.table.filter(*predicates), self.account)

    def release(self, query: Query[Answered], *, purpose: str | None = None) -> Release[Answered]:
        """Charge and compute a query of `table`, such as `table.group_by(...).mean(...)`.

        Args:
            query: The query.
            purpose: What the release is for. The account keeps it.

        Returns:
            The release, with its value, its interval and its guarantee.

        Raises:
            BudgetExceededError: If the budget does not cover the release. Nothing is spent.
        """
        return query.release(account=self.account, purpose=purpose)

    # --- models -------------------------------------------------------------------------------------------

    pate = pate
    synthesize = synthesize

    def fit(
        self,
        estimator: Estimator,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        purpose: str | None = None,
    ) -> Estimator:
        """Return a copy of an estimator of `sfumato.estimators`, or of a pipeline, fitted and charged.

        Args:
            estimator: The estimator or the pipeline. It is not changed.
            target: The column to predict, or None.
            features: The columns to learn from. Default: all columns of numbers but the target and the unit.
            purpose: What the fit is for. The account keeps it.

        Returns:
            The fitted copy.

        Raises:
            InvalidParameterError: If a unit may have several rows, or a setting is wrong. Nothing is spent.
            BudgetExceededError: If the budget does not cover the fit. Nothing is spent.
        """
        return fit(
            self.table, estimator, target=target, features=features, account=self.account, purpose=purpose
        )

    def train(
        self,
        model: "nn.Module",
        *,
        features: Sequence[str],
        target: str,
        classes: int | Sequence[Any] | None,
        privacy: "Privacy | Plan | None" = None,
        optimization: "Optimization | None" = None,
        evaluation: Any = None,
        storage: "Storage | None" = None,
        audit: "RunAudit | None" = None,
        runtime: "Runtime | None" = None,
        resume: bool = False,
        **keywords: "Unpack[RunKeywords]",
    ) -> "TrainingRun":
        """Train a torch model on columns of numbers, in place, charged to the account of this data.

        A unit is an owner of up to `contribution_bound` rows. Relation, privacy unit and account are those of
        this data. Rows are read after the run is charged.

        Args:
            model: A torch module.
            features: The columns that become one float32 row.
            target: The column of labels, or of numbers.
            classes: The number of classes, for labels from 0 to `classes` - 1; or the list of labels, of any
                type, whose places in the list are learned. Rows with another label are left out. None: the
                target is a number, passed as float32.
            privacy: What is claimed, or what `sfumato.plan` returned.
            optimization: How the model is optimized.
            evaluation: Data that is NOT protected, or an `Evaluation`.
            storage: Where checkpoints, metrics and weights are kept.
            audit: `sfumato.audit.Canaries(count=1000)` to audit the run from within.
            runtime: Device, engine and memory.
            resume: Whether to continue the run in the folder instead of starting one.
            **keywords: Any field of these descriptions, as in `sfumato.train`, such as `epsilon`.

        Returns:
            The run, with the trained model and its guarantee.

        Raises:
            InvalidParameterError: If a setting is missing, unknown or out of range. Nothing is spent.
            BudgetExceededError: If the budget does not cover the run. Nothing is spent.
        """
        from sfumato import training
        from sfumato.private.training_rows import training_rows

        described = () if not isinstance(privacy, training.Privacy) else _OWN
        given = [name for name in _OWN if name in keywords]
        given += [name for name in described if getattr(privacy, name, None) is not None]
        if given:
            raise InvalidParameterError(
                f"{', '.join(given)} is fixed by how the data was opened. Leave it out, or build a Trainer "
                "with account=data.account."
            )
        rows = training_rows(self.table, tuple(features), target, classes)
        own: RunKeywords = {
            "contribution_bound": self.table.contribution_bound if rows.by_owner else None,
            "relation": self.account.relation,
            "privacy_unit": self.account.privacy_unit,
            "account": self.account,
            "purpose": keywords.get("purpose") or "training of a network",
        }
        return training.train(
            model,
            rows,
            privacy=privacy,
            optimization=optimization,
            evaluation=evaluation,
            storage=storage,
            audit=audit,
            runtime=runtime,
            resume=resume,
            **{**keywords, **own},
        )

    # --- the account --------------------------------------------------------------------------------------

    @property
    def budget(self) -> Budget:
        """The budget, grants included."""
        return self.account.budget

    def spent(self) -> Guarantee:
        """Return what all releases together cost.

        Returns:
            The guarantee of everything that was released.
        """
        return self.account.spent()

    def statement(self) -> Statement:
        """Return the statement for an auditor.

        Returns:
            All releases with their cost, in words and as JSON.
        """
        return self.account.statement()

    def charged(self) -> dict[str, Any]:
        """Return the account and the relation, as arguments of a statistic.

        Returns:
            The arguments.
        """
        return {"account": self.account, "relation": self.account.relation}


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
    """Open private data with its privacy unit and its budget, which hold for everything asked of it.

    Args:
        name: The name of the account.
        data: A path, a frame, a database or an Ibis table, as `statistics.private_table` takes it.
        privacy_unit: The column that names the unit of each row. Default: each row is a unit.
        contribution_bound: How many rows of one unit count.
        budget: The budget of a new account. An account in the ledger already has its own.
        ledger: A ledger, a file, or a database address. Default: an account that lasts as long as the object.
        relation: Which data sets are neighbors. Default: add-remove.
        types: The types of columns, as {"age": "number"}. Columns of a CSV file are text otherwise.
        table: The name of the table in a database.
        engine: The Ibis backend to use. Default: DuckDB.

    Returns:
        The private data.

    Raises:
        InvalidParameterError: If a setting is missing or wrong. Nothing is read.

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
